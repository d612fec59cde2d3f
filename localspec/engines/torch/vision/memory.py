"""Keys and values of the tokens that ran, which are other ones in each layer."""

from __future__ import annotations

from typing import Any

from localspec.engines.torch.decoder.weights import Tensor
from localspec.engines.torch.kv_cache import grown


class LayerRows:
    """Keys and values of a layer, in buffers [texts, key_heads, room, head_width] that double when full."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._keys: Any = None
        self._values: Any = None
        self.length = 0

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values [texts, key_heads, tokens, head_width]; return views of all of them."""
        begin, end = self.length, self.length + keys.shape[2]
        if not begin and (self._keys is None or self._keys.shape[2] < end):
            room = grown(0, end, self._most)
            self._keys, self._values = (_larger(part, part[:, :, :0], room) for part in (keys, values))
        elif self._keys.shape[2] < end:
            room = grown(self._keys.shape[2], end, self._most)
            kept = (self._keys[:, :, :begin], self._values[:, :, :begin])
            self._keys, self._values = (_larger(part, part, room) for part in kept)
        self._keys[:, :, begin:end], self._values[:, :, begin:end] = keys, values
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]


def _larger(like: Tensor, kept: Tensor, room: int) -> Tensor:
    """Return a buffer for `room` tokens that starts with those of `kept`."""
    texts, heads, _, width = like.shape
    new = like.new_zeros((texts, heads, room, width))
    new[:, :, : kept.shape[2]] = kept
    return new
