"""Prompts that took long to read, kept on disk: who begins with the same text does not read it again."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

import numpy as np

from localspec.core.cursor import Cursor
from localspec.core.types import Tokens, shared_prefix

SLOW = 0.5  # seconds that reading a piece takes at least where it is worth its bytes
DIGEST = 16  # bytes of a piece's own digest, at its end
TICK = 1_000_000  # nanoseconds, which file systems tell apart
ENDING = ".kv"
FOLDER = "prompts"


class Prompts:
    """What a model's session held of prompts, in pieces below `folder`.

    A piece is named by the digest of all tokens up to its end, so texts that begin alike have their first
    pieces in common. Kept are those that were read one by one from a text's beginning, as they are read
    without any of this: what comes after them is the same, bit for bit. What is damaged counts as missing.
    All models together may have `limit` bytes below `whole`, 0 for nothing at all; what was used last stays.
    """

    def __init__(self, folder: Path, whole: Path, limit: int) -> None:
        self._folder, self._whole, self.limit = folder, whole, limit

    def recall(self, target: Cursor, tokens: Tokens) -> int:
        """Let `target` hold what is kept of a text, if that is more than it holds; return those tokens."""
        if not self.limit or not target.portable:
            return 0
        held = shared_prefix(target.tokens, tokens)
        first = min(target.pieces, held // target.chunk)
        files = [self._folder / name for name in names(tokens, target.chunk)][first:]
        there = list(takewhile(Path.is_file, files))
        if (first + len(there)) * target.chunk <= held:
            return 0
        pieces = list(takewhile(bool, map(_read, there)))
        if (first + len(pieces)) * target.chunk <= held:
            return 0
        target.read(tokens[: first * target.chunk], rows=0)
        taken = 0
        for number, piece in enumerate(pieces, first):
            try:
                target.load(tokens[number * target.chunk : (number + 1) * target.chunk], piece)
            except ValueError:  # another machine's, where the folder is shared
                there[taken].unlink(missing_ok=True)
                break
            taken += 1
        _touch(there[:taken])
        return taken * target.chunk

    def keep(self, target: Cursor, seconds: float) -> None:
        """Keep the pieces of what `target` holds, where reading one takes `seconds`, and that is long.

        Where nothing can be written, nothing is kept.
        """
        if not self.limit or seconds < SLOW or not target.portable:
            return
        with suppress(OSError):
            whole = target.tokens[: target.pieces * target.chunk]
            files = [self._folder / name for name in names(whole, target.chunk)]
            missing = [number for number, file in enumerate(files) if not file.is_file()]
            if not missing:
                return
            self._folder.mkdir(parents=True, exist_ok=True)
            for number in missing:
                _write(files[number], target.piece(number))
            _touch(files)
            self._make_room()

    def _make_room(self) -> None:
        """Delete what was not used for the longest time, until the rest is within the limit."""
        found = [(file, file.stat()) for file in self._whole.glob(f"*/{FOLDER}/*/*{ENDING}")]
        left = sum(one.st_size for _, one in found)
        for file, one in sorted(found, key=lambda known: known[1].st_mtime_ns):
            if left <= self.limit:
                return
            file.unlink(missing_ok=True)
            left -= one.st_size


def names(tokens: Tokens, chunk: int) -> Iterator[str]:
    """Yield the names of a text's whole pieces of `chunk` tokens, each by the digest of all up to its end."""
    whole = np.asarray(tokens, "<i4")
    digest = hashlib.sha256(str(chunk).encode())
    for start in range(0, len(whole) - chunk + 1, chunk):
        digest.update(whole[start : start + chunk].tobytes())
        yield digest.hexdigest()[:32] + ENDING


def _read(file: Path) -> bytes:
    """Return a piece; a damaged one is deleted, and nothing is returned of it."""
    with suppress(OSError):
        found = file.read_bytes()
        piece, digest = found[:-DIGEST], found[-DIGEST:]
        if _digest(piece) == digest:
            return piece
        file.unlink(missing_ok=True)
    return b""


def _write(file: Path, piece: bytes) -> None:
    """Write a piece whole or not at all, for nobody else to read: it is made of what the user said."""
    partial = file.with_name(f".{file.name}.partial-{os.getpid()}")
    try:
        partial.touch(mode=0o600)
        with partial.open("wb") as out:
            out.write(piece)
            out.write(_digest(piece))
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def _digest(piece: bytes) -> bytes:
    return hashlib.blake2b(piece, digest_size=DIGEST).digest()


def _touch(files: list[Path]) -> None:
    """Note that pieces were used, the first ones last: the others are worth nothing without them."""
    now = time.time_ns()
    for number, file in enumerate(files):
        with suppress(OSError):
            os.utime(file, ns=(now - number * TICK, now - number * TICK))
