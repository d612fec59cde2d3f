"""The benchmark itself: every backend answers every prompt, in turns and repeatedly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from localspec.bench.backends import SEED, Backend, LocalspecBackend, MeasuredAnswer
from localspec.bench.suites import Prompt
from localspec.bench.wording import PLAIN
from localspec.core.contracts import Engine
from localspec.core.parity import ROUNDED, first_difference
from localspec.errors import ChildFailed, PromptError
from localspec.library import Progress, Silent, StoredModel

WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Run:
    """One measured answer of one backend."""

    backend: str
    suite: str
    prompt: str
    kind: str
    turn: int
    repeat: int
    answer: MeasuredAnswer

    def as_values(self) -> dict[str, Any]:
        """Return it as plain values."""
        names = ("backend", "suite", "prompt", "kind", "turn", "repeat")
        return {name: getattr(self, name) for name in names} | asdict(self.answer)


@dataclass(slots=True)
class Parity:
    """A comparison of a backend's answers with those of plain decoding; a `lossy` one may write others."""

    answers: int = 0
    ties: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)
    lossy: bool = False

    @property
    def passed(self) -> bool:
        """Return whether every answer was the same up to near ties."""
        return not self.failures


@dataclass(slots=True)
class BenchRun:
    """The measurements of a run that finished or was interrupted."""

    runs: list[Run] = field(default_factory=list)
    parity: dict[str, Parity] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    finished: bool = False


def run(
    backends: Sequence[Backend],
    prompts: Sequence[Prompt],
    model: StoredModel,
    engine: Engine,
    *,
    tokens: int,
    repeat: int,
    progress: Progress | None = None,
) -> BenchRun:
    """Measure `backends`, of which the first is plain decoding on `engine`, the reference for all answers.

    Backends take turns within each prompt, in reverse order every other time, so that a machine that slows
    down or warms up favours none. A baseline that dies is left out from then on. A KeyboardInterrupt returns
    what was measured.
    """
    runner, progress = _Runner(list(backends), model, engine, tokens), progress or Silent()
    try:
        for backend in backends:
            with progress.step(f"Warming up: {backend.name}"):
                runner.attempt(backend, encoded(model, ["Hi"], [], None), WARM_UP_TOKENS, fresh=True)
        with progress.step("Measuring", repeat * len(prompts), "round"):
            for number, prompt in enumerate(prompts, 1):
                for repetition in range(repeat):
                    place = f"{number}/{len(prompts)} {prompt.suite} {prompt.name}"
                    with progress.step(f"{place}, {repetition + 1} of {repeat}"):
                        runner.run_prompt(prompt, repetition)
                    progress.advance()
        runner.results.finished = True
    except KeyboardInterrupt:
        pass
    return runner.results


class _Runner:
    """Runs prompts on the backends that have not failed."""

    def __init__(self, backends: list[Backend], model: StoredModel, engine: Engine, tokens: int) -> None:
        self.results = BenchRun()
        self._backends = backends
        self._model = model
        self._engine = engine
        self._tokens = tokens
        own = [backend for backend in backends if isinstance(backend, LocalspecBackend)]
        self._tolerances = {backend.name: backend.runtime.tolerance for backend in own}
        self._sampling = own[0].sampling if own else None
        self._lossy = {
            backend.name
            for backend in backends
            if isinstance(backend, LocalspecBackend) and not backend.runtime.lossless
        }

    def run_prompt(self, prompt: Prompt, repetition: int) -> None:
        """Have every backend answer all turns of a prompt once; a prompt too long for one is skipped."""
        runs: list[Run] = []
        answers: dict[str, list[list[int]]] = {}
        for backend in self._backends[::-1] if repetition % 2 else list(self._backends):
            try:
                measured = self._answer_turns(backend, prompt)
            except PromptError as error:
                self.results.skipped.append(f"{prompt.suite} {prompt.name}: {error.message}")
                return
            answers[backend.name] = [answer.token_ids for answer in measured]
            runs += [
                Run(backend.name, prompt.suite, prompt.name, prompt.kind, turn, repetition, answer)
                for turn, answer in enumerate(measured)
            ]
        self.results.runs += [run for run in runs if run.backend not in self.results.failed]
        if repetition == 0:
            self._compare(answers, prompt)

    def _answer_turns(self, backend: Backend, prompt: Prompt) -> list[MeasuredAnswer]:
        """Return the answers to the turns of a prompt, up to a failure."""
        answers: list[MeasuredAnswer] = []
        for turn in range(len(prompt.turns)):
            history = [self._decoded(answer.token_ids) for answer in answers]
            ids = encoded(self._model, prompt.turns[: turn + 1], history, prompt.system)
            answer = self.attempt(backend, ids, self._tokens, fresh=not turn)
            if answer is None:
                break
            answers.append(answer)
        return answers

    def attempt(
        self, backend: Backend, prompt: list[int], tokens: int, *, fresh: bool
    ) -> MeasuredAnswer | None:
        """Return an answer; for a baseline that fails return None, and leave it out from now on."""
        try:
            return backend.answer(prompt, tokens, fresh=fresh)
        except ChildFailed as error:
            self.results.failed[backend.name] = error.message
            self._backends.remove(backend)
            return None

    def _compare(self, answers: dict[str, list[list[int]]], prompt: Prompt) -> None:
        """Compare each backend's answers with the plain ones, up to the first turn that differs."""
        for name, turns in answers.items():
            parity = self.results.parity.setdefault(name, Parity(lossy=name in self._lossy))
            tolerance = self._tolerances.get(name, ROUNDED)
            history: list[str] = []
            for turn, (expected, actual) in enumerate(zip(answers[PLAIN], turns, strict=False)):
                parity.answers += 1
                ids = encoded(self._model, prompt.turns[: turn + 1], history, prompt.system)
                difference = first_difference(
                    *(expected, actual),
                    engine=self._engine,
                    prompt=ids,
                    tolerance=tolerance,
                    sampling=self._sampling,
                    seed=SEED,
                )
                if difference is not None:
                    parity.ties += difference.tie
                    if not difference.tie:
                        place = {"suite": prompt.suite, "prompt": prompt.name, "turn": turn}
                        parity.failures.append(place | {"at": difference.at, "gap": difference.gap})
                    break  # later turns have another history
                history.append(self._decoded(expected))

    def _decoded(self, ids: list[int]) -> str:
        return str(self._model.tokenizer().decode(ids, skip_special_tokens=True))


def encoded(
    model: StoredModel, turns: Sequence[str], history: Sequence[str], system: str | None
) -> list[int]:
    """Return the tokens of a conversation: the user's `turns`, with the answers in `history` between them."""
    return model.encode_chat(list(_messages(turns, history, system)))


def _messages(turns: Sequence[str], history: Sequence[str], system: str | None) -> Iterator[dict[str, Any]]:
    if system:
        yield {"role": "system", "content": system}
    for number, turn in enumerate(turns):
        yield {"role": "user", "content": turn}
        if number < len(history):
            yield {"role": "assistant", "content": history[number]}
