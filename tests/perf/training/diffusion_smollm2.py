"""Turn an autoregressive model into a block-diffusion model and a smaller draft of it, best on a GPU.

    python tests/perf/training/diffusion_smollm2.py SMOLLM2.gguf --block 4 --work DIR

The model first writes texts, unless DIR holds some; DIR keeps them and the checkpoints, so a second call
resumes. The models lie in DIR/block-4 and DIR/block-4-draft, as folders that `localspec chat` takes.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from heal import TEXTS, HealingContext, read, write
from tokenizers import Tokenizer

from localspec.formats.diffusion import config, weights
from localspec.formats.diffusion.decoder import BlockDecoder
from localspec.formats.huggingface import loading, torch_devices
from localspec.formats.huggingface.safetensors import write_file
from localspec.training.blocks import BlockLearner
from localspec.training.loop import TrainingPlan, train


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "target", type=Path, help="a GGUF file of Llama's layers, such as SmolLM2-135M-Instruct"
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--block", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=12, help="of training the model")
    parser.add_argument("--draft-minutes", type=float, default=6, help="of training the draft, 0 for none")
    parser.add_argument("--draft-layers", type=int, default=10)
    parser.add_argument("--writing", type=float, default=4, help="minutes of writing texts first")
    parser.add_argument("--max-texts", type=int, default=20_000)
    parser.add_argument("--write-batch", type=int, default=1024, help="texts that are written at a time")
    parser.add_argument("--held-out", type=int, default=64, help="texts for evaluation")
    parser.add_argument("--mask", default="<empty_output>", help="a special token that no text has")
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--draft-rate", type=float, default=6e-4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=1 << 40)
    parser.add_argument("--ends", type=float, default=0.5, help="share of blocks whose masks are at the end")
    parser.add_argument("--draft-ends", type=float, default=1.0, help="the same for the draft")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def config_of(model: Any, mask: int, block: int) -> dict[str, Any]:
    """Return the config.json of the diffusion model that a Llama of transformers becomes."""
    theirs = model.config
    keys = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    keys += ("intermediate_size", "max_position_embeddings", "rms_norm_eps", "vocab_size")
    about = {key: getattr(theirs, key) for key in (*keys, "tie_word_embeddings")}
    about["rope_theta"] = getattr(theirs, "rope_theta", None) or theirs.rope_parameters["rope_theta"]
    return about | {"model_type": config.OWN, "block_size": block, "mask_token_id": mask}


def write_model(folder: Path, about: dict[str, Any], found: dict[str, Any], configs: Path) -> None:
    """Write a model's folder, its weights in float16."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in configs.iterdir():
        if file.is_file():
            shutil.copyfile(file, folder / file.name)
    halves = {name: value.detach().half().cpu().numpy() for name, value in found.items()}
    write_file(folder / "model.safetensors", halves)
    (folder / "config.json").write_text(json.dumps(about, indent=1) + "\n", "utf-8")


def kept_layers(found: dict[str, Any], layers: int, kept: int) -> dict[str, Any]:
    """Return copies of the tensors of `kept` evenly spaced layers, the first and the last included."""
    places = [round(at * (layers - 1) / max(kept - 1, 1)) for at in range(kept)]
    new_of = {f"model.layers.{old}.": f"model.layers.{new}." for new, old in enumerate(places)}
    chosen = {}
    for name, value in found.items():
        if not name.startswith("model.layers."):
            chosen[name] = value.detach().clone().requires_grad_()
        for old, new in new_of.items():
            if name.startswith(old):
                chosen[new + name.removeprefix(old)] = value.detach().clone().requires_grad_()
    return chosen


def main() -> None:
    asked = parsed()
    context = HealingContext(asked.target, asked.target, asked.work)
    if not (asked.work / TEXTS).is_file():
        write(context, asked.writing * 60, asked.max_texts, asked.write_batch, asked.held_out)
    place = torch_devices.find_device("auto")[1]
    configs = asked.work / "configs"
    mask = Tokenizer.from_file(str(configs / "tokenizer.json")).token_to_id(asked.mask)
    assert mask is not None, f"the tokenizer has no token {asked.mask}"
    model = loading.load_trainable(asked.target, place)
    about = config_of(model, mask, asked.block)
    found = {name: value.detach().requires_grad_() for name, value in model.named_parameters()}
    name = f"block-{asked.block}"
    write_model(asked.work / name, about, found, configs)  # its shape is read from there
    shape = config.read(asked.work / name)
    found = {key: found[key] for key in weights.shapes(shape)}
    plans = [(name, shape, found, asked.minutes)]
    if asked.draft_minutes:
        small = replace(shape, layers=asked.draft_layers)
        plans.append((f"{name}-draft", small, {}, asked.draft_minutes))
    for called, size, own, minutes in plans:
        teacher = None if own else BlockDecoder(shape, found)
        own = own or kept_layers(found, shape.layers, size.layers)
        learner = BlockLearner(
            BlockDecoder(size, own),
            context.target_texts(),
            context.stop_tokens()[0],
            ends=asked.draft_ends if teacher else asked.ends,
            teacher=teacher,
        )
        rate = asked.draft_rate if teacher else asked.rate
        plan = TrainingPlan(
            minutes * 60, rate, batch=asked.batch, warm=0.0, seed=asked.seed, steps=asked.steps
        )
        context.say(f"Training {called}: {sum(value.numel() for value in own.values()) / 1e6:.0f} M weights")
        result = train(learner, read(asked.work / TEXTS), plan, asked.work / f"{called}.pt", context)
        context.say(f"{called}: {-result.before:.3f} -> {-result.after:.3f} nats, {result.steps} steps")
        write_model(asked.work / called, about | {"num_hidden_layers": size.layers}, own, configs)


if __name__ == "__main__":
    main()
