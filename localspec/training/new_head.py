"""A new head for a target: its shape, the tokens that it can guess, and its first weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.drafting.build_step import TargetText
from localspec.errors import UnsupportedModel
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph.architecture import of_path, rope_config
from localspec.formats.graph.rope import frequencies, scaling_of
from localspec.formats.heads.layout import LAYER, Head, HeadShape, default_taps
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.formats.hyperparameters.families import DEFAULTS

SPREAD = 0.02  # standard deviation of first weights


def shape_for(path: Path, model: Any, *, kept: int, inner: int = 0, deep: bool = False) -> HeadShape:
    """Return the shape of a head for the target in `path`, loaded as `model`.

    It guesses `kept` tokens. Its MLP is `inner` wide, 0 for the target's width. A `deep` one reads the states
    after the last layer alone, as heads of multi-token prediction do. Raises UnsupportedModel.
    """
    target = of_path(path)
    if target.embedding_scale != 1 or target.logit_scale != 1:
        raise UnsupportedModel(f"`{path}` scales its embedding or its logits, which heads do not support")
    vocab = len(model.get_output_embeddings().weight)
    base = _base(path, target.family)
    return HeadShape(
        width=target.width,
        inner=inner or model.config.intermediate_size,
        heads=target.heads,
        key_heads=target.key_heads,
        head_width=target.head_width,
        epsilon=target.epsilon,
        vocab=vocab,
        kept=min(kept, vocab),
        taps=(target.layers,) if deep else default_taps(target.layers),
        tapped_width=target.width,
        context=target.context,
        base=base,
        frequencies=frequencies(base, target.head_width).astype(np.float32),
    )


def likely_tokens(
    texts: Sequence[TargetText], special: Iterable[int], vocab: int, count: int
) -> NDArray[np.int64]:
    """Return `count` tokens, ascending: `special` ones, the most frequent of answers, then the lowest.

    Byte-pair tokens are numbered in the order of their merges: low numbers are frequent in most texts.
    """
    counts = Counter(token for text in texts for token in text.answer)
    frequent = (token for token, _ in counts.most_common())
    order = dict.fromkeys([*sorted(special), *frequent, *range(vocab)])
    return np.sort(np.array([token for token in order if token < vocab][:count], np.int64))


def first_weights(shape: HeadShape, tokens: NDArray[np.int64], model: Any, seed: int) -> dict[str, Any]:
    """Return the first weights of a head in float32, on the device of its target.

    What fc returns begins as the states after the last tapped layer, and the head's layer as the target's
    last one, so far as their shapes are the same: that halves the loss after a few hundred texts, compared to
    random weights. The rows of the vocabulary are the target's own.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: torch.ones(size) if len(size) == 1 else torch.randn(size, generator=generator) * SPREAD
        for name, size in shape.tensors().items()
    }
    weights["fc.weight"] *= 0.1
    weights["fc.weight"][:, -shape.tapped_width :] += torch.eye(shape.width, shape.tapped_width)
    last = dict(model.base_model.layers[-1].named_parameters())
    normed = any(name.endswith("q_norm.weight") for name in last)  # heads do not norm queries and keys
    given = {f"{LAYER}{name}": value for name, value in last.items() if not (normed and "attn" in name)}
    own = f"{LAYER}input_layernorm.weight"
    if own in given:
        given[f"{LAYER}hidden_norm.weight"] = given.pop(own)
    given["norm.weight"] = getattr(model.base_model.norm, "weight", None)
    ids = torch.from_numpy(tokens).to(model.device)
    given["lm_head.weight"] = model.get_output_embeddings().weight[ids]
    for name, value in weights.items():
        known = given.get(name)
        if known is not None and known.shape == value[..., -known.shape[-1] :].shape:
            value[..., -known.shape[-1] :] = known.detach().float().cpu()  # a pair's second half
        elif name.endswith(("o_proj.weight", "down_proj.weight")):  # what is added begins as nothing
            value.zero_()
    return {name: value.to(model.device).requires_grad_(True) for name, value in weights.items()}


def head_of(
    shape: HeadShape, tokens: NDArray[np.int64], weights: dict[str, Any], about: dict[str, Any]
) -> Head:
    """Return a trained head, to be written."""
    tensors = {name: value.detach().float().cpu().numpy() for name, value in weights.items()}
    return Head(shape, tensors, tokens, about=about)


def _base(path: Path, family: str) -> float:
    """Return the base of the target's rotary positions; a head does not stretch them."""
    if path.is_file():
        return float(rope_config(GgufFile.open(path))["rope_theta"])
    found = scaling_of(SafetensorsFolder.open(path).config, str(path)).get("rope_theta")
    return float(found or DEFAULTS[family].base)
