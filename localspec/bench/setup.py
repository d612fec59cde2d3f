"""Load the backends that a benchmark compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from localspec import devices
from localspec.bench import baselines
from localspec.bench.backends import (
    Backend,
    BaselineBackend,
    BaselineProcess,
    LocalspecBackend,
)
from localspec.bench.wording import PLAIN
from localspec.core.sampler import Sampling
from localspec.errors import BadValue, ChildFailed
from localspec.library import Library, Progress, StoredModel
from localspec.runtime.choice import OFF, Choice
from localspec.runtime.generation import Runtime


@dataclass(slots=True)
class Setup:
    """The backends of a benchmark, plain decoding first, and the reason for each one that is absent."""

    plain: Runtime
    backends: list[Backend]
    absent: dict[str, str] = field(default_factory=dict)

    def close(self) -> None:
        """Close every backend."""
        for backend in self.backends:
            backend.close()


def load(
    name: str,
    choice: Choice,
    measured: Mapping[str, Choice],
    against: Sequence[str],
    library: Library,
    progress: Progress,
    sampling: Sampling | None = None,
) -> Setup:
    """Load plain decoding as of `choice`, what is `measured` and the baselines `against` it, by their names.

    All run the model called `name`, localspec's backends on shared engines. A baseline that does not start is
    left out with the reason. Raises BadValue for an unknown baseline, one that samples by itself where a
    `sampling` is given, and the errors of loading a model.
    """
    rows = [row for known in dict.fromkeys(against) if known != PLAIN for row in baselines.rows(known)]
    exact = choice.verifier.partition(":")[0] == Choice().verifier
    if sampling and (rows or not exact):
        raise BadValue(
            "Only `--verifier exact` draws the samples that plain decoding draws, so only its texts compare",
            "Leave out `--temperature`, or `--against` and `--verifier`",
        )
    with progress.step(f"Loading {name}"):
        verifier = choice.verifier if exact else Choice().verifier  # whose options say how a token is drawn
        plain = Runtime.load(name, replace(choice, draft=OFF, verifier=verifier), library, progress)
    setup = Setup(plain, [LocalspecBackend(PLAIN, plain, sampling)])
    loaded, draft = plain.engines, None
    for row, one in measured.items():
        with progress.step(f"Loading {name} with --draft {row}"):
            runtime = Runtime.load(name, one, library, progress, loaded)
        loaded = list(dict([*loaded, *runtime.engines]).items())
        draft = draft or draft_model(runtime)
        setup.backends.append(LocalspecBackend(row, runtime, sampling))
    try:
        start_baselines(setup, rows, draft, choice, progress)
    except BaseException:
        setup.close()
        raise
    return setup


def variants(choice: Choice, drafts: Sequence[str], lengths: Sequence[str]) -> dict[str, Choice]:
    """Return each draft with each draft length, by the draft, and by both where several lengths are measured.

    Raises BadValue if one is named twice, and what `Choice.check` raises.
    """
    for kind, texts in (("draft", drafts), ("draft length", lengths)):
        if len(set(texts)) != len(texts):
            raise BadValue(f"A {kind} is named twice", "Name each once")
    found = {
        (draft if len(lengths) == 1 else f"{draft} {length}"): replace(
            choice, draft=draft, draft_length=length
        )
        for draft in drafts
        for length in lengths
    }
    for one in found.values():
        one.check()
    return found


def start_baselines(
    setup: Setup, rows: Sequence[str], draft: StoredModel | None, choice: Choice, progress: Progress
) -> None:
    """Start a backend for each row of the baselines."""
    shared: dict[str, BaselineProcess] = {}
    for row in rows:
        if row in baselines.WITH_DRAFT and draft is None:
            setup.absent[row] = "no draft model is measured"
            continue
        weights = baselines.SHARED_WEIGHTS.get(row, row)
        try:
            with progress.step(f"Starting {row}"):
                backend = BaselineBackend(row, settings(setup.plain, draft, choice), shared.get(weights))
        except ChildFailed as error:
            setup.absent[row] = error.message if error.hint is None else f"{error.message}; {error.hint}"
            continue
        shared[weights] = backend.process
        setup.backends.append(backend)


def draft_model(runtime: Runtime) -> StoredModel | None:
    """Return the model that drafts for a runtime, None if its drafter needs none."""
    return runtime.resolution.draft.load.model if runtime.resolution.draft.load else None


def settings(plain: Runtime, draft: StoredModel | None, choice: Choice) -> dict[str, Any]:
    """Return the settings of a baseline: files, stop tokens, device, threads."""
    return {
        "model": model_files(plain.model),
        "draft": model_files(draft) if draft else {},
        "stop_tokens": plain.model.stop_tokens(),
        "device": plain.engine.device if plain.resolution.target.spec.name == "openvino" else "CPU",
        "threads": choice.threads or devices.cpu().cores,
    }


def model_files(model: StoredModel) -> dict[str, str]:
    """Return the model's files by format."""
    paths = {name: model.files_in(name) for name in ("openvino", "gguf", "safetensors")}
    return {name: str(path.resolve()) for name, path in paths.items() if path}
