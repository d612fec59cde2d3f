"""The best setting for a model on this machine: successive halving on paired measurements.

Each candidate answers the same prompts as the default setting, one after the other, and is judged by the
ratio (Jamieson and Talwalkar 2016: half of the candidates go on, each with twice as many prompts). Ways of
guessing and engines' settings are tried apart, then the best of both together. The winner must beat the
default on prompts measured anew, with an interval above 1, and write the same texts; else the default stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from localspec import devices
from localspec.bench.backends import Own
from localspec.bench.intervals import Ratio, speed_up
from localspec.bench.runner import encoded
from localspec.bench.suites import Prompt
from localspec.core.parity import ROUNDED, first_difference
from localspec.errors import LocalspecError
from localspec.library import Library, Model, Progress
from localspec.runtime.generation import Runtime
from localspec.runtime.resolution import Choice
from localspec.state import tuned

FIRST = 2  # prompts of a candidate in the first rung
CONFIRM = 12  # pairs that the winner is judged by, at least
SHARE = 0.4  # of the time is for confirming the winner


@dataclass(slots=True)
class Candidate:
    """A setting, and its pairs of seconds a token (default, candidate) by prompt."""

    choice: Choice
    pairs: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    fault: str | None = None

    @property
    def name(self) -> str:
        """The setting in the words of the command line."""
        threads = "" if self.choice.threads is None else f" --threads {self.choice.threads}"
        draft, draft_length = self.choice.draft, self.choice.draft_length
        return f"--engine {self.choice.engine} --draft {draft} --draft-length {draft_length}{threads}"

    @property
    def ratio(self) -> Ratio:
        """How many times as fast as the default."""
        return speed_up(list(self.pairs.values()))


@dataclass(slots=True)
class Tuning:
    """What was tried, and what is best: `winner` is None where the default stays."""

    tried: list[Candidate]
    winner: Candidate | None
    gain: Ratio | None
    advice: list[str]
    finished: bool

    def as_values(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "winner": asdict(self.winner.choice) if self.winner else None,
            "gain": asdict(self.gain) if self.gain else None,
            "finished": self.finished,
            "advice": self.advice,
            "tried": [
                {
                    "setting": one.name,
                    "ratio": asdict(one.ratio) if one.pairs else None,
                    "fault": one.fault,
                }
                for one in self.tried
            ],
        }


class Tuner:
    """Measures candidates against the default, and remembers on disk what it has measured."""

    def __init__(
        self,
        name: str,
        prompts: Sequence[Prompt],
        library: Library,
        progress: Progress,
        *,
        seconds: float,
        tokens: int = 48,
    ) -> None:
        self._name = name
        self._library = library
        self._progress = progress
        self._tokens = tokens
        self._prompts = list(prompts)
        self._ends = monotonic() + seconds
        self._searching = monotonic() + seconds * (1 - SHARE)
        self._base = Own("default", Runtime(name, Choice(), library, progress))
        self.model: Model = self._base.runtime.model
        self._log = tuned.log(self.model)
        self._known = self._remembered()
        self._held: tuple[Choice, Own] | None = None

    def run(self) -> Tuning:
        """Search until the time is up; KeyboardInterrupt ends it early and leaves the default or what was."""
        engines, guesses = self._spaces()
        tried = [*engines, *guesses]
        winner, gain, finished = None, None, False
        try:
            start = monotonic()
            best = [self._halved(guesses, start + (self._searching - start) / 2)]
            best.insert(0, self._halved(engines, self._searching))
            both = [found for found in best if found and found.ratio.value > 1]
            if len(both) == 2:
                joined = Candidate(_joined(both[0].choice, both[1].choice))
                tried.append(joined)
                both.append(joined)
                self._measure(joined, FIRST * 2, self._ends)
            for one in sorted((one for one in both if one.pairs), key=lambda one: -one.ratio.value):
                gain = self._confirmed(one)
                if gain is not None:
                    winner = one
                    break
            finished = True
        except KeyboardInterrupt:
            pass
        return Tuning(tried, winner, gain if winner else None, self._advice(), finished)

    def keep(self, found: Tuning) -> None:
        """Write the winner where `chat` finds it, or remove an earlier one that is not confirmed any more."""
        if found.winner is not None and found.gain is not None:
            tuned.keep(self.model, asdict(found.winner.choice), found.gain.value)
        elif found.finished:
            tuned.keep(self.model, None, None)

    def _spaces(self) -> tuple[list[Candidate], list[Candidate]]:
        """Return engines' settings under the default guessing, and ways of guessing on the default engine."""
        name, cores = self._base.runtime.engine_spec.name, devices.cpu()
        engines = [Choice(engine=spec) for spec in VARIANTS.get(name, ())]
        counts = {cores.cores, cores.threads, max(cores.cores // 2, 1)} - {1 if cores.cores > 2 else 0}
        engines += [Choice(threads=count) for count in sorted(counts)]
        if name != "llamacpp" and self.model.files_in("gguf") and devices.LIBRARIES["llamacpp"].version:
            engines += [Choice(engine="llamacpp")]
        drafts = ["ngram", "suffix", "hybrid"]
        drafts += [f"{kind}:name={name}" for name in self._drafts() for kind in ("hybrid", "draft_model")]
        guesses = [Choice(draft="off")]
        guesses += [Choice(draft=draft, draft_length=depth) for draft in drafts for depth in DEPTHS]
        ours = Choice(draft=str(self._base.runtime.draft_spec))
        return [Candidate(choice) for choice in engines], [Candidate(one) for one in guesses if one != ours]

    def _drafts(self) -> list[str]:
        """Name the models on disk that write the same tokens and are smaller."""
        own = _bytes(self.model)
        digest = self.model.manifest.digests.get("tokenizer.json")
        return [
            one.name
            for one in self._library.all()
            if digest and one.manifest.digests.get("tokenizer.json") == digest and _bytes(one) < own
        ]

    def _halved(self, candidates: list[Candidate], until: float) -> Candidate | None:
        """Return the best by successive halving until a time, None when none could be measured."""
        left, count = list(candidates), FIRST
        while left:
            for one in left:
                self._measure(one, count, until)
            left = [one for one in left if one.pairs and one.fault is None]
            left.sort(key=lambda one: -one.ratio.value)
            if len(left) <= 1 or count >= len(self._prompts) or monotonic() > until:
                break
            left = left[: max(len(left) // 2, 1)]
            count = min(2 * count, len(self._prompts))
        return left[0] if left else None

    def _measure(self, candidate: Candidate, count: int, until: float) -> None:
        """Give a candidate pairs on the first `count` prompts that it has none on, while there is time."""
        for prompt in self._prompts[:count]:
            if candidate.fault or prompt.name in candidate.pairs:
                continue
            known = self._known.get((candidate.name, prompt.name))
            if known is None and monotonic() > until:
                return
            self._progress.step(f"{candidate.name}: {prompt.name}")
            pair = known or self._pair(candidate, prompt)
            if pair is not None:
                candidate.pairs[prompt.name] = [pair]
                self._remember(candidate, prompt, pair)

    def _confirmed(self, candidate: Candidate) -> Ratio | None:
        """Measure a candidate anew on all prompts; return its gain if it is one and no text differs."""
        pairs: dict[str, list[tuple[float, float]]] = {}
        count = 0
        while count < CONFIRM or (monotonic() < self._ends and count < 3 * len(self._prompts)):
            prompt = self._prompts[count % len(self._prompts)]
            self._progress.step(f"Confirming {candidate.name}: {prompt.name}")
            pair = self._pair(candidate, prompt, swapped=bool(count % 2))
            if pair is None:
                return None
            pairs.setdefault(prompt.name, []).append(pair)
            count += 1
            if count >= CONFIRM and speed_up(list(pairs.values())).high < 1:
                break
        found = speed_up(list(pairs.values()))
        return found if found.low > 1 else None

    def _pair(
        self, candidate: Candidate, prompt: Prompt, *, swapped: bool = False
    ) -> tuple[float, float] | None:
        """Return seconds a token of the default and the candidate; None, with its fault, when it is out."""
        try:
            other = self._opened(candidate.choice)
            ids = encoded(self.model, prompt.turns[:1], [], prompt.system)
            order = [self._base, other][:: -1 if swapped else 1]
            told = {id(one): one.answer(ids, self._tokens, anew=True) for one in order}
        except LocalspecError as error:
            candidate.fault = error.message
            return None
        ours, theirs = told[id(self._base)], told[id(other)]
        gap = first_difference(
            ours.token_ids,
            theirs.token_ids,
            engine=self._base.runtime.engine,
            prompt=ids,
            tolerance=ROUNDED,
        )
        if gap is not None and not gap.tie:
            candidate.fault = f"another text: `{prompt.name}` parts at token {gap.at}, a gap of {gap.gap:.2f}"
            return None
        return ours.seconds_per_token, theirs.seconds_per_token

    def _opened(self, choice: Choice) -> Own:
        """Return the candidate's runtime; one at a time is held beside the default, and shares its engine."""
        if self._held is None or self._held[0] != choice:
            loaded = list(self._base.runtime.engines)
            if self._held and _engine(self._held[0]) == _engine(choice):
                loaded += self._held[1].runtime.engines
            self._held = None
            runtime = Runtime(self._name, choice, self._library, self._progress, loaded)
            self._held = (choice, Own("candidate", runtime))
            self._held[1].answer(encoded(self.model, ["Hi"], [], None), 4, anew=True)
        return self._held[1]

    def _advice(self) -> list[str]:
        """Say what would help next."""
        found = []
        if self.model.draft and self._library.find(self.model.draft) is None:
            found.append(f"A draft made for it is not here: localspec chat {self.model.draft} hello")
        if devices.LIBRARIES["llamacpp"].version is None and self.model.files_in("gguf"):
            found.append(f"llama.cpp was not tried: {devices.LIBRARIES['llamacpp'].install}")
        return found

    def _remembered(self) -> dict[tuple[str, str], tuple[float, float]]:
        """Read what an interrupted or earlier search measured under the same versions."""
        found = {}
        for values in _lines(self._log):
            if len(values.get("pair", ())) == 2:
                found[values["setting"], values["prompt"]] = (values["pair"][0], values["pair"][1])
        return found

    def _remember(self, candidate: Candidate, prompt: Prompt, pair: tuple[float, float]) -> None:
        if (candidate.name, prompt.name) in self._known:
            return
        self._known[candidate.name, prompt.name] = pair
        line = {"setting": candidate.name, "prompt": prompt.name, "pair": pair}
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


VARIANTS = {
    "openvino": (
        "openvino:kv=u8",
        "openvino:precision=bf16",
        "openvino:group=32",
        "openvino:group=0",
    ),
    "llamacpp": ("llamacpp:flash=off", "llamacpp:kv=q8_0"),
    "torch": ("torch:precision=bf16",),
}
DEPTHS = ("adaptive", "fixed:tokens=2", "fixed:tokens=4", "fixed:tokens=8")


def _joined(engine: Choice, guessing: Choice) -> Choice:
    return Choice(
        engine=engine.engine,
        threads=engine.threads,
        draft=guessing.draft,
        draft_length=guessing.draft_length,
    )


def _engine(choice: Choice) -> tuple[str, int | None]:
    return choice.engine, choice.threads


def _bytes(model: Model) -> int:
    return sum(model.manifest.sizes.values())


def _lines(path: Path) -> Iterable[dict[str, Any]]:
    """Yield the objects of a file of JSON lines; a torn last line is none."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found
