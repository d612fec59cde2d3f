"""The KV cache of a transformers model in growing buffers, and checkpoints of recurrent states."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from localspec.decoder.capacity import grown

WIDTHS = (1, 4, 8, 16, 64, 256)  # tokens of a pass of fixed shape
CHECKPOINTS, NEAREST = 12, 8  # recurrent states kept of a text; the latest are always kept
CONVOLUTION = 64  # more tokens than a short convolution covers
GROWING = {"keys", "values", "key_cache", "value_cache"}  # tensors [..., tokens, width], by their names


@dataclass(slots=True)
class Extent:
    """How many tokens of a text are read, and how many it may have at most.

    `slots` [width] are the positions where a pass of fixed shape writes its keys, None to append them.
    """

    length: int
    most: int
    slots: Any = None


def cache(extent: Extent) -> Any:
    """Return an empty transformers cache that keeps the keys and values of every token.

    No key is dropped outside a sliding window, so a rewind only changes `extent.length`; later passes
    overwrite the rest.
    """
    from transformers.cache_utils import Cache

    return Cache(layer_class_to_replicate=lambda: _layer()(extent))


@functools.cache
def _layer() -> Any:
    from transformers.cache_utils import DynamicLayer

    class GrowingLayer(DynamicLayer):  # type: ignore[misc]
        """Keys and values of one layer in buffers that grow by doubling."""

        def __init__(self, extent: Extent) -> None:
            super().__init__()
            self.keys: Any = None
            self.values: Any = None
            self.extent = extent
            self.is_initialized = True

        def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
            extent = self.extent
            start, end = extent.length, extent.length + key_states.shape[-2]
            if self.keys is None or self.keys.shape[-2] < end:
                room = grown(0 if self.keys is None else self.keys.shape[-2], end, extent.most)
                self.keys = _moved(self.keys, key_states, start, room)
                self.values = _moved(self.values, value_states, start, room)
            if extent.slots is not None:
                self.keys.index_copy_(2, extent.slots, key_states)
                self.values.index_copy_(2, extent.slots, value_states)
                return self.keys, self.values
            self.keys[:, :, start:end] = key_states
            self.values[:, :, start:end] = value_states
            return self.keys[:, :, :end], self.values[:, :, :end]

        def get_seq_length(self, *args: Any) -> int:
            return self.extent.length

        def get_mask_sizes(self, query: Any) -> tuple[int, int]:
            return self.extent.length + (query if isinstance(query, int) else query.shape[0]), 0

    return GrowingLayer


def _moved(old: Any, like: Any, length: int, room: int) -> Any:
    """Return a buffer [1, heads, room, width] that starts with the first `length` tokens of `old`."""
    new = like.new_zeros((*like.shape[:2], room, like.shape[-1]))
    if length:
        new[:, :, :length] = old[:, :, :length]
    return new


def bucket(count: int) -> int:
    """Return the fixed width that holds `count` tokens."""
    return next(width for width in WIDTHS if width >= count)


def fixed_pass(run: Callable[[dict[str, Any], Any], Any], config: Any, extent: Extent, memory: Any) -> Any:
    """Return a module (ids [1, width], slots [width], places [rows]) -> logits [rows, vocab].

    It reads the tokens into the slots of buffers for `extent.most` tokens. Only its arguments change between
    passes, so that a device may record it.
    """
    import torch

    room, last = extent.most, config.max_position_embeddings - 1

    class Pass(torch.nn.Module):  # type: ignore[misc]
        def forward(self, ids: Any, slots: Any, places: Any) -> Any:
            extent.slots = slots
            given = {
                "input_ids": ids,
                "attention_mask": _masks(config, slots, room),
                "position_ids": slots.clamp(max=last)[None],
                "cache_position": slots,
                "past_key_values": memory,
                "use_cache": True,
            }
            return run(given, places)

    return Pass()


def _masks(config: Any, slots: Any, room: int) -> Any:
    """Return the attention mask [1, 1, width, room]; by kind of layer if the model has several."""
    import torch

    behind = slots[:, None] - torch.arange(room, device=slots.device)
    full, window = _mask(config, behind >= 0), getattr(config, "sliding_window", None)
    types = set(getattr(config, "layer_types", None) or ())
    if not window or (types and "sliding_attention" not in types):
        return full
    near = _mask(config, (behind >= 0) & (behind < window))
    return {"full_attention": full, "sliding_attention": near} if types else near


def _mask(config: Any, seen: Any) -> Any:
    import torch

    if config._attn_implementation == "sdpa":
        return seen[None, None]
    return torch.zeros(seen.shape, device=seen.device).masked_fill(~seen, -3e4)[None, None]


def recorded(read: Any) -> Any:
    """Return a fixed pass that Gaudi records once per shape and replays; its buffers must exist."""
    import habana_frameworks.torch as habana

    return habana.hpu.wrap_in_hpu_graph(read) if habana.utils.internal.is_lazy() else read


def mark_step() -> None:
    """Let Gaudi run the operations gathered for one pass."""
    import habana_frameworks.torch.core as core

    core.mark_step()


class KeptTokens(NamedTuple):
    """Stands for a tensor whose first `tokens` are to be kept."""

    tokens: int


Saved = list[tuple[Any, Any, Any]]  # a dict or list, a key of it, and its value


def step(model: Any, name: str, memory: Any, ids: Any, past: int) -> dict[str, Any]:
    """Return the arguments of a pass over `ids` [1, tokens] that follow `past` tokens in `memory`.

    If `memory` is None, the model makes its own kind of cache, as it does to generate. `name` is what the
    family calls it.
    """
    import torch

    positions = torch.arange(past, past + ids.shape[1], device=ids.device)
    given = {"cache_position": positions, "use_cache": True}
    if memory is None:
        seen = torch.ones_like(ids)
        given = model.prepare_inputs_for_generation(
            ids, attention_mask=seen, is_first_iteration=True, **given
        )
        given["attention_mask"] = None
    else:
        given |= {"input_ids": ids, name: memory}
        if name != "past_key_values":  # no position: it tells which tap of a convolution is new
            given["cache_position"] = positions + CONVOLUTION
    return given | {"position_ids": positions[None]}


class Checkpoints:
    """States of one text to go back to: the latest ones, and older ones ever more sparsely."""

    def __init__(self) -> None:
        self._saved: list[tuple[int, Saved]] = []

    def keep(self, memory: Any, length: int) -> None:
        """Keep the state of `memory`, which holds `length` tokens."""
        if self._saved and self._saved[-1][0] == length:
            return
        self._saved.append((length, save(memory, length)))
        if len(self._saved) > CHECKPOINTS:
            at = [kept for kept, _ in self._saved]
            inner = range(1, len(at) - NEAREST)
            del self._saved[min(inner, key=lambda i: (at[i + 1] - at[i - 1]) / (length - at[i] + 1))]

    def back(self, length: int) -> int:
        """Restore the last state of at most `length` tokens; return its tokens, 0 without one."""
        while self._saved and self._saved[-1][0] > length:
            self._saved.pop()
        if not self._saved:
            return 0
        kept, saved = self._saved[-1]
        restore(saved)
        return kept


def save(memory: Any, length: int) -> Saved:
    """Return a checkpoint of `memory`, any cache of transformers that holds `length` tokens.

    Keys and values only grow, so their length is enough; recurrent states are copied.
    """
    return list(_slots(memory if isinstance(memory, list) else vars(memory), length, growing=False))


def restore(saved: Saved) -> None:
    """Restore a cache to a checkpoint; may be repeated."""
    for box, key, value in saved:
        if isinstance(value, KeptTokens):
            box[key] = box[key][..., : value.tokens, :]
        else:
            box[key] = value.clone() if hasattr(value, "clone") else value


def _slots(box: Any, length: int, growing: bool) -> Iterator[tuple[Any, Any, Any]]:
    sliding = isinstance(box, dict) and "sliding_window" in box
    for key, value in list(box.items() if isinstance(box, dict) else enumerate(box)):
        grows = growing or (key in GROWING and not sliding)
        if hasattr(value, "clone"):
            whole = grows and value.ndim > 2 and value.shape[-2] == length
            yield box, key, KeptTokens(length) if whole else value.clone()
        elif isinstance(value, dict | list):
            yield from _slots(value, length, grows)
        elif type(value).__name__.endswith(("Layer", "Cache")) and hasattr(value, "__dict__"):
            yield from _slots(vars(value), length, grows)
        else:
            yield box, key, value
