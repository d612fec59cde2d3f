"""Group vectors of voices by speaker."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SIMILAR = 0.4  # the mean cosine of two groups of one speaker; tuned on flite and LibriVox voices
MOST = 2000  # vectors that are grouped; more are drawn from evenly
LEAST = 4.0  # seconds of windows, which overlap: a smaller group is no speaker of its own
SHARE = 0.005  # of all windows: the same for long recordings
ROUNDS = 3  # of moving vectors to the nearest center
SPLITS = 200  # further groups, at most, until enough of them are large

Vectors = NDArray[np.float32]


def centers(vectors: Vectors, seconds: NDArray[np.float64], speakers: tuple[int, int] | None) -> Vectors:
    """Return the direction of each speaker [speakers, width] from vectors of length 1 and their seconds.

    Agglomerative clustering with average linkage and cosine distance; groups that are too small go to the
    nearest one. Their number lies within `speakers`, where so many vectors exist; None: any. Needs a vector.
    """
    if len(vectors) > MOST:
        drawn = np.linspace(0, len(vectors) - 1, MOST).astype(int)
        vectors, seconds = vectors[drawn], seconds[drawn] * len(vectors) / MOST
    merges = linkage(vectors)
    least = max(LEAST, SHARE * float(seconds.sum()))
    groups = _groups(merges, len(vectors), sum(height > 1 - SIMILAR for _, _, height in merges) + 1)
    found = _large(groups, seconds, least)[: speakers[1] if speakers else None]
    if speakers and not speakers[0] <= len(_large(groups, seconds, least)) <= speakers[1]:
        wanted = min(speakers[0] if len(found) < speakers[0] else speakers[1], len(vectors))
        groups, found = _exactly(merges, seconds, wanted, least)
    return _settled(vectors, seconds, np.stack([_mean(vectors, seconds, groups == group) for group in found]))


def linkage(vectors: Vectors) -> list[tuple[int, int, float]]:
    """Return the merges of average linkage, nearest first: a member of each group, and their mean distance.

    The nearest-neighbour chain algorithm (Murtagh 1983), with the update of Lance and Williams (1967).
    """
    distance = 1 - vectors.astype(np.float64) @ vectors.T.astype(np.float64)
    np.fill_diagonal(distance, np.inf)
    sizes = np.ones(len(vectors))
    merges: list[tuple[int, int, float]] = []
    chain: list[int] = []
    while len(merges) < len(vectors) - 1:
        if not chain:
            chain = [int(np.flatnonzero(sizes)[0])]
        last = chain[-1]
        nearest = int(distance[last].argmin())
        if len(chain) > 1 and distance[last, chain[-2]] <= distance[last, nearest]:
            nearest = chain[-2]
        if len(chain) < 2 or nearest != chain[-2]:
            chain.append(nearest)
            continue
        del chain[-2:]
        merges.append((nearest, last, float(distance[nearest, last])))
        total = sizes[nearest] + sizes[last]
        joined = (sizes[nearest] * distance[nearest] + sizes[last] * distance[last]) / total
        sizes[nearest], sizes[last] = total, 0
        joined[nearest] = np.inf
        distance[nearest], distance[:, nearest] = joined, joined
        distance[last], distance[:, last] = np.inf, np.inf
    return sorted(merges, key=lambda merge: merge[2])


def _groups(merges: list[tuple[int, int, float]], count: int, wanted: int) -> NDArray[np.intp]:
    """Return the group of each of `count` vectors, after merges until `wanted` groups are left."""
    parent = list(range(count))

    def root(member: int) -> int:
        while parent[member] != member:
            parent[member] = parent[parent[member]]
            member = parent[member]
        return member

    for one, other, _ in merges[: max(0, count - wanted)]:
        parent[root(other)] = root(one)
    return np.array([root(member) for member in range(count)])


def _large(groups: NDArray[np.intp], seconds: NDArray[np.float64], least: float) -> list[int]:
    """Return the groups that are large enough, the largest first; if none is, the largest one."""
    totals = np.bincount(groups, weights=seconds)
    order = [int(group) for group in np.argsort(-totals, kind="stable") if totals[group] > 0]
    return [group for group in order if totals[group] >= least] or order[:1]


def _exactly(
    merges: list[tuple[int, int, float]], seconds: NDArray[np.float64], wanted: int, least: float
) -> tuple[NDArray[np.intp], list[int]]:
    """Return the groups that leave `wanted` large ones, and these; without such groups, just so many."""
    count = len(seconds)
    for number in range(wanted, min(count, wanted + SPLITS) + 1):
        groups = _groups(merges, count, number)
        found = _large(groups, seconds, least)
        if len(found) >= wanted:
            return groups, found[:wanted]
    groups = _groups(merges, count, wanted)
    return groups, _large(groups, seconds, 0.0)[:wanted]


def _settled(vectors: Vectors, seconds: NDArray[np.float64], centers: Vectors) -> Vectors:
    """Return the centers after each vector has gone to its nearest one a few times."""
    for _ in range(ROUNDS):
        nearest = (vectors @ centers.T).argmax(axis=1)
        centers = np.stack(
            [
                _mean(vectors, seconds, nearest == at) if (nearest == at).any() else center
                for at, center in enumerate(centers)
            ]
        )
    return centers


def _mean(vectors: Vectors, seconds: NDArray[np.float64], chosen: NDArray[np.bool_]) -> Vectors:
    """Return the direction of the chosen vectors' sum, each as heavy as it is long."""
    total: Vectors = (vectors[chosen] * seconds[chosen, None]).sum(axis=0).astype(np.float32)
    return total / np.float32(max(float(np.linalg.norm(total)), 1e-9))
