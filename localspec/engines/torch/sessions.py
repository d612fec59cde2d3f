"""Sessions on transformers models: growing, recurrent, static, with hidden states, with early exit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from localspec.core.contracts import HiddenStates, LayerStates, Session, TreeSession
from localspec.core.sessions import HiddenStateBuffer, SplitSession, Tree
from localspec.core.types import Branch, Logits, Tokens
from localspec.decoder.capacity import grown
from localspec.decoder.rows import ToNumpy
from localspec.engines.torch import kv_cache
from localspec.engines.torch.model import MEMORIES, TorchModel
from localspec.errors import BadValue, ContextFull
from localspec.formats.graph import layer_split
from localspec.formats.huggingface.torch_devices import memory_errors

RESTART = 4  # a recurrent text is read again from its start if the new tokens are a quarter of it


class TorchSession(Session):
    """Shared by all sessions: the context limit, and the transfer of logits to numpy."""

    def __init__(self, engine: TorchModel) -> None:
        import torch

        self._torch = torch
        self._engine = engine
        self._numpy = ToNumpy()

    def _empty(self) -> Logits:
        return np.empty((0, self._engine.vocab), np.float32)

    def _limit(self, total: int) -> None:
        if total > self._engine.context:
            raise ContextFull(total, self._engine.context)


class Growing:
    """Keys and values of all tokens of a text, in buffers that grow, and the arguments of its passes."""

    def __init__(self, engine: TorchModel) -> None:
        self._engine = engine
        self.extent = kv_cache.Extent(0, engine.context)
        self._cache = kv_cache.cache(self.extent)

    def given(self, tree: Tree) -> dict[str, Any]:
        """Return the arguments of a pass over the tokens of `tree` after the text, except the tokens."""
        import torch

        past, total = self.extent.length, self.extent.length + tree.size
        slots = torch.arange(past, total, device=self._engine.place)
        positions = torch.from_numpy(tree.positions()).to(slots.device) if tree.parents else slots
        return {
            "attention_mask": self._branched(tree) if tree.parents else self._mask(slots, total),
            "position_ids": positions[None],
            "cache_position": slots,
            "past_key_values": self._cache,
            "use_cache": True,
        }

    def _mask(self, positions: Any, total: int) -> Any:
        """Return the attention mask [1, 1, new, total], None if transformers needs none."""
        import torch

        if not self._engine.masked or len(positions) in (1, total):
            return None
        return (torch.arange(total, device=positions.device) <= positions[:, None])[None, None]

    def _branched(self, tree: Tree) -> Any:
        """Return the attention mask [1, 1, new, total] of a tree."""
        import torch

        sees = torch.from_numpy(tree.sees()).to(self._engine.place)
        return torch.cat([sees.new_ones(tree.size, self.extent.length), sees], -1)[None, None]


class GrowingSession(TorchSession):
    """A text whose keys are all kept, so that a rewind only changes a number."""

    def __init__(self, engine: TorchModel) -> None:
        super().__init__(engine)
        self._memory = Growing(engine)

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return logits [rows, vocab]."""
        return self._read(tokens, rows, [])

    def _read(self, tokens: Tokens, rows: int, branches: Sequence[Branch]) -> Logits:
        torch, engine, extent = self._torch, self._engine, self._memory.extent
        tree = Tree.of(extent.length, tokens, rows, branches)
        self._limit(extent.length + tree.size)
        if not tree.size:
            return self._empty()
        read, total = [*tokens, *(branch.token for branch in branches)], extent.length + tree.size
        with torch.inference_mode(), memory_errors(engine.place, f"a text of {total} tokens"):
            ids = torch.tensor([read], device=engine.place)
            logits = self._run(self._memory.given(tree) | {"input_ids": ids}, rows + len(branches))
            found = self._numpy(logits) if rows or branches else self._empty()
        extent.length += len(tokens)
        return found

    def _run(self, given: dict[str, Any], rows: int) -> Any:
        return self._engine.run(given, rows)

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens; the next pass overwrites the rest."""
        extent = self._memory.extent
        extent.length = min(length, extent.length)
        return extent.length


class TorchTreeSession(GrowingSession, TreeSession):
    """A text beside which branches are read, for a model that takes any attention mask."""

    def forward_tree(self, tokens: Tokens, rows: int, branches: Sequence[Branch]) -> Logits:
        """Append `tokens` and read `branches` beside them; return logits [rows + branches, vocab]."""
        return self._read(tokens, rows, branches)


class TorchHiddenSession(GrowingSession, HiddenStates):
    """A text whose last hidden states are kept with its keys."""

    def __init__(self, engine: TorchModel) -> None:
        super().__init__(engine)
        self._states = HiddenStateBuffer()

    def hidden(self) -> Logits:
        """Return a view on the hidden states [tokens, width] of the text."""
        return self._states.first(self._memory.extent.length)

    def _run(self, given: dict[str, Any], rows: int) -> Any:
        outputs = self._engine.model(**self._engine.accepted(given), output_hidden_states=True)
        self._states.put(self._memory.extent.length, outputs.hidden_states[-1][0].cpu().float().numpy())
        return outputs.logits[0][-rows:]


class TorchTappedSession(GrowingSession, LayerStates):
    """A text with the hidden states after some layers, in float16."""

    def __init__(self, engine: TorchModel, taps: Sequence[int]) -> None:
        super().__init__(engine)
        self._states, self._taps = HiddenStateBuffer(halved=True), taps

    def states(self) -> Logits:
        """Return a view on the hidden states [tokens, layers * width] of the text."""
        return self._states.first(self._memory.extent.length)

    def _run(self, given: dict[str, Any], rows: int) -> Any:
        layers = self._engine.model.base_model.layers
        if self._taps[-1] > len(layers):
            raise BadValue(f"`taps` has layer {self._taps[-1]}: the model has {len(layers)} layers")
        seen: dict[int, Any] = {}
        hooks = [layers[tap - 1].register_forward_hook(_noting(seen, tap)) for tap in self._taps]
        try:
            logits = self._engine.run(given, rows)
        finally:
            for hook in hooks:
                hook.remove()
        states = self._torch.cat([seen[tap][0] for tap in self._taps], -1)
        self._states.put(self._memory.extent.length, states.cpu().float().numpy())
        return logits


def _noting(seen: dict[int, Any], tap: int) -> Any:
    def note(module: Any, given: Any, output: Any) -> None:
        seen[tap] = output[0] if isinstance(output, tuple) else output

    return note


class TorchSplitSession(SplitSession):
    """A text whose keys are all kept, in a model of three parts."""

    def __init__(self, engine: TorchModel, parts: layer_split.Parts) -> None:
        super().__init__(engine.context, engine.vocab)
        self._engine = engine
        self._parts = parts
        self._memory = Growing(engine)
        self._numpy = ToNumpy()

    def _first(self, tokens: Tokens, at: int) -> Sequence[Any]:
        import torch

        ids = torch.tensor([tokens], device=self._engine.place)
        return list(self._pass(self._parts.first, at, len(tokens), input_ids=ids))

    def _rest(self, hidden: Sequence[Any], at: int, rows: int) -> Logits:
        import torch

        last = self._pass(self._parts.rest, at, len(hidden), inputs_embeds=torch.stack(list(hidden))[None])
        return self._leave(list(last[len(hidden) - rows :]))

    def _leave(self, hidden: Sequence[Any]) -> Logits:
        import torch

        if not hidden:
            return np.empty((0, self._vocab), np.float32)
        given = {"inputs_embeds": torch.stack(list(hidden))[None], "use_cache": False}
        with torch.inference_mode():
            return self._numpy(self._parts.head(**self._engine.accepted(given)).logits[0])

    def _pass(self, part: Any, at: int, count: int, **inputs: Any) -> Any:
        """Return the hidden states [count, width] after a part's last layer, for the tokens from `at` on."""
        import torch

        self._memory.extent.length = at
        place, total = self._engine.place, at + count
        with torch.inference_mode(), memory_errors(place, f"a text of {total} tokens"):
            given = self._engine.accepted(self._memory.given(Tree(at, count, [])) | inputs)
            return part.base_model(**given).last_hidden_state[0]


