"""Vectors of voices are grouped by speaker."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.cluster import hierarchy

from localspec.speech.diarization import clustering

WIDTH = 32


def voices(counts: list[int], spread: float = 0.1, seed: int = 0) -> tuple[NDArray[np.float32], list[int]]:
    """Return vectors around a direction for each speaker, and whose they are."""
    dice = np.random.default_rng(seed)
    owners = [speaker for speaker, count in enumerate(counts) for _ in range(count)]
    vectors = np.eye(len(counts), WIDTH)[owners] + dice.normal(scale=spread, size=(len(owners), WIDTH))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), owners


def grouped(
    vectors: NDArray[np.float32], speakers: tuple[int, int] | None, seconds: float = 2.0
) -> list[int]:
    found = clustering.centers(vectors, np.full(len(vectors), seconds), speakers)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    return [int(at) for at in (vectors @ found.T).argmax(axis=1)]


def same_groups(one: list[int], other: list[int]) -> bool:
    pairs = set(zip(one, other, strict=True))
    return len(pairs) == len(set(one)) == len(set(other))


@pytest.mark.parametrize("count", [1, 2, 3, 40, 150])
def test_the_merges_are_those_of_scipy(count: int) -> None:
    vectors, _ = voices([count, max(1, count // 2)], spread=0.3, seed=count)
    expected = hierarchy.linkage(vectors.astype(np.float64), "average", metric="cosine")
    found = clustering.linkage(vectors)
    np.testing.assert_allclose([height for _, _, height in found], expected[:, 2], atol=1e-6)
    for groups in {1, 2, 3, 7} & set(range(len(vectors) + 1)):
        own = clustering._groups(found, len(vectors), groups)
        assert same_groups(list(own), list(hierarchy.fcluster(expected, groups, "maxclust")))


def test_one_vector_is_one_speaker() -> None:
    assert grouped(voices([1])[0], None) == [0]
    assert grouped(voices([1])[0], (2, 2)) == [0]


@pytest.mark.parametrize("counts", [[9], [20, 20], [60, 10], [30, 20, 10], [12, 11, 10, 9, 8]])
@pytest.mark.parametrize("given", [True, False])
def test_speakers_are_told_apart(counts: list[int], given: bool) -> None:
    vectors, owners = voices(counts)
    assert same_groups(grouped(vectors, (len(counts), len(counts)) if given else None), owners)


@pytest.mark.parametrize(
    ("speakers", "expected"),
    [((1, 2), 2), ((1, 1), 1), ((1, 8), 3), ((4, 8), 4), ((3, 3), 3), ((500, 500), 60)],
)
def test_their_number_lies_within_the_limits(speakers: tuple[int, int], expected: int) -> None:
    vectors, _ = voices([20, 20, 20])
    assert len(clustering.centers(vectors, np.full(60, 2.0), speakers)) == expected


def test_a_stray_voice_is_no_speaker() -> None:
    vectors, owners = voices([40, 40, 1])
    for speakers in ((2, 2), None):
        assert same_groups(grouped(vectors, speakers)[:80], owners[:80])
        assert len(set(grouped(vectors, speakers))) == 2


def test_long_recordings_are_drawn_from() -> None:
    vectors, owners = voices([6000, 3000], spread=0.15)
    assert same_groups(grouped(vectors, None), owners)
