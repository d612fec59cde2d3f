"""Conversations at a terminal, with a real model."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from command import MODEL, Localspec
from person import ASKS, Person
from sayings import kept, wait

from localspec.chat import SUMMARY
from localspec.cli.talk.answering import FULL_QUESTION

SHORT = ("--max-tokens", "24")
LONG = "Write a very long story about a lighthouse, with many words."
Sit = Callable[..., Person]


def chat(sit_down: Sit, *arguments: str, limit: tuple[str, ...] = SHORT, **more: str) -> Person:
    """Start a conversation and wait for its prompt."""
    person = sit_down("chat", MODEL, *limit, *arguments, **more)
    person.ready()
    return person


def test_a_whole_conversation(sit_down: Sit, fresh_home: Path) -> None:
    person = chat(sit_down)
    first = person.say("What is the capital of France?")
    assert "Paris" in first
    told = person.say("/context")
    used, reused = numbers(told)
    assert 0 < reused < used  # the answer's last token was never read

    second = person.say("And of Italy? Say it in one word.")
    assert second.strip()
    more, again = numbers(person.say("/context"))
    assert more > used
    assert again >= used - 10  # the first turn was not read again, nor forgotten

    assert person.say("/undo").endswith("Removed: And of Italy? Say it in one word.")
    assert [role for role, _ in kept(fresh_home)] == ["user", "assistant"]
    assert "The same answer comes again" in person.say("/retry")
    assert kept(fresh_home)[1][1] in first.replace("\n", " ")

    shown = person.say("/accepted")
    assert "Paris" in shown
    assert "accepted draft tokens:" in shown
    assert "Saved as `france`" in person.say("/save france")
    assert "Unknown command `/undoo`" in person.say("/undoo")
    assert person.leave() == 0
    assert "Traceback" not in person.shown

    listed = sit_down("chat", "--list")
    assert listed.end() == 0
    assert "What is the capital of France?" in listed.text()
    assert "france" in listed.text()


def numbers(told: str) -> tuple[int, int]:
    """Return the used and the cached tokens that `/context` shows."""
    found = re.search(r"([\d,]+) of [\d,]+ tokens used, [\d,]+ left; ([\d,]+) in the KV cache", told)
    assert found is not None, told
    return int(found[1].replace(",", "")), int(found[2].replace(",", ""))


def test_ctrl_c_keeps_the_part_and_ctrl_c_at_the_prompt_does_nothing(sit_down: Sit, fresh_home: Path) -> None:
    person = chat(sit_down, "--stats", limit=("--max-tokens", "1500"))
    person.begin(LONG)
    while len(" ".join(text for _, text in kept(fresh_home)[1:]).split()) < 8:
        assert person._more()
    person.type("typed meanwhile\x03")  # is not shown amid the answer
    shown = person.ready().replace("\n", "")
    assert shown.count("typed meanwhile") == shown.count("Dropped what was typed meanwhile: 1 line") == 1
    tokens = re.search(r"\| (\d+) tokens \| prompt", shown)
    assert tokens is not None
    assert int(tokens[1]) < 1500
    (_, asked), (role, part) = kept(fresh_home)
    assert (asked, role) == (LONG, "assistant")
    assert len(part.split()) > 4
    assert "".join(part.split()[:4]) in "".join(shown.split())
    person.type("\x15half a questio")
    person.sees("> half a questio")
    person.type("\x03")
    assert "Ctrl-D leaves" in person.ready()
    person.type("\r")
    person.ready()
    assert len(kept(fresh_home)) == 2
    assert person.leave() == 0


def test_ctrl_c_stops_while_the_prompt_is_read(sit_down: Sit, fresh_home: Path, tmp_path: Path) -> None:
    (tmp_path / "work" / "long.txt").write_text("The sea is wide. " * 1200)
    person = chat(sit_down)
    person.begin("Sum this up: @long.txt")
    person.sees("long.txt: 20,400 characters")
    wait(lambda: kept(fresh_home))
    person.type("\x03")
    person.ready()
    (_, asked), *part = kept(fresh_home)
    assert asked.endswith("Sum this up: @long.txt")
    assert part in ([], [("assistant", "")])  # an answer that had not begun is none
    assert "Removed: long.txt" in person.say("/undo")
    assert person.say("Say hello.").strip()
    assert [role for role, _ in kept(fresh_home)] == ["user", "assistant"]


def test_several_lines(sit_down: Sit, fresh_home: Path) -> None:
    person = chat(sit_down, "--max-tokens", "4")
    person.type('"""one\r')
    person.sees('> """one')
    person.type("  two\r")
    person.say('three"""')
    person.say("\x1b[200~four\n\x1b[2J\x07five\x1b[201~")
    questions = [content for role, content in kept(fresh_home) if role == "user"]
    assert questions[0] == "one\n  two\nthree"
    assert re.fullmatch(r"four\n\[2Jfive", questions[1])


