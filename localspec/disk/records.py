"""Records: small JSON files of results, whose digest tells a damaged one."""

from __future__ import annotations

import json
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from localspec.disk import atomic, private

DIGEST, VALUES = "digest", "values"  # the fields of a file


def read(path: Path) -> dict[str, Any]:
    """Return the values of a record; empty if it does not exist, or is damaged or of another kind."""
    try:
        found = json.loads(path.read_text("utf-8"))
        values = found[VALUES]
        sound = isinstance(values, dict) and found[DIGEST] == digest_of(values)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}
    return values if sound else {}


def write(path: Path, values: dict[str, Any], *, mode: int | None = None) -> None:
    """Write a record whole or not at all, with `mode` if given; one that cannot be written is not kept."""
    with suppress(OSError):
        private.make_folder(path.parent)
        content = {DIGEST: digest_of(values), VALUES: values}
        atomic.write(path, json.dumps(content, indent=2) + "\n", mode=mode)


def digest_of(values: Any) -> str:
    """Return the digest of a JSON value."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
