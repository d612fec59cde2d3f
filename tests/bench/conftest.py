"""SmolLM2 for tests of measurements: a library, and a plain runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import models
from localspec.library import Library, Silent
from localspec.runtime.choice import Choice
from localspec.runtime.generation import Runtime


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A library of its own, which the environment names."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALSPEC_HOME", str(folder))
        Library().resolve(str(models.smollm2_gguf()), Silent())
        yield folder


@pytest.fixture(scope="module")
def plain(home: Path) -> Runtime:
    return Runtime.load(models.SMALL, Choice(draft="off"), Library(home), Silent())
