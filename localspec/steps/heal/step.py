"""Train a pruned draft on texts that the target writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from localspec.disk import given
from localspec.drafting.build_step import Artifact, BuildContext, BuildStep, TargetText
from localspec.drafting.time_limit import TimeLimit
from localspec.errors import MissingExtra
from localspec.formats.files import copy_configs
from localspec.formats.graph.ir import import_state
from localspec.formats.huggingface import healed, loading, torch_devices
from localspec.plugins import Option

if TYPE_CHECKING:
    from localspec.training.loop import TrainingResult

TEXTS, CHECKPOINT = "heal-texts.jsonl", "heal.pt"
WRITING = 0.3  # share of the minutes in which texts are written
TRAINING_BYTES = 16  # per trained parameter: its value, gradient and two moments in float32
FULL_RATE, ADAPTER_RATE = 4e-5, 4e-4  # learning rates


class Heal(BuildStep):
    """Trains a draft to guess what its target writes, on texts that the target invents and answers itself.

    The loss is first the cross-entropy on the target's likeliest tokens, then Bebop's end-to-end loss
    (2606.12370), the expected number of accepted guesses. The embedding and the head are not trained. The
    result never guesses fewer of the target's tokens than the source. It requires torch, and writes float16
    weights, to be quantized afterwards.
    """

    def __init__(
        self,
        context: BuildContext,
        *,
        minutes: Annotated[float, Option("time limit, writing texts included", least=0.05)] = 20.0,
        device: Annotated[str, Option("torch device: auto, cpu, cuda, cuda:1 or hpu")] = "auto",
        rank: Annotated[int, Option("of the adapters; 0 trains whole layers, -1 what fits", least=-1)] = -1,
        batch: Annotated[int, Option("texts per step", least=1, most=1024)] = 16,
        draft_length: Annotated[int, Option("of the end-to-end loss", least=1, most=16)] = 4,
        seed: Annotated[int, Option("of the random generator", least=0)] = 0,
        trained: Annotated[str, Option("a healed.safetensors of another machine, instead of training")] = "",
    ) -> None:
        self._context = context
        self._seconds, self._device, self._rank = minutes * 60, device, rank
        self._batch, self._draft_length, self._seed = batch, draft_length, seed
        self._trained = given.path_of(trained) if trained else None

    def run(self, source: Artifact, into: Path) -> Artifact:
        """Write the trained model in float16; raises MissingExtra, UnknownDevice and TooLittleMemory."""
        layers = source.facts.get("layers")
        draft, result = self._load_trained(self._trained, layers) if self._trained else self.train(layers)
        state = {name: value.float().cpu().numpy() for name, value in draft.state_dict().items()}
        file, count = self._context.weights("source"), draft.config.num_hidden_layers
        facts = import_state(file, state, count, into, self._context)
        copy_configs(source.folder, into)
        healed.save(draft, layers, into)
        return Artifact(into, source.facts | facts | {"healed": result})

    def _load_trained(self, file: Path, layers: Sequence[int] | None) -> tuple[Any, dict[str, Any]]:
        """Return the source with only these `layers`, trained on another machine, and the card's facts."""
        from localspec.steps.heal.distil import acceptance

        loading.check_extra()
        device, path = torch_devices.find_device("cpu")[1], self._context.weights("source")
        draft = loading.load_trainable(path, device, layers)
        healed.load(draft, layers, file)
        held_out = self._context.target_texts()
        before = acceptance(loading.load_trainable(path, device, layers), held_out)
        after = acceptance(draft, held_out)
        return draft, {"before": round(before, 4), "after": round(after, 4), "elsewhere": True}

    def train(self, layers: Sequence[int] | None) -> tuple[Any, dict[str, Any]]:
        """Return the source with only these `layers`, None for all, after training, and the card's facts."""
        from localspec.training.texts import training_texts

        _check_extras()
        device = torch_devices.find_device(self._device)[1]
        file = self._context.weights("source")
        self._context.write_target_texts()  # before the time is counted, and the models take memory
        limit = TimeLimit(self._seconds)
        with torch_devices.memory_errors(device, f"healing {file.name}"):
            with self._context.step("Loading the target"):
                dtype = torch_devices.natural_dtype(device)
                teacher = loading.load(self._context.weights("target"), device, dtype)
            kept, writing = self._context.work_folder / TEXTS, self._seconds * WRITING
            texts = training_texts(self._context, teacher, kept, seconds=writing, seed=self._seed)
            draft, rank = self._prepare(loading.load_trainable(file, device, layers), device)
            what = f"adapters of rank {rank}" if rank else "all layers"
            seconds = min(self._seconds * (1 - WRITING), max(limit.left(), 1.0))
            title = f"Training {what} on {len(texts):,} texts, on {device}"
            with self._context.step(title, round(seconds), "second"):
                result = self._distil(teacher, draft, texts, rank, seconds)
        unchanged = "" if result.after > result.before else "; the draft stays as it was"
        self._context.say(
            f"Acceptance rate {result.before:.1%} before, {result.after:.1%} after"
            f" {result.steps} steps{unchanged}"
        )
        facts = {
            "before": round(result.before, 4),
            "after": round(result.after, 4),
            "steps": result.steps,
            "texts": len(texts),
            "rank": rank,
            "device": str(device),
        }
        return draft.merge_and_unload() if rank else draft, facts

    def _prepare(self, draft: Any, device: Any) -> tuple[Any, int]:
        """Return the draft with gradients or adapters for its layers, and the adapters' rank, 0 for none."""
        from peft import LoraConfig, get_peft_model

        layers = draft.base_model.layers
        rank = self._rank
        if rank < 0:
            needed = TRAINING_BYTES * sum(parameter.numel() for parameter in layers.parameters())
            rank = 0 if needed < torch_devices.free_memory(device) / 2 else 64
        if rank:
            config = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear")
            return get_peft_model(draft, config), rank
        draft.requires_grad_(False)
        layers.requires_grad_(True)
        return draft, 0

    def _distil(
        self, teacher: Any, draft: Any, texts: Sequence[TargetText], rank: int, seconds: float
    ) -> TrainingResult:
        from localspec.steps.heal.distil import distil
        from localspec.training.loop import TrainingPlan

        plan = TrainingPlan(
            seconds=seconds,
            rate=ADAPTER_RATE if rank else FULL_RATE,
            batch=self._batch,
            draft_length=self._draft_length,
            seed=self._seed,
        )
        held_out, checkpoint = self._context.target_texts(), self._context.work_folder / CHECKPOINT
        return distil(teacher, draft, texts, held_out, plan, checkpoint, self._context)


def _check_extras() -> None:
    loading.check_extra()
    try:
        import peft  # noqa: F401 - fail before the target is loaded
    except ImportError:
        raise MissingExtra("peft", "export") from None
