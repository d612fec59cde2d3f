"""A small LLaVA in plain torch: what its training computes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import scenes
import torch
from scenes import ANSWER, ASKED
from small_llava_files import BASE, EPSILON, MEAN, Size, write
from torch.nn import functional

from localspec.decoder.forward import Decoder
from localspec.decoder.weights import Layer, Plain, Weights
from localspec.formats.graph.architecture import Architecture
from localspec.formats.graph.rope import frequencies

ASKS = ASKED + ANSWER - 1  # tokens that are read of a question and its answer


class SmallLlava:
    """Weights in one flat vector, so that a step casts, clips and updates all of them at once."""

    def __init__(self, size: Size, place: torch.device) -> None:
        self.size, self.place = size, place
        self.shapes = _shapes(size)
        self.turns = self._turns(torch.arange(size.grid.patches + ASKS, device=place))
        self.begin(0)

    def begin(self, seed: int) -> None:
        """Draw first weights."""
        numbers = torch.Generator().manual_seed(seed)
        parts = [_initial(name, shape, self.size, numbers).flatten() for name, shape in self.shapes.items()]
        self.flat = torch.cat(parts).to(self.place).requires_grad_(True)

    def tensors(self, dtype: torch.dtype = torch.float32, flat: Any = None) -> dict[str, Any]:
        """Return the weights by name in `dtype`, as views of the flat vector or of another one."""
        parts = (
            (self.flat if flat is None else flat)
            .to(dtype)
            .split([math.prod(shape) for shape in self.shapes.values()])
        )
        named = zip(self.shapes.items(), parts, strict=True)
        return {name: part.view(shape) for (name, shape), part in named}

    def see(self, p: dict[str, Any], pictures: Any) -> Any:
        """Return what pictures [n, 3, side, side] become among the tokens, [n, patches, width]."""
        n, size, (across, patch) = len(pictures), self.size, (self.size.grid.across, self.size.grid.patch)
        pixels = ((pictures - MEAN) / MEAN).to(p["eyes.patch"].dtype)
        cut = (
            pixels.view(n, 3, across, patch, across, patch).permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        )
        x = functional.linear(cut, p["eyes.patch"])
        x = torch.cat([p["eyes.class"].expand(n, 1, -1), x], 1) + p["eyes.position"]
        x = _normed(p, "eyes.before", x)
        for at in range(size.eye_layers):
            name = f"eyes.{at}"
            joined = _biased(p, f"{name}.qkv", _normed(p, f"{name}.norm1", x))
            heads = [part.unflatten(-1, (size.heads, -1)).transpose(1, 2) for part in joined.chunk(3, -1)]
            mixed = functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
            x = x + _biased(p, f"{name}.out", mixed)
            inner = functional.gelu(_biased(p, f"{name}.fc1", _normed(p, f"{name}.norm2", x)))
            x = x + _biased(p, f"{name}.fc2", inner)
        return _biased(p, "joint.2", functional.gelu(_biased(p, "joint.1", x[:, 1:])))

    def loss(self, flat: Any, pictures: Any, questions: Any, answers: Any, dtype: torch.dtype) -> Any:
        """Return the loss of a batch: each picture is read once, each question sees it and itself."""
        p = self.tensors(dtype, flat)
        n, each, _ = questions.shape
        patches = self.size.grid.patches
        seen = self.see(p, pictures)
        read = torch.cat([questions, answers[..., :-1]], -1)
        x = torch.cat([seen, functional.embedding(read.flatten(1), p["table"])], 1)
        turns = [
            torch.cat([part[:patches], part[patches:].repeat(each, 1)]).to(x.dtype)[:, None]
            for part in self.turns
        ]
        mask = _mask(each, patches, self.place)
        for at in range(self.size.layers):
            x = self._layer(p, f"text.{at}", x, turns, mask)
        x = functional.rms_norm(x, (self.size.width,), p["norm"], EPSILON)
        last = x[:, patches:].unflatten(1, (each, ASKS))[:, :, ASKED - 1 :]
        logits = functional.linear(last, p["head"]).float()
        return functional.cross_entropy(logits.flatten(0, 2), answers.flatten(), ignore_index=scenes.PAD)

    def _layer(self, p: dict[str, Any], name: str, x: Any, turns: list[Any], mask: Any) -> Any:
        size = self.size
        normed = functional.rms_norm(x, (size.width,), p[f"{name}.norm1"], EPSILON)
        queries, keys, values = (
            part.unflatten(-1, (size.heads, -1))
            for part in functional.linear(normed, p[f"{name}.qkv"]).chunk(3, -1)
        )
        half, patches = size.head_width // 2, size.grid.patches
        queries, keys = (
            torch.addcmul(part * turns[0], part.roll(half, -1), turns[1]) for part in (queries, keys)
        )
        q, k, v = (part.transpose(1, 2) for part in (queries, keys, values))
        attention = functional.scaled_dot_product_attention
        first = attention(q[:, :, :patches], k[:, :, :patches], v[:, :, :patches], is_causal=True)
        rest = attention(q[:, :, patches:], k, v, attn_mask=mask)
        mixed = torch.cat([first, rest], 2).transpose(1, 2).flatten(2)
        x = x + functional.linear(mixed, p[f"{name}.out"])
        normed = functional.rms_norm(x, (size.width,), p[f"{name}.norm2"], EPSILON)
        gate, up = functional.linear(normed, p[f"{name}.gates"]).chunk(2, -1)
        return x + functional.linear(functional.silu(gate) * up, p[f"{name}.down"])

    def _turns(self, positions: Any) -> tuple[Any, Any]:
        angles = positions[:, None].float() * torch.from_numpy(_rates(self.size)).to(self.place)
        return torch.cat([angles.cos()] * 2, -1), torch.cat([-angles.sin(), angles.sin()], -1)

    def decoder(self, dtype: torch.dtype = torch.float32) -> Decoder:
        """Return the text part as localspec's engine runs it."""
        size, p = self.size, {name: part.detach() for name, part in self.tensors(dtype).items()}
        layers = tuple(
            Layer(
                *(Plain(p[f"text.{at}.{part}"]) for part in ("qkv", "out", "gates", "down")),
                (p[f"text.{at}.norm1"], p[f"text.{at}.norm2"]),
                None,
            )
            for at in range(size.layers)
        )
        rates = torch.from_numpy(_rates(size)).to(self.place)
        shape = Architecture(
            "llama", size.layers, size.width, size.heads, size.heads, size.head_width, 1024, EPSILON,
            _rates(size),
        )  # fmt: skip
        return Decoder(Weights(shape, Plain(p["table"]), layers, p["norm"], Plain(p["head"]), rates))

    def save(self, into: Path) -> None:
        """Write the model as a LLaVA of Hugging Face, in float16."""
        write(
            into,
            {name: part.detach().half().cpu().numpy() for name, part in self.tensors().items()},
            self.size,
        )


