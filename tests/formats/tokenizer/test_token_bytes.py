from __future__ import annotations

import pytest
import words

from localspec.formats.tokenizer.token_bytes import Extensions


def test_shared_tokens_are_those_with_the_same_bytes() -> None:
    of_target, of_draft = words.translation().shared
    assert of_target.tolist() == [0, 1, 2, 3]  # a b c ab
    assert of_draft.tolist() == [2, 0, 1, 4]


def test_duplicate_bytes_count_once_and_empty_ones_do_not() -> None:
    found = words.translation((b"a", b"", b"b", b"a", None), (b"b", b"a", b"", b"a", b"b")).shared
    assert [tokens.tolist() for tokens in found] == [[0, 2], [1, 0]]


def test_of_two_equal_special_tokens_the_encoded_one_is_shared() -> None:
    of_target = (b"\xffend\xff", b"a", b"\xffend\xff")
    found = words.translation(of_target, (b"a", b"\xffend\xff"))
    assert [tokens.tolist() for tokens in found.shared] == [[1, 2], [0, 1]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"b", [4]),  # bc, which the draft writes as b and c
        (b"c", []),  # cab: the draft would write ca, so no token of it ends after c
        (b"ca", [5]),
        (b"a", []),  # ab is a token of the draft too
        (b"x", []),
    ],
)
def test_longer_tokens_that_the_other_vocabulary_splits(text: bytes, expected: list[int]) -> None:
    found = Extensions(words.vocabulary(words.OF_TARGET), words.vocabulary(words.OF_DRAFT))
    assert found.tokens_after(text) == expected


def test_openness_follows_zipfs_law() -> None:
    found = Extensions(words.vocabulary(words.OF_TARGET), words.vocabulary(words.OF_DRAFT))
    assert found.openness([1]) == pytest.approx((1 / 5) / (1 / 5 + 1 / 2))
    assert found.openness([2, 0]) == pytest.approx((1 / 6) / (1 / 6 + 1 / 3))
    assert found.openness([0]) == 0


def test_tokens_beyond_the_vocabulary_have_no_bytes() -> None:
    found = words.vocabulary((b"a", None, b""))
    assert [found.bytes_of(token) for token in range(5)] == [b"a", b"", b"", b"", b""]
    assert [found.is_expressible(token) for token in range(5)] == [True, False, True, False, False]
