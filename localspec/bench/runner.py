"""The measurement: every contender answers every prompt, by turns, as often as asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from localspec.bench.backends import PLAIN, Answered, Contender, PeerFailed
from localspec.bench.suites import Prompt
from localspec.core.contracts import Engine
from localspec.core.parity import ROUNDED, first_difference
from localspec.errors import PromptError
from localspec.library import Model

WARM_UP = 8  # tokens of an answer that is not counted

BuildStep = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Run:
    """One measured answer of one contender."""

    contender: str
    suite: str
    prompt: str
    kind: str
    turn: int
    repeat: int
    answered: Answered

    def as_values(self) -> dict[str, Any]:
        """Return it as plain values."""
        values = {
            name: getattr(self, name) for name in ("contender", "suite", "prompt", "kind", "turn", "repeat")
        }
        return values | asdict(self.answered)


@dataclass(slots=True)
class Parity:
    """How a contender's texts compare with plain ones."""

    answers: int = 0
    ties: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Tell whether every text was the plain one up to near ties."""
        return not self.failures


@dataclass(slots=True)
class Race:
    """What has been measured so far; whoever stops it early keeps this."""

    runs: list[Run] = field(default_factory=list)
    parity: dict[str, Parity] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    finished: bool = False


def run(
    contenders: Sequence[Contender],
    prompts: Sequence[Prompt],
    model: Model,
    engine: Engine,
    *,
    tokens: int,
    repeat: int,
    step: BuildStep = lambda _: None,
) -> Race:
    """Measure; the first contender is plain decoding on `engine`, with which all texts are compared.

    Contenders take turns within each prompt, in reverse order every other time, so that a machine that
    slows down or warms up favours none. A peer that dies is left out from there on. On KeyboardInterrupt
    what was measured is returned.
    """
    race = Race()
    racing = list(contenders)
    try:
        hello = encoded(model, ["Hi"], [], None)
        for one in list(racing):
            step(f"Warming up: {one.name}")
            _attempt(race, racing, one, hello, WARM_UP, anew=True)
        for number, prompt in enumerate(prompts, 1):
            for count in range(repeat):
                step(f"{number}/{len(prompts)} {prompt.suite} {prompt.name}, {count + 1} of {repeat}")
                _round(race, racing, prompt, model, engine, tokens, count)
        race.finished = True
    except KeyboardInterrupt:
        pass
    return race


def _round(
    race: Race,
    racing: list[Contender],
    prompt: Prompt,
    model: Model,
    engine: Engine,
    tokens: int,
    count: int,
) -> None:
    """Let every contender answer all turns of a prompt once; runs count only when all of them were made."""
    made: list[Run] = []
    told: dict[str, list[list[int]]] = {}
    for one in racing[::-1] if count % 2 else list(racing):
        answers: list[list[int]] = []
        for turn in range(len(prompt.turns)):
            history = [model.tokenizer().decode(ids, skip_special_tokens=True) for ids in answers]
            ids = encoded(model, prompt.turns[: turn + 1], history, prompt.system)
            try:
                answered = _attempt(race, racing, one, ids, tokens, anew=not turn)
            except PromptError as error:
                race.skipped.append(f"{prompt.suite} {prompt.name}: {error.message}")
                return
            if answered is None:
                break
            answers.append(answered.token_ids)
            made.append(Run(one.name, prompt.suite, prompt.name, prompt.kind, turn, count, answered))
        told[one.name] = answers
    race.runs += [found for found in made if found.contender not in race.failed]
    if count == 0:
        _compare(race, told, prompt, model, engine)


def _attempt(
    race: Race, racing: list[Contender], one: Contender, prompt: list[int], tokens: int, *, anew: bool
) -> Answered | None:
    """Return an answer, or None from a peer that failed: it is out."""
    try:
        return one.answer(prompt, tokens, anew=anew)
    except PeerFailed as error:
        race.failed[one.name] = error.message
        racing.remove(one)
        return None


def _compare(
    race: Race, told: dict[str, list[list[int]]], prompt: Prompt, model: Model, engine: Engine
) -> None:
    """Compare each contender's answers with the plain ones, turn by turn until the first that parts."""
    plain = told[PLAIN]
    for name, answers in told.items():
        parity = race.parity.setdefault(name, Parity())
        history: list[str] = []
        for turn, (expected, found) in enumerate(zip(plain, answers, strict=False)):
            parity.answers += 1
            ids = encoded(model, prompt.turns[: turn + 1], history, prompt.system)
            gap = first_difference(expected, found, engine=engine, prompt=ids, tolerance=ROUNDED)
            if gap is not None:
                parity.ties += gap.tie
                if not gap.tie:
                    where = {"suite": prompt.suite, "prompt": prompt.name, "turn": turn}
                    parity.failures.append(where | {"at": gap.at, "gap": gap.gap})
                break  # later turns have another history
            history.append(model.tokenizer().decode(expected, skip_special_tokens=True))


def encoded(model: Model, turns: Sequence[str], history: Sequence[str], system: str | None) -> list[int]:
    """Return the tokens of a conversation: its user's turns with the answers between them."""
    return model.encode_chat(list(_messages(turns, history, system)))


def _messages(turns: Sequence[str], history: Sequence[str], system: str | None) -> Iterator[dict[str, Any]]:
    if system:
        yield {"role": "system", "content": system}
    for at, turn in enumerate(turns):
        yield {"role": "user", "content": turn}
        if at < len(history):
            yield {"role": "assistant", "content": history[at]}
