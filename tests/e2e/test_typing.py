"""Keys and pastes that come at any moment of a conversation, on a terminal with a real model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command import MODEL, ON_SHELL, Localspec
from person import ANSWERS, ASKS, PASTES, Person
from sayings import kept, wait

PASTE = "\n".join(f"line {number} {'-' * 20}" for number in range(1, 201))
LABEL = "[pasted 200 lines]"
STORY = "Write a very long story about a lighthouse, with many words."
Open = Callable[..., "Shell"]


class Shell(Person):
    """A person whose shell starts the command, and reads the terminal after it."""

    program = ON_SHELL

    def left(self) -> tuple[int, bool, str]:
        """Return the exit code, whether the terminal is as before, and what reached the shell."""
        assert self.end() == 0
        assert self.shown.rfind(ANSWERS) > self.shown.rfind(PASTES)
        code, same, rest = json.loads(self.shown.rpartition("shell: ")[2])
        return code, same, rest


@pytest.fixture
def shell(fresh_home: Path, tmp_path: Path) -> Iterator[Open]:
    """Start a conversation from a shell."""
    seen: list[Shell] = []

    def begin(*arguments: str) -> Shell:
        seen.append(Shell(Localspec(fresh_home), "chat", MODEL, *arguments, folder=tmp_path))
        return seen[-1]

    yield begin
    for person in seen:
        person.close()


def while_importing(shell: Open, home: Path) -> Shell:
    person = shell("--max-tokens", "4")
    person.paste(PASTE)
    return person


def while_loading(shell: Open, home: Path) -> Shell:
    person = shell("--max-tokens", "4")
    person.until(PASTES)
    person.paste(PASTE)
    return person


def at_the_prompt(shell: Open, home: Path) -> Shell:
    person = shell("--max-tokens", "4")
    person.ready()
    person.paste(PASTE)
    return person


def while_the_prompt_is_read(shell: Open, home: Path) -> Shell:
    (home.parent / "long.txt").write_text("The sea is wide. " * 1200)
    person = shell("--max-tokens", "4")
    person.ready()
    person.begin("Sum this up: @long.txt")
    wait(lambda: kept(home))
    person.paste(PASTE)
    assert len(kept(home)) == 1
    return person


def while_an_answer_runs(shell: Open, home: Path) -> Shell:
    person = shell("--max-tokens", "200")
    person.ready()
    person.begin(STORY)
    wait(lambda: len(kept(home)) == 2)
    person.paste(PASTE)
    return person


MOMENTS = [while_importing, while_loading, at_the_prompt, while_the_prompt_is_read, while_an_answer_runs]


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
def test_a_paste_is_one_message(shell: Open, fresh_home: Path, moment: Callable[[Open, Path], Shell]) -> None:
    person = moment(shell, fresh_home)
    person.sees(f"> {LABEL}")
    before = kept(fresh_home)
    person.say("")
    assert [message for message in kept(fresh_home) if message[0] == "user"] == [
        *(message for message in before if message[0] == "user"),
        ("user", PASTE),
    ]
    person.type("\x1b[A")
    person.sees(lambda: person.text().count(LABEL) == 2)  # the history has it, folded too
    person.type("\x15\x04")
    assert person.left() == (0, True, "")


def test_what_is_typed_during_an_answer_waits(shell: Open, fresh_home: Path) -> None:
    person = shell("--max-tokens", "120")
    person.ready()
    person.begin(STORY)
    wait(lambda: len(kept(fresh_home)) == 2)
    person.type("\r/exit\x7f\x7f\x7f\x7f\x7fSay helo\x7flo.\x04\x1b[A\r\r")
    person.ready()
    person.sees("> Say hello.")
    assert len(kept(fresh_home)) == 2
    person.say(" Please.\rNot yet.")  # a terminal without brackets
    person.sees("> Not yet.")
    assert [text for role, text in kept(fresh_home) if role == "user"] == [STORY, "Say hello. Please."]
    person.type("\x15\x04")
    assert person.left() == (0, True, "")


def test_ctrl_c_drops_what_waits(shell: Open, fresh_home: Path) -> None:
    person = shell("--max-tokens", "1500")
    person.ready()
    person.begin(STORY)
    wait(lambda: len(kept(fresh_home)) == 2)
    person.paste(PASTE)
    person.type("and this\x03")
    assert "Dropped what was typed meanwhile: 200 lines" in person.ready()
    assert person.lines()[-1] == ">"
    person.begin(STORY)
    wait(lambda: len(kept(fresh_home)) == 4)
    person.type("\x03")
    assert "Dropped" not in person.ready()
    assert person.leave() == 0


def test_keys_wait_after_ctrl_z_too(sit_down: Callable[..., Person], fresh_home: Path) -> None:
    person = sit_down("chat", MODEL, "--max-tokens", "1500")
    person.ready()
    person.begin(STORY)
    wait(lambda: len(kept(fresh_home)) == 2)
    person.stop_and_go_on()
    wait(lambda: not person.echoes)
    mark = len(person.shown)
    person.type("one\rtwo\x03")
    assert "Dropped what was typed meanwhile: 2 lines" in person.ready()
    assert person.shown[mark:].count(ASKS) == 1  # it was the answer that echoed nothing, not the prompt
    assert person.leave() == 0


def test_nothing_reaches_the_shell_when_loading_is_interrupted(shell: Open) -> None:
    person = shell()
    person.until(PASTES)
    person.paste(PASTE)
    person.type("rm -r x\r\x03")
    assert person.left() == (130, True, "")
    assert "Dropped what was typed meanwhile: 200 lines" in person.text()


def test_nothing_reaches_the_shell_after_the_command_that_leaves(shell: Open) -> None:
    person = shell()
    person.ready()
    person.type("/exit\rrm -r x\r")
    assert person.left() == (0, True, "")
    assert "Dropped what was typed meanwhile: 1 line\n" in person.text() + "\n"


def test_a_folded_paste_stands_amid_a_line_and_opens_in_the_editor(
    shell: Open, fresh_home: Path, tmp_path: Path
) -> None:
    person = shell("--max-tokens", "4")
    person.ready()
    person.type("Look: ")
    person.paste(PASTE)
    person.paste("\n".join("abcdefghijk"))
    person.sees(f"> Look: {LABEL}[pasted 11 lines]")
    person.type("\x7f thanks")
    person.sees(f"> Look: {LABEL} thanks")
    person.say("")
    assert kept(fresh_home)[0] == ("user", f"Look: {PASTE} thanks")
    person.paste("\n".join("abcdefghij"))
    person.sees("  j")  # ten lines are shown as they are
    person.say("")
    assert kept(fresh_home)[2] == ("user", "\n".join("abcdefghij"))
    assert person.leave() == 0
    assert f"+Look: line 1 {'-' * 20}\n+line 2" in (fresh_home / "history").read_text()


def test_a_paste_is_text_though_it_begins_like_a_command(shell: Open, fresh_home: Path) -> None:
    person = shell("--max-tokens", "4")
    person.ready()
    texts = ["/* a\n comment */", '"""A docstring."""\n' + PASTE + '\n"""']
    for text in texts:
        person.paste(text)
        person.say("")
    assert [text for role, text in kept(fresh_home) if role == "user"] == texts
    assert person.leave() == 0
