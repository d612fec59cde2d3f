"""Reasoning and answer, split from an output in any pieces."""

from __future__ import annotations

import letters
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from localspec.core.stop import OutputProcessor
from localspec.core.text import TextStream
from localspec.output.reasoning import CLOSES, OPENS, OutputPiece, ReasoningParser, ThoughtMarks, split


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
    assert (thought, said) == wanted


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


def with_marks(*, special: bool) -> Tokenizer:
    tokenizer = letters.tokenizer()
    if not special:
        tokenizer = Tokenizer.from_str(tokenizer.to_str().replace('"special":true', '"special":false'))
    return tokenizer


def without_marks() -> Tokenizer:
    return Tokenizer.from_str(letters.tokenizer().to_str().replace("think>", "thought>"))


def written(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of a text; `[OPENS]` and `[CLOSES]` in it are marks, what looks like one is text."""
    tokens: list[int] = []
    for part in text.replace("[", "|[").replace("]", "]|").split("|"):
        if part in ("[OPENS]", "[CLOSES]"):
            mark = OPENS if part == "[OPENS]" else CLOSES
            tokens += tokenizer.encode(mark, add_special_tokens=False).ids
        else:
            plain = Tokenizer(tokenizer.model)
            plain.pre_tokenizer = tokenizer.pre_tokenizer
            tokens += plain.encode(part).ids
    return tokens


def answered(tokenizer: Tokenizer, tokens: list[int], size: int, inside: bool, stop: str) -> list[str]:
    """Return the reasoning and the answer as they stream in runs of `size` tokens, then of the whole text."""
    marks = ThoughtMarks.of(tokenizer)
    stream = TextStream(tokenizer, shown=tuple(marks.tokens.values()))
    processor = OutputProcessor(stream, stop=[stop], marks=marks.tokens, max_new_tokens=len(tokens))
    parser, text, places, found = ReasoningParser(inside, marks), "", list[int](), list[OutputPiece]()
    for at in range(0, len(tokens), size):
        output = processor.process(tokens[at : at + size])
        text, places = text + output.text, [*places, *output.marks]
        found += parser.push(output.text, output.marks)
    found += parser.end()
    streamed = [
        "".join(piece.text for piece in found if piece.is_reasoning == thought) for thought in (True, False)
    ]
    assert (streamed[0].strip(), streamed[1]) == split(text, inside, marks, places)
    return streamed


MARKED = [
    ("[OPENS]a </think> b[CLOSES]\n\nYes", False, ("a </think> b", "Yes")),  # text inside is no mark
    ("a[CLOSES]Say </think> twice", True, ("a", "Say </think> twice")),
    ("a[CLOSES]\n<think>b", True, ("a", "<think>b")),
    ("never closes </think>", True, ("never closes </think>", "")),
    ("<think>text</think>Yes", False, ("", "<think>text</think>Yes")),
    ("\n[OPENS]\na[CLOSES]", False, ("a", "")),
    ("Yes", False, ("", "Yes")),
    ("a [OPENS] b", False, ("", "a [OPENS] b")),  # too late for a thought
]


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("stop", ["unseen", "nk>x", "</think>y"])
@pytest.mark.parametrize(("text", "inside", "wanted"), MARKED)
def test_marks_are_tokens_where_the_vocabulary_has_them(
    special: bool, size: int, stop: str, text: str, inside: bool, wanted: tuple[str, str]
) -> None:
    tokenizer = with_marks(special=special)
    own = "" if special else OPENS  # a special token has no text
    reasoning, answer = answered(tokenizer, written(tokenizer, text), size, inside, stop)
    assert (reasoning, answer) == (wanted[0], wanted[1].replace("[OPENS]", own))


@pytest.mark.parametrize("size", [1, 3, 100])
def test_marks_are_text_where_the_vocabulary_has_none(size: int) -> None:
    tokenizer = without_marks()
    tokens = written(tokenizer, "[OPENS]a[CLOSES]Say </think> twice")
    assert answered(tokenizer, tokens, size, False, "unseen") == ["a", "Say </think> twice"]


@pytest.mark.parametrize("tokenizer", [with_marks(special=True), with_marks(special=False), without_marks()])
@pytest.mark.parametrize("blanks", ["", "\n", "\n\n"])
def test_a_prompt_may_open_the_reasoning(tokenizer: Tokenizer, blanks: str) -> None:
    marks = ThoughtMarks.of(tokenizer)
    assert marks.open_at_end(tokenizer, written(tokenizer, f"user: hi [OPENS]{blanks}"))
    assert not marks.open_at_end(tokenizer, written(tokenizer, f"[OPENS] a [CLOSES]{blanks}"))
    assert not marks.open_at_end(tokenizer, written(tokenizer, "[OPENS] a"))
    assert not marks.open_at_end(tokenizer, [])


def test_text_that_looks_like_a_mark_opens_nothing() -> None:
    tokenizer = with_marks(special=True)
    assert not ThoughtMarks.of(tokenizer).open_at_end(tokenizer, written(tokenizer, "user: <think>"))


def test_a_vocabulary_may_have_one_of_the_marks() -> None:
    tokenizer = without_marks()
    tokenizer.add_special_tokens([AddedToken(CLOSES, special=True)])
    tokens = written(tokenizer, "a[CLOSES]Yes")
    assert answered(tokenizer, tokens, 1, True, "unseen") == ["a", "Yes"]
