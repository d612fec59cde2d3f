"""Damaged files, disk usage, and manifests of a newer version."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import UnsupportedModel
from localspec.library import Library, Manifest, StoredModel, manifest
from localspec.library.manifest import SourceFile
from localspec.library.verify import Problem, disk_usage, problems, unreadable

CONTENT = b"some weights"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def folder(library: Library) -> Path:
    found = library.models / "m"
    found.mkdir(parents=True)
    return found


def model(folder: Path, **values: Any) -> StoredModel:
    """Describe the model `m` in `folder`, with a tokenizer and what `values` say."""
    (folder / "tokenizer.json").write_text("{}")
    values = {"sizes": {"tokenizer.json": 2} | values.pop("sizes", {})} | values
    found = Manifest(name="m", source="file:/x", **values)
    found.write(folder)
    return StoredModel("m", Path(found.folder) if found.folder else folder, found)


def test_a_file_is_compared_to_its_size_and_digest(folder: Path, said: Any) -> None:
    file = folder / "a.bin"
    file.write_bytes(CONTENT)
    found = model(folder, sizes={"a.bin": len(CONTENT)}, digests={"a.bin": DIGEST})
    assert problems(found, said) == (1, [])
    assert said.bytes == len(CONTENT)
    file.write_bytes(CONTENT[::-1])
    (problem,) = problems(found, said)[1]
    assert problem.what.startswith("has the sha256 ")
    assert DIGEST[:12] in problem.what
    file.write_bytes(CONTENT + b"!")
    assert problems(found, said) == (0, [Problem(file, "has 13 bytes, expected 12")])
    file.unlink()
    assert problems(found, said) == (0, [Problem(file, "is missing")])


def test_a_folder_in_place_of_a_file_cannot_be_read(folder: Path, said: Any) -> None:
    file = folder / "a.bin"
    file.mkdir()
    size = file.stat().st_size
    found = model(folder, sizes={"a.bin": size}, digests={"a.bin": DIGEST})
    assert problems(found, said)[1] == [Problem(file, "cannot be read: Is a directory")]


def test_a_gguf_outside_the_library_is_checked(folder: Path, tmp_path: Path, said: Any) -> None:
    file = tmp_path / "w.gguf"
    file.write_bytes(CONTENT)
    found = model(folder, weights=str(file), digests={"w.gguf": DIGEST}, source_files=[SourceFile.of(file)])
    assert problems(found, said) == (1, [])
    assert disk_usage(found, folder.parents[1]) == (2, len(CONTENT))
    file.write_bytes(b"other bytes!")
    assert len(problems(found, said)[1]) == 1
    file.unlink()
    assert problems(found, said)[1] == [Problem(file, "is missing")]


def test_a_second_copy_of_the_file_may_be_deleted(folder: Path, tmp_path: Path, said: Any) -> None:
    file, copy = tmp_path / "w.gguf", tmp_path / "copy.gguf"
    for path in (file, copy):
        path.write_bytes(CONTENT)
    source_files = [SourceFile.of(file), SourceFile.of(copy)]
    found = model(folder, weights=str(file), digests={"w.gguf": DIGEST}, source_files=source_files)
    copy.unlink()
    assert problems(found, said) == (1, [])


def test_a_folder_elsewhere_misses_its_shards(folder: Path, tmp_path: Path, said: Any) -> None:
    weights = tmp_path / "hf"
    weights.mkdir()
    files = [weights / f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for file in files:
        file.write_bytes(CONTENT)
    digests = {file.name: DIGEST for file in files}
    found = model(
        folder, weights=str(weights), digests=digests, source_files=[SourceFile.of(file) for file in files]
    )
    assert problems(found, said) == (2, [])
    files[1].unlink()
    assert problems(found, said) == (1, [Problem(files[1], "is missing")])


def test_a_file_of_the_hubs_cache_is_compared_to_its_name(folder: Path, tmp_path: Path, said: Any) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "x"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / DIGEST).write_bytes(CONTENT)
    (snapshot / "model.safetensors").symlink_to(blobs / DIGEST)
    found = model(folder, weights=str(snapshot))
    assert problems(found, said) == (1, [])
    assert disk_usage(found, folder.parents[1]) == (2, len(CONTENT))
    (blobs / DIGEST).write_bytes(CONTENT[::-1])
    assert len(problems(found, said)[1]) == 1
    (snapshot / "model.safetensors").unlink()
    assert problems(found, said)[1] == [Problem(snapshot, "has no weights")]


def test_folders_without_a_readable_manifest_are_listed(library: Library, folder: Path) -> None:
    model(folder)
    assert unreadable(library) == []
    (library.models / "stray").mkdir()
    (library.models / ".m.partial-1").mkdir()
    (folder / "model.toml").write_text("name = ")
    assert unreadable(library) == [folder, library.models / "stray"]


def test_a_manifest_has_a_format(folder: Path) -> None:
    model(folder)
    assert "format = 2\n" in (folder / "model.toml").read_text("utf-8")
    found = manifest.read(folder)
    assert found is not None
    assert not found.newer
    found.check()


def test_a_manifest_of_format_1_has_no_digest(folder: Path) -> None:
    (folder / "model.toml").write_text('name = "m"\nformat = 1\nsource = "file:/x"\n')
    found = manifest.read(folder)
    assert found is not None
    assert found.format == 1
    (folder / "model.toml").write_text('name = "m"\nsource = "file:/x"\n')
    assert manifest.read(folder) is None


def test_flipped_bits_in_a_manifest_are_found(folder: Path) -> None:
    model(folder, context=512, sizes={"a.bin": 12}, samples={"a.bin": "0123"})
    file = folder / "model.toml"
    content, draw = file.read_bytes(), random.Random(0)
    for _ in range(1000):
        damaged = bytearray(content)
        for _ in range(10):
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        file.write_bytes(damaged)
        found = manifest.read(folder)
        assert found is None or found.newer


@pytest.mark.parametrize("more", ["", "sizes = 5\n", '[sizes]\n"a" = "many"\n'])
def test_a_newer_manifest_is_neither_read_nor_written(folder: Path, more: str) -> None:
    text = f'name = "m"\nformat = 3\n{more}'
    (folder / "model.toml").write_text(text)
    found = manifest.read(folder)
    assert found is not None
    assert found.newer
    for refused in (found.check, lambda: found.write(folder)):
        with pytest.raises(UnsupportedModel, match="format 3, this version reads format 2") as error:
            refused()
        assert "--upgrade" in str(error.value.hint)
    assert (folder / "model.toml").read_text() == text
    assert [path.name for path in folder.iterdir()] == ["model.toml"]


@pytest.mark.parametrize(
    "text", ['name = "m"\nformat = "2"\n', 'name = "m"\nformat = true\n', "format = 0.5"]
)
def test_a_format_that_is_no_number_is_damaged(folder: Path, text: str) -> None:
    (folder / "model.toml").write_text(text)
    assert manifest.read(folder) is None


def test_hard_linked_files_are_not_reclaimable(folder: Path, tmp_path: Path) -> None:
    from localspec.library.storage import reclaimable_bytes

    (folder / "a").write_bytes(bytes(10))
    (folder / "b").write_bytes(bytes(7))
    os.link(folder / "b", tmp_path / "b")
    (tmp_path / "target").write_bytes(bytes(100))
    (folder / "link").symlink_to(tmp_path / "target")
    assert reclaimable_bytes(folder) == 10
    assert reclaimable_bytes(folder / "none") == 0
