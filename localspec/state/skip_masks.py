"""The sub-blocks of a model that its smaller passes leave out, as `localspec find-mask` found them."""

from __future__ import annotations

from typing import Any

from localspec.drafting import skip_mask
from localspec.library.model import FORMATS, StoredModel
from localspec.state import probes


def key(model: StoredModel) -> str:
    """Return a name for the files that a mask depends on."""
    return probes.key("skip mask", [path and probes.stamp(path) for path in map(model.files_in, FORMATS)])


def read(model: StoredModel) -> str | None:
    """Return the mask of a model, None if none was found, or what was kept is damaged."""
    mask = probes.read(key(model)).get("mask")
    return mask if isinstance(mask, str) and skip_mask.is_mask(mask) else None


def keep(model: StoredModel, mask: str, **facts: Any) -> None:
    """Keep the mask of a model, and what was measured of it."""
    probes.add(key(model), mask=mask, **facts)
