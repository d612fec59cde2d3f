"""One text of a causal diffusion model in the decoder of our own, whose passes a card records."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from localspec.core.blocks import visibility
from localspec.core.blocks.types import Block, BlockPass, Likeliest, Table
from localspec.core.types import Logits
from localspec.decoder.card import decoder_of
from localspec.decoder.own import CARD_CHUNK, OwnDecoder
from localspec.decoder.passes import Found, Passes
from localspec.decoder.rows import Fetched, LateRows, ToNumpy
from localspec.decoder.weights import Layer, Plain, Tensor, Weights
from localspec.engines.diffusion.session import DiffusionSession
from localspec.formats.diffusion.config import DiffusionShape
from localspec.formats.diffusion.decoder import BlockDecoder
from localspec.formats.diffusion.weights import EMBEDDING, HEAD, NORM
from localspec.formats.graph.architecture import Architecture
from localspec.formats.graph.rope import frequencies
from localspec.formats.huggingface.torch_devices import memory_errors, use_threads

MOST = 96  # tokens of a recorded pass, unless two blocks are more: longer ones run as they are


def own_decoder(shape: DiffusionShape, tensors: dict[str, Tensor], threads: int = 0) -> OwnDecoder:
    """Return a decoder over the `tensors` of a causal model, by Hugging Face's names.

    Effects: tensors that it joins become views of the joined ones, so that both share memory.
    """
    import torch

    rates = frequencies(shape.base, shape.head_width).astype(np.float32)
    about = Architecture(
        family=shape.family,
        layers=shape.layers,
        width=shape.width,
        heads=shape.heads,
        key_heads=shape.key_heads,
        head_width=shape.head_width,
        context=shape.context,
        epsilon=shape.epsilon,
        frequencies=rates,
        tied=shape.tied,
    )
    table = Plain(tensors[EMBEDDING])
    weights = Weights(
        shape=about,
        table=table,
        layers=tuple(_layer(tensors, f"model.layers.{layer}.", shape) for layer in range(shape.layers)),
        norm=tensors[NORM],
        head=table if shape.tied else Plain(tensors[HEAD]),
        rates=torch.from_numpy(rates).to(tensors[NORM].device),
    )
    return OwnDecoder(decoder_of(weights), shape.context, (), threads)


def _layer(tensors: dict[str, Tensor], name: str, shape: DiffusionShape) -> Layer:
    parts = [f"{name}self_attn.{part}_proj" for part in "qkv"]
    bias = _joined(tensors, [f"{part}.bias" for part in parts]) if shape.bias else None
    norms = (f"{name}self_attn.q_norm.weight", f"{name}self_attn.k_norm.weight")
    return Layer(
        qkv=Plain(_joined(tensors, [f"{part}.weight" for part in parts]), bias),
        output=Plain(tensors[f"{name}self_attn.o_proj.weight"]),
        gates=Plain(_joined(tensors, [f"{name}mlp.{part}_proj.weight" for part in ("gate", "up")])),
        down=Plain(tensors[f"{name}mlp.down_proj.weight"]),
        norms=(
            tensors[f"{name}input_layernorm.weight"],
            tensors[f"{name}post_attention_layernorm.weight"],
        ),
        head_norms=(tensors[norms[0]], tensors[norms[1]]) if shape.query_norm else None,
    )


def _joined(tensors: dict[str, Tensor], names: Sequence[str]) -> Tensor:
    """Return tensors joined by rows; those of the names become views of the result."""
    import torch

    whole = torch.cat([tensors[name] for name in names])
    tensors |= zip(names, whole.split([len(tensors[name]) for name in names]), strict=True)
    return whole


def widths(block: int) -> list[int]:
    """Return the tokens of recorded passes over blocks, copies of them, and the block before them."""
    most = max(2 * block, min((block + 1) * block, MOST))
    return list(range(block, most + 1, block))


class Beside(NamedTuple):
    """The shape of a pass over tokens that are no run: their positions, and which sees which."""

    places: Sequence[int]
    table: Table

    @property
    def parents(self) -> Sequence[int]:
        """Any numbers, since the tokens are no run."""
        return self.places

    def positions(self) -> NDArray[np.int64]:
        """Return the position [tokens] of each token in its text."""
        return np.array(self.places, np.int64)

    def sees(self) -> Table:
        """Return which token [tokens, tokens] attends to which."""
        return self.table


class BlockPasses(Passes):
    """Passes over blocks; a row's facts are the likeliest token but for the mask, its share, the entropy."""

    def __init__(self, own: OwnDecoder, block: int, mask: int) -> None:
        super().__init__(own.decoder, own.context, own.recorder, facts=own.keeps_rows, widths=widths(block))
        self._mask = mask
        self._fused = own.recorder is not None and find_spec("triton") is not None

    def facts_of(self, logits: Tensor) -> Tensor:
        """Return the facts [rows, FACTS] of logits [rows, vocab]; float32 holds any token id."""
        logits = logits.float()
        if self._fused:
            from localspec.decoder.kernels import facts

            return facts.likeliest(logits, self._mask)
        return likeliest_of(logits, self._mask)


