"""From logits to a distribution to a token, on the top candidates alone where the settings allow it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.core.types import (
    DeviceRow,
    Distribution,
    Guess,
    Likelihood,
    Logits,
    Row,
    Tokens,
    shared_prefix,
)
from localspec.errors import BadValue, ModelError

SHARES = (1e-2, 1e-4)  # of the highest weight: thresholds to try for a nucleus
COLDEST = 1e-30  # a temperature below it leaves the highest logits alone
NO_TOKEN = np.array([-1])  # the noise of a position alone
BLOCK = 64  # logits per block; the block maxima bound the top-k from below


class Constraint(ABC):
    """A constraint on an answer, token by token, such as a grammar.

    Any answer may be asked about, in any order: it is followed from what it shares with the last one.
    """

    @abstractmethod
    def allowed(self, answer: Tokens) -> NDArray[np.bool_] | None:
        """Return a mask [vocab] of the tokens allowed after `answer`; None if all are, as after its end."""

    @abstractmethod
    def forced(self, answer: Tokens) -> Tokens:
        """Return the tokens that must follow `answer`, none where several texts may follow."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose the next token. Temperature 0 takes the most likely one.

    The order is that of transformers: bias and penalties, temperature, top-k, top-p, min-p. The repetition
    penalty (Keskar et al. 2019) looks at the prompt and the answer, the other two at the answer.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._require("temperature", 0, 100)
        self._require("top_k", 0, 2**31)
        self._require("top_p", 0, 1)
        self._require("min_p", 0, 1)
        self._require("repetition_penalty", 0.01, 100)
        self._require("presence_penalty", -100, 100)
        self._require("frequency_penalty", -100, 100)
        if not all(-100 <= bias <= 100 for bias in self.logit_bias.values()):
            raise BadValue(
                "`logit-bias` has a bias that is out of range", "It takes numbers from -100 to 100"
            )

    def _require(self, name: str, least: float, most: float) -> None:
        value: Any = getattr(self, name)
        if not least <= value <= most:
            shown = f"{name.replace('_', '-')}"
            raise BadValue(f"`{shown}` is {value:g}", f"It takes a number from {least:g} to {most:g}")

    @property
    def greedy(self) -> bool:
        """Return whether the most likely token is always taken."""
        return self.temperature == 0 or self.top_k == 1

    @property
    def penalized(self) -> bool:
        """Return whether the choice depends on the tokens before it."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


class Sampler:
    """Chooses tokens for one answer.

    The target's token at a position is drawn with noise that depends on the seed, the position and the token
    alone, so an answer does not depend on how it was drafted: the same seed gives the same text with and
    without a draft. A coupled draft uses the same noise, which makes agreement likely (Gumbel coupling;
    Daliri et al. 2025, "Coupling without Communication and Drafter-Invariant Speculative Decoding"). An
    uncoupled one, for rejection sampling, draws afresh each time. With `quantiles` a position has one number,
    whatever its token: the token is drawn by inverse CDF in the order of the vocabulary, from the same
    distribution. A draft that knows that number (K-Forcing) knows more than one that knows a number a token.

    `answer_from` is the position of the first answered token. A `constraint` holds for the target's tokens
    and for those of drafts alike, position by position. `alternatives` is how many of the likeliest tokens
    the steps tell beside each token of the answer, with their log-probabilities; None tells nothing.
    """

    def __init__(
        self,
        sampling: Sampling,
        *,
        seed: int = 0,
        answer_from: int = 0,
        coupled: bool = True,
        quantiles: bool = False,
        constraint: Constraint | None = None,
        alternatives: int | None = None,
    ) -> None:
        self.sampling = sampling
        self.alternatives = alternatives
        self._constraint = constraint
        self._from = answer_from
        self.coupled = coupled
        self.quantiles = quantiles
        self._seed = np.uint64(seed & (2**64 - 1))
        self._fresh = np.random.default_rng(seed & (2**64 - 1))
        self._whole = Occurrences(0)
        self._answer = Occurrences(answer_from)

    def choose(self, row: Row, before: Tokens) -> int:
        """Return the target's token after `before`, from its logits `row` [vocab]."""
        if self.sampling.greedy:
            row = self._penalized(row, before)
            token = int(row.argmax())  # the first NaN, if there is one
            check_number(row[token])
            return token if self.allows(token, before) else int(self._allowed_only(row, before).argmax())
        return self.coupled_draw(self.distribution(row, before), len(before))

    def guess(self, row: Row, before: Tokens, tokens: NDArray[np.int64] | None = None) -> Guess:
        """Return a draft model's guess of the token after `before`, from its logits `row` [vocab].

        Given `tokens` [n], ascending, the row [n] is about these alone.
        """
        if tokens is not None:
            return self._guess_of(row, before, tokens)
        adjusted = self.adjusted(row, before)
        if self.sampling.greedy or self.constrained:
            token = int(adjusted.argmax())
            if not np.isfinite(adjusted[token]):  # no allowed token is in the draft's smaller vocabulary
                return Guess(token, None, 0.0)
            if self.sampling.greedy:
                return Guess(token, None, 1.0 / _partition(adjusted, adjusted[token]))
        draft = self._distribution(adjusted)
        token = self.coupled_draw(draft, len(before)) if self.coupled else self.draw(draft)
        return Guess(token, draft, draft.of(token))

    def _guess_of(self, row: Row, before: Tokens, tokens: NDArray[np.int64]) -> Guess:
        """Return the guess from a row about `tokens`; only what changes logits by token needs a wider row."""
        if self.constrained or self.sampling.penalized or self.sampling.logit_bias:
            wide = np.full(tokens[-1] + 1, -np.inf, np.float32)
            wide[tokens] = row
            return self.guess(wide, before)
        if self.sampling.greedy:
            best = int(row.argmax())
            return Guess(int(tokens[best]), None, 1.0 / _partition(row, row[best]))
        draft = self._distribution(row)
        draft = draft._replace(tokens=tokens[draft.tokens])
        token = self.coupled_draw(draft, len(before)) if self.coupled else self.draw(draft)
        return Guess(token, draft, draft.of(token))

    def distribution(self, row: Row, before: Tokens) -> Distribution:
        """Return the distribution of the token after `before`, from logits `row` [vocab]."""
        return self._distribution(self._allowed_only(self._penalized(row, before), before))

    def _distribution(self, row: Row) -> Distribution:
        if self.sampling.greedy:
            return Distribution(np.array([row.argmax()]), np.ones(1))
        tokens, probs = self._candidates(row)
        probs = np.where(probs >= self.sampling.min_p * probs.max(), probs, 0.0)
        return Distribution(tokens, probs / probs.sum())

    @property
    def plainly_greedy(self) -> bool:
        """Return whether each choice is the token of the highest logit, whatever is before it."""
        settings = self.sampling
        return settings.greedy and not (settings.penalized or settings.logit_bias or self.constrained)

    @property
    def constrained(self) -> bool:
        """Return whether a grammar constrains the answer."""
        return self._constraint is not None

    def allows(self, token: int, before: Tokens) -> bool:
        """Return whether `token` is allowed after `before`, which must be allowed itself."""
        mask = self._allowed(before)
        return mask is None or (token < len(mask) and bool(mask[token]))

    def permitted(self, guess: Guess | None, before: Tokens) -> Guess | None:
        """Return a guess of the token after `before`; None if a grammar forbids it, as if there is none."""
        return guess if guess is None or self.allows(guess.token, before) else None

    def forced(self, before: Tokens) -> Tokens:
        """Return the tokens that must follow `before`, possibly none."""
        return self._constraint.forced(before[self._from :]) if self._constraint else ()

    def adjusted(self, row: Row, before: Tokens) -> Row:
        """Return the logits [vocab] after bias, penalties and mask (-inf); `row` itself if none applies."""
        return self._within(self._penalized(row, before), before)

    def _within(self, row: Row, before: Tokens) -> Row:
        mask = self._allowed(before)
        return row if mask is None else np.where(mask[: len(row)], row, np.float32(-np.inf))

    def _allowed_only(self, row: Row, before: Tokens) -> Row:
        """Return the logits of allowed tokens; all are alike if the model gives each a logit of -inf."""
        within = self._within(row, before)
        if within is row or within.max() > -np.inf:
            return within
        return self._within(np.zeros_like(row), before)

    def _allowed(self, before: Tokens) -> NDArray[np.bool_] | None:
        return self._constraint.allowed(before[self._from :]) if self._constraint else None

    def _penalized(self, row: Row, before: Tokens) -> Row:
        settings = self.sampling
        if not settings.penalized and not settings.logit_bias:
            return row
        row = row.copy()
        for token, bias in settings.logit_bias.items():
            if token < len(row):  # a draft's logits may be narrower than the target's
                row[token] += bias
        with np.errstate(over="ignore"):  # to the limit, infinite
            self._penalize(row, before)
        return row

    def _penalize(self, row: Row, before: Tokens) -> None:
        settings = self.sampling
        if settings.repetition_penalty != 1:
            tokens, _ = self._whole.of(before, len(row))
            seen = row[tokens]
            factor = np.float32(settings.repetition_penalty)
            row[tokens] = np.where(seen > 0, seen / factor, seen * factor)
        if settings.presence_penalty or settings.frequency_penalty:
            tokens, counts = self._answer.of(before, len(row))
            row[tokens] -= settings.presence_penalty + settings.frequency_penalty * counts

    def likelihoods(self, logits: Logits, tokens: Tokens) -> list[Likelihood]:
        """Return the likelihood of each of `tokens` by the target's own logits, none if not asked."""
        if self.alternatives is None:
            return []
        return [
            _likelihood(row, token, self.alternatives) for row, token in zip(logits, tokens, strict=False)
        ]

    def coupled_draw(self, distribution: Distribution, position: int) -> int:
        """Draw a token with the noise of `position`: argmin of Exponential(1) / p, an exponential race.

        With `quantiles` it is the token at the quantile of the position.
        """
        if self.quantiles:
            return at_quantile(distribution, self.quantile(position))
        with np.errstate(divide="ignore"):
            race = -np.log(self._noise(distribution.tokens, position)) / distribution.probs
        return int(distribution.tokens[race.argmin()])

    def draw(self, distribution: Distribution) -> int:
        """Draw a token afresh."""
        return at_quantile(distribution, self.uniform())

    def quantile(self, position: int) -> float:
        """Return the number in (0, 1) that draws the token at `position` with `quantiles`."""
        return float(self._noise(NO_TOKEN, position)[0])

    def uniform(self) -> float:
        """Draw a number from [0, 1) afresh."""
        return float(self._fresh.random())

    def _candidates(self, row: Row) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the tokens, ascending, that top-k and top-p leave, and their probabilities."""
        settings = self.sampling
        if 0 < settings.top_k < len(row):
            tokens = top(row, settings.top_k)
            weights, total = _weights(row[tokens], settings.temperature)
            return _nucleus(tokens, weights / total, settings.top_p)
        weights, total = _weights(row, settings.temperature)
        if settings.top_p == 1:
            return np.arange(len(row)), weights / total
        tokens = np.flatnonzero(weights >= _floor(weights, settings.top_p * total))
        return _nucleus(tokens, weights[tokens] / total, settings.top_p)

    def _noise(self, tokens: NDArray[np.int64], position: int) -> NDArray[np.float64]:
        """Return a number in (0, 1) [n] for each token at `position`: SplitMix64 (Steele et al. 2014)."""
        with np.errstate(over="ignore"):
            key = _mix(self._seed + np.uint64(position + 1) * np.uint64(0x9E3779B97F4A7C15))
            bits: NDArray[np.uint64] = _mix(_mix(tokens.astype(np.uint64) ^ key) + key)
        # 52 bits: with 53 the highest would round to 1
        return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def at_quantile(distribution: Distribution, quantile: float) -> int:
    """Return the token at a quantile in [0, 1) by inverse CDF, in the order of the vocabulary."""
    sums = np.cumsum(distribution.probs)
    at = np.searchsorted(sums, min(quantile * sums[-1], np.nextafter(sums[-1], 0)), side="right")
    return int(distribution.tokens[at])


class Occurrences:
    """Counts of each token in a text from position `start` on, updated as the text grows."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._tokens: list[int] = []
        self._counts = np.zeros(0, np.int32)

    def of(self, before: Tokens, vocab: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the distinct tokens of `before` from `start` on, and the count of each."""
        if len(self._counts) < vocab:  # a draft's logits may be narrower than the target's
            self._counts = np.append(self._counts, np.zeros(vocab - len(self._counts), np.int32))
        part = list(before[self._start :])
        shared = shared_prefix(self._tokens, part)
        np.subtract.at(self._counts, self._tokens[shared:], 1)
        np.add.at(self._counts, part[shared:], 1)
        self._tokens = part
        tokens = np.flatnonzero(self._counts[:vocab])
        return tokens, self._counts[tokens]


def top(row: Row, count: int) -> NDArray[np.int64]:
    """Return the `count` tokens of the highest logits in `row` [vocab], ascending.

    The block maxima bound the count-th highest logit from below, so only a few logits are sorted.
    """
    whole = len(row) // BLOCK * BLOCK
    maxima = row[:whole].reshape(BLOCK, -1).max(axis=0)  # a block is a column, which numpy reduces faster
    if len(maxima) > count:
        tokens = np.flatnonzero(row >= np.partition(maxima, -count)[-count])
    else:
        tokens = np.arange(len(row))
    order = np.argsort(-row[tokens], kind="stable")[:count]
    return np.sort(tokens[order])


def _likelihood(row: Row, token: int, count: int) -> Likelihood:
    """Return the log-probability of a token by a softmax of `row` [vocab], and the `count` highest."""
    highest = row.max()
    if not np.isfinite(highest):  # the highest share the whole probability
        row, highest = np.where(row == highest, np.float32(0), np.float32(-np.inf)), np.float32(0)
    total = float(highest) + float(np.log(_partition(row, highest)))
    best = sorted(top(row, count).tolist(), key=lambda each: -row[each]) if count else []
    return Likelihood(float(row[token]) - total, tuple((each, float(row[each]) - total) for each in best))


def _floor(weights: Row, needed: np.float64) -> float:
    """Return a threshold whose tokens together weigh `needed` or more, so that they contain the nucleus."""
    return next((share for share in SHARES if weights @ (weights >= share) > needed), 0.0)


def _nucleus(
    tokens: NDArray[np.int64], probs: NDArray[np.float64], most: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the fewest tokens, ascending, whose probabilities reach `most` (Holtzman et al. 2020)."""
    if most == 1:
        return tokens, probs
    order = np.argsort(-probs)
    before = np.cumsum(probs[order]) - probs[order]
    kept = np.sort(order[: max(1, int(np.searchsorted(before, most)))])
    return tokens[kept], probs[kept]


def _weights(logits: Row, temperature: float) -> tuple[Row, np.float64]:
    """Return exp((logits - highest) / temperature) and their sum.

    The highest alone have a weight at a temperature next to 0, and where they are infinite. Raises ModelError
    for logits that are not numbers.
    """
    highest = logits.max()
    check_number(highest)
    if temperature < COLDEST or not np.isfinite(highest):
        weights = (logits == highest).astype(np.float32)
    else:
        with np.errstate(over="ignore"):  # far below the highest: the weight is 0
            scaled = (logits - highest) * np.float32(1 / temperature)
        weights = np.exp(scaled, out=scaled)
    return weights, np.float64(weights.sum())


def check_number(highest: np.floating[Any]) -> None:
    """Raise ModelError if the highest of a model's logits is NaN, as it is if any of them is."""
    if np.isnan(highest):
        raise ModelError(
            "The model computed logits that are not numbers",
            "Try another `--engine` or `--device`; if it is the same there, the model's weights are damaged",
        )


def _partition(logits: Row, highest: np.float32) -> float:
    """Return the sum of exp(logit - highest), which a row on a device already knows."""
    if isinstance(logits, DeviceRow) and highest == logits.highest:
        return logits.weight
    with np.errstate(over="ignore"):  # far below the highest: the weight is 0
        return float(np.exp(logits - highest).sum())


def _mix(bits: Any) -> Any:
    """Mix 64 bits so that each output bit depends on each input bit (the finalizer of SplitMix64)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
