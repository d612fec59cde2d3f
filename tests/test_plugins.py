from __future__ import annotations

from typing import Annotated, Any

import pytest

from localspec import plugins
from localspec.core.contracts import Engine, Session
from localspec.errors import BadValue, UnknownName
from localspec.plugins import Option, Part, Setting


class Example(Engine):
    """Has an option of each sort.

    Nobody reads this line.
    """

    def __init__(
        self,
        model: str,
        *,
        name: Annotated[str, Option("no default")],
        depth: Annotated[int, Option("two limits", least=1, most=64)] = 8,
        share: Annotated[float, Option("one limit", least=0)] = 0.5,
        below: Annotated[float, Option("the other limit", most=2_000_000)] = 0.5,
        fast: Annotated[bool, Option("a switch")] = False,
        kind: Annotated[str, Option("words", choices=("small", "large"))] = "small",
    ) -> None:
        self.made = (model, name, depth, share, below, fast, kind)

    def session(self) -> Session:
        raise NotImplementedError


EXAMPLE = Part("engines", "example", Example)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `plugins` find the example and nothing else of that kind but the toy."""
    real = plugins.part

    def part(kind: str, name: str) -> Part:
        return EXAMPLE if name == "example" else real(kind, name)

    monkeypatch.setattr(plugins, "part", part)


def settings() -> dict[str, Setting]:
    return EXAMPLE.settings


def test_options_are_read_from_the_constructor() -> None:
    assert list(settings()) == ["name", "depth", "share", "below", "fast", "kind"]
    assert settings()["depth"] == Setting("depth", int, 8, Option("two limits", least=1, most=64))
    assert settings()["name"].default is plugins.REQUIRED
    assert EXAMPLE.summary == "Has an option of each sort."


@pytest.mark.usefixtures("example")
@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("example:name=a", {"name": "a"}),
        ("example:name=a,depth=3,share=0.25", {"name": "a", "depth": 3, "share": 0.25}),
        ("example:name=C:/models/a=b,fast=on", {"name": "C:/models/a=b", "fast": True}),
        ("example:name=,kind=large", {"name": "", "kind": "large"}),
        ("example:name=a,fast=No", {"name": "a", "fast": False}),
    ],
)
def test_a_text_becomes_a_spec(text: str, options: dict[str, Any]) -> None:
    spec = plugins.parse("engines", text)
    assert (spec.name, spec.options) == ("example", options)
    assert plugins.parse("engines", str(spec)) == spec
    found = spec.make("model").made
    assert found[:2] == ("model", options["name"])
    assert found[2] == options.get("depth", 8)


def test_a_bare_name_has_all_defaults() -> None:
    spec = plugins.parse("drafters", "ngram")
    assert (str(spec), spec.options) == ("ngram", {})


@pytest.mark.parametrize(
    ("kind", "name", "message", "hint"),
    [
        ("drafters", "ngrm", "Unknown drafter `ngrm`", "Did you mean `ngram`?"),
        ("verifiers", "exakt", "Unknown verifier `exakt`", "Did you mean `exact`?"),
        (
            "draft_length",
            "",
            "Unknown draft-length policy ``",
            "",
        ),
        ("engines", "../torch", "Unknown engine `../torch`", "Did you mean `torch`?"),
        ("engines", "__init__", "Unknown engine `__init__`", ""),
    ],
)
def test_an_unknown_part_names_the_nearest(kind: str, name: str, message: str, hint: str) -> None:
    with pytest.raises(UnknownName) as caught:
        plugins.parse(kind, name)
    assert caught.value.message == message
    assert str(caught.value.hint).startswith(hint)
    assert caught.value.exit_code == 2


@pytest.mark.usefixtures("example")
@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("ngram:longst=4", "`ngram` has no option called `longst`", "Did you mean `longest`?"),
        ("ngram:9", "`ngram` has no option called `9`", "Choose from `longest`, `shortest`"),
        ("none:a=1", "`none` has no option called `a`", "It takes none"),
    ],
)
def test_an_unknown_option_names_the_nearest(text: str, message: str, hint: str) -> None:
    with pytest.raises(UnknownName) as caught:
        plugins.parse("drafters", text)
    assert (caught.value.message, caught.value.hint) == (message, hint)


@pytest.mark.usefixtures("example")
@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ("", "`example` needs `name`", "Type `example:name=...`"),
        ("depth=4", "`example` needs `name`", "Type `example:name=...`"),
        ("name", "`name` of `example` has no value", "Type `example:name=...`"),
        ("depth=x", "`depth` of `example` is `x`", "It takes a whole number"),
        ("depth=1.5", "`depth` of `example` is `1.5`", "It takes a whole number"),
        ("depth=", "`depth` of `example` is ``", "It takes a whole number"),
        ("depth=0", "`depth` of `example` is `0`", "It takes a number from 1 to 64"),
        ("depth=65", "`depth` of `example` is `65`", "It takes a number from 1 to 64"),
        ("share=x", "`share` of `example` is `x`", "It takes a number"),
        ("share=-1", "`share` of `example` is `-1`", "It takes a number from 0 on"),
        ("share=nan", "`share` of `example` is `nan`", "It takes a number from 0 on"),
        ("below=1e9", "`below` of `example` is `1e9`", "It takes a number up to 2000000"),
        ("fast=maybe", "`fast` of `example` is `maybe`", "It takes `on` or `off`"),
        ("kind=smal", "`kind` of `example` is `smal`", "Did you mean `small`?"),
        ("depth=4,depth=5", "`depth` of `example` has two values", "Give it once"),
    ],
)
def test_a_bad_value_says_what_it_takes(options: str, message: str, hint: str) -> None:
    with pytest.raises(BadValue) as caught:
        plugins.parse("engines", f"example:{options}")
    assert (caught.value.message, caught.value.hint) == (message, hint)


@pytest.mark.parametrize("text", [*plugins.SWITCHES, "ON", "False"])
def test_switches(text: str) -> None:
    assert settings()["fast"].parse(text, "example") is (text.lower() in ("true", "on", "yes"))


def test_parts_of_a_kind_by_name() -> None:
    assert set(plugins.parts("verifiers")) >= {"exact", "rejection"}
    assert plugins.parts("drafters")["ngram"].made_by.__name__ == "Ngram"
