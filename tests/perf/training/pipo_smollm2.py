"""Teach a model to read and write pairs of tokens (PIPO), best on a GPU; prints what it found as JSON.

    PYTHONPATH=. python tests/perf/training/pipo_smollm2.py SMOLLM2.gguf --minutes 8 --work DIR

The model first writes texts, unless DIR holds some; DIR keeps them and the checkpoints, so a second call
resumes. DIR/pipo is a folder that `localspec import DIR/pipo --name NAME --target MODEL` takes.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from heal import TEXTS, HealingContext, read, write

from localspec.disk import atomic
from localspec.formats.huggingface import loading, torch_devices
from localspec.formats.pipo import layout
from localspec.training.pipo.pair_training import PipoPlan, train_pairs


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("target", type=Path, help="a GGUF file such as SmolLM2-135M-Instruct")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=8, help="of training")
    parser.add_argument("--writing", type=float, default=4, help="minutes of writing texts first")
    parser.add_argument("--max-texts", type=int, default=40_000)
    parser.add_argument("--write-batch", type=int, default=1024, help="texts that are written at a time")
    parser.add_argument("--held-out", type=int, default=64, help="texts for evaluation")
    parser.add_argument("--rank", type=int, default=32, help="of the adapters")
    parser.add_argument("--supervised", type=float, default=0.6, help="share of the time before on-policy")
    parser.add_argument("--rate", type=float, default=0.0, help="learning rate, 0 for the default")
    parser.add_argument("--batch", type=int, default=0, help="texts of a step, 0 for the default")
    parser.add_argument("--steps", type=int, default=1 << 40)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    asked = parsed()
    context = HealingContext(asked.target, asked.target, asked.work)
    if not (asked.work / TEXTS).is_file():
        write(context, asked.writing * 60, asked.max_texts, asked.write_batch, asked.held_out)
    place = torch_devices.find_device("auto")[1]
    model = loading.load(asked.target, place, torch_devices.natural_dtype(place))
    plan = PipoPlan(
        asked.minutes * 60, asked.rank, asked.supervised, asked.rate, asked.batch, asked.seed, asked.steps
    )
    texts = read(asked.work / TEXTS)
    held_out = context.target_texts()
    with torch_devices.memory_errors(place, f"training PIPO for {asked.target.name}"):
        found = train_pairs(asked.target, model, texts, held_out, plan, asked.work, context)
    shutil.rmtree(asked.work / "pipo", ignore_errors=True)  # of an earlier call
    with atomic.folder(asked.work / "pipo") as into:
        layout.write(found, into)
    print(json.dumps(found.about))


if __name__ == "__main__":
    main()
