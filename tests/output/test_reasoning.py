"""What is thought and what is said, told apart in any cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.output.reasoning import ReasoningParser, Said, split


def read(text: str, cuts: list[int], inside: bool = False) -> tuple[str, str]:
    """Return what is thought and what is said of a text that comes in pieces."""
    reader = ReasoningParser(inside)
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    found = [
        said for start, end in zip(places, places[1:], strict=False) for said in reader.push(text[start:end])
    ]
    found += reader.end()
    thought = "".join(said.text for said in found if said.thought)
    return thought, "".join(said.text for said in found if not said.thought)


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
def test_any_cut_is_read_alike(text: str, inside: bool, wanted: tuple[str, str], cuts: list[int]) -> None:
    thought, said = read(text, cuts, inside)
    assert (thought.lstrip("\n"), said) == wanted


def test_pieces_come_as_soon_as_they_are_certain() -> None:
    reader = ReasoningParser()
    assert reader.push("<th") == []
    assert reader.push("ink>so") == [Said("so", thought=True)]
    assert reader.push(" it</thi") == [Said(" it", thought=True)]
    assert reader.push("nk>\n") == []
    assert reader.push("\nYes") == [Said("Yes")]


def test_a_whole_answer_is_split_without_blanks() -> None:
    assert split("<think>\n a \n</think>\n\n b ") == ("a", "b ")
    assert split("b") == ("", "b")
