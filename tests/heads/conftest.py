"""A tiny target in a library."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
from random_heads import LAYERS

from localspec.library import Library, Silent, StoredModel


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny.make("llama", "F32", layers=LAYERS, interleaved=True, seed=3)
    return tiny.write_gguf(model, tmp_path_factory.mktemp("target") / "tiny.gguf")


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    return Library()


@pytest.fixture
def target(library: Library, gguf: Path) -> StoredModel:
    return library.resolve(str(gguf), Silent())
