"""Several texts in one pass of a transformers model: a batch whose rows are texts."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from localspec.core.contracts import Read, Session, SharedPasses
from localspec.core.types import Logits, Tokens
from localspec.decoder.capacity import grown
from localspec.decoder.rows import ToNumpy
from localspec.engines.torch.model import TorchModel
from localspec.engines.torch.sessions import TorchSession
from localspec.formats.huggingface.torch_devices import memory_errors

WIDE = 32  # tokens of a read above which it has a pass of its own: others would be padded to its width


@dataclass(slots=True)
class Places:
    """The keys a pass writes, of the texts `rows` [texts] at `slots` [texts, new]; it reads [0, `end`)."""

    rows: Any = None
    slots: Any = None
    end: int = 0


class TorchSharedPasses(SharedPasses):
    """Texts in the rows of one KV cache, in buffers that grow together.

    Shorter reads are padded on the left; the keys of the padding go to the last slot, which no text has.
    """

    def __init__(self, engine: TorchModel, texts: int) -> None:
        import torch

        self._torch, self._engine = torch, engine
        self._count = 2 * texts + 1  # a text may be made before the one that it replaces is gone
        self._free = list(range(self._count))
        self._places, self._numpy = Places(), ToNumpy()
        self._cache = _cache(self._places, self._count, engine.context + 1)

    def session(self) -> TextSession:
        """Return a new, empty session."""
        session = TextSession(self._engine, self, self._free.pop())
        weakref.finalize(session, self._free.append, session.row).atexit = False
        return session

    def forward(self, reads: Sequence[Read]) -> list[Logits]:
        """Read tokens of several texts, those of long reads in passes of their own; return copies."""
        sessions = [read.session for read in reads]
        for read in reads:
            assert isinstance(read.session, TextSession)
            read.session.check(read.tokens)
        short = [read for read in reads if len(read.tokens) <= WIDE]
        found: dict[Session, Logits] = {}
        for batch in [short, *([read] for read in reads if len(read.tokens) > WIDE)]:
            if any(read.tokens for read in batch):
                found |= zip((read.session for read in batch), self._pass(batch), strict=True)
        return [found.get(session, np.empty((0, self._engine.vocab), np.float32)) for session in sessions]

    def _pass(self, batch: Sequence[Read]) -> list[Logits]:
        """Read the tokens of a batch in one pass; return their logits."""
        torch, engine = self._torch, self._engine
        texts = [read.session for read in batch if isinstance(read.session, TextSession)]
        width, rows = max(len(read.tokens) for read in batch), max(read.rows for read in batch)
        ids, positions, slots = (torch.zeros(len(batch), width, dtype=torch.long) for _ in range(3))
        slots -= 1  # the last slot
        for at, (text, read) in enumerate(zip(texts, batch, strict=True)):
            if count := len(read.tokens):
                ids[at, width - count :] = torch.tensor(read.tokens)
                positions[at, width - count :] = torch.arange(text.length, text.length + count)
                slots[at, width - count :] = positions[at, width - count :]
        end = max(text.length + len(read.tokens) for text, read in zip(texts, batch, strict=True))
        with torch.inference_mode(), memory_errors(engine.place, f"{len(batch)} texts of {end} tokens"):
            self._places.rows = torch.tensor([text.row for text in texts], device=engine.place)
            self._places.slots, self._places.end = slots.to(engine.place), end
            logits = self._run(ids.to(engine.place), positions.to(engine.place), rows)
            parts = [logits[at, rows - read.rows :] for at, read in enumerate(batch)] if rows else []
            found = self._numpy(torch.cat(parts)).copy() if parts else np.empty((0, engine.vocab), np.float32)
        for text, read in zip(texts, batch, strict=True):
            text.length += len(read.tokens)
        return np.split(found, list(accumulate(read.rows for read in batch))[:-1])

    def _run(self, ids: Any, positions: Any, rows: int) -> Any:
        """Return the logits [texts, rows, vocab] of the last tokens of each text."""
        end, engine = self._places.end, self._engine
        mask = self._torch.arange(end, device=engine.place) <= positions[..., None]
        given = {
            "input_ids": ids,
            "attention_mask": mask[:, None],
            "position_ids": positions,
            "cache_position": self._torch.arange(end - ids.shape[1], end, device=engine.place),
            "past_key_values": self._cache,
            "use_cache": True,
            "logits_to_keep": rows,
        }
        if not rows:
            return engine.model.base_model(**engine.accepted(given))
        return engine.model(**engine.accepted(given)).logits[:, -rows:]


class TextSession(TorchSession):
    """One text: a row of the common KV cache."""

    def __init__(self, engine: TorchModel, shared: TorchSharedPasses, row: int) -> None:
        super().__init__(engine)
        self._shared, self.row, self.length = shared, row, 0

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return logits [rows, vocab]."""
        return self._shared.forward([Read(self, tokens, rows)])[0]

    def check(self, tokens: Tokens) -> None:
        """Raise ContextFull if the context has no room for `tokens`."""
        self._limit(self.length + len(tokens))

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens; the next pass overwrites the rest."""
        self.length = min(length, self.length)
        return self.length


def _cache(places: Places, texts: int, most: int) -> Any:
    """Return an empty transformers cache that keeps the keys of each text in a row of its own."""
    from transformers.cache_utils import Cache

    return Cache(layer_class_to_replicate=lambda: _layer()(places, texts, most))


@functools.cache
def _layer() -> Any:
    from transformers.cache_utils import DynamicLayer

    class SharedLayer(DynamicLayer):  # type: ignore[misc]
        """Keys and values [texts, heads, room, width] of one layer."""

        def __init__(self, places: Places, texts: int, most: int) -> None:
            super().__init__()
            self.keys: Any = None
            self.values: Any = None
            self.places, self.texts, self.most = places, texts, most
            self.is_initialized = True

        def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
            places = self.places
            room = 0 if self.keys is None else self.keys.shape[2]
            if room < places.end + 1:
                room = grown(room, places.end + 1, self.most)
                self.keys = self._larger(self.keys, key_states, room)
                self.values = self._larger(self.values, value_states, room)
            return self._put(self.keys, key_states), self._put(self.values, value_states)

        def _larger(self, old: Any, like: Any, room: int) -> Any:
            new = like.new_zeros((self.texts, like.shape[1], room, like.shape[3]))
            if old is not None:
                new[:, :, : old.shape[2]] = old
            return new

        def _put(self, kept: Any, new: Any) -> Any:
            """Write new keys and return all of the texts in the pass."""
            places = self.places
            kept[places.rows[:, None], :, places.slots] = new.transpose(1, 2)
            return kept[:, :, : places.end][places.rows]

        def get_seq_length(self, *args: Any) -> int:
            return self.places.end

        def get_mask_sizes(self, query: Any) -> tuple[int, int]:
            return self.places.end, 0

    return SharedLayer
