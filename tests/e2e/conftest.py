"""SmolLM2 in its own library, and a person at a terminal."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command import MODEL, Localspec
from person import Person

import models
from localspec.library import Library, Silent


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A library with SmolLM2."""
    home = tmp_path_factory.mktemp("home")
    assert Library(home).resolve(str(models.smollm2_gguf()), Silent()).name == MODEL
    yield home
    shutil.rmtree(home)


@pytest.fixture
def fresh_home(place: Path, tmp_path: Path) -> Path:
    """A home with SmolLM2 and no conversations."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "models").symlink_to(place / "models")
    return home


@pytest.fixture
def sit_down(fresh_home: Path, tmp_path: Path) -> Iterator[Callable[..., Person]]:
    """Start a command at a terminal, in an empty folder."""
    seen: list[Person] = []
    folder = tmp_path / "work"
    folder.mkdir()

    def begin(*arguments: str, **more: str) -> Person:
        seen.append(Person(Localspec(fresh_home), *arguments, folder=folder, **more))
        return seen[-1]

    yield begin
    for person in seen:
        person.close()