def likeliest_of(logits: Tensor, mask: int) -> Tensor:
    """Return the likeliest tokens of logits but for a mask, their probabilities, and entropies in nats."""
    import torch

    kept = torch.arange(logits.shape[-1], device=logits.device) != mask
    logits = logits.where(kept, float("-inf"))
    best, probs = logits.argmax(-1, keepdim=True), logits.softmax(-1)
    return torch.cat([best.float(), probs.gather(-1, best), torch.special.entr(probs).sum(-1, True)], -1)


class OwnDiffusionSession(DiffusionSession):
    """A text whose keys of earlier blocks lie in the buffers of recorded passes.

    Passes that ask for the attention, or add to embeddings, are those of the plain session, which reads the
    text again for them.
    """

    def __init__(self, own: OwnDecoder, decoder: BlockDecoder, place: Any, dtype: Any) -> None:
        import torch

        super().__init__(decoder, place, dtype, own.threads, ahead=0)
        self._own, self._few, self._many = own, ToNumpy(), ToNumpy()
        if place.type == "cuda":
            self.chunk = CARD_CHUNK
        with torch.inference_mode():
            self._passes: BlockPasses = own.idle_passes() or BlockPasses(own, self.block, self.mask)
        weakref.finalize(self, own.give_back, self._passes).atexit = False
        self._written = 0  # tokens whose keys lie in the buffers

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens."""
        kept = super().rewind(length)
        self._written = min(self._written, kept // self.block * self.block)
        return kept

    def _read(self) -> int:
        return self._written

    def _pass(self, length: int, block: Block, *, attention: bool = False) -> BlockPass:
        """Return the pass over a block after the first `length` tokens, and keep the keys of these."""
        if attention or block.offsets is not None:
            return super()._pass(length, block, attention=attention)
        import torch

        assert length % self.block == 0
        past = min(self._written, length)
        tokens = [*self._text[past:length], *block.tokens]
        self._limit(max([length, *(position + 1 for position in block.positions)]))
        if not tokens:
            return BlockPass(np.empty((0, self._own.vocab), np.float32))
        if self._threads:
            use_threads(self._threads)
        beside = Beside([*range(past, length), *block.positions], self._table(past, length, block))
        self._written = past  # the keys behind are overwritten
        with torch.inference_mode(), memory_errors(self._place, f"a text of {past + len(tokens)} tokens"):
            short = len(tokens) <= self._passes.widest
            read_by = self._passes.short if short else self._passes.long
            result = self._rows(read_by(tokens, beside, past), length - past, short)
        self._written = length
        return result

    def _table(self, past: int, length: int, block: Block) -> Table:
        """Return which tokens of a pass [tokens, tokens], the unread ones and a block, see one another."""
        unread, count = length - past, len(block.tokens)
        table = np.ones((unread + count, unread + count), bool)
        table[:unread, :unread] = visibility.blockwise(range(past, length), self.block)
        table[:unread, unread:] = False
        if block.visible is not None:
            table[unread:, unread:] = block.visible
        return table

    def _rows(self, found: Found, first: int, short: bool) -> BlockPass:
        """Return the logits of a pass from the row `first` on, on a card as they are there."""
        passes, turn, last = self._passes, self._passes.turn, len(found.states)
        if first == last:
            return BlockPass(np.empty((0, self._own.vocab), np.float32))
        logits = passes.logits[first:last] if short else passes.rows(found.states[first:])
        if not self._own.keeps_rows:
            return BlockPass(logits.float().cpu().numpy().copy())
        facts = self._few(passes.facts[first:last] if short else passes.facts_of(logits)).astype(np.float64)
        likeliest = Likeliest(facts[:, 0].astype(np.int64), facts[:, 1], facts[:, 2])
        fetch = Fetched(self._many, logits, lambda: not short or passes.turn == turn)
        return BlockPass(cast(Logits, LateRows(tuple(logits.shape), fetch)), None, likeliest)
