"""Train a head for a target on a machine with a GPU but without OpenVINO, and print what it guesses.

    python tests/perf/training/train_head.py TARGET.gguf --minutes 10 --work DIR

The target writes texts first, unless DIR holds some. DIR keeps the texts and the checkpoints, so a second
call resumes. The head lies in DIR/head, or in the folder `--out`, as config.json and model.safetensors in
float16, in the layout that EAGLE-3 publishes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from heal import TEXTS, HealingContext, read, write

from localspec.formats.heads import layout
from localspec.formats.huggingface import loading, torch_devices
from localspec.training.head_training import HeadPlan, train_head
from localspec.training.heads import LOSSES


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("target", type=Path)
    parser.add_argument("--minutes", type=float, required=True, help="of training")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="folder of the head, DIR/head if not given")
    parser.add_argument("--texts", type=Path, help="JSON lines of [prompt tokens, answer tokens]")
    parser.add_argument("--writing", type=float, default=3, help="minutes of writing texts first")
    parser.add_argument("--max-texts", type=int, default=20_000)
    parser.add_argument("--write-batch", type=int, default=1024, help="texts that are written at a time")
    parser.add_argument("--held-out", type=int, default=96, help="texts for evaluation")
    parser.add_argument("--intermediate", type=int, default=0, help="width of the MLP, the target's for 0")
    parser.add_argument("--vocab", type=int, default=32768, help="tokens that the head can guess")
    parser.add_argument("--depth", type=int, default=3, help="guesses in a row of the training")
    parser.add_argument("--mtp", action="store_true", help="read the target's last layer alone")
    parser.add_argument("--loss", choices=LOSSES, default="tv")
    parser.add_argument("--warm", type=float, default=0.6, help="share of the training with cross-entropy")
    parser.add_argument("--rate", type=float, default=0.0, help="5e-4 on a GPU, 1e-3 elsewhere")
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1 << 40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    return parser.parse_args()


def main() -> None:
    asked = parsed()
    context = HealingContext(asked.target, asked.target, asked.work)
    if asked.texts:
        lines = asked.texts.read_text("utf-8").splitlines(keepends=True)
        for name, some in (("held-out.jsonl", lines[: asked.held_out]), (TEXTS, lines[asked.held_out :])):
            (asked.work / name).write_text("".join(some), "utf-8")
    if not (asked.work / TEXTS).is_file():
        write(context, asked.writing * 60, asked.max_texts, asked.write_batch, asked.held_out)
    device = torch_devices.find_device(asked.device)[1]
    context.say(f"Loading the target on {device}")
    model = loading.load(asked.target, device, torch_devices.natural_dtype(device))
    plan = HeadPlan(
        seconds=asked.minutes * 60,
        depth=asked.depth,
        kept=asked.vocab,
        inner=asked.intermediate,
        deep=asked.mtp,
        loss=asked.loss,
        warm=asked.warm,
        rate=asked.rate,
        batch=asked.batch,
        steps=asked.steps,
        seed=asked.seed,
    )
    texts = read(asked.work / TEXTS)
    context.say(f"{len(texts):,} texts, {sum(len(text.answer) for text in texts):,} tokens of answers")
    head, accepted = train_head(
        *(asked.target, model, texts, context.target_texts(), context.stop_tokens(), plan),
        *(asked.work / "head.pt", context),
    )
    out = asked.out or asked.work / "head"
    out.mkdir(parents=True, exist_ok=True)
    layout.write(head, out)
    context.say(f"{accepted}; the head lies in {out}")
    print(json.dumps(head.about))


if __name__ == "__main__":
    main()
