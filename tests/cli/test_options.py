"""Commands whose options are the fields of a dataclass."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from localspec.cli import options
from localspec.cli.agent.options import AgentOptions
from localspec.cli.app import app
from localspec.cli.chat.options import ChatOptions
from localspec.cli.machine.bench import BenchOptions
from localspec.cli.prompt import is_prompt

seen: list[Given] = []


@dataclass(frozen=True)
class Given:
    """Options of a command."""

    name: Annotated[str, typer.Argument(help="A name.")]
    count: Annotated[int, typer.Option(min=1)] = 2
    as_json: options.AsJson = False


@options.command
def example(given: Given) -> None:
    """Keep the options."""
    seen.append(given)


example_app = typer.Typer()
example_app.command()(example)


def test_a_command_gets_its_options_as_a_dataclass() -> None:
    seen.clear()
    assert CliRunner().invoke(example_app, ["x", "--count", "3", "--json"]).exit_code == 0
    assert CliRunner().invoke(example_app, ["y"]).exit_code == 0
    assert seen == [Given("x", 3, True), Given("y")]


@pytest.mark.parametrize("arguments", [[], ["x", "--count", "0"], ["x", "--other"]])
def test_the_parser_checks_the_options(arguments: list[str]) -> None:
    assert CliRunner().invoke(example_app, arguments).exit_code == 2


@pytest.mark.parametrize(
    ("name", "kind"), [("chat", ChatOptions), ("agent", AgentOptions), ("bench", BenchOptions)]
)
def test_the_help_has_the_order_of_the_dataclass(name: str, kind: type[Any]) -> None:
    tree: Any = typer.main.get_command(app)
    names = [parameter.name for parameter in tree.commands[name].params]
    assert names[: len(fields(kind))] == [field.name for field in fields(kind)]


@pytest.mark.parametrize(
    ("argument", "prompt"),
    [
        ("What is the capital of France?", True),
        ("Explain hash tables", True),
        ("Why?", True),
        ("two\nlines", True),
        (" ", True),
        ("Hello", False),
        ("qwen3-8b", False),
        ("hf:OWNER/NAME", False),
        ("/no/such folder", False),
        ("./no such.gguf", False),
        ("~/no such.gguf", False),
        (".", False),
        ("", False),
        (None, False),
    ],
)
def test_a_prompt_has_a_blank_or_ends_like_a_sentence(argument: str | None, prompt: bool) -> None:
    assert is_prompt(argument) is prompt


def test_a_file_with_a_blank_in_its_name_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_prompt("my model.gguf")
    (tmp_path / "my model.gguf").touch()
    assert not is_prompt("my model.gguf")


def test_a_lone_prompt_leaves_the_model_to_the_settings() -> None:
    chat = ChatOptions("Say hi").with_prompt_first()
    assert (chat.model, chat.prompt) == (None, "Say hi")
    agent = AgentOptions("Fix test.py!").with_task_first()
    assert (agent.model, agent.task) == (None, "Fix test.py!")
    assert ChatOptions("Say hi", "Count").with_prompt_first().model == "Say hi"
    assert AgentOptions("qwen3-8b").with_task_first().model == "qwen3-8b"