class StaticSession(TorchSession):
    """Passes of a few fixed shapes over buffers of fixed lengths, for devices that compile each shape.

    A pass is padded to one of `kv_cache.WIDTHS`; the keys of the padding lie after the text, and the next
    pass overwrites them. Buffers double when full, which makes new shapes. Not run on hardware.
    """

    def __init__(self, engine: TorchModel) -> None:
        super().__init__(engine)
        self._extent = kv_cache.Extent(0, 0)
        self._cache = kv_cache.cache(self._extent)
        self._read: Any = None  # the pass, recorded once its buffers exist

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return logits [rows, vocab]."""
        kept, total = self._extent.length, self._extent.length + len(tokens)
        self._limit(total)
        found = []
        with self._torch.inference_mode(), self._engine.lock:
            try:
                for start in range(0, len(tokens), kv_cache.WIDTHS[-1]):
                    part = tokens[start : start + kv_cache.WIDTHS[-1]]
                    behind = len(tokens) - start - len(part)
                    found.append(self._pass(part, min(len(part), max(0, rows - behind))))
            except BaseException:
                self._extent.length = kept
                raise
        return np.concatenate([self._empty(), *found])

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens; the next pass overwrites the rest."""
        self._extent.length = min(length, self._extent.length)
        return self._extent.length

    def _pass(self, tokens: Tokens, rows: int) -> Logits:
        torch, engine, extent = self._torch, self._engine, self._extent
        count, width, past = len(tokens), kv_cache.bucket(len(tokens)), extent.length
        fresh = past + width > extent.most
        if fresh:
            extent.most = grown(extent.most, past + width, engine.context + kv_cache.WIDTHS[-1])
            self._read = kv_cache.fixed_pass(engine.run, engine.config, extent, self._cache)
        first = count - max(rows, 1)
        places = [min(first + row, width - 1) for row in range(kv_cache.bucket(max(rows, 1)))]
        slots = torch.arange(past, past + width)
        given = (torch.tensor([[*tokens, *[0] * (width - count)]]), slots, torch.tensor(places))
        logits = self._read(*(values.to(engine.place) for values in given))
        kv_cache.mark_step()
        if fresh:
            self._read = kv_cache.recorded(self._read)
        extent.length = past + count
        return self._numpy(logits)[:rows]


