"""Functions as tools: their schemas, descriptions and errors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from localspec.errors import BadValue, UnknownName
from localspec.tools import Tool, ToolFailed, imported, tool


def weather(city: str, days: int = 1, unit: Literal["C", "F"] = "C", tags: list[str] | None = None) -> str:
    """Tell the weather.

    For some days, as far as they are known.

    Args:
        city: which city,
            with its country
        days (int): how many days
        unit: of the temperature

    Returns:
        A line a day.
    """
    return f"{city} {days!r} {unit} {tags}"


def test_a_schema_is_made_of_the_signature_and_the_docstring() -> None:
    found = tool(weather)
    assert found.name == "weather"
    assert found.description == "Tell the weather. For some days, as far as they are known."
    assert found.schema["function"]["parameters"] == found.parameters
    assert found.parameters["required"] == ["city"]
    assert found.parameters["additionalProperties"] is False
    shapes = found.parameters["properties"]
    assert shapes["city"] == {"type": "string", "description": "which city, with its country"}
    assert shapes["days"] == {"type": "integer", "description": "how many days"}
    assert sorted(shapes["unit"]["enum"]) == ["C", "F"]
    assert "description" not in shapes["tags"]


def test_an_annotation_describes_an_argument() -> None:
    def look(path: Annotated[str, "where to look"]) -> str:
        """Look."""
        return path

    assert tool(look).parameters["properties"]["path"]["description"] == "where to look"


def test_arguments_are_converted() -> None:
    assert tool(weather).run(city="Rome", days="2", tags=["a"]) == "Rome 2 C ['a']"


@pytest.mark.parametrize(
    "given", [{"city": "Rome", "days": "two"}, {"city": "Rome", "unit": "K"}, {"city": ["Rome"]}]
)
def test_wrong_arguments_are_reported(given: dict[str, Any]) -> None:
    wrong = list(given)[-1]
    with pytest.raises(ToolFailed, match=f"`{wrong}` of `weather` does not fit"):
        tool(weather).run(**given)


def test_missing_or_unknown_arguments_are_reported() -> None:
    found = tool(weather)
    with pytest.raises(ToolFailed, match="needs `city`"):
        found.check({"days": 1})
    with pytest.raises(ToolFailed, match="no argument `citty`") as error:
        found.check({"citty": "Rome"})
    assert error.value.hint == "Did you mean `city`?"


def test_an_async_function_is_awaited() -> None:
    async def later(what: str) -> str:
        """Answer later."""
        return what

    assert tool(later).run(what="now") == "now"


def undescribed(text: str) -> str:
    return text


def untyped(text) -> str:  # type: ignore[no-untyped-def]
    """Do."""
    return str(text)


def several(*texts: str) -> str:
    """Do."""
    return "".join(texts)


def strange(text: complex) -> str:
    """Do."""
    return str(text)


def unresolved(text: Missing) -> str:  # type: ignore[name-defined]  # noqa: F821
    """Do."""
    return str(text)


@pytest.mark.parametrize("function", [undescribed, untyped, several, strange, unresolved])
def test_unsupported_types_are_refused(function: Any) -> None:
    with pytest.raises(BadValue) as error:
        tool(function)
    assert function.__name__ in str(error.value)
    assert error.value.hint


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder whose modules are removed afterwards."""
    before, path = set(sys.modules), list(sys.path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_function_is_found_in_the_folder(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (own / "mine_here.py").write_text(
        'def shout(text: str) -> str:\n    """Shout."""\n    print("noise")\n    return text.upper()\n'
    )
    found = imported("mine_here:shout")
    assert isinstance(found, Tool)
    assert found.access == "run"
    assert found.run(text="a") == "A"
    assert capsys.readouterr() == ("", "noise\n")


def test_a_missing_function(own: Path) -> None:
    (own / "mine_there.py").write_text(
        'def shout(text: str) -> str:\n    """Shout."""\n    return text\n\nx = 1\n'
    )
    with pytest.raises(UnknownName) as error:
        imported("mine_there:shoot")
    assert error.value.hint == "Did you mean `shout`?"
    with pytest.raises(UnknownName):
        imported("mine_there:x")


@pytest.mark.parametrize("text", ["import nothing_of_that_name", "1 / 0", "def (", "raise OSError('no')"])
def test_a_module_that_cannot_be_imported(own: Path, text: str) -> None:
    (own / "mine_broken.py").write_text(text)
    with pytest.raises(BadValue, match="`mine_broken` cannot be imported") as error:
        imported("mine_broken:shout")
    assert error.value.hint


@pytest.mark.parametrize("spec", ["nothing_at_all:f", ":f", "..up:f", "a b:f"])
def test_a_missing_module(own: Path, spec: str) -> None:
    with pytest.raises(BadValue, match="cannot be imported"):
        imported(spec)
