from __future__ import annotations

from itertools import pairwise

import pytest
import words
from hypothesis import given
from hypothesis import strategies as st

from localspec.drafters.universal.alignment import (
    Alignment,
    Continuation,
    TokenizedText,
    between_words,
    whole,
)
from localspec.formats.tokenizer.token_bytes import Translation

LETTERS = words.translation()
SPACED = words.translation((b" ", b"\n", b"a", b"b", b" a", b"\n ", b"ab"), (b" ", b"\n", b"a", b"b", b" ab"))
token = st.integers(0, 5)
edits = st.lists(st.tuples(st.integers(0, 30), st.lists(token, max_size=9), st.lists(token, max_size=4)))


def spelled(translation: Translation, tokens: list[int]) -> bytes:
    return b"".join(map(translation.target.bytes_of, tokens))


@pytest.mark.parametrize("translation", [LETTERS, SPACED], ids=["letters", "spaced"])
@given(edits)
def test_the_draft_reads_the_targets_text_after_any_edit(
    translation: Translation, changes: list[tuple[int, list[int], list[int]]]
) -> None:
    found, text = Alignment(translation), list[int]()
    for kept, added, drafted in changes:
        text = text[:kept] + added
        found.follow(text)
        assert bytes(found.draft.text) == bytes(found.target.text) == spelled(translation, text)
        assert b"".join(map(translation.draft.bytes_of, found.draft.tokens)) == spelled(translation, text)
        assert found.draft.ends[-1:] in ([], [len(found.draft.text)])
        for guess in drafted:
            found.extend(guess % len(translation.draft.token_bytes))


@given(st.text("ab \n", max_size=40), st.lists(st.integers(1, 5), max_size=40))
def test_a_text_that_grows_is_cut_as_a_whole_one(text: str, sizes: list[int]) -> None:
    tokens = SPACED.target.encode(text.encode())
    found, at = Alignment(SPACED), 0
    for size in sizes:
        found.follow(tokens[: at + size])
        at += size
    found.follow(tokens)
    assert found.draft.tokens == SPACED.draft.encode(text.encode())


def test_what_the_draft_wrote_stays_where_the_target_agreed() -> None:
    found = Alignment(LETTERS)
    found.follow([0])  # a
    for own in (0, 2, 0):  # b, a, b, though it would cut `ab` as one
        found.extend(own)
    found.follow([0, 1, 0])
    assert (found.draft.tokens, found.anew) == ([2, 0, 2], 0)
    found.follow([0, 1, 0, 2])
    assert bytes(found.draft.text) == b"abac"
    assert found.anew > 0


def test_the_draft_may_put_a_longer_token_in_place_of_its_last() -> None:
    found = Alignment(LETTERS)
    found.follow([1, 2])  # bc
    assert found.draft.tokens == [0, 1]
    found.extend(3, 1)  # ca
    assert (found.draft.tokens, bytes(found.draft.text)) == ([0, 3], b"bca")
    assert bytes(found.target.text) == b"bc"


def test_first_tokens_of_the_draft_stay_first() -> None:
    found = Alignment(Translation(LETTERS.target, LETTERS.draft, first=(5,)))
    for text in ([], [0, 1], [1], []):
        found.follow(text)
        assert found.draft.tokens == [5, *LETTERS.draft.encode(spelled(LETTERS, text))]


class Bomb(int):
    """A token that an interrupt hits when it is looked up for the `left`-th time."""

    left = 0

    def __lt__(self, other: int) -> bool:
        Bomb.left -= 1
        if Bomb.left == 0:
            raise KeyboardInterrupt
        return int(self) < other


@given(st.lists(token, min_size=3, max_size=9), st.integers(1, 9))
def test_an_interrupt_leaves_no_false_claim(text: list[int], moment: int) -> None:
    found = Alignment(LETTERS)
    found.follow(text[:2])
    Bomb.left = min(moment, len(text))
    with pytest.raises(KeyboardInterrupt):
        found.follow([Bomb(9), *map(Bomb, text[1:])])
    Bomb.left = 0
    found.follow(text)
    assert bytes(found.draft.text) == spelled(LETTERS, text)


