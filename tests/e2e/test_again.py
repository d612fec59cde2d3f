"""Asking again, what a template adds, conversations that go on, and statistics of a running answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from command import MODEL
from person import ROWS, Person
from sayings import kept

from localspec.state.conversations import Sessions

QUESTION = "What is the capital of France?"
Sit = Callable[..., Person]


def begun(sit_down: Sit, *arguments: str) -> Person:
    person = sit_down("chat", MODEL, "--max-tokens", "24", *arguments)
    person.ready()
    return person


def test_the_last_question_is_edited(sit_down: Sit, fresh_home: Path) -> None:
    person = begun(sit_down)
    assert "Nothing was asked yet" in person.say("/edit")
    person.say("Say hello.")
    person.say(QUESTION)
    held = kept(fresh_home)
    person.say("/edit")
    person.sees(lambda: person.lines()[-1] == f"> {QUESTION}")
    person.type("\x03")
    person.ready()
    assert kept(fresh_home) == held  # Ctrl-C keeps it
    person.say("/edit")
    person.say("\x7f, and of Italy?")
    assert [text for role, text in kept(fresh_home) if role == "user"] == [
        "Say hello.",
        "What is the capital of France, and of Italy?",
    ]
    person.say("Thanks.")
    assert len(kept(fresh_home)) == 6
    assert person.leave() == 0


def test_an_edited_question_that_cannot_begin_leaves_the_turn(sit_down: Sit, fresh_home: Path) -> None:
    (fresh_home.parent / "work" / "binary.txt").write_bytes(b"\x00\xff")
    person = begun(sit_down)
    person.say(QUESTION)
    held = kept(fresh_home)
    person.say("/edit")
    person.sees(lambda: person.lines()[-1] == f"> {QUESTION}")
    assert "is not a text file" in person.say(" @binary.txt")
    assert "The same answer comes again" in person.say("/retry")
    assert kept(fresh_home) == held
    assert person.leave() == 0


def test_retry_says_whether_another_answer_can_come(sit_down: Sit) -> None:
    same = "The same answer comes again"
    person = begun(sit_down)
    first = person.say(QUESTION)
    again = person.say("/retry")
    assert f"{same}: the temperature is 0. /set temperature 0.7 allows another" in again
    assert first.strip() in again
    person.say("/set temperature 0.7")
    assert same not in person.say("/retry")
    assert same not in person.say("/retry")
    person.say("/set seed 7")
    assert same not in person.say("/retry")
    assert f"{same}: the seed is 7. /set seed random allows another" in person.say("/retry")
    person.say("/system Be brief.")
    assert same not in person.say("/retry")


def test_the_system_prompt_of_the_template_is_shown(sit_down: Sit) -> None:
    person = begun(sit_down)
    own = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    told = person.say("/system")
    assert f"You have set none; the chat template of `{MODEL}` has its own:" in told
    assert told.rstrip().endswith(own)
    told = person.say("/system Be brief.")
    assert "Be brief." in told
    assert own not in told
    raw = begun(sit_down, "--raw")
    assert "No system prompt" in raw.say("/system")


def test_a_whole_conversation_is_shown_folded(sit_down: Sit, fresh_home: Path) -> None:
    long = "\n".join(f"line {number}" for number in range(1, 30))
    turns = [("system", "Be kind."), ("user", "First?"), ("assistant", "Yes.")]
    turns += [("user", f"And this?\n{long}"), ("assistant", long), ("user", "Last?"), ("assistant", "No.")]
    messages = [{"role": role, "content": text} for role, text in turns]
    Sessions(fresh_home / "sessions.db").write("tale", MODEL, messages)
    shown = "\n".join(
        [
            *("System prompt: Be kind.", "> First?", "Yes."),
            *("> And this?", *(f"line {number}" for number in range(1, 6)), "[24 more lines]"),
            *(*(f"line {number}" for number in range(1, 7)), "[23 more lines]", "> Last?", "No."),
        ]
    )
    person = sit_down("chat", MODEL, "--continue")
    assert person.ready().endswith(shown)
    person.say("/clear")
    assert person.say("/load tale").endswith(shown)
    assert person.leave() == 0


@pytest.mark.parametrize("more", [{}, {"NO_COLOR": "1"}], ids=["Markdown", "plain"])
def test_statistics_are_shown_live(sit_down: Sit, fresh_home: Path, more: dict[str, str]) -> None:
    person = sit_down("chat", MODEL, "--max-tokens", "160", **more)
    person.ready()
    person.say("/stats on")
    person.begin("Write a long story about a lighthouse.")
    shown = person.ready()
    live = re.compile(rf"\x1b\[{ROWS};1H\x1b\[2K(\x1b\[2m)?[\d.]+ tokens/s[^\x1b\n]* \| [\d,]+ tokens?")
    assert live.search(person.shown)  # in the last row, while the answer came
    assert shown.count(" tokens/s") == 1  # the line of the whole answer stays
    assert person.row(ROWS - 1) == ""
    assert letters(kept(fresh_home)[1][1]) in letters(shown)
    person.say("Go on, with more and more words.")  # the screen scrolls as a whole again
    assert letters(kept(fresh_home)[3][1]) in letters(person.text())
    assert person.text().count(" tokens/s") == 2
    assert person.leave() == 0


def letters(text: str) -> str:
    """Return a text without blanks and marks, which the screen has in other places."""
    return "".join(filter(str.isalnum, text))
