"""The candidates of `localspec tune`: engine options, and drafters with draft-length policies."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localspec import devices
from localspec.bench.intervals import Ratio, speedup
from localspec.library import Library, StoredModel
from localspec.runtime.choice import Choice
from localspec.runtime.generation import Runtime

Pair = tuple[float, float]  # seconds per token: (default, candidate)

ENGINE_VARIANTS = {
    "openvino": (
        "openvino:kv=u8",
        "openvino:precision=bf16",
        "openvino:group=32",
        "openvino:group=0",
    ),
    "llamacpp": ("llamacpp:flash=off", "llamacpp:kv=q8_0"),
    "torch": ("torch:precision=bf16",),
}
POLICIES = ("adaptive", "fixed:tokens=2", "fixed:tokens=4", "fixed:tokens=8")


@dataclass(slots=True)
class Candidate:
    """A choice of parts, its measured pairs by prompt, and why it was rejected, if it was."""

    choice: Choice
    pairs: dict[str, list[Pair]] = field(default_factory=dict)
    rejected: str | None = None

    @property
    def name(self) -> str:
        """Its options on the command line."""
        threads = "" if self.choice.threads is None else f" --threads {self.choice.threads}"
        draft, draft_length = self.choice.draft, self.choice.draft_length
        return f"--engine {self.choice.engine} --draft {draft} --draft-length {draft_length}{threads}"

    @property
    def speedup(self) -> Ratio:
        """Its speed-up over the default."""
        return speedup(list(self.pairs.values()))


def engine_candidates(runtime: Runtime) -> list[Candidate]:
    """Return engines, their options and thread counts, with the default drafter."""
    name, cpu = runtime.resolution.target.spec.name, devices.cpu()
    choices = [Choice(engine=spec) for spec in ENGINE_VARIANTS.get(name, ())]
    threads = {cpu.cores, cpu.threads, max(cpu.cores // 2, 1)} - {1 if cpu.cores > 2 else 0}
    choices += [Choice(threads=count) for count in sorted(threads)]
    if name != "llamacpp" and runtime.model.files_in("gguf") and devices.LIBRARIES["llamacpp"].version:
        choices += [Choice(engine="llamacpp")]
    return [Candidate(choice) for choice in choices]


def draft_candidates(runtime: Runtime, library: Library) -> list[Candidate]:
    """Return drafters with draft-length policies, and no draft, on the default engine."""
    drafts = ["ngram", "suffix", "hybrid"]
    drafts += [
        f"{kind}:name={name}"
        for name in draft_models(runtime.model, library)
        for kind in ("hybrid", "draft_model")
    ]
    choices = [Choice(draft="off")]
    choices += [Choice(draft=draft, draft_length=policy) for draft in drafts for policy in POLICIES]
    default = Choice(draft=str(runtime.draft_spec))
    return [Candidate(choice) for choice in choices if choice != default]


def draft_models(target: StoredModel, library: Library) -> list[str]:
    """Return the names of the smaller models on disk with the same tokenizer, and of the target's heads."""
    digest, own = target.manifest.digests.get("tokenizer.json"), library.reference(target)
    return [
        model.name
        for model in [
            *library.all("text"),
            *(head for head in library.all("head") if head.manifest.target == own),
        ]
        if digest and model.manifest.digests.get("tokenizer.json") == digest and _size(model) < _size(target)
    ]


def _size(model: StoredModel) -> int:
    return sum(model.manifest.sizes.values())


def joined(engine: Candidate, draft: Candidate) -> Candidate:
    """Return a candidate with the engine of one and the draft of the other."""
    return Candidate(
        Choice(
            engine=engine.choice.engine,
            threads=engine.choice.threads,
            draft=draft.choice.draft,
            draft_length=draft.choice.draft_length,
        )
    )


class PairLog:
    """Measured pairs in a file of JSON lines, so that a later search continues an interrupted one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pairs: dict[tuple[str, str], Pair] = {}
        for values in _read_lines(path):
            if len(values.get("pair", ())) == 2:
                self._pairs[values["options"], values["prompt"]] = (values["pair"][0], values["pair"][1])

    def get(self, candidate: Candidate, prompt: str) -> Pair | None:
        """Return the pair of a candidate and a prompt, None if it was not measured."""
        return self._pairs.get((candidate.name, prompt))

    def add(self, candidate: Candidate, prompt: str, pair: Pair) -> None:
        """Append a pair, unless it is known."""
        if (candidate.name, prompt) in self._pairs:
            return
        self._pairs[candidate.name, prompt] = pair
        line = {"options": candidate.name, "prompt": prompt, "pair": pair}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects in a file of JSON lines; a torn last line is skipped."""
    lines: Iterable[str] = ()
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            values = json.loads(line)
        except ValueError:
            continue
        if isinstance(values, dict):
            yield values