def test_a_text_keeps_its_beginning() -> None:
    found = TokenizedText(LETTERS.target)
    found.write(b"abcab")
    assert (found.tokens, found.ends, bytes(found.text)) == ([3, 5], [2, 5], b"abcab")
    found.keep(1)
    assert (found.tokens, found.ends, bytes(found.text)) == ([3], [2], b"ab")
    found.keep(0)
    assert (found.tokens, found.end, bytes(found.text)) == ([], 0, b"")


@pytest.mark.parametrize(
    ("text", "cuts"),
    [
        (b"ab cd", {0, 2}),
        (b"ab  cd", {0, 2}),
        (b"a\nb", {0, 2}),
        (b"a\n\n b", {0}),
        ("é b".encode(), {0}),  # a blank of Unicode may stand before
        (b"a\xffend\xff b", {0, 1, 2, 5, 6}),
    ],
)
def test_words_are_cut_before_a_blank_at_a_line_and_beside_special_tokens(
    text: bytes, cuts: set[int]
) -> None:
    assert {at for at in range(len(text)) if between_words(text, at, len(text))} == cuts


def test_blanks_are_open_until_what_follows_is_seen() -> None:
    assert between_words(b"\nb", 1, 2)
    assert not between_words(b"\nb", 1, 1)


def test_without_words_a_window_is_encoded_anew_from_a_whole_character() -> None:
    byte = words.vocabulary([bytes([value]) for value in range(256)])
    found = TokenizedText(byte)
    text = "語".encode() * 400
    found.write(text)
    count = found.cut(len(text), text)
    assert len(text) - 256 - 3 <= count < len(text) - 250
    assert count % 3 == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", 0),
        (b"ab", 2),
        ("é".encode(), 2),
        ("é".encode()[:1], 0),
        ("a😀".encode()[:4], 1),
        ("😀".encode(), 4),
    ]
    + [(b"\x80\x80\x80\x80", 4), (b"\xff", 1), ("語".encode()[:2], 0), (b"\xf0\x9f", 0)],
)
def test_whole_characters(text: bytes, expected: int) -> None:
    assert whole(text) == expected


def continued(text: list[int], *drafted: int) -> tuple[Alignment, Continuation]:
    alignment = Alignment(LETTERS)
    alignment.follow(text)
    found = Continuation(alignment, LETTERS)
    for each in drafted:
        alignment.extend(each)
    return alignment, found


def test_what_is_drafted_is_cut_with_what_stands_before() -> None:
    assert continued([0], 0, 1)[1].tokens() == [4]  # a|bc: the target had cut `abc` into ab and c
    assert continued([3], 1, 4)[1].tokens() == [5]
    assert continued([], 2, 0)[1].tokens() == [3]
    assert continued([2])[1].tokens() == []


def test_what_was_taken_and_is_cut_otherwise_ends_it() -> None:
    alignment, found = continued([2], 0)  # b
    assert found.tokens() == [1]
    assert found.take(1) == 2
    assert found.tokens() == []
    alignment.extend(1)  # bc is one token: b cannot stand
    assert found.tokens() is None


@given(st.lists(token, max_size=8), st.lists(token, max_size=8))
def test_translated_tokens_say_what_was_drafted(text: list[int], drafted: list[int]) -> None:
    alignment, found = continued(text, *drafted)
    tokens = found.tokens()
    assert tokens is not None
    assert spelled(LETTERS, tokens) == bytes(alignment.draft.text)[len(spelled(LETTERS, text)) :]


def test_an_unfinished_character_waits() -> None:
    byte = words.vocabulary([bytes([value]) for value in range(256)])
    whole_ones = words.vocabulary([*(bytes([value]) for value in range(256)), "é".encode(), "語".encode()])
    translation = Translation(whole_ones, byte)
    alignment = Alignment(translation)
    alignment.follow([97])
    found = Continuation(alignment, translation)
    seen = []
    for value in "é語b".encode():
        alignment.extend(value)
        seen.append((found.tokens(), found.unfinished))
    assert seen[0] == ([], True)
    assert seen[1] == ([256], False)
    assert seen[2:4] == [([256], True)] * 2
    assert seen[5] == ([256, 257, 98], False)
    assert all(len(right[0] or ()) >= len(left[0] or ()) for left, right in pairwise(seen))
