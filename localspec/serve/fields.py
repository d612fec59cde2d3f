"""The common parts of the bodies of requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from localspec.runtime.choice import AUTO


class Drafting(BaseModel):
    """How one answer is drafted, and whether it tells how: an extra of localspec."""

    model_config = ConfigDict(extra="forbid", strict=True)

    draft: str = AUTO
    draft_length: str | None = None
    stats: bool = False


class Strict(BaseModel):
    """A body, or a part of one, without other fields than its own."""

    model_config = ConfigDict(extra="forbid")


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a client set."""
    return {name: value for name, value in values.items() if value is not None}
