"""Engines, the tokenizer and imports of the caller load at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny

from localspec.errors import BrokenModel
from localspec.library import Library, Silent, StoredModel
from localspec.runtime import load as parallel
from localspec.runtime.choice import Choice
from localspec.runtime.load import load
from localspec.runtime.loading import LoadSpec
from localspec.runtime.resolution import Resolution, resolve

SECONDS = 30


@pytest.fixture
def resolution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resolution:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    gguf = tiny.write_gguf(tiny.make("llama", "Q8_0"), tmp_path / "small.gguf")
    return resolve(str(gguf), Choice(draft="off", engine="openvino"), Library(), Silent())


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The order in which the engine is loaded and the tokenizer is opened."""
    found: list[str] = []

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any) -> Any:
            result = function(self)
            found.append(name)
            return result

        return call

    monkeypatch.setattr(LoadSpec, "load", noted("engine", LoadSpec.load))
    monkeypatch.setattr(StoredModel, "tokenizer", noted("tokenizer", StoredModel.tokenizer))
    return found


def test_the_caller_goes_on_while_an_engine_loads(
    resolution: Resolution, monkeypatch: pytest.MonkeyPatch
) -> None:
    called, own = threading.Event(), LoadSpec.load

    def waiting(self: LoadSpec) -> Any:
        assert called.wait(SECONDS)
        return own(self)

    monkeypatch.setattr(LoadSpec, "load", waiting)
    loaded = load(resolution, meanwhile=called.set)
    assert list(loaded.engines) == [resolution.target]
    assert loaded.tokenizer is resolution.target.model.tokenizer()
    assert loaded.translation is None


def test_the_tokenizer_waits_for_engines_that_are_fast(
    resolution: Resolution, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "HEAD_START", SECONDS)
    load(resolution)
    assert order == ["engine", "tokenizer"]


def test_the_tokenizer_does_not_wait_for_engines_that_are_slow(
    resolution: Resolution, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, own, noted = threading.Event(), StoredModel.tokenizer, LoadSpec.load

    def slow(self: LoadSpec) -> Any:
        assert opened.wait(SECONDS)
        return noted(self)

    def tokenizer(self: StoredModel) -> Any:
        opened.set()
        return own(self)

    monkeypatch.setattr(LoadSpec, "load", slow)
    monkeypatch.setattr(StoredModel, "tokenizer", tokenizer)
    load(resolution)
    assert sorted(order) == ["engine", "tokenizer"]


def test_the_fault_of_an_engine_is_raised(resolution: Resolution, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: LoadSpec) -> Any:
        raise BrokenModel("broken")

    monkeypatch.setattr(LoadSpec, "load", broken)
    with pytest.raises(BrokenModel, match="broken"):
        load(resolution)
