"""Teach a model to predict from its first layers (LayerSkip), best on a GPU; `early_exit` drafts with them.

    PYTHONPATH=. python tests/perf/training/layer_skip.py SMOLLM2.gguf --exits 6,8,10 --minutes 12 --work DIR

The model first writes texts, unless DIR holds some; DIR keeps them and the checkpoints, so a second call
resumes. DIR/model is a folder that `localspec import` takes, DIR/adapter.safetensors what was trained. The
model is another one from then on: its answers are its own, and `--draft early_exit:layer=N` keeps those.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from heal import TEXTS, HealingContext, read, write
from safetensors.torch import save_file

from localspec.formats.huggingface import loading, torch_devices
from localspec.training.layer_skip import LayerSkipLearner, SkipPlan
from localspec.training.loop import TrainingPlan, train


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("target", type=Path, help="a GGUF file such as SmolLM2-135M-Instruct")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--exits", default="6,8,10", help="layers after which the model learns to predict")
    parser.add_argument("--minutes", type=float, default=12, help="of training")
    parser.add_argument("--writing", type=float, default=4, help="minutes of writing texts first")
    parser.add_argument("--max-texts", type=int, default=20_000)
    parser.add_argument("--write-batch", type=int, default=1024, help="texts that are written at a time")
    parser.add_argument("--held-out", type=int, default=64, help="texts for evaluation")
    parser.add_argument("--rank", type=int, default=8, help="of the adapters; 8 keeps SmolLM2's under 6 MB")
    parser.add_argument("--dropout", type=float, default=0.1, help="how often the last layer is left out")
    parser.add_argument("--share", type=float, default=1.0, help="weight of an exit beside the last layer")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=1 << 40)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    asked = parsed()
    context = HealingContext(asked.target, asked.target, asked.work)
    if not (asked.work / TEXTS).is_file():
        write(context, asked.writing * 60, asked.max_texts, asked.write_batch, asked.held_out)
    place = torch_devices.find_device("auto")[1]
    model = loading.load_trainable(asked.target, place)
    exits = tuple(int(layer) for layer in asked.exits.split(","))
    plan = SkipPlan(exits, asked.rank, asked.dropout, asked.share, asked.seed)
    learner = LayerSkipLearner(model, context.target_texts(), plan)
    count = sum(value.numel() for value in learner.parameters.values())
    context.say(f"Training {count / 1e6:.1f} M weights; {learner.found(0, 0)}")
    training = TrainingPlan(
        asked.minutes * 60,
        asked.rate,
        batch=asked.batch,
        warm=0.0,
        seed=asked.seed,
        steps=asked.steps,
        patience=1 << 40,  # exits gain after the perplexity has lost
    )
    result = train(learner, read(asked.work / TEXTS), training, asked.work / "layer-skip.pt", context)
    halves = {name: value.detach().half().cpu().contiguous() for name, value in learner.parameters.items()}
    save_file(halves, asked.work / "adapter.safetensors")
    learner.score()  # of the best parameters
    context.say(f"{result.steps} steps; {learner.found(result.after, result.before)}")
    learner.merge()
    out = asked.work / "model"
    model.half().save_pretrained(out)
    for file in (asked.work / "configs").iterdir():
        if file.is_file() and not (out / file.name).exists():
            shutil.copyfile(file, out / file.name)


if __name__ == "__main__":
    main()