class RecurrentSession(TorchSession):
    """A text whose state cannot be cut: a rewind goes back to a checkpoint, taken before each pass.

    Most families read several tokens after a state wrongly or not at all; they read one token at a time, or
    the whole text again if that is less work.
    """

    def __init__(self, engine: TorchModel) -> None:
        super().__init__(engine)
        self._broken = False  # a pass was interrupted: the state belongs to no known text
        self._start_over()

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return logits [rows, vocab]."""
        total = len(self._tokens) + len(tokens)
        self._limit(total)
        if not tokens:
            return self._empty()
        assert not self._broken, "rewind first"
        text, count = [*self._tokens, *tokens], len(tokens)
        with self._torch.inference_mode(), memory_errors(self._engine.place, f"a text of {total} tokens"):
            if self._memory is None or (not self._engine.continues and total <= RESTART * count):
                self._start_over()
                found = [self._pass(text, rows)]
            elif self._engine.continues:
                found = [self._pass(list(tokens), rows)]
            else:
                found = [self._pass([token], int(count - at <= rows)) for at, token in enumerate(tokens)]
        return np.concatenate(found) if len(found) > 1 else found[0]

    def rewind(self, length: int) -> int:
        """Go back to the last checkpoint that holds no more than `length` tokens."""
        if length >= len(self._tokens) and not self._broken:
            return len(self._tokens)
        with self._torch.inference_mode():
            kept = self._checkpoints.back(length)
        if not kept:
            self._start_over()
        del self._tokens[kept:]
        self._broken = False
        return kept

    def _start_over(self) -> None:
        self._memory: Any = None
        self._tokens: list[int] = []
        self._checkpoints = kv_cache.Checkpoints()
        self._broken = False

    def _pass(self, tokens: list[int], rows: int) -> Logits:
        if self._tokens:
            self._checkpoints.keep(self._memory, len(self._tokens))
        self._broken = True
        ids = self._torch.tensor([tokens], device=self._engine.place)
        given = kv_cache.step(
            self._engine.model, self._engine.cache_name, self._memory, ids, len(self._tokens)
        )
        given["logits_to_keep"] = max(rows, 1)
        outputs = self._engine.model(**self._engine.accepted(given))
        self._memory = next((found for name in MEMORIES if (found := outputs.get(name)) is not None), None)
        if self._memory is None:
            raise self._engine.unreachable()
        found = self._numpy(outputs.logits[0][-rows:]) if rows else self._empty()
        self._tokens += tokens
        self._broken = False
        return found
