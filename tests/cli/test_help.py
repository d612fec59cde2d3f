"""Help, version and parts."""

from __future__ import annotations

import json
from importlib.metadata import version

import pytest
from command import Localspec

from localspec import plugins

COMMANDS = ("chat", "parts")


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
    assert plugins.offered("engines") == ("llamacpp", "npu", "openvino", "torch")
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
