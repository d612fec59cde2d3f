"""Passes over embeddings of tokens and pictures, in which visual tokens may sit out some layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from localspec.decoder.forward import Decoder, Places
from localspec.decoder.weights import Tensor
from localspec.engines.torch.vision.choosing import Choosing, Words, gathered, words_among
from localspec.engines.torch.vision.memory import LayerRows
from localspec.pictures.schedule import Schedule

ALL = Schedule()


class Reader:
    """Reads embeddings through a decoder; keys and values are kept of the tokens that ran in a layer.

    Layers between two decisions are one pass of the decoder over the tokens that run there.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder, self.shape = decoder, decoder.shape

    def memory(self, most: int, texts: int = 1) -> LayerRows:
        """Return empty rows of all layers, for texts of at most so many tokens."""
        return LayerRows(self.decoder, most, texts)

    def read(
        self,
        x: Tensor,
        positions: Tensor,
        memory: LayerRows,
        visual: Sequence[int] = (),
        schedule: Schedule = ALL,
    ) -> Tensor:
        """Append embeddings x [texts, tokens, width] to texts; return their last hidden states, normed.

        `positions` are [tokens], or with sections [tokens, rotary pairs], and `visual` the places of visual
        tokens among them, the last one excepted. The states of a token that sat out the last layers are those
        with which it did. Nothing here waits for the device.
        """
        words = words_among(x.shape[1], visual, x.device) if visual and schedule.decisions else None
        memory.hold(x.shape[1])
        return self.routed(x, positions, memory, words, schedule)

    def routed(
        self,
        x: Tensor,
        positions: Tensor,
        memory: LayerRows,
        words: Words | None,
        schedule: Schedule,
        pads: Any = None,
    ) -> Tensor:
        """Append embeddings to texts that have room for them, as `read` does.

        `words` are the tokens of text among them, None where nothing is decided. The last `pads` tokens, a
        number on the device, are none of the text: no other sees them, and they choose nothing.
        """
        texts, count, width = x.shape
        cuts = [decision.layer for decision in schedule.decisions] if words else []
        choosing = Choosing(self.decoder, x, positions, words, schedule.returns, pads) if words else None
        here = x = x.contiguous()
        run, at = None, positions.expand(texts, *positions.shape)
        for layers in memory.stretches(cuts):
            if choosing and (keep := schedule.keep_at(layers.start)) is not None:
                x = _scattered(x, run, here)
                run = choosing.run(layers.start, keep, x, run)
                here, at = gathered(x, run), positions[run]
            here = self._through(layers, here, at, memory)
        return self.decoder.normed(_scattered(x, run, here).flatten(0, 1)).view(texts, count, width)

    def _through(self, layers: range, x: Tensor, positions: Tensor, memory: LayerRows) -> Tensor:
        """Return what layers write for tokens that all see those before them, and keep their keys."""
        import torch

        texts, count, _ = x.shape
        begin, buffers = memory.lengths[layers.start], memory.buffers
        slots, rows = torch.arange(begin, begin + count, device=x.device), None
        if texts > 1:
            slots, rows = slots.repeat(texts, 1), torch.arange(texts, device=x.device)
        places = Places(positions.flatten(0, 1), slots, begin + count, texts=rows)
        found = self.decoder.through(x.flatten(0, 1), places, buffers.keys, buffers.values, layers)[0]
        memory.append(layers, count)
        return found.view_as(x)


def _scattered(x: Tensor, places: Tensor | None, new: Tensor) -> Tensor:
    """Return x [texts, tokens, width] with `new` rows at places [texts, n], or everywhere."""
    return new if places is None else x.scatter(1, places[..., None].expand(-1, -1, x.shape[-1]), new)
