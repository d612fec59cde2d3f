"""The weights of a Whisper model, in whichever of both formats they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.errors import UnsupportedModel, printable
from localspec.formats.ctranslate2.file import WEIGHTS
from localspec.formats.ctranslate2.whisper import Ctranslate2Whisper
from localspec.formats.huggingface.safetensors import SafetensorsFolder

PREFIX = "model."  # of all names but the output layer's
FAMILY = "whisper"


class WhisperWeights(Protocol):
    """Whisper's tensors under Hugging Face's names, such as `model.encoder.layers.0.fc1.weight`.

    The output layer `proj_out.weight` is listed only by a model in which it may differ from the embedding.
    """

    @property
    def names(self) -> Sequence[str]:
        """The names of the tensors."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""

    def array(self, name: str) -> NDArray[np.float32]:
        """Return a copy of a tensor in float32."""


class SafetensorsWhisper:
    """The weights of a Whisper model in a Hugging Face folder."""

    def __init__(self, folder: SafetensorsFolder) -> None:
        """Find its tensors; raise UnsupportedModel for a model of another family."""
        if folder.architecture != FAMILY:
            family = printable(folder.architecture)
            raise UnsupportedModel(f"`{folder.path}` holds no Whisper model but a `{family}`")
        self._folder = folder
        bare = not any(name.startswith(PREFIX) for name in folder.tensors)  # saved without its output layer
        self._stored = {
            name if not bare or name == "proj_out.weight" else PREFIX + name: name for name in folder.tensors
        }

    @classmethod
    def open(cls, folder: Path) -> SafetensorsWhisper:
        """Open a folder; raises as `SafetensorsFolder.open` and `__init__` do."""
        return cls(SafetensorsFolder.open(folder))

    @property
    def names(self) -> Sequence[str]:
        """The names of the tensors."""
        return list(self._stored)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return self._folder.tensors[self._stored[name]].shape

    def array(self, name: str) -> NDArray[np.float32]:
        """Return a copy of a tensor in float32."""
        return self._folder.array(self._stored[name])


def open_whisper(folder: Path) -> WhisperWeights:
    """Open the Whisper model of a CTranslate2 folder or a Hugging Face folder.

    Raises BrokenModel for damaged files and UnsupportedModel for another model.
    """
    if (folder / WEIGHTS).is_file():
        return Ctranslate2Whisper.open(folder)
    return SafetensorsWhisper.open(folder)
