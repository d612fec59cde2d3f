"""A text with pictures as a torch decoder reads it: embeddings of tokens and pictures, and positions."""

from __future__ import annotations

from localspec.core.types import Tokens
from localspec.decoder.weights import Tensor
from localspec.engines.torch.vision.model import SeeingModel
from localspec.engines.torch.vision.sending import sent
from localspec.formats.vision.text import PictureText


class EmbeddedText(PictureText):
    """A text whose next tokens are tensors on the model's device."""

    def __init__(self, model: SeeingModel) -> None:
        super().__init__(model.eyes, model.shape)
        self._model = model

    def embedded(self, tokens: Tokens) -> Tensor:
        """Return the embeddings [tokens, width] of the next tokens."""
        import torch

        place = self._model.place
        x: Tensor = self._model.reader.decoder.embedded(sent(tokens, place))
        if at := self.visual(tokens):
            x.index_copy_(0, sent(at, place), torch.cat(self.states(len(at))).to(x.dtype))
        return x

    def placed(self, tokens: Tokens) -> Tensor:
        """Return the positions of the next tokens, [tokens], or with sections one for each rotary pair."""
        return sent(self.positions(tokens), self._model.place)
