"""A library for tests of diffusion models through the runtime and the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.library import Library

DATA = Path(__file__).parents[1] / "data" / "diffusion"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    return Library()


@pytest.fixture
def toy() -> str:
    """Return the folder of the trained toy."""
    return str(DATA / "toy")


@pytest.fixture
def small() -> str:
    """Return the folder of its draft."""
    return str(DATA / "draft")
