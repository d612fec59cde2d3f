"""The decoder families that become graphs: what they take for a key that their config.json lacks."""

from __future__ import annotations

from typing import NamedTuple


class Family(NamedTuple):
    """Defaults of a family's config.json, as transformers has them, and the biases that it may have.

    `key_heads` and `head_width` are None where they follow from other keys, `window` is None where attention
    has no window unless the config gives one. With `attention_bias` the config's key of that name adds a bias
    to all four matrices of attention, with `mlp_bias` likewise to the feed-forward network; with `qkv_bias`
    queries, keys and values always have one. `head_norms` are norms of queries and keys. Matrices are
    `joined` where one holds queries, keys and values, and another gate and up.
    """

    context: int = 2048
    epsilon: float = 1e-6
    base: float = 10000.0
    key_heads: int | None = None
    head_width: int | None = None
    window: int | None = None
    tied: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    qkv_bias: bool = False
    head_norms: bool = False
    joined: bool = False


DEFAULTS = {
    "llama": Family(attention_bias=True, mlp_bias=True),
    "mistral": Family(context=131072, key_heads=8, window=4096),
    "qwen2": Family(context=32768, key_heads=32, window=4096, qkv_bias=True),
    "qwen3": Family(
        context=32768, key_heads=32, head_width=128, window=4096, attention_bias=True, head_norms=True
    ),
    "granite": Family(attention_bias=True, mlp_bias=True),
    "olmo2": Family(epsilon=1e-5, attention_bias=True, head_norms=True),
    "smollm3": Family(
        context=32768, base=2000000.0, key_heads=4, tied=True, attention_bias=True, mlp_bias=True
    ),
    "phi3": Family(context=4096, epsilon=1e-5, joined=True),
}