def _rates(size: Size) -> Any:
    return frequencies(BASE, size.head_width).astype(np.float32)


def _mask(each: int, patches: int, place: torch.device) -> Any:
    """Return which of all tokens [each * ASKS, patches + each * ASKS] those of the questions see."""
    at = torch.arange(each * ASKS, device=place)
    own = (at[:, None] // ASKS == at // ASKS) & (at[:, None] >= at)
    return torch.cat([torch.ones(len(at), patches, dtype=torch.bool, device=place), own], 1)


def _normed(p: dict[str, Any], name: str, x: Any) -> Any:
    return functional.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"], EPSILON)


def _biased(p: dict[str, Any], name: str, x: Any) -> Any:
    return functional.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])


def _shapes(size: Size) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all weights; matrices that read the same numbers are joined."""
    w, vocab = size.width, len(scenes.WORDS)
    found: dict[str, tuple[int, ...]] = {
        "eyes.patch": (w, 3 * size.grid.patch**2),
        "eyes.class": (w,),
        "eyes.position": (size.grid.patches + 1, w),
        **{f"eyes.before.{kind}": (w,) for kind in ("weight", "bias")},
        "table": (vocab, w),
        "norm": (w,),
        "head": (vocab, w),
    }
    eyes = {"qkv": (3 * w, w), "out": (w, w), "fc1": (size.eye_inner, w), "fc2": (w, size.eye_inner)}
    biased = {f"eyes.{at}.{name}": shape for at in range(size.eye_layers) for name, shape in eyes.items()}
    biased |= {"joint.1": (w, w), "joint.2": (w, w)}
    for name, shape in biased.items():
        found |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for at in range(size.eye_layers):
        names = (f"eyes.{at}.norm{norm}.{kind}" for norm in (1, 2) for kind in ("weight", "bias"))
        found |= dict.fromkeys(names, (w,))
    text = {"qkv": (3 * w, w), "out": (w, w), "gates": (2 * size.inner, w), "down": (w, size.inner)}
    for at in range(size.layers):
        found |= {f"text.{at}.{name}": shape for name, shape in text.items()}
        found |= {f"text.{at}.norm{norm}": (w,) for norm in (1, 2)}
    return found


def _initial(name: str, shape: tuple[int, ...], size: Size, numbers: torch.Generator) -> Any:
    """Return first values: what a layer adds is small, so that deep models begin as shallow ones."""
    if "norm" in name or "before" in name:
        return torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
    if name.endswith("bias"):
        return torch.zeros(shape)
    drawn = torch.randn(shape, generator=numbers)
    if name in ("eyes.class", "eyes.position", "table"):
        return 0.3 * drawn
    depth = size.eye_layers if name.startswith("eyes") else size.layers
    small = (2 * depth) ** -0.5 if ".out" in name or ".down" in name or ".fc2" in name else 1.0
    return drawn * small * shape[1] ** -0.5
