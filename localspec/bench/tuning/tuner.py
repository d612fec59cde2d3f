"""Search for the fastest parts for a model on this machine: successive halving on paired measurements.

Each candidate and the default answer the same prompts, one after the other, and the ratio of their times
counts. Half of the candidates remain, each with twice as many prompts (Jamieson and Talwalkar 2016). Engines
and drafts are searched apart, then the best of both together. The winner must beat the default in new
measurements, with an interval above 1, and write the same texts; otherwise the default stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from localspec import devices
from localspec.bench.backends import LocalspecBackend
from localspec.bench.intervals import Ratio, speedup
from localspec.bench.runner import encoded
from localspec.bench.suites import Prompt
from localspec.bench.tuning.candidates import (
    Candidate,
    Pair,
    PairLog,
    draft_candidates,
    engine_candidates,
    joined,
)
from localspec.core.parity import ROUNDED, first_difference
from localspec.drafting.time_limit import TimeLimit
from localspec.errors import LocalspecError
from localspec.library import Library, Progress, StoredModel
from localspec.runtime.choice import Choice
from localspec.runtime.generation import Runtime
from localspec.state import tuned

FIRST_PROMPTS = 2  # of a candidate in the first round of halving
MIN_CONFIRMING_PAIRS = 12  # of the winner
CONFIRMING_SHARE = 0.4  # of the time
SEARCH, DRAFTS = 1 - CONFIRMING_SHARE, (1 - CONFIRMING_SHARE) / 2  # shares of it at whose end they end
LOADING, PAIR = "loading", "pair"  # kinds of work


@dataclass(slots=True)
class Tuning:
    """The result of a search; `winner` is None when the default stays.

    `unconfirmed` are the finalists that the time was too short for.
    """

    candidates: list[Candidate]
    winner: Candidate | None
    speedup: Ratio | None
    advice: list[str]
    finished: bool
    unconfirmed: list[Candidate] = field(default_factory=list)

    def as_values(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "winner": asdict(self.winner.choice) if self.winner else None,
            "speedup": asdict(self.speedup) if self.speedup else None,
            "finished": self.finished,
            "advice": self.advice,
            "candidates": [
                {
                    "options": candidate.name,
                    "speedup": asdict(candidate.speedup) if candidate.pairs else None,
                    "rejected": candidate.rejected,
                }
                for candidate in self.candidates
            ],
        }


class Tuner:
    """Measures candidates against the default, and keeps the measurements on disk."""

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
        self._limit = TimeLimit(seconds)
        with progress.step(f"Loading {name}"):
            self._default = LocalspecBackend("default", Runtime.load(name, Choice(), library, progress))
        self.model: StoredModel = self._default.runtime.model
        self._log = PairLog(tuned.log(self.model))
        self._loaded: tuple[Choice, LocalspecBackend] | None = None

    def run(self) -> Tuning:
        """Search until the time is up or a KeyboardInterrupt, after which the default stays."""
        engines = engine_candidates(self._default.runtime)
        drafts = draft_candidates(self._default.runtime, self._library)
        candidates = [*engines, *drafts]
        tuning = Tuning(candidates, None, None, self._advice(), finished=False)
        try:
            for candidate in self._finalists(engines, drafts, candidates):
                if not self._fits(candidate, MIN_CONFIRMING_PAIRS):
                    tuning.unconfirmed.append(candidate)
                elif gain := self._confirm(candidate):
                    tuning.winner, tuning.speedup = candidate, gain
                    break
            tuning.finished = True
        except KeyboardInterrupt:
            pass
        if tuning.unconfirmed and tuning.winner is None:
            names = ", ".join(candidate.name for candidate in tuning.unconfirmed)
            tuning.advice.append(f"The time was too short to confirm {names}: give `--minutes` more")
        return tuning

    def keep(self, tuning: Tuning) -> None:
        """Save the winner for `chat`, or remove an earlier one that was not confirmed."""
        if tuning.winner is not None and tuning.speedup is not None:
            tuned.keep(self.model, asdict(tuning.winner.choice), tuning.speedup.value)
        elif tuning.finished and not tuning.unconfirmed:
            tuned.keep(self.model, None, None)

    def _finalists(
        self, engines: list[Candidate], drafts: list[Candidate], candidates: list[Candidate]
    ) -> list[Candidate]:
        """Return the best engine, the best draft and both together, the fastest first.

        The joined candidate is added to `candidates`.
        """
        best_draft = self._halve(drafts, DRAFTS)
        best_engine = self._halve(engines, SEARCH)
        faster = [best for best in (best_engine, best_draft) if best and best.speedup.value > 1]
        if len(faster) == 2:
            both = joined(faster[0], faster[1])
            candidates.append(both)
            faster.append(both)
            self._measure(both, FIRST_PROMPTS * 2, SEARCH)
        measured = [candidate for candidate in faster if candidate.pairs]
        return sorted(measured, key=lambda candidate: -candidate.speedup.value)

    def _halve(self, candidates: list[Candidate], share: float) -> Candidate | None:
        """Return the best by successive halving in a `share` of the time, None if none could be measured."""
        remaining, count = list(candidates), FIRST_PROMPTS
        while remaining:
            for candidate in remaining:
                self._measure(candidate, count, share)
            remaining = [each for each in remaining if each.pairs and each.rejected is None]
            remaining.sort(key=lambda candidate: -candidate.speedup.value)
            if len(remaining) <= 1 or count >= len(self._prompts) or not self._limit.left(share):
                break
            remaining = remaining[: max(len(remaining) // 2, 1)]
            count = min(2 * count, len(self._prompts))
        return remaining[0] if remaining else None

    def _measure(self, candidate: Candidate, count: int, share: float) -> None:
        """Measure a candidate on those of the first `count` prompts without a pair, while time is left."""
        missing = [prompt for prompt in self._prompts[:count] if prompt.name not in candidate.pairs]
        kept = any(self._log.get(candidate, prompt.name) for prompt in missing)
        if not missing or not (kept or self._fits(candidate, 1, share)):
            return
        with self._progress.step(f"Measuring {candidate.name}", len(missing), "prompt"):
            for prompt in missing:
                known = self._log.get(candidate, prompt.name)
                if candidate.rejected or (known is None and not self._fits(candidate, 1, share)):
                    return
                pair = known or self._pair(candidate, prompt)
                self._progress.advance()
                if pair is not None:
                    candidate.pairs[prompt.name] = [pair]
                    self._log.add(candidate, prompt.name, pair)

    def _fits(self, candidate: Candidate, pairs: int, share: float = 1.0) -> bool:
        """Return whether so many pairs of a candidate are likely to be measured in a `share` of the time."""
        loaded = self._loaded is not None and self._loaded[0] == candidate.choice
        loading = 0.0 if loaded else self._limit.longest(LOADING)
        return self._limit.fits(loading + pairs * self._limit.longest(PAIR), share)

    def _confirm(self, candidate: Candidate) -> Ratio | None:
        """Measure a candidate again on all prompts; return its speed-up, or None if it is not confirmed."""
        pairs: dict[str, list[Pair]] = {}
        most = max(3 * len(self._prompts), MIN_CONFIRMING_PAIRS)
        with self._progress.step(f"Confirming {candidate.name}", most, "pair"):
            for count in range(most):
                if not self._fits(candidate, 1):
                    break
                prompt = self._prompts[count % len(self._prompts)]
                pair = self._pair(candidate, prompt, swapped=bool(count % 2))
                if pair is None:
                    return None
                pairs.setdefault(prompt.name, []).append(pair)
                self._progress.advance()
                if count + 1 >= MIN_CONFIRMING_PAIRS and speedup(list(pairs.values())).high < 1:
                    break
        if sum(map(len, pairs.values())) < MIN_CONFIRMING_PAIRS:
            return None
        gain = speedup(list(pairs.values()))
        return gain if gain.low > 1 else None

    def _pair(self, candidate: Candidate, prompt: Prompt, *, swapped: bool = False) -> Pair | None:
        """Return seconds per token of the default and a candidate, None if that is rejected."""
        default = self._default
        try:
            with self._limit.measured(LOADING):
                backend = self._load(candidate.choice)
            ids = encoded(self.model, prompt.turns[:1], [], prompt.system)
            order = [default, backend][:: -1 if swapped else 1]
            with self._limit.measured(PAIR):
                answers = {id(each): each.answer(ids, self._tokens, fresh=True) for each in order}
        except LocalspecError as error:
            candidate.rejected = error.message
            return None
        expected, actual = answers[id(default)], answers[id(backend)]
        engine, target = default.runtime.engine, default.runtime.resolution.target
        same = target == backend.runtime.resolution.target
        difference = first_difference(
            expected.token_ids,
            actual.token_ids,
            engine=engine,
            prompt=ids,
            tolerance=default.runtime.tolerance if same else ROUNDED,  # another engine computes otherwise
        )
        if difference is not None and not difference.tie:
            place = f"`{prompt.name}` differs at token {difference.at}, a gap of {difference.gap:.2f}"
            candidate.rejected = f"different text: {place}"
            return None
        return expected.seconds_per_token, actual.seconds_per_token

    def _load(self, choice: Choice) -> LocalspecBackend:
        """Return a warm backend; one is loaded at a time beside the default, and may share its engine."""
        if self._loaded is None or self._loaded[0] != choice:
            engines = list(self._default.runtime.engines)
            if self._loaded and _same_engine(self._loaded[0], choice):
                engines += self._loaded[1].runtime.engines
            self._loaded = None
            runtime = Runtime.load(self._name, choice, self._library, self._progress, engines)
            self._loaded = (choice, LocalspecBackend("candidate", runtime))
            self._loaded[1].answer(encoded(self.model, ["Hi"], [], None), 4, fresh=True)
        return self._loaded[1]

    def _advice(self) -> list[str]:
        """Return hints on what to try next."""
        advice = []
        if self.model.draft and self._library.find(self.model.draft) is None:
            advice.append(f"The draft for this model is missing: localspec pull {self.model.draft}")
        if devices.LIBRARIES["llamacpp"].version is None and self.model.files_in("gguf"):
            advice.append(f"llama.cpp was not tried: {devices.LIBRARIES['llamacpp'].install}")
        return advice


def _same_engine(first: Choice, second: Choice) -> bool:
    return (first.engine, first.threads) == (second.engine, second.threads)
