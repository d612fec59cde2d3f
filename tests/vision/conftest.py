"""Tiny models with eyes on disk, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from random_models import tiny_vision

from localspec.library import Library


@pytest.fixture(scope="session")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vision.llava(tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vision.qwen(tmp_path_factory.mktemp("qwen"))


@pytest.fixture(scope="session")
def blind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model with the words of the others."""
    return tiny_vision.of_text(tmp_path_factory.mktemp("blind"))


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    return Library()
