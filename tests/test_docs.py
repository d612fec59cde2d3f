"""The README shows commands that exist, with options that exist."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main
from perf import document
from typer.testing import CliRunner

from localspec import plugins
from localspec.cli.app import app
from localspec.library import catalogue

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
EXACTNESS = (ROOT / "docs" / "exactness.md").read_text("utf-8")
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
OPTIONS_OF_TYPER = {"--install-completion", "--quiet"}


def shown() -> list[list[str]]:
    """Return the words of every localspec command in the README's blocks, without comments."""
    blocks = [
        text for language, text in re.findall(r"^```(\w*)\n(.*?)^```", README, re.S | re.M) if not language
    ]
    lines = [part for block in blocks for line in block.splitlines() for part in re.split(r"&&|\|", line)]
    words = [shlex.split(line, comments=True) for line in lines if "localspec" in line]
    return [found[1:] for found in words if found[:1] == ["localspec"]]


def options_of(command: str) -> set[str]:
    return {name for option in COMMANDS[command].params for name in option.opts}


def test_there_are_commands_to_check() -> None:
    assert len(shown()) >= 6


@pytest.mark.parametrize("words", shown(), ids=" ".join)
def test_a_shown_command_exists_with_its_options(words: list[str]) -> None:
    if words[0].startswith("-"):
        assert words[0] in OPTIONS_OF_TYPER
        return
    assert words[0] in COMMANDS
    given = [word for word in words if word.startswith("--")]
    assert set(given) <= options_of(words[0])
    if words[0] == "chat" and re.fullmatch(r"[a-z0-9.-]+", words[1]):
        assert catalogue.find(words[1])


def test_every_command_and_option_of_chat_is_in_the_readme() -> None:
    for command in COMMANDS:
        assert f"`localspec {command}" in README
    shown = {name for option in COMMANDS["chat"].params if not option.hidden for name in option.opts}
    missing = {name for name in shown if name.startswith("--") and name not in README}
    assert not missing


@pytest.mark.parametrize("kind", ["drafters", "draft_length", "verifiers", "engines"])
def test_shown_specs_parse(kind: str) -> None:
    specs = re.findall(r"`([a-z]+(?::[a-z_]+=[\w.,=]+)?)`", README + EXACTNESS)
    known = [spec for spec in specs if spec.partition(":")[0] in plugins.names(kind) and "N" not in spec]
    assert known
    for spec in known:
        if spec.partition(":")[0] not in ("model", "diffusion"):  # that is an engine and a drafter
            plugins.parse(kind, spec)


def test_ci_runs_the_readme_s_command() -> None:
    block = re.search(r"<!-- tests -->\n```\n(.*?)\n```", README, re.S)
    assert block is not None
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    (extract,) = re.findall(r"^tests=\$\((.*)\)$", script, re.M)
    extracted = subprocess.run(["bash", "-c", extract], cwd=ROOT, capture_output=True, text=True, check=True)
    assert extracted.stdout.strip() == block[1]
    assert "python -m pytest" in block[1]
    assert script.rstrip().endswith('bash -euo pipefail -c "$tests"')


def test_tables_are_those_of_the_reports_that_are_kept() -> None:
    text = document.PERFORMANCE.read_text("utf-8")
    assert document.written(text) == text
    shown = {place["name"] for place in document.PLACE.finditer(text)}
    assert shown == {path.stem for path in document.MEASURED.glob("*.json")}
    assert shown


def test_help_names_every_command() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    for command in COMMANDS:
        assert command in result.output
