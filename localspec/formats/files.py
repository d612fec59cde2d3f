"""Open the files of a model, and say in plain words what is wrong with them."""

from __future__ import annotations

import json
import mmap
import shutil
from pathlib import Path
from typing import Any

from localspec.errors import BrokenModel, StorageError, UnknownModel

NO_LIMIT = 1 << 20  # tokens of a model that does not say its context


def mapped(path: Path) -> mmap.mmap:
    """Map a file for reading; its bytes stay on disk until they are looked at."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise UnknownModel(f"There is no file `{path}`", "Check the path") from None
    except IsADirectoryError:
        raise BrokenModel(f"`{path}` is a folder, not a model file") from None
    except PermissionError:
        raise StorageError(f"`{path}` cannot be read", f"Check who may read it: `ls -l {path}`") from None
    except ValueError:
        raise BrokenModel(f"`{path}` is empty", "Download it again") from None


def truncated(path: Path, missing: str, needed: int, size: int) -> BrokenModel:
    """Say which part of a file is missing, and both byte counts."""
    return BrokenModel(
        f"`{path}` is truncated: {missing} needs {needed:,} bytes and the file has {size:,}",
        "Download it again; the download did not finish",
    )


def weight_files(path: Path) -> list[Path]:
    """Name the weight files of a folder, by its index where it has one."""
    index = path / "model.safetensors.index.json"
    if index.is_file():
        return _indexed(path, index)
    single = path / "model.safetensors"
    files = [single] if single.is_file() else sorted(path.glob("*.safetensors"))
    if not files:
        raise UnknownModel(f"There are no .safetensors files in `{path}`", "Give the folder of a model")
    return files


def _indexed(path: Path, index: Path) -> list[Path]:
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise BrokenModel(f"`{index}` has no `weight_map`", "Download it again")
    names = sorted(set(places.values()))
    for name in names:
        if Path(name).name != name or not (path / name).is_file():
            raise BrokenModel(f"`{path}` lacks `{name}`, which its index names", "Download it again")
    return [path / name for name in names]


def copy_beside(source: Path, into: Path) -> None:
    """Copy what lies beside a graph: tokenizer, template and configs, but no weights."""
    for file in source.iterdir():
        if file.is_file() and file.suffix in (".json", ".jinja", ".txt"):
            shutil.copyfile(file, into / file.name)


def context_of(folder: Path) -> int:
    """Return the most tokens of a text by a folder's config.json; NO_LIMIT where it does not say."""
    try:
        found = json.loads((folder / "config.json").read_text("utf-8")).get("max_position_embeddings")
    except (OSError, ValueError, AttributeError):
        return NO_LIMIT
    return found if isinstance(found, int) and found > 0 else NO_LIMIT


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object; raise BrokenModel when it does not."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise BrokenModel(f"`{path.parent}` lacks `{path.name}`", "Download the whole folder") from None
    except (ValueError, RecursionError) as error:
        raise BrokenModel(f"`{path}` is damaged: {error}", "Download it again") from None
    if not isinstance(found, dict):
        raise BrokenModel(f"`{path}` is damaged: it holds no JSON object", "Download it again")
    return found
