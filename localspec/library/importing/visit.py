"""A library for one look at a file: what is made for the look is gone afterwards."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from localspec.disk import atomic, given, private
from localspec.library import manifest
from localspec.library.importing import speech
from localspec.library.manifest import SourceFile
from localspec.library.model import GRAPH
from localspec.library.paths import HOME
from localspec.library.store import Library


@contextmanager
def visited(library: Library, name: str) -> Iterator[Library]:
    """Yield the library in which to look at a model: a passing one for a file that was never imported.

    The passing one knows all models of `library`, and is this process's data folder until the block ends.
    """
    if not _is_new(library, name):
        yield library
        return
    existed = library.home.exists()
    private.make_folder(library.home)
    before = os.environ.get(HOME)
    try:
        with atomic.scratch(library.home / "visit") as home:
            _link_models(library.models, home / "models")
            os.environ[HOME] = str(home)
            yield Library()
    finally:
        os.environ.pop(HOME)
        if before is not None:
            os.environ[HOME] = before
        if not existed:
            with suppress(OSError):  # another process has filled it
                library.home.rmdir()


def _is_new(library: Library, name: str) -> bool:
    """Return whether a name means a file or folder that no model of the library was made from."""
    if library.find(name) or not given.exists(name):
        return False
    path = given.path_of(name)
    if (path / GRAPH).is_file():
        return library.models.resolve() not in path.resolve().parents
    files = [path] if path.is_file() else speech.files_of(path)
    return library.by_source_files([SourceFile.of(file) for file in files]) is None


def _link_models(models: Path, into: Path) -> None:
    """Make the models of a library known in another folder of the same disk, with own manifests."""
    into.mkdir()
    for folder in models.iterdir() if models.is_dir() else ():
        if folder.name.startswith(".") or manifest.read(folder) is None:
            continue
        with suppress(OSError):  # a disk without links, or a model that is removed meanwhile
            (into / folder.name).mkdir()
            for file in folder.iterdir():
                if file.name != manifest.FILE:
                    os.link(file, into / folder.name / file.name)
            shutil.copyfile(folder / manifest.FILE, into / folder.name / manifest.FILE)
