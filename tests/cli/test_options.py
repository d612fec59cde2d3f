"""Commands whose options are the fields of a dataclass."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from localspec.cli import options
from localspec.cli.agent.options import AgentOptions
from localspec.cli.app import app
from localspec.cli.chat.options import ChatOptions
from localspec.cli.machine.bench import BenchOptions

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
