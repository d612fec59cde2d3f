"""Find the sub-blocks that a smaller pass of a model leaves out, on what the model itself writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from localspec.bench.runner import encoded
from localspec.bench.suites import Prompt
from localspec.core.contracts import Drafter, ReducibleSession
from localspec.core.sampler import Sampler, Sampling
from localspec.core.types import Distribution, Guess, Logits, Tokens
from localspec.drafting import mask_search
from localspec.drafting.margin_cost import log_softmax, margin_cost, point_cost
from localspec.drafting.mask_search import Trial
from localspec.drafting.skip_mask import SkipMask
from localspec.errors import BadValue
from localspec.library import Library, Progress
from localspec.runtime.choice import HYBRID, Choice
from localspec.runtime.generation import Runtime
from localspec.state import skip_masks

PROMPTS, CONTEXT, TOKENS = 12, 64, 24  # prompts of the calibration; tokens before each answer and of it
TIMED, WIDTH = 7, 5  # passes of which the median is taken, and their tokens
RATIO = 0.45  # of the sub-blocks of the inner layers


class Calibration(NamedTuple):
    """The end of a prompt, the model's answer to it, and its log-probabilities [answer, vocab] there."""

    prompt: list[int]
    answer: list[int]
    own: Logits


@dataclass(frozen=True, slots=True)
class FoundMask:
    """A mask, and what was measured of it on `tokens` of the model's own text.

    `cost` is its mean margin violation, `median_cost` the median of all masks that were tried. `agreement` is
    the share of tokens that are most likely without the sub-blocks, too; `pass_ratio` the seconds of a pass
    without them over those of a whole one. `gain` is C(q||p) - C(u||p) - C(q||u) for the draft `draft`, None
    if that has no guess: positive where a middle tier helps.
    """

    mask: str
    ratio: float
    cost: float
    median_cost: float
    tried: int
    tokens: int
    agreement: float
    pass_ratio: float
    draft: str
    gain: float | None

    def as_values(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


class MaskFinder:
    """Lets a model answer prompts, and tries masks on the answers."""

    def __init__(
        self, name: str, choice: Choice, prompts: Sequence[Prompt], library: Library, progress: Progress
    ) -> None:
        with progress.step(f"Loading {name}"):
            self._runtime = Runtime.load(name, choice, library, progress)
        self.model, self._progress = self._runtime.model, progress
        session = self._runtime.target.session
        assert isinstance(session, ReducibleSession)
        self._session = session
        self._texts = self._calibrate(prompts[:PROMPTS])

    def find(self, ratio: float, steps: int) -> FoundMask:
        """Return the best of `steps` masks; raises BadValue for a ratio that leaves nothing out."""
        layers = self.model.layer_count()
        if not mask_search.skipped(layers, ratio):
            raise BadValue(
                f"{ratio:g} of {layers} layers leaves nothing out",
                "Give a higher `--ratio`, or another model",
            )
        with self._progress.step("Trying masks", steps, "mask"):
            trials = mask_search.search(self._cost, layers, ratio, steps=steps, tried=self._tried)
        return self._facts(trials, ratio)

    def keep(self, found: FoundMask) -> None:
        """Let `cascade:middle=mask` use a mask."""
        skip_masks.keep(self.model, **found.as_values())

    def _tried(self, trial: Trial) -> None:
        self._progress.advance()

    def _calibrate(self, prompts: Sequence[Prompt]) -> list[Calibration]:
        """Let the model answer the prompts, and read its own log-probabilities of the answers."""
        runtime, found = self._runtime, []
        with self._progress.step(f"{self.model.name} answers prompts", len(prompts), "prompt"):
            for prompt in prompts:
                tokens = encoded(self.model, prompt.turns[:1], [], prompt.system)
                answer, steps = runtime.answer(tokens, sampling=Sampling(), max_tokens=TOKENS)
                for _ in steps:
                    pass
                if answer.token_ids:
                    found.append(self._read(tokens[-CONTEXT:], answer.token_ids))
                self._progress.advance()
        return found

    def _read(self, prompt: list[int], answer: list[int]) -> Calibration:
        rows = self._runtime.target.read([*prompt, *answer[:-1]], len(answer))
        return Calibration(prompt, answer, log_softmax(rows))

    def _reduced(self, mask: SkipMask) -> list[Logits]:
        """Return the log-probabilities of each text by the model without some sub-blocks."""
        session, found = self._session.reduced(str(mask)), []
        for prompt, answer, _ in self._texts:
            session.rewind(0)
            found.append(log_softmax(session.forward([*prompt, *answer[:-1]], len(answer))))
        return found

    def _cost(self, mask: SkipMask) -> float:
        """Return the mean R_ab(q || q'_z) of the calibration tokens."""
        costs = [
            margin_cost(text.own, own) for text, own in zip(self._texts, self._reduced(mask), strict=True)
        ]
        return float(np.concatenate(costs).mean())

    def _facts(self, trials: Sequence[Trial], ratio: float) -> FoundMask:
        best, middle = trials[0], self._reduced(trials[0].mask)
        same = [text.own.argmax(1) == own.argmax(1) for text, own in zip(self._texts, middle, strict=True)]
        return FoundMask(
            mask=str(best.mask),
            ratio=ratio,
            cost=best.cost,
            median_cost=median(trial.cost for trial in trials),
            tried=len(trials),
            tokens=sum(len(text.answer) for text in self._texts),
            agreement=float(np.concatenate(same).mean()),
            pass_ratio=self._pass_ratio(best.mask),
            draft=str(self._runtime.draft_spec),
            gain=self._gain(middle),
        )

    def _pass_ratio(self, mask: SkipMask) -> float:
        """Return the seconds of a pass without the sub-blocks over those of a whole one, taken in turns."""
        text = self._texts[0].prompt
        sessions = [self._session.reduced(str(mask)), self._runtime.engine.session()]
        seconds: list[list[float]] = [[], []]
        for session in sessions:
            session.forward(text, 0)
        for _ in range(TIMED):
            for session, own in zip(sessions, seconds, strict=True):
                started = perf_counter()
                session.forward(text[:1] * WIDTH, WIDTH)
                own.append(perf_counter() - started)
                session.rewind(len(text))
        return median(seconds[0]) / median(seconds[1])

    def _gain(self, middle: Sequence[Logits]) -> float | None:
        """Return the mean of C(q||p) - C(u||p) - C(q||u) where the drafter has a guess (VIA-SD)."""
        self._runtime.forget()  # the drafter has seen the answers
        gains: list[float] = []
        for text, own in zip(self._texts, middle, strict=True):
            for at, guess in enumerate(first_guesses(self._runtime.drafter, text.prompt, text.answer)):
                if guess is not None:
                    q, u = text.own[at : at + 1], own[at : at + 1]
                    whole, rest = _draft_cost(q, guess), _draft_cost(u, guess)
                    gains.append(whole - rest - float(margin_cost(q, u)[0]))
        return float(np.mean(gains)) if gains else None


def first_guesses(drafter: Drafter, prompt: Tokens, answer: Tokens) -> list[Guess | None]:
    """Return the drafter's first guess at each token of an answer, None where it has none."""
    sampler, found = Sampler(Sampling(temperature=1.0), coupled=False), []
    drafter.begin(prompt)
    for at in range(len(answer)):
        candidate = next(iter(drafter.propose([*prompt, *answer[:at]], sampler)), None)
        found.append(candidate if candidate is None or isinstance(candidate, Guess) else candidate.draw())
    drafter.end()
    return found


def _draft_cost(q: Logits, guess: Guess) -> float:
    """Return R_ab(q || p) of log-probabilities q [1, vocab] and a guess that is drawn from p."""
    if guess.probs is None:
        return float(point_cost(q, np.array([guess.token]))[0])
    return float(margin_cost(q, _logs(guess.probs, q.shape[1]))[0])


def _logs(distribution: Distribution, vocab: int) -> Logits:
    """Return the log-probabilities [1, vocab] of a distribution."""
    logs = np.full((1, vocab), -np.inf, np.float32)
    with np.errstate(divide="ignore"):
        logs[0, distribution.tokens] = np.log(distribution.probs)
    return logs


def choice_for(draft: str, device: str | None, threads: int | None) -> Choice:
    """Return the choice that a search needs: the engine that skips sub-blocks, and the draft."""
    return Choice(engine="torch:skip=on", draft=draft or HYBRID, device=device, threads=threads)
