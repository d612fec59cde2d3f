"""Help, version and parts."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

import pytest
import typer.main
from command import Localspec
from typer.testing import CliRunner

from localspec import plugins
from localspec.cli.app import app

COMMANDS = ("chat", "parts")
TREE: Any = typer.main.get_command(app)
EVERY: dict[tuple[str, ...], Any] = {(): TREE} | {
    (name, *more): command
    for name, top in TREE.commands.items()
    if not top.hidden
    for more, command in [((), top), *(((sub,), it) for sub, it in getattr(top, "commands", {}).items())]
}


def shown(command: Any) -> list[str]:
    """Return the examples of a command's help."""
    parts = command.epilog.split("\n\n")
    return [part.removeprefix("Example: ").strip() for part in parts if "localspec " in part]


@pytest.mark.parametrize(
    ("arguments", "example"),
    [
        ([], "localspec chat smollm2-135m"),
        (["chat"], "localspec chat smollm2-135m"),
        (["parts"], " localspec parts --json"),
    ],
    ids=["localspec", *COMMANDS],
)
def test_help_shows_an_example(localspec: Localspec, arguments: list[str], example: str) -> None:
    for option in ("--help", "-h"):
        found = localspec.run(*arguments, option)
        assert (found.code, found.err) == (0, "")
        assert example in found.out


def test_help_lists_every_command(localspec: Localspec) -> None:
    found = localspec.run("--help").out
    assert all(f" {name} " in found for name in COMMANDS)


def test_no_command_shows_the_help(localspec: Localspec) -> None:
    found = localspec.run()
    assert found.code == 2
    assert "error" not in found.err
    assert "chat" in found.out + found.err


def test_version(localspec: Localspec) -> None:
    found = localspec.run("--version")
    assert (found.code, found.out, found.err) == (0, version("localspec") + "\n", "")


def test_parts_lists_every_part_with_its_options(localspec: Localspec) -> None:
    found = localspec.run("parts")
    assert (found.code, found.err) == (0, "")
    for kind in plugins.KINDS:
        assert f"{kind}\n" in found.out
        for part in (plugins.part(kind, name) for name in plugins.offered(kind)):
            assert f"  {part.name} " in found.out
            assert all(setting.option.help in found.out for setting in part.settings.values())


def test_the_engine_for_tests_is_not_offered(localspec: Localspec) -> None:
    assert plugins.offered("engines") == ("diffusion", "llamacpp", "npu", "openvino", "torch")
    for arguments in (["parts"], ["chat", "--help"], ["bench", "--help"], ["chat", "x", "--engine", "tor"]):
        ran = localspec.run(*arguments)
        assert "toy" not in ran.out + ran.err
    assert plugins.parse("engines", "toy:seed=3").options["seed"] == 3


def test_parts_as_json(localspec: Localspec) -> None:
    found = json.loads(localspec.run("parts", "--json").out)
    assert list(found) == list(plugins.KINDS)
    for kind, listed in found.items():
        assert [part["name"] for part in listed] == list(plugins.offered(kind))
        fields = {"name", "type", "required", "default", "help", "choices"}
        assert all(option.keys() == fields for part in listed for option in part["options"])
    ngram = next(part for part in found["drafters"] if part["name"] == "ngram")
    longest = next(option for option in ngram["options"] if option["name"] == "longest")
    assert (longest["type"], longest["required"], longest["default"]) == ("int", False, 8)


def help_of(words: tuple[str, ...]) -> list[str]:
    """Return the lines of a command's help on a terminal of 80 columns."""
    terminal = {"COLUMNS": "80", "TERMINAL_WIDTH": "80", "NO_COLOR": "1"}
    result = CliRunner().invoke(app, [*words, "--help"], env=terminal)
    assert result.exit_code == 0, result.output
    return [line.rstrip() for line in result.output.splitlines()]


def flat(lines: list[str]) -> str:
    """Return the lines as one text with single blanks."""
    return " ".join(" ".join(lines).split())


def rows(lines: list[str]) -> list[list[str]]:
    """Return the lines of each option and argument; a new one begins at the start of its panel's line."""
    found: list[list[str]] = []
    for line in lines:
        if line.startswith("│"):
            if line[2:6].strip():
                found.append([])
            found[-1].append(line)
    return found


@pytest.mark.parametrize("words", sorted(EVERY), ids=" ".join)
def test_the_help_fits_80_columns(words: tuple[str, ...]) -> None:
    lines = help_of(words)
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    assert {len(row) for row in rows(lines)} <= {1, 2, 3}
    assert rows(lines)


@pytest.mark.parametrize("words", sorted(EVERY), ids=" ".join)
def test_the_help_has_the_whole_text_and_the_examples(words: tuple[str, ...]) -> None:
    command, lines = EVERY[words], help_of(words)
    for part in f"{command.help}\n\n{command.epilog or ''}".replace("\\[", "[").split("\n\n"):
        assert " ".join(part.split()) in flat(lines)
    examples = [line.strip() for line in lines[-30:] if "localspec " in line and not line.startswith("│")]
    if len(words) == 1:
        assert command.epilog
        assert all(example in examples or f"Example: {example}" in examples for example in shown(command))


@pytest.mark.parametrize("name", ["chat", "agent", "bench", "prune-draft", "quantize"])
def test_the_options_are_in_panels(name: str) -> None:
    text = "\n".join(help_of((name,)))
    assert "─ Model ─" in text or "─ Draft ─" in text
    assert "─ Output ─" in text
    assert "─ Options ─" not in text


def test_an_option_in_a_panel_takes_at_most_two_lines() -> None:
    for name in ("chat", "agent", "bench", "prune-draft", "quantize"):
        assert [row for row in rows(help_of((name,))) if len(row) > 2] == []


def test_brackets_are_no_markup() -> None:
    assert "such as [chat], or from the top level." in flat(help_of(("config",)))
    assert "hf:OWNER/NAME[:FILE]" in flat(help_of(("pull",)))
