"""A tuned setting is used while it still fits, and said to be gone when it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
from said import Said

from localspec.library import Library, Silent
from localspec.runtime.choice import Choice
from localspec.runtime.resolution import resolve
from localspec.state import tuned


@pytest.fixture
def gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    return str(tiny.write_gguf(tiny.make("llama", "Q8_0"), tmp_path / "small.gguf"))


def resolved(gguf: str, choice: dict[str, Any], speedup: Any = 1.5, **given: Any) -> tuple[Any, list[str]]:
    """Keep a tuned choice and return the resolution of the default, and what was said."""
    library, lines = Library(), Said()
    tuned.keep(library.resolve(gguf, Silent()), choice, speedup)
    return resolve(gguf, Choice(tuned=True, **given), library, lines), lines.lines


def test_a_tuned_setting_replaces_the_default(gguf: str) -> None:
    found, lines = resolved(gguf, {"engine": "openvino:kv=f32", "draft": "ngram"})
    assert (str(found.target.spec), str(found.draft.spec), found.tuned_speedup) == (
        "openvino:kv=f32",
        "ngram",
        1.5,
    )
    assert lines == []


@pytest.mark.parametrize("draft", ["gone", "draft_model:name=gone", "hybrid:name=gone"])
def test_a_deleted_draft_is_neither_downloaded_nor_missed(gguf: str, draft: str) -> None:
    found, lines = resolved(gguf, {"draft": draft})
    assert (found.draft.load, found.tuned_speedup) == (None, None)
    assert str(found.draft.spec) == "hybrid"
    assert any("The tuned draft `gone` is gone" in line for line in lines)


@pytest.mark.parametrize(
    "choice",
    [
        {"lookahead": "measured"},  # a field of another version
        {"draft_length": "measured"},  # a part of another version
        {"engine": 3},
    ],
)
def test_a_setting_of_another_version_is_said_not_to_be_used(gguf: str, choice: Any) -> None:
    found, lines = resolved(gguf, choice)
    assert (str(found.draft.spec), found.tuned_speedup) == ("hybrid", None)
    assert any("The tuned setting is of another version" in line for line in lines)


@pytest.mark.parametrize(("choice", "speedup"), [({"draft": "ngram"}, "fast"), ([], 1.5)])
def test_a_damaged_setting_is_ignored(gguf: str, choice: Any, speedup: Any) -> None:
    found, _ = resolved(gguf, choice, speedup)
    assert (str(found.draft.spec), found.tuned_speedup) == ("hybrid", None)


def test_an_explicit_choice_is_not_replaced(gguf: str) -> None:
    library = Library()
    tuned.keep(library.resolve(gguf, Silent()), {"draft": "ngram"}, 1.5)
    found = resolve(gguf, Choice(draft="off"), library, Silent())
    assert (str(found.draft.spec), found.tuned_speedup) == ("none", None)
    assert found.off_reason == "it was switched off"
