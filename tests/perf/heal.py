"""Heal a cut draft on a machine with a card but without OpenVINO, and say what it gained.

    python tests/perf/heal.py TARGET.gguf SOURCE.gguf --keep 14 --minutes 15 --work DIR

DIR keeps the texts and the checkpoints, so a second call goes on. In the end it holds `healed.safetensors`,
which a recipe elsewhere takes with `heal:taught=FILE` behind a `prune` of the same layers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

import numpy as np
import torch

from localspec.build.context import turns
from localspec.core.types import Tokens
from localspec.drafting.build_step import Text
from localspec.formats.huggingface import loading, torch_devices
from localspec.library import Manifest, Model
from localspec.library.importing import convert
from localspec.steps.heal.step import TEXTS, Heal
from localspec.steps.heal.texts import write
from localspec.steps.prune.layer_selection import angles, candidates, influences

HELD_OUT, SHOWN = 96, 8  # texts that judge, and that rank the layers


class BuildContext:
    """As much of a build as healing asks for."""

    def __init__(self, target: Path, source: Path, work: Path) -> None:
        self.kept = work
        self._files = {"target": target, "source": source}
        about = work / "about"
        about.mkdir(exist_ok=True, parents=True)
        convert.from_gguf(target, about)
        self._model = Model("target", about, Manifest(name="target", source=str(target)))
        self._started = monotonic()

    def say(self, line: str) -> None:
        print(f"{monotonic() - self._started:6.0f} s  {line}", flush=True)

    def step(self, title: str, total: int | None = None) -> None:
        self.say(title)

    def weights(self, of: str) -> Path:
        return self._files[of]

    def turns(self) -> Sequence[tuple[Tokens, Tokens]]:
        return turns(self._model)

    def ends(self) -> Sequence[int]:
        return self._model.stop_tokens()

    def prompts(self) -> Sequence[Tokens]:
        return []

    def passes(self) -> Sequence[float]:
        return []

    def texts(self) -> list[Text]:
        return read(self.kept / "held-out.jsonl")


def read(file: Path) -> list[Text]:
    return [Text(*json.loads(line)) for line in file.read_text("utf-8").splitlines()]


def written(site: BuildContext, seconds: float, most: int, batch: int) -> None:
    """Write texts to learn from, and some that are held out."""
    place = torch_devices.find_device("auto")[1]
    teacher = loading.load(site.weights("target"), place, torch_devices.natural_dtype(place))
    texts: list[Text] = []
    found = write(teacher, site.turns(), site.ends(), seconds=seconds, most=most, batch=batch, seed=1)
    for some in found:
        texts += some
        site.say(f"{len(texts):,} texts, {sum(len(text.answer) for text in texts):,} tokens")
    held = texts[:HELD_OUT]
    prompts = {tuple(text.prompt) for text in held}
    learned = [text for text in texts[HELD_OUT:] if tuple(text.prompt) not in prompts]
    for name, some in (("held-out.jsonl", held), (TEXTS, learned)):
        (site.kept / name).write_text("".join(json.dumps(text) + "\n" for text in some), "utf-8")


def ranked(site: BuildContext, keep: int) -> list[int]:
    """Return the layers that stay: all but the block through which texts turn least."""
    model = loading.load_trainable(site.weights("source"), torch_devices.find_device("auto")[1]).eval()
    found = []
    for text in site.texts()[:SHOWN]:
        given = torch.tensor([[*text.prompt, *text.answer]], device=model.device)
        with torch.inference_mode():
            states = model(given, output_hidden_states=True).hidden_states
        found.append(torch.stack([state[0].float() for state in states]).cpu().numpy())
    between = np.mean([angles(states) for states in found], axis=0)
    turned = np.mean([influences(states) for states in found], axis=0)
    count = len(turned)
    gone = candidates(between, list(turned), count - keep)[0] if keep < count else frozenset()
    return [layer for layer in range(count) if layer not in gone]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("target", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("--keep", type=int, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--writing", type=float, default=4, help="minutes in which texts are written first")
    parser.add_argument("--most", type=int, default=20_000)
    parser.add_argument("--writers", type=int, default=384, help="texts that are written at a time")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rank", type=int, default=-1)
    parser.add_argument("--work", type=Path, required=True)
    asked = parser.parse_args()
    site = BuildContext(asked.target, asked.source, asked.work)
    if not (site.kept / TEXTS).is_file():
        written(site, asked.writing * 60, asked.most, asked.writers)
    layers = ranked(site, asked.keep)
    site.say(f"layers {layers}")
    draft, healed = Heal(site, minutes=asked.minutes, batch=asked.batch, rank=asked.rank).teach(layers)
    healed.save(draft, layers, site.kept)
    print(json.dumps({"layers": layers, "healed": healed}))


if __name__ == "__main__":
    main()
