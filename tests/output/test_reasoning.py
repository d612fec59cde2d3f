"""Reasoning and answer, split from an output in any pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.output.reasoning import OutputPiece, ReasoningParser, split


def read(text: str, cuts: list[int], inside: bool = False) -> tuple[str, str]:
    """Return the reasoning and the answer of an output that comes in pieces."""
    parser = ReasoningParser(inside)
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    found = [
        piece
        for start, end in zip(places, places[1:], strict=False)
        for piece in parser.push(text[start:end])
    ]
    found += parser.end()
    thought = "".join(piece.text for piece in found if piece.is_reasoning)
    return thought, "".join(piece.text for piece in found if not piece.is_reasoning)


CASES = [
    ("<think>\nHm, 2.\n</think>\n\nIt is 2.", False, ("Hm, 2.\n", "It is 2.")),
    ("\n<think></think>Yes", False, ("", "Yes")),
    ("Hm.</think>\nYes", True, ("Hm.", "Yes")),
    ("Plain <think> text", False, ("", "Plain <think> text")),
    ("<thinner> than", False, ("", "<thinner> than")),
    ("<think>never ends", False, ("never ends", "")),
    ("<think>a</think>b</think>c", False, ("a", "b</think>c")),
    ("", False, ("", "")),
]


@pytest.mark.parametrize(("text", "inside", "wanted"), CASES)
@given(cuts=st.lists(st.integers(0, 40), max_size=8))
def test_any_pieces_are_parsed_alike(
    text: str, inside: bool, wanted: tuple[str, str], cuts: list[int]
) -> None:
    thought, said = read(text, cuts, inside)
    assert (thought.lstrip("\n"), said) == wanted


def test_pieces_are_returned_as_soon_as_possible() -> None:
    parser = ReasoningParser()
    assert parser.push("<th") == []
    assert parser.push("ink>so") == [OutputPiece("so", is_reasoning=True)]
    assert parser.push(" it</thi") == [OutputPiece(" it", is_reasoning=True)]
    assert parser.push("nk>\n") == []
    assert parser.push("\nYes") == [OutputPiece("Yes")]


def test_a_complete_output_is_split_without_blanks() -> None:
    assert split("<think>\n a \n</think>\n\n b ") == ("a", "b ")
    assert split("b") == ("", "b")
