from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.stop import OutputProcessor

HALF = 5  # a token that is the first half of a character; whatever follows completes it
END = 9
SPELLED = {0: "a", 1: "b", 2: "ab", 3: "ba", 4: "", HALF: "", 6: "bab"}

tokens = st.lists(st.sampled_from([*SPELLED, END]), max_size=30)
stops = st.lists(
    st.sampled_from(["ab", "ba", "aab", "abab", "bb", "é", "bé", "\N{REPLACEMENT CHARACTER}", "aaa"])
)


class Spelled:
    """A tokenizer of a few letters, one character of which takes two tokens."""

    def __init__(self) -> None:
        self.half = False

    def push(self, token: int) -> str:
        text = ("é" if self.half and token != HALF else "") + SPELLED[token]
        self.half = token == HALF
        return text

    def flush(self) -> str:
        return "\N{REPLACEMENT CHARACTER}" if self.half else ""


def naive(
    run: Sequence[int], stop_tokens: Collection[int], stop: Sequence[str], room: int
) -> tuple[list[int], str, str | None]:
    """Settle by looking at the whole text anew after each token; an unfinished text is told whole."""
    pieces, text = Spelled(), ""
    for count, token in enumerate(run, 1):
        finish = None
        if token in stop_tokens:
            text, finish = text + pieces.flush(), "stop"
        else:
            text += pieces.push(token)
            if count == room and not any(word in text for word in stop):
                text, finish = text + pieces.flush(), "length"
        ends = [text.find(word) for word in stop if word in text]
        if ends:
            return list(run[:count]), text[: min(ends)], "stop"
        if finish:
            return list(run[:count]), text, finish
    return list(run), text, None


def held(text: str, stop: Sequence[str]) -> str:
    """Return the end of an unfinished `text` that may be the start of a stop string."""
    starts = [word[:size] for word in stop for size in range(1, len(word))]
    return max((start for start in starts if text.endswith(start)), key=len, default="")


def processed(processor: OutputProcessor, runs: Sequence[Sequence[int]]) -> tuple[list[int], str, str | None]:
    kept: list[int] = []
    text = ""
    for run in runs:
        found = processor.process(run)
        kept += found.tokens
        text += found.text
        if found.finish is not None:
            return kept, text, found.finish
    return kept, text, None


def cut(run: Sequence[int], borders: set[int]) -> list[Sequence[int]]:
    inner = sorted(at for at in borders if 0 < at < len(run))
    return [run[low:high] for low, high in zip([0, *inner], [*inner, len(run)], strict=True)]


@given(
    tokens, st.sets(st.integers(1, 29)), st.sampled_from([(), (END,), (END, 2)]), stops, st.integers(1, 30)
)
def test_any_cut_into_runs_gives_what_one_token_at_a_time_gives(
    run: list[int], borders: set[int], ends: tuple[int, ...], stop: list[str], room: int
) -> None:
    spoken = [token for token in run if token in SPELLED or token in ends]
    kept, text, finish = naive(spoken, ends, stop, room)
    if finish is None:
        text = text.removesuffix(held(text, stop))
    for runs in (cut(spoken, borders), [[token] for token in spoken], [spoken]):
        processor = OutputProcessor(Spelled(), stop_tokens=ends, stop=stop, max_new_tokens=room)
        assert processed(processor, runs) == (kept, text, finish)


@pytest.mark.parametrize(
    ("run", "options", "expected"),
    [
        pytest.param([0, END, 0], {}, ([0, END], "a", "stop"), id="a stop token has no text"),
        pytest.param(
            [0, HALF, END], {}, ([0, HALF, END], "a\ufffd", "stop"), id="half a character at a stop"
        ),
        pytest.param([0, 1], {"max_new_tokens": 2}, ([0, 1], "ab", "length"), id="the cap"),
        pytest.param(
            [0, HALF],
            {"max_new_tokens": 2},
            ([0, HALF], "a\ufffd", "length"),
            id="half a character at the cap",
        ),
        pytest.param([0, END], {"max_new_tokens": 2}, ([0, END], "a", "stop"), id="a stop token at the cap"),
        pytest.param(
            [0, 3],
            {"stop": ["ba"], "max_new_tokens": 2},
            ([0, 3], "a", "stop"),
            id="a stop string at the cap",
        ),
        pytest.param([0, 1, 0], {"stop": ["aba"]}, ([0, 1, 0], "", "stop"), id="over token borders"),
        pytest.param([0, 0, 1], {"stop": ["ab", "aab"]}, ([0, 0, 1], "", "stop"), id="overlapping ones"),
        pytest.param(
            [0, 1, END], {"stop": ["abb"]}, ([0, 1, END], "ab", "stop"), id="held text comes at the end"
        ),
        pytest.param(
            [0, 1, 0], {"stop": ["abb"]}, ([0, 1, 0], "ab", None), id="held text comes when it goes on"
        ),
        pytest.param(
            [HALF, END], {"stop": ["\ufffd"]}, ([HALF, END], "", "stop"), id="one that flushing completes"
        ),
    ],
)
def test_examples(
    run: list[int], options: dict[str, list[str]], expected: tuple[list[int], str, str | None]
) -> None:
    processor = OutputProcessor(Spelled(), **{"stop_tokens": [END], "max_new_tokens": 9, **options})  # type: ignore[arg-type]
    assert processed(processor, [run]) == expected


def test_remaining_counts_down() -> None:
    processor = OutputProcessor(Spelled(), max_new_tokens=5)
    processor.process([0, 1, 0])
    assert processor.remaining == 2


def test_a_repetition_ends_the_answer_behind_its_token() -> None:
    for cut in range(1, 7):
        seen: list[int] = []

        def third(token: int, seen: list[int] = seen) -> bool:
            seen.append(token)
            return len(seen) == 3

        processor = OutputProcessor(Spelled(), stop=["abb"], repeats=third, max_new_tokens=9)
        run = [0, 1, HALF, 0, 1, 0]
        found = [processor.process(run[:cut])]
        if found[0].finish is None:
            found.append(processor.process(run[cut:]))
        assert "".join(output.text for output in found) == "ab\N{REPLACEMENT CHARACTER}"
        assert [token for output in found for token in output.tokens] == [0, 1, HALF]
        assert found[-1].finish == "repeating"
