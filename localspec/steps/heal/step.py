"""What a draft lost with its layers is taught to it again, on texts that the target writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from localspec.drafting.build_step import Artifact, BuildContext, BuildStep, Text
from localspec.errors import BadValue, MissingExtra
from localspec.formats.files import copy_configs
from localspec.formats.graph.ir import import_state
from localspec.formats.huggingface import healed as healed_file
from localspec.formats.huggingface import loading, torch_devices
from localspec.library import storage
from localspec.plugins import Option

if TYPE_CHECKING:
    from localspec.steps.heal.distil import Lesson

TEXTS = "heal-texts.jsonl"
WRITING = 0.3  # share of the minutes in which texts are written
STATE = 16  # bytes that one learning parameter takes: its value, gradient and two averages in float32
FULL, ADAPTED = 4e-5, 4e-4  # learning rates of all parameters, and of adapters
MOST = 20_000  # texts that are written at most


class Heal(BuildStep):
    """Teaches a draft what its target says, on texts that the target invents and answers itself.

    First the target's likeliest tokens teach, then the end-to-end loss of Bebop (2606.12370), which is the
    expected number of guesses that stand. Embedding and head stay as they are. What comes out never guesses
    less of the target's answers than what went in. It takes torch; float16 weights come out, to be rounded.
    """

    def __init__(
        self,
        site: BuildContext,
        *,
        minutes: Annotated[float, Option("how long it takes, writing texts included", least=0.05)] = 20.0,
        device: Annotated[str, Option("where: auto, cpu, cuda, cuda:1 or hpu")] = "auto",
        rank: Annotated[int, Option("of adapters; 0 for whole layers, -1 for what fits", least=-1)] = -1,
        batch: Annotated[int, Option("texts a step", least=1, most=1024)] = 16,
        depth: Annotated[int, Option("guesses a round that are made likely", least=1, most=16)] = 4,
        seed: Annotated[int, Option("of what is drawn", least=0)] = 0,
        taught: Annotated[str, Option("a healed.safetensors of another machine, in place of a lesson")] = "",
    ) -> None:
        self._site = site
        self._seconds, self._device, self._rank = minutes * 60, device, rank
        self._batch, self._depth, self._seed = batch, depth, seed
        self._elsewhere = Path(taught).expanduser() if taught else None

    def run(self, source: Artifact, into: Path) -> Artifact:
        """Write the taught model in float16; raises MissingExtra, UnknownDevice and TooLittleMemory."""
        layers = source.facts.get("layers")
        draft, healed = self._read(layers) if self._elsewhere else self.teach(layers)
        state = {name: value.float().cpu().numpy() for name, value in draft.state_dict().items()}
        file, count = self._site.weights("source"), draft.config.num_hidden_layers
        facts = import_state(file, state, count, into, self._site)
        copy_configs(source.folder, into)
        healed_file.save(draft, layers, into)
        return Artifact(into, source.facts | facts | {"healed": healed})

    def _read(self, layers: Sequence[int] | None) -> tuple[Any, dict[str, Any]]:
        """Return the source with only these `layers` and what was taught to them on another machine."""
        from localspec.steps.heal.distil import acceptance

        assert self._elsewhere is not None
        loading.check_extra()
        place = torch_devices.find_device("cpu")[1]
        draft = loading.load_trainable(self._site.weights("source"), place, layers)
        healed_file.load(draft, layers, self._elsewhere)
        judged = self._site.texts()
        before = acceptance(loading.load_trainable(self._site.weights("source"), place, layers), judged)
        after = acceptance(draft, judged)
        return draft, {"before": round(before, 4), "after": round(after, 4), "elsewhere": True}

    def teach(self, layers: Sequence[int] | None) -> tuple[Any, dict[str, Any]]:
        """Return the source with only these `layers`, None for all, after its lesson, and what that did."""
        _check_extra()
        place = torch_devices.find_device(self._device)[1]
        file = self._site.weights("source")
        with torch_devices.memory_errors(place, f"healing {file.name}"):
            self._site.step("Loading the target")
            teacher = loading.load(self._site.weights("target"), place, torch_devices.natural_dtype(place))
            texts = self._texts(teacher)
            draft, rank = self._learning(loading.load_trainable(file, place, layers), place)
            self._site.step(f"Teaching {_what(rank)} on {len(texts):,} texts, on {place}")
            taught = self._taught(teacher, draft, texts, rank)
        same = "" if taught.after > taught.before else "; the draft is kept as it was"
        self._site.say(
            f"Guessed of the target's tokens: {taught.before:.1%} before, {taught.after:.1%} after"
            f" {taught.steps} steps{same}"
        )
        healed = {
            "before": round(taught.before, 4),
            "after": round(taught.after, 4),
            "steps": taught.steps,
            "texts": len(texts),
            "rank": rank,
            "device": str(place),
        }
        return draft.merge_and_unload() if rank else draft, healed

    def _texts(self, teacher: Any) -> list[Text]:
        """Return texts that the target wrote, those of an earlier try first."""
        from localspec.steps.heal.texts import write

        kept = self._site.kept / TEXTS
        texts = [Text(*json.loads(line)) for line in kept.read_text().splitlines()] if kept.is_file() else []
        if texts:
            return texts
        self._site.step("The target writes texts")
        found = write(
            teacher,
            self._site.turns(),
            self._site.ends(),
            asked=self._site.prompts(),
            seconds=self._seconds * WRITING,
            most=MOST,
            batch=128 if teacher.device.type == "cuda" else 8,
            seed=self._seed,
        )
        for some in found:
            texts += some
            self._site.step(f"The target writes texts: {len(texts):,}")
        if not texts:
            raise BadValue("The target wrote nothing to learn from", "Give `heal` more minutes")
        storage.write_atomically(kept, "".join(json.dumps(text) + "\n" for text in texts))
        return texts

    def _learning(self, draft: Any, place: Any) -> tuple[Any, int]:
        """Return the draft with what is to learn marked, and the rank of its adapters, 0 for none."""
        from peft import LoraConfig, get_peft_model

        layers = draft.base_model.layers
        rank = self._rank
        if rank < 0:
            needed = STATE * sum(one.numel() for one in layers.parameters())
            rank = 0 if needed < torch_devices.free_memory(place) / 2 else 64
        if rank:
            config = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear")
            return get_peft_model(draft, config), rank
        draft.requires_grad_(False)
        layers.requires_grad_(True)
        return draft, 0

    def _taught(self, teacher: Any, draft: Any, texts: Sequence[Text], rank: int) -> Any:
        from localspec.steps.heal.distil import Lesson, distil

        lesson: Lesson = Lesson(
            seconds=self._seconds * (1 - WRITING),
            rate=ADAPTED if rank else FULL,
            batch=self._batch,
            depth=self._depth,
            seed=self._seed,
        )
        judged = self._site.texts()
        return distil(teacher, draft, texts, judged, lesson, self._site.kept / "heal.pt", self._site.say)


def _check_extra() -> None:
    loading.check_extra()
    try:
        import peft  # noqa: F401 - to say at once that it is missing
    except ImportError:
        raise MissingExtra("peft", "export") from None


def _what(rank: int) -> str:
    return f"adapters of rank {rank}" if rank else "all layers"
