"""A model whose source was dropped: what is deleted, what stays, and how the source comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import loopback
import pytest
from msgspec.structs import replace

from localspec.errors import BadValue, BrokenModel, UnsupportedModel
from localspec.library import Library, StoredModel
from localspec.library.importing import drop_source as module
from localspec.library.importing.add_local import add_local
from localspec.library.importing.drop_source import drop_source
from localspec.library.verify import problems

REPOSITORY, FILE = "o/m", "m.gguf"


@pytest.fixture
def pulled(
    library: Library, hub: Any, tmp_path: Path, make_gguf: Any, said: Any, converted: Any
) -> StoredModel:
    """A GGUF file of the hub's cache, with a graph."""
    hub.repositories = {REPOSITORY: {FILE: make_gguf(tmp_path / FILE).read_bytes()}}
    model = library.pull(f"hf:{REPOSITORY}", said)
    assert model.files_in("openvino")
    assert model.files_in("gguf")
    return model


def blobs(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "hub cache").rglob("blobs/*") if path.is_file()]


def sound(library: Library, name: str, said: Any) -> StoredModel:
    """Return the model of a name, which is complete and as its manifest says."""
    found = library.find(name)
    assert found is not None
    assert problems(found, said)[1] == []
    return found


def test_a_downloaded_source_is_deleted_from_the_cache(
    library: Library, pulled: StoredModel, tmp_path: Path, said: Any
) -> None:
    (blob,) = blobs(tmp_path)
    size = blob.stat().st_size
    model, freed = drop_source(library, pulled, said)
    assert freed == size
    assert blobs(tmp_path) == []
    assert sound(library, pulled.name, said) == model
    assert (model.files_in("gguf"), model.files_in("openvino")) == (None, pulled.folder)
    assert drop_source(library, model, said) == (model, 0)
    with pytest.raises(
        UnsupportedModel, match="`llamacpp` reads gguf, which `--drop-source` removed"
    ) as caught:
        model.path_for("llamacpp", ("gguf",))
    assert f"`localspec rm {model.name}`, then `localspec pull {model.name}`" in str(caught.value.hint)


def test_a_cache_without_symbolic_links_is_freed_too(
    library: Library,
    hub: Any,
    tmp_path: Path,
    make_gguf: Any,
    said: Any,
    converted: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*arguments: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(Path, "symlink_to", refused)
    hub.repositories = {REPOSITORY: {FILE: make_gguf(tmp_path / FILE).read_bytes()}}
    model = library.pull(f"hf:{REPOSITORY}", said)
    file = model.files_in("gguf")
    assert file is not None
    assert not file.is_symlink()
    assert drop_source(library, model, said)[1] > 0
    assert blobs(tmp_path) == []
    assert not file.exists()


def test_a_file_that_another_model_needs_stays(
    library: Library, pulled: StoredModel, tmp_path: Path, said: Any
) -> None:
    other = library.models / "other"
    other.mkdir()
    for file in pulled.folder.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    replace(pulled.manifest, name="other").write(other)
    assert drop_source(library, pulled, said)[1] == 0
    assert len(blobs(tmp_path)) == 1
    assert sound(library, "other", said).files_in("gguf")


def test_a_blob_of_another_snapshot_stays(
    library: Library, pulled: StoredModel, tmp_path: Path, said: Any
) -> None:
    file = pulled.files_in("gguf")
    assert file is not None
    older = file.parent.with_name("a" * 40) / FILE
    older.parent.mkdir()
    older.symlink_to(file.resolve())
    assert drop_source(library, pulled, said)[1] == 0
    assert older.is_file()
    assert not file.exists()


def test_a_file_of_the_user_stays_and_comes_back(
    library: Library, tmp_path: Path, make_gguf: Any, said: Any, converted: list[str]
) -> None:
    path = make_gguf(tmp_path / FILE)
    model, freed = drop_source(library, add_local(library, path, "mine", said), said)
    assert (freed, path.is_file(), model.files_in("gguf")) == (0, True, None)
    with pytest.raises(UnsupportedModel) as caught:
        model.path_for("llamacpp", ("gguf",))
    assert caught.value.hint == f"Give it instead: `{path.resolve()}`"
    moved = path.rename(tmp_path / "moved.gguf")
    assert library.resolve(str(moved), said, ("gguf",)).files_in("gguf") == moved
    assert sound(library, "mine", said).manifest.dropped == ""
    moved.unlink()
    assert [problem.file for problem in problems(library.known()[0], said)[1]] == [moved]
    assert converted == ["llama"]


def test_copies_are_deleted(
    library: Library, tmp_path: Path, make_gguf: Any, said: Any, converted: list[str]
) -> None:
    path = make_gguf(tmp_path / FILE)
    model = add_local(library, path, "mine", said, copy=True)
    assert drop_source(library, model, said)[1] == path.stat().st_size
    assert not (model.folder / FILE).exists()
    assert path.is_file()
    assert sound(library, "mine", said).manifest.sizes.keys() >= {"openvino_model.bin", "tokenizer.json"}


def test_a_kill_loses_nothing(
    library: Library,
    tmp_path: Path,
    make_gguf: Any,
    said: Any,
    converted: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def killed(*arguments: object) -> int:
        raise KeyboardInterrupt

    path = make_gguf(tmp_path / FILE)
    model = add_local(library, path, "mine", said, copy=True)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_delete", killed)
        with pytest.raises(KeyboardInterrupt):
            drop_source(library, model, said)
    assert (model.folder / FILE).is_file()
    found = sound(library, "mine", said)
    assert drop_source(library, found, said)[1] == path.stat().st_size
    assert not (model.folder / FILE).exists()


def test_a_damaged_graph_keeps_its_source(
    library: Library, pulled: StoredModel, tmp_path: Path, said: Any
) -> None:
    weights = pulled.folder / "openvino_model.bin"
    weights.write_bytes(b"x" * weights.stat().st_size)
    with pytest.raises(BrokenModel, match="openvino_model.bin"):
        drop_source(library, pulled, said)
    assert len(blobs(tmp_path)) == 1
    found = library.find(pulled.name)
    assert found is not None
    assert found.files_in("gguf")


def test_a_model_without_a_graph_keeps_its_source(
    library: Library, hub: Any, tmp_path: Path, make_gguf: Any, said: Any
) -> None:
    hub.repositories = {REPOSITORY: {FILE: make_gguf(tmp_path / FILE).read_bytes()}}
    model = library.pull(f"hf:{REPOSITORY}", said, format="gguf")
    with pytest.raises(BadValue, match="has no OpenVINO graph"):
        drop_source(library, model, said)
    assert model.files_in("gguf")


def test_a_downloaded_graph_stays(library: Library, hub: Any, said: Any) -> None:
    hub.repositories = {REPOSITORY: loopback.openvino_files()}
    model = library.pull(f"hf:{REPOSITORY}", said)
    assert drop_source(library, model, said) == (model, 0)
    assert sound(library, model.name, said) == model
