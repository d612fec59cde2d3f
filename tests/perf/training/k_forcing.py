"""Train hints of K-Forcing for a target on a machine with a GPU but without OpenVINO.

    PYTHONPATH=. python tests/perf/training/k_forcing.py TARGET.gguf --k 4 --minutes 10 --work DIR

The target writes texts first, unless DIR holds some; DIR keeps them and the checkpoints, so a second call
resumes. The hints lie in DIR/hints, a folder that `localspec import` takes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from heal import TEXTS, HealingContext, read, write

from localspec.formats.huggingface import loading, torch_devices
from localspec.formats.k_forcing import layout
from localspec.training.k_forcing.stages import KForcingPlan, train_hints


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("target", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--k", type=int, default=4, help="tokens of a pass")
    parser.add_argument("--rank", type=int, default=16, help="of the adapters at hints")
    parser.add_argument("--minutes", type=float, default=10, help="of training")
    parser.add_argument("--writing", type=float, default=3, help="minutes of writing texts first")
    parser.add_argument("--max-texts", type=int, default=20_000)
    parser.add_argument("--write-batch", type=int, default=1024, help="texts that are written at a time")
    parser.add_argument("--held-out", type=int, default=64, help="texts for evaluation")
    parser.add_argument("--batch", type=int, default=0, help="texts of a step, 0 for the default")
    parser.add_argument("--rate", type=float, default=0.0, help="learning rate, 0 for the default")
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
    plan = KForcingPlan(
        asked.minutes * 60,
        k=asked.k,
        rank=asked.rank,
        batch=asked.batch,
        rate=asked.rate,
        seed=asked.seed,
        steps=asked.steps,
    )
    hints = train_hints(model, read(asked.work / TEXTS), context.target_texts(), plan, asked.work, context)
    out = asked.work / "hints"
    out.mkdir(exist_ok=True)
    layout.write(hints, out)
    print(json.dumps(hints.about, default=str))


if __name__ == "__main__":
    main()
