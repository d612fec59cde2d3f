"""Texts with pictures on OpenVINO: what a graph reads beside token ids."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from localspec.core.types import Tokens
from localspec.errors import BadValue
from localspec.formats.graph.layer_split import SEEN, VISUAL
from localspec.formats.vision import stored
from localspec.formats.vision.stored import StoredEyes
from localspec.formats.vision.text import PictureText

NO_PICTURE = -1  # a token of text that is known by its keys and values alone


def eyes_of(model: Path, extras: Mapping[str, Any], threads: int) -> StoredEyes | None:
    """Return the eyes beside a graph, None for a model of text.

    Raises BadValue for one of the options `extras`, which a model with eyes does not have, and the errors of
    StoredEyes.
    """
    if not (model / stored.FILE).is_file():
        return None
    if given := [name for name, value in extras.items() if value]:
        raise BadValue(f"`{given[0]}` does nothing for `{model.name}`, a model with eyes", "Leave it out")
    return StoredEyes(model, threads)


class SeenText(PictureText):
    """A text with pictures, and the embeddings that a pass over its next tokens reads."""

    def __init__(self, found: StoredEyes, compiled: Any) -> None:
        super().__init__(found.eyes, found.shape)
        self._width = int(compiled.input(SEEN).partial_shape[-1].get_length())

    def inputs(self, tokens: Tokens, branches: int) -> dict[str, Any]:
        """Return the inputs SEEN and VISUAL of the next tokens and of so many branches, which are text."""
        count = len(tokens) + branches
        seen = np.zeros((count, 1, self._width), np.float32)
        visual = np.zeros((count, 1, 1), np.bool_)
        if at := self.visual(tokens):
            visual[at] = True
            seen[at, 0] = np.concatenate(self.states(len(at)))
        return {SEEN: seen, VISUAL: visual}
