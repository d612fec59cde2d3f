"""Heal a pruned draft on a machine with a GPU but without OpenVINO, and print what it gained.

    python tests/perf/training/heal.py TARGET.gguf SOURCE.gguf --keep 14 --minutes 15 --work DIR

DIR keeps the texts and the checkpoints, so a second call resumes. At the end it holds `healed.safetensors`,
which a recipe elsewhere uses with `heal:trained=FILE` after a `prune` to the same layers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import monotonic

import numpy as np
import torch

from localspec.build.context import chat_wrappers
from localspec.core.types import Tokens
from localspec.drafting.build_step import TargetText
from localspec.formats.huggingface import healed, loading, torch_devices
from localspec.library import Manifest, StoredModel
from localspec.library.importing import convert
from localspec.steps.heal.step import TEXTS, Heal
from localspec.steps.prune.layer_selection import angular_distances, block_influence, removal_candidates
from localspec.training.texts import write_texts

HELD_OUT, RANKING = 96, 8  # texts for evaluation, and of those for ranking the layers


class HealingContext:
    """The parts of BuildContext that healing uses."""

    def __init__(self, target: Path, source: Path, work: Path) -> None:
        self.work_folder = work
        self._files = {"target": target, "source": source}
        configs = work / "configs"
        configs.mkdir(exist_ok=True, parents=True)
        convert.from_gguf(target, configs)
        self._model = StoredModel("target", configs, Manifest(name="target", source=str(target)))
        self._started = monotonic()

    def say(self, line: str) -> None:
        print(f"{monotonic() - self._started:6.0f} s  {line}", flush=True)

    def step(self, title: str, total: int | None = None, unit: str = "") -> AbstractContextManager[None]:
        self.say(title)
        return nullcontext()

    def advance(self, count: int = 1) -> None:
        pass

    def write_target_texts(self) -> None:
        pass

    def weights(self, of: str) -> Path:
        return self._files[of]

    def chat_wrappers(self) -> Sequence[tuple[Tokens, Tokens]]:
        return chat_wrappers(self._model)

    def stop_tokens(self) -> Sequence[int]:
        return self._model.stop_tokens()

    def training_prompts(self) -> Sequence[Tokens]:
        return []

    def target_pass_seconds(self) -> Sequence[float]:
        return []

    def target_texts(self) -> list[TargetText]:
        return read(self.work_folder / "held-out.jsonl")


def read(file: Path) -> list[TargetText]:
    return [TargetText(*json.loads(line)) for line in file.read_text("utf-8").splitlines()]


def write(
    context: HealingContext, seconds: float, max_texts: int, batch: int, held_out: int = HELD_OUT
) -> None:
    """Write texts for training, and some that are held out."""
    place = torch_devices.find_device("auto")[1]
    teacher = loading.load(context.weights("target"), place, torch_devices.natural_dtype(place))
    texts: list[TargetText] = []
    asked = (context.weights("target"), context.chat_wrappers(), context.stop_tokens())
    for some in write_texts(teacher, *asked, seconds=seconds, max_texts=max_texts, batch=batch, seed=1):
        texts += some
        context.say(f"{len(texts):,} texts, {sum(len(text.answer) for text in texts):,} tokens")
    held = texts[:held_out]
    prompts = {tuple(text.prompt) for text in held}
    learned = [text for text in texts[held_out:] if tuple(text.prompt) not in prompts]
    for name, some in (("held-out.jsonl", held), (TEXTS, learned)):
        (context.work_folder / name).write_text("".join(json.dumps(text) + "\n" for text in some), "utf-8")


def ranked(context: HealingContext, keep: int) -> list[int]:
    """Return the layers to keep: all but the block that changes the hidden states least."""
    model = loading.load_trainable(context.weights("source"), torch_devices.find_device("auto")[1]).eval()
    found = []
    for text in context.target_texts()[:RANKING]:
        given = torch.tensor([[*text.prompt, *text.answer]], device=model.device)
        with torch.inference_mode():
            states = model(given, output_hidden_states=True).hidden_states
        found.append(torch.stack([state[0].float() for state in states]).cpu().numpy())
    distances = np.mean([angular_distances(states) for states in found], axis=0)
    influence = np.mean([block_influence(states) for states in found], axis=0)
    count = len(influence)
    removed = removal_candidates(distances, list(influence), count - keep)[0] if keep < count else frozenset()
    return [layer for layer in range(count) if layer not in removed]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("target", type=Path)
    parser.add_argument("source", type=Path)
    parser.add_argument("--keep", type=int, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--writing", type=float, default=4, help="minutes of writing texts first")
    parser.add_argument("--max-texts", type=int, default=20_000)
    parser.add_argument("--write-batch", type=int, default=1024, help="texts that are written at a time")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rank", type=int, default=-1)
    parser.add_argument("--work", type=Path, required=True)
    asked = parser.parse_args()
    context = HealingContext(asked.target, asked.source, asked.work)
    if not (context.work_folder / TEXTS).is_file():
        write(context, asked.writing * 60, asked.max_texts, asked.write_batch)
    layers = ranked(context, asked.keep)
    context.say(f"layers {layers}")
    draft, facts = Heal(context, minutes=asked.minutes, batch=asked.batch, rank=asked.rank).train(layers)
    healed.save(draft, layers, context.work_folder)
    print(json.dumps({"layers": layers, "healed": facts}))


if __name__ == "__main__":
    main()