def test_an_editor_the_history_and_completion(sit_down: Sit, fresh_home: Path, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf "%s and more" "$(cat "$1")" > "$1"\n')
    editor.chmod(0o755)
    (tmp_path / "work" / "notes.txt").write_text("The password is swordfish.")
    (tmp_path / "work" / "empty.txt").write_text("")
    (tmp_path / "work" / "binary.txt").write_bytes(b"\x00\xff")
    person = chat(sit_down, "--max-tokens", "4", EDITOR=str(editor), VISUAL=str(editor))
    person.type("some words\x07")
    person.until(ASKS)
    person.sees("> some words and more")
    person.say("")
    person.type("/cont\t")
    person.sees("> /context")
    assert "tokens used" in person.say("")
    person.type("/model smollm2-1\t")
    person.sees(f"> /model {MODEL}")
    person.type("\x15/set temp\t")
    person.sees("> /set temperature")
    person.type("\x15What is the password? @not\t")
    person.sees("@notes.txt")
    assert "notes.txt: 26 characters" in person.say("")
    assert "`empty.txt` is empty" in person.say("And @empty.txt")
    assert "`binary.txt` is not a text file" in person.say("And @binary.txt")
    assert "No such file: `no/such`" in person.say("And @no/such")
    assert person.leave() == 0
    questions = [content for role, content in kept(fresh_home) if role == "user"]
    assert questions[0] == "some words and more"
    assert questions[1] == (
        "notes.txt:\n```\nThe password is swordfish.\n```\n\nWhat is the password? @notes.txt"
    )
    assert questions[2:] == ["And @no/such"]

    other = chat(sit_down)
    other.type("\x1b[A")
    other.sees("> And @no/such")
    other.type("\x1b[A" * 3)
    other.sees("> What is the password? @notes.txt")


def test_settings_and_parts_can_change(sit_down: Sit, fresh_home: Path) -> None:
    person = chat(sit_down)
    assert "Wrong" not in person.say("/system You are a pirate.")
    person.say("/set max-tokens 3")
    assert "`temperature` is 200" in person.say("/set temperature 200")
    assert "It takes a number" in person.say("/set temperature warm")
    assert "Unknown setting `colour`" in person.say("/set colour red")
    person.say("/set temperature 0.5")
    shown = person.say("/set")
    assert re.search(r"temperature +0\.5\b", shown)
    assert re.search(r"max-tokens +3\b", shown)
    person.say("Hello")
    assert kept(fresh_home)[0] == ("system", "You are a pirate.")
    assert " tokens/s | 3 tokens | prompt " in person.say("/stats").replace("\n", "")
    assert "drafter: none" in person.say("/draft off")
    person.say("Hello again")
    assert "speculation off: it was switched off" in person.say("/stats").replace("\n", "")
    assert "Unknown drafter or model `ngrm`" in person.say("/draft ngrm")
    assert f"{MODEL} answers from here on" in person.say(f"/model {MODEL}")
    assert "nknown model `smollm2-135n`" in person.say("/model smollm2-135n")
    assert "no switch for thinking" in person.say("/think on")
    assert "shown" in person.say("/think show")
    held = kept(fresh_home)
    assert "New conversation; the last one is saved as" in person.say("/clear")
    person.say("Another one")
    assert kept(fresh_home) != held
    person.type("/exit\r")
    assert person.end() == 0


def test_a_killed_answer_is_saved_and_continued(sit_down: Sit, fresh_home: Path) -> None:
    person = chat(sit_down, "--session", "tale", limit=("--max-tokens", "1500"))
    person.begin(LONG)
    wait(lambda: len(kept(fresh_home, "tale")) == 2)  # the part is written as it grows
    os.kill(person.process.pid, signal.SIGKILL)
    person.end()
    (_, asked), (_, part) = kept(fresh_home, "tale")
    assert asked == LONG
    assert part

    other = sit_down("chat", "--continue", *SHORT)
    assert "Write a very long story" in other.ready()
    other.say("Go on.")
    assert [role for role, _ in kept(fresh_home, "tale")] == ["user", "assistant"] * 2
    assert kept(fresh_home, "tale")[1] == ("assistant", part)
    assert other.leave() == 0
    once = Localspec(fresh_home).run("chat", "--continue", "And what then?", *SHORT)
    assert once.code == 0
    assert len(kept(fresh_home, "tale")) == 6


def test_the_user_chooses_when_the_context_is_full(sit_down: Sit, fresh_home: Path) -> None:
    person = chat(sit_down, "--engine", "llamacpp:context=256", limit=("--max-tokens", "40"))
    fill(person)
    before = kept(fresh_home)
    person.type("\n")
    assert "Cancelled" in person.ready()
    assert kept(fresh_home) == before

    fill(person)
    person.type("d\n")
    assert "Dropped" in person.ready()
    after = kept(fresh_home)
    assert after[-2][1].startswith("Tell me about")
    assert len(after) < len(before) + 2
    assert after[0] in before[2:]

    fill(person)
    person.type("s\n")
    assert "The model's summary" in person.ready()
    asked, summary, *rest = kept(fresh_home)
    assert asked == ("user", SUMMARY)
    assert summary[1]
    assert [role for role, _ in rest] == ["user", "assistant"]


def fill(person: Person) -> None:
    """Ask until the context is full."""
    for number in range(9):
        if overflows(person, f"Tell me about the number {number} and what it is good for, in many words."):
            return
    raise AssertionError("the context was never full")


def overflows(person: Person, text: str) -> bool:
    """Ask something; return whether the context was too small for it."""
    question = FULL_QUESTION.rstrip()
    choices, mark = person.text().count(question), len(person.shown)
    person.begin(text)
    person.sees(lambda: person.text().count(question) > choices or ASKS in person.shown[mark:])
    full = person.text().count(question) > choices
    if not full:
        person.ready()
    return full


@pytest.mark.parametrize("broken", [b"this is no database, whatever it is called" * 50, None])
def test_a_broken_sessions_file_is_reported_once_and_left_alone(
    sit_down: Sit, fresh_home: Path, broken: bytes | None
) -> None:
    file = fresh_home / "sessions.db"
    if broken is None:
        file.mkdir()
    else:
        file.write_bytes(broken)
    person = chat(sit_down, "--max-tokens", "4")
    assert "This conversation is not saved" in person.say("Hello")
    assert "not saved" not in person.say("Hello again")
    assert person.leave() == 0
    assert file.is_dir() if broken is None else file.read_bytes() == broken


def test_a_schema_constrains_a_conversation(sit_down: Sit, fresh_home: Path, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    file = tmp_path / "city.json"
    file.write_text(json.dumps({**schema, "additionalProperties": False}))
    person = chat(sit_down, "--json-schema", str(file))
    shown = person.say("What is the capital of France?")
    assert '{"city": "' in shown
    assert set(json.loads(kept(fresh_home)[1][1])) == {"city"}
    person.say("/set max-tokens 2")
    assert "The answer is cut off" in person.say("And of Italy?")


def test_a_dumb_terminal(sit_down: Sit, fresh_home: Path) -> None:
    person = sit_down("chat", MODEL, *SHORT, TERM="dumb")
    person.until("> ")
    person.type("What is the capital of France?\n")
    assert "Paris" in person.until("\n> ")
    person.type('"""a\n')
    person.type('b"""\n')
    person.until("\n> ")
    assert person.leave() == 0
    assert "\x1b" not in person.shown
    assert kept(fresh_home)[2] == ("user", "a\nb")
