"""The common parts of the bodies of requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A body, or a part of one, without other fields than its own."""

    model_config = ConfigDict(extra="forbid")


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a client set."""
    return {name: value for name, value in values.items() if value is not None}
