"""A look at a file that was never imported: nothing of it stays in the library."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from localspec.library import Library, home
from localspec.library.importing.add_local import add_local
from localspec.library.importing.visit import visited


def files_of(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder but empty locks."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    return Library()


def test_a_new_file_leaves_nothing_behind(
    library: Library, tmp_path: Path, make_gguf: Any, said: Any, converted: list[str]
) -> None:
    path = make_gguf(tmp_path / "a.gguf")
    with visited(library, str(path)) as own:
        assert own.home == home() != library.home
        model = own.resolve(str(path), said)
        assert model.files_in("openvino")
    assert home() == library.home
    assert not library.home.exists()


def test_the_models_that_are_there_are_known_and_stay_as_they_are(
    library: Library, tmp_path: Path, make_gguf: Any, said: Any, converted: list[str]
) -> None:
    other = tmp_path / "elsewhere" / "b.gguf"
    other.parent.mkdir()
    first = make_gguf(tmp_path / "a.gguf")
    add_local(library, first, "mine", said)
    before = files_of(library.home)
    other.write_bytes(first.read_bytes())
    with visited(library, str(other)) as own:
        assert [model.name for model in own.all()] == ["mine"]
        found = own.resolve(str(other), said)  # the same content: its other place is noted for now only
        assert found.name == "mine"
        assert own.home != library.home
    assert files_of(library.home) == before
    assert converted == ["llama"]


def test_a_model_of_the_library_is_looked_at_where_it_is(
    library: Library, tmp_path: Path, make_gguf: Any, said: Any, converted: list[str]
) -> None:
    path = make_gguf(tmp_path / "a.gguf")
    add_local(library, path, "mine", said)
    for name in ("mine", str(path), "smollm2-135m", "no such model"):
        with visited(library, name) as own:
            assert own is library


def test_a_failed_look_leaves_nothing_either(library: Library, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF")
    with suppress(KeyError), visited(library, str(path)):
        (home() / "rest").write_text("")
        raise KeyError
    assert os.environ["LOCALSPEC_HOME"] == str(library.home)
    assert not library.home.exists()
