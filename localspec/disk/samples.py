"""Digests of samples of a file: they tell two models apart in milliseconds, and find most damage."""

from __future__ import annotations

import os
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

SMALL = 1 << 24  # bytes: a smaller file is read whole
BLOCKS, BLOCK_BYTES = 64, 1 << 14


def sampled_digest(path: Path) -> str:
    """Return a digest of a file's size and of blocks at even distances, the first and the last among them.

    A small file is read whole. Raises OSError.
    """
    with path.open("rb") as content:
        status = os.fstat(content.fileno())
    return _sampled_digest(path, status.st_size, status.st_mtime_ns, status.st_ino)


@lru_cache(256)
def _sampled_digest(path: Path, size: int, mtime_ns: int, inode: int) -> str:
    digest = blake2b(str(size).encode(), digest_size=16)
    with path.open("rb") as content:
        if size <= SMALL:
            while block := content.read(SMALL):
                digest.update(block)
        else:
            last = size - BLOCK_BYTES
            for number in range(BLOCKS):
                content.seek(last * number // (BLOCKS - 1))
                digest.update(content.read(BLOCK_BYTES))
    return digest.hexdigest()
