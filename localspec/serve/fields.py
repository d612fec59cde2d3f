"""What the bodies of all requests have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A body, or a part of one, without other fields than its own."""

    model_config = ConfigDict(extra="forbid")
