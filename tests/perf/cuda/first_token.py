"""Time the first token of an answer about a picture in LLaVA-1.5's shape, with all visual tokens and fewer.

PYTHONPATH=. python tests/perf/cuda/first_token.py

A prompt of a shape that was read before is replayed on a card (`replayed`); the first of a shape is not.
Weights are random and made on the device; which tokens are chosen does not change the time. On a card the
eyes are timed as they are (`eyes_ms`) and replayed (`recorded_eyes_ms`), as they are before prompts are read.
"""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "perf" / "cuda")]

import shapes  # noqa: E402
from timing import wall  # noqa: E402

from localspec.decoder.card import decoder_of  # noqa: E402
from localspec.decoder.passes import Recorder  # noqa: E402
from localspec.engines.torch.vision.eyes import RecordedEyes  # noqa: E402
from localspec.engines.torch.vision.reader import Reader  # noqa: E402
from localspec.engines.torch.vision.replays import Replays  # noqa: E402
from localspec.pictures.schedule import Schedule, by_mean  # noqa: E402

BEFORE, VISUAL, AFTER, KEEP = 35, 576, 20, 64  # tokens of the prompt, and the mean of those that are kept


class Llava(NamedTuple):
    """The sizes of a LLaVA: the text part, and layers, width and inner width of the eyes."""

    text: shapes.Size
    eyes: tuple[int, int, int]


SIZES = {
    "llava-1.5-7b": Llava(shapes.Size(32, 4096, 11008, 32, 32, 32064, False), (24, 1024, 4096)),
    "tiny": Llava(shapes.Size(16, 256, 512, 2, 2, 512, False), (2, 64, 128)),
}


def eyes_of(layers: int, width: int, inner: int, into: int, place: torch.device, dtype: torch.dtype) -> Any:
    """Return a function (pixels) -> embeddings [VISUAL, into]: CLIP's tower and LLaVA's projector."""
    from transformers import CLIPVisionConfig, CLIPVisionModel

    config = CLIPVisionConfig(
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=width // min(width // 2, 64),
        image_size=336,
        patch_size=14,
        projection_dim=width,
    )
    with torch.device(place):
        tower = CLIPVisionModel(config).to(dtype).eval()
        joint = torch.nn.Sequential(
            torch.nn.Linear(width, into), torch.nn.GELU(), torch.nn.Linear(into, into)
        )
        joint = joint.to(dtype).eval()

    def see(pixels: Any) -> Any:
        return joint(tower(pixel_values=pixels, output_hidden_states=True).hidden_states[-2][0, 1:])

    return see


def measured(size: Llava, place: torch.device) -> dict[str, Any]:
    """Return the milliseconds of the eyes, and of a prompt's pass to its first token by method."""
    dtype = torch.bfloat16 if place.type == "cuda" else torch.float32
    reader = Reader(decoder_of(shapes.decoder_of(size.text, "bf16", place, dtype)))
    decoder, length, repeat = reader.decoder, BEFORE + VISUAL + AFTER, 20 if place.type == "cuda" else 2
    positions, visual = torch.arange(length, device=place), range(BEFORE, BEFORE + VISUAL)
    eyes = {"eyes_ms": eyes_of(*size.eyes, size.text.width, place, dtype)}
    pixels = torch.randn(1, 3, 336, 336, device=place, dtype=dtype)
    ids = torch.zeros(length - VISUAL, dtype=torch.long, device=place)
    with torch.inference_mode():
        if place.type == "cuda":
            eyes["recorded_eyes_ms"] = RecordedEyes(eyes["eyes_ms"], pixels, Recorder(place))
    see = [*eyes.values()][-1]

    def first(schedule: Schedule, read: Any) -> int:
        x = decoder.embedded(ids)
        x = torch.cat([x[:BEFORE], see(pixels), x[BEFORE:]])[None]
        states = read(x, positions, reader.memory(length + 16), visual, schedule)
        return int(decoder.logits(states[0, -1:]).argmax())

    layers, found = size.text.layers, {}
    with torch.inference_mode():
        for name, look in eyes.items():
            found[name] = 1000 * wall(lambda look=look: look(pixels), place, repeat)
        plans = {"full": Schedule()}
        plans |= {method: by_mean(KEEP, method, layers, VISUAL) for method in ("reroute", "pdrop", "fastv")}
        ways = {"": reader.read}
        if place.type == "cuda":
            ways["replayed_"] = Replays(reader, Recorder(place)).read
        runs: dict[str, list[float]] = {}
        for _ in range(repeat):  # in turns
            for (prefix, read), (method, schedule) in product(ways.items(), plans.items()):
                seconds = wall(lambda plan=schedule, read=read: first(plan, read), place, 1, 1)
                runs.setdefault(f"{prefix}{method}_ms", []).append(1000 * seconds)
    found |= {name: median(times) for name, times in runs.items()}
    found = {name: round(value, 3) for name, value in found.items()}
    ratios = {
        f"{prefix}times_as_fast": round(found[f"{prefix}full_ms"] / found[f"{prefix}reroute_ms"], 2)
        for prefix in ways
    }
    return {**found, "kept": round(plans["reroute"].average(layers, VISUAL), 1), **ratios}


if __name__ == "__main__":
    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(json.dumps(measured(SIZES["llava-1.5-7b" if where.type == "cuda" else "tiny"], where)))
