"""On-disk prompt cache: the KV cache of prompts that took long to read."""

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
from localspec.disk import atomic, private

SLOW = 0.5  # seconds: a chunk that is read faster is not worth its bytes
DIGEST = 16  # bytes of the digest at the end of a file
TICK = 1_000_000  # nanoseconds: times that file systems distinguish
ENDING = ".kv"
FOLDER = "prompts"


class PromptCache:
    """The KV cache of a model's prompts, one file per chunk in `folder`.

    A file is named by the digest of all tokens up to the end of its chunk, so prompts with a common prefix
    share files. Only whole prefill chunks are kept, read exactly as they would be without the cache, so the
    tokens after them are the same, bit for bit. A damaged file counts as missing. The caches of all models
    below `root` may take `limit` bytes, 0 for none; the least recently used files are deleted first.
    """

    def __init__(self, folder: Path, root: Path, limit: int) -> None:
        self._folder, self._root, self.limit = folder, root, limit

    def restore(self, target: Cursor, tokens: Tokens) -> int:
        """Import the cached chunks of a text into `target`, if it holds fewer; return their tokens."""
        if not self.limit or not target.exportable:
            return 0
        held = shared_prefix(target.tokens, tokens)
        first = min(target.chunks, held // target.chunk)
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
                target.import_chunk(tokens[number * target.chunk : (number + 1) * target.chunk], piece)
            except ValueError:  # written by another machine that shares the folder
                there[taken].unlink(missing_ok=True)
                break
            taken += 1
        _touch(there[:taken])
        return taken * target.chunk

    def keep(self, target: Cursor, seconds: float) -> None:
        """Write the chunks that `target` holds, if reading one takes `seconds` and that is long.

        Chunks that cannot be written are not kept.
        """
        if not self.limit or seconds < SLOW or not target.exportable:
            return
        with suppress(OSError):
            whole = target.tokens[: target.chunks * target.chunk]
            files = [self._folder / name for name in names(whole, target.chunk)]
            missing = [number for number, file in enumerate(files) if not file.is_file()]
            if not missing:
                return
            private.make_folder(self._folder)
            for number in missing:
                _write(files[number], target.export_chunk(number))
            _touch(files)
            self._make_room()

    def _make_room(self) -> None:
        """Delete the least recently used files until the rest is within the limit."""
        found = [(file, file.stat()) for file in self._root.glob(f"*/{FOLDER}/*/*{ENDING}")]
        left = sum(one.st_size for _, one in found)
        for file, one in sorted(found, key=lambda known: known[1].st_mtime_ns):
            if left <= self.limit:
                return
            file.unlink(missing_ok=True)
            left -= one.st_size


def names(tokens: Tokens, chunk: int) -> Iterator[str]:
    """Yield the file names of a text's whole chunks, each by the digest of all tokens up to its end."""
    whole = np.asarray(tokens, "<i4")
    digest = hashlib.sha256(str(chunk).encode())
    for start in range(0, len(whole) - chunk + 1, chunk):
        digest.update(whole[start : start + chunk].tobytes())
        yield digest.hexdigest()[:32] + ENDING


def _read(file: Path) -> bytes:
    """Return the KV cache in a file; a damaged file is deleted, and the result is empty."""
    with suppress(OSError):
        found = file.read_bytes()
        piece, digest = found[:-DIGEST], found[-DIGEST:]
        if _digest(piece) == digest:
            return piece
        file.unlink(missing_ok=True)
    return b""


def _write(file: Path, piece: bytes) -> None:
    with atomic.file(file, mode=private.FILE, sync=False) as out:
        out.write(piece)
        out.write(_digest(piece))


def _digest(piece: bytes) -> bytes:
    return hashlib.blake2b(piece, digest_size=DIGEST).digest()


def _touch(files: list[Path]) -> None:
    """Mark files as used, the first one latest: the others are useless without it."""
    now = time.time_ns()
    for number, file in enumerate(files):
        with suppress(OSError):
            os.utime(file, ns=(now - number * TICK, now - number * TICK))
