"""A file or folder added under a chosen name: linked, copied, converted once, or rejected."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import BadValue, BrokenModel, LocalspecError, StorageError, UnknownModel
from localspec.library import Library
from localspec.library.importing.add_local import add_local
from localspec.library.verify import problems

CONVERTED = "openvino_model.bin"


def leftovers(library: Library) -> list[str]:
    found = library.models.iterdir() if library.models.is_dir() else []
    return [path.name for path in found if path.name.startswith(".") and path.suffix != ".lock"]


def test_a_gguf_stays_where_it_is(
    library: Library, tmp_path: Path, make_gguf: Any, said: Any, converted: list[str]
) -> None:
    path = make_gguf(tmp_path / "数 ö.gguf")
    found = add_local(library, path, "coder", said)
    assert (found.name, found.files_in("gguf"), converted) == ("coder", path.resolve(), ["llama"])
    assert library.find("coder") == found
    assert library.resolve("coder", said) == found
    assert library.resolve(str(path), said) == found
    assert problems(found, said)[1] == []
    assert converted == ["llama"]


@pytest.mark.parametrize("links", [True, False])
def test_the_same_file_is_not_converted_again(
    library: Library,
    tmp_path: Path,
    make_gguf: Any,
    said: Any,
    converted: list[str],
    monkeypatch: pytest.MonkeyPatch,
    links: bool,
) -> None:
    def refused(*names: object) -> None:
        raise OSError("no links here")

    if not links:
        monkeypatch.setattr(os, "link", refused)
    path = make_gguf(tmp_path / "a.gguf")
    first = library.resolve(str(path), said)
    other = Path(shutil.copy(path, tmp_path / "b.gguf"))
    found = add_local(library, other, "twin", said)
    assert converted == ["llama"]
    assert (found.folder / CONVERTED).samefile(first.folder / CONVERTED) == links
    assert (found.files_in("gguf"), found.manifest.source) == (other, f"file:{other}")
    assert found.manifest.history[-1] == f"the same file as `{first.name}`"
    read, wrong = problems(found, said)
    assert (read, wrong) == (len(found.manifest.sizes) + 1, [])
    path.unlink()
    library.remove(first.name, said)
    assert library.find("twin") == found
    assert problems(found, said) == (read, [])


def test_a_copy_is_converted_and_needs_nothing_else(
    library: Library, tmp_path: Path, make_gguf: Any, said: Any, converted: list[str]
) -> None:
    path = make_gguf(tmp_path / "a.gguf")
    library.resolve(str(path), said)
    found = add_local(library, path, "mine", said, copy=True)
    assert found.files_in("gguf") == found.folder / "a.gguf"
    path.unlink()
    assert problems(found, said) == (len(found.manifest.sizes), [])


def test_two_at_once_make_one_model(
    library: Library, tmp_path: Path, make_gguf: Any, said: Any, converted: list[str]
) -> None:
    paths = [make_gguf(tmp_path / f"{seed}.gguf", seed) for seed in range(4)]
    made, refused = [], []

    def run(path: Path) -> None:
        try:
            made.append(add_local(library, path, "mine", said))
        except BadValue as error:
            refused.append(error.message)

    threads = [threading.Thread(target=run, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert refused == ["A model called `mine` already exists"] * 3
    assert library.find("mine") == made[0]
    assert leftovers(library) == []


def test_an_incomplete_model_of_that_name_is_kept(
    library: Library, tmp_path: Path, make_gguf: Any, said: Any, converted: list[str]
) -> None:
    path = make_gguf(tmp_path / "a.gguf")
    found = add_local(library, path, "mine", said)
    (found.folder / CONVERTED).unlink()
    before = sorted(found.folder.iterdir())
    with pytest.raises(BadValue, match="`mine` already"):
        add_local(library, path, "mine", said)
    assert sorted(found.folder.iterdir()) == before


@pytest.mark.parametrize("name", ["smollm2", "smollm2-135m", "SmolLM2-135M"])
def test_a_name_of_the_catalogue_is_rejected(
    library: Library, tmp_path: Path, make_gguf: Any, said: Any, name: str
) -> None:
    with pytest.raises(BadValue, match="is a name of the catalogue") as found:
        add_local(library, make_gguf(tmp_path / "a.gguf"), name, said)
    assert f"localspec pull {name}" in str(found.value.hint)


@pytest.mark.parametrize(
    ("content", "error"), [(b"", BrokenModel), (b"notes", BrokenModel), (b"GGUF" + bytes(20), LocalspecError)]
)
def test_a_file_that_is_no_gguf_leaves_nothing(
    library: Library, tmp_path: Path, said: Any, content: bytes, error: type[LocalspecError]
) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    with pytest.raises(error):
        add_local(library, path, "x", said)
    assert library.known() == []
    assert leftovers(library) == []


def test_a_missing_path(library: Library, tmp_path: Path, said: Any) -> None:
    with pytest.raises(UnknownModel, match="No such file or folder"):
        add_local(library, tmp_path / "none", "x", said)


def test_a_full_disk_leaves_nothing(
    library: Library, tmp_path: Path, make_gguf: Any, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.library.storage.free_bytes", lambda folder: 10)
    with pytest.raises(StorageError, match="10 bytes are free and [0-9,]+ are needed"):
        add_local(library, make_gguf(tmp_path / "a.gguf"), "x", said, copy=True)
    assert library.known() == []
    assert leftovers(library) == []


def test_an_openvino_folder_lacks_its_weights(library: Library, tmp_path: Path, said: Any) -> None:
    (tmp_path / "openvino_model.xml").write_text("<net/>")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(LocalspecError, match=r"no `openvino_model\.bin`"):
        add_local(library, tmp_path, "x", said)
