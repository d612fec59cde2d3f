"""Open the files of a model, and explain what is wrong with them."""

from __future__ import annotations

import json
import mmap
import re
import shutil
from pathlib import Path
from typing import Any

from localspec.errors import BrokenModel, ModelError, StorageError, UnknownModel, printable
from localspec.formats.values import MAX_CONTEXT, Values, whole

MAX_TEXT = 1 << 28  # bytes of a text file; the largest tokenizers have 40 MB
NO_LIMIT = 1 << 20  # the context length of a model that does not give it

_SURROGATE = re.compile(r"\\ud[89a-f]", re.IGNORECASE)


def mapped(path: Path) -> mmap.mmap:
    """Memory-map a file for reading."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise UnknownModel(f"No such file: `{path}`", "Check the path") from None
    except IsADirectoryError:
        raise BrokenModel(f"`{path}` is a folder, not a model file") from None
    except PermissionError:
        raise StorageError(f"`{path}` cannot be read", f"Check its permissions with `ls -l {path}`") from None
    except ValueError:
        raise BrokenModel(f"`{path}` is empty", "Download it again") from None


def truncated(path: Path, missing: str, needed: int, size: int) -> BrokenModel:
    """Return the error of a file that ends too early, with both byte counts."""
    return BrokenModel(
        f"`{path}` is truncated: {missing} needs {needed:,} bytes and the file has {size:,}",
        "Download it again; the download is incomplete",
    )


def weight_files(path: Path) -> list[Path]:
    """List the weight files of a folder, by its index if it has one."""
    index = path / "model.safetensors.index.json"
    if index.is_file():
        return _indexed(path, index)
    single = path / "model.safetensors"
    files = [single] if single.is_file() else sorted(path.glob("*.safetensors"))
    if not files:
        raise UnknownModel(f"`{path}` has no .safetensors files", "Give the folder of a model")
    return files


def weight_map(index: Path) -> dict[str, str]:
    """Return the file of each tensor, as an index names it; raise BrokenModel for an index without one."""
    found = read_json(index).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise BrokenModel(f"`{index}` has no `weight_map`", "Download it again")
    return found


def _indexed(path: Path, index: Path) -> list[Path]:
    names = sorted(set(weight_map(index).values()))
    for name in names:
        if not _is_file_in(path, name):
            raise BrokenModel(
                f"`{path}` lacks `{printable(name)}`, which its index names", "Download it again"
            )
    return [path / name for name in names]


def _is_file_in(folder: Path, name: str) -> bool:
    """Return whether `name` is a file of the folder itself, whatever characters it has."""
    try:
        return Path(name).name == name and (folder / name).is_file()
    except (OSError, ValueError):  # too long; with a NUL or half a character
        return False


def copy_configs(source: Path, into: Path) -> None:
    """Copy the tokenizer, chat template and configs of a model folder, but no weights."""
    for file in source.iterdir():
        if file.is_file() and file.suffix in (".json", ".jinja", ".txt"):
            shutil.copyfile(file, into / file.name)


def context_length(folder: Path) -> int:
    """Return the context length in a folder's config.json, NO_LIMIT if it gives none.

    That of a model with eyes is in the config of its text part.
    """
    try:
        found = read_json(folder / "config.json")
        inner = found.get("text_config")
        values = Values(folder / "config.json", inner if isinstance(inner, dict) else found)
        return whole(values, "max_position_embeddings", NO_LIMIT, most=MAX_CONTEXT)
    except (ModelError, StorageError):
        return NO_LIMIT


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object; raise BrokenModel if it does not.

    No text in it holds half a character (a surrogate), which no library could take.
    """
    content = read_text(path)
    try:
        value = json.loads(content)
        if _SURROGATE.search(content):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise BrokenModel(f"`{path}` is damaged: {printable(str(error))}", "Download it again") from None
    if not isinstance(value, dict):
        raise BrokenModel(f"`{path}` is damaged: it holds no JSON object", "Download it again")
    return value


def read_text(path: Path) -> str:
    """Read a text file of a model; raise BrokenModel unless it is UTF-8 of at most MAX_TEXT bytes."""
    try:
        if path.stat().st_size > MAX_TEXT:
            raise BrokenModel(f"`{path}` has more than {MAX_TEXT:,} bytes", "Download it again")
        return path.read_text("utf-8")
    except FileNotFoundError:
        raise BrokenModel(f"`{path.parent}` lacks `{path.name}`", "Download the whole folder") from None
    except ValueError as error:
        raise BrokenModel(f"`{path}` is damaged: {printable(str(error))}", "Download it again") from None
    except OSError as error:
        raise StorageError(f"`{path}` cannot be read: {error.strerror}", f"See `ls -l {path}`") from None
