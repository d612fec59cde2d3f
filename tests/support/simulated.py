"""Answers for draft-length policies without a model: tests choose acceptance rates and costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from localspec.core.contracts import DraftLengthPolicy
from localspec.core.types import Candidate, Company, Guess, LazyGuess, Proposal, Step

Rate = Callable[[int, int], float]  # of the token in the answer and the position in the draft
Cost = Callable[[int], float]  # of a pass over so many tokens


@dataclass(frozen=True)
class Source:
    """A source of guesses: how many are accepted, what it says of itself, and what it costs in plain passes.

    One whose guesses cost something is a draft model, which reads what it has missed before it guesses.
    """

    accepts: Rate
    confidence: Rate = lambda token, at: 0.7
    name: str = "suffix"
    guess: float = 0.0
    read: float = 0.0


def steady(share: float) -> Rate:
    return lambda token, at: share


def points(*known: tuple[int, float]) -> Cost:
    """Return the cost of passes from that of some widths; between them, and after the last, it is linear."""

    def cost(width: int) -> float:
        pairs = list(pairwise(known))
        (left, low), (right, high) = next((pair for pair in pairs if width <= pair[1][0]), pairs[-1])
        return low + (high - low) * (width - left) / (right - left)

    return cost


@dataclass
class Simulation:
    """A text that a policy decodes with some sources: `seconds` and `tokens` so far, in plain passes.

    `noise` multiplies what the policy is told of a pass, not what counts, for plain decoding has it as well.
    So many `others`, texts that draft as this one did in its last step, share each pass.
    """

    policy: DraftLengthPolicy
    sources: Sequence[Source]
    cost: Cost
    noise: Callable[[Random], float] = lambda random: 1.0
    seed: int = 0
    others: int = 0
    unit: float = 0.05  # seconds of a plain pass
    seconds: float = 0.0
    read: float = 0.0  # of which draft models read what they had missed
    tokens: int = 0
    drafts: list[list[str]] = field(default_factory=list)  # the sources of the guesses of each step

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self._behind: dict[str, int] = {}

    def answer(self, tokens: int, prompt: int = 20, finish: str | None = "stop") -> float:
        """Decode an answer; return how many times as fast as plain decoding."""
        self.begin(prompt)
        seconds, done = self.seconds, 0
        while done < tokens:
            done += self.step(done, tokens, finish)
        self.policy.end()
        return tokens / (self.seconds - seconds)

    def begin(self, prompt: int = 20) -> None:
        """Start an answer; no draft model has read the prompt."""
        self._behind = {source.name: prompt for source in self.sources}
        self.policy.begin([0] * prompt)

    def step(self, done: int, tokens: int, finish: str | None = None) -> int:
        """Take a step of an answer of `tokens` of which `done` are there; return how many it adds."""
        draft, costs, proposals = self._draft(done, tokens - done - 1)
        accepts = {source.name: source.accepts for source in self.sources}
        accepted = 0
        while accepted < len(draft):
            if self._random.random() >= accepts[draft[accepted].source](done + accepted, accepted):
                break
            accepted += 1
        rejected = len(draft) - accepted
        self._behind = {name: max(count - rejected, 0) + 1 for name, count in self._behind.items()}
        company = Company(self.others, self.others * (len(self.drafts[-1]) + 1 if self.drafts else 1))
        cost = self.cost(len(draft) + 1 + company.tokens)
        self.seconds += cost
        self.tokens += accepted + 1
        self.drafts.append([guess.source for guess in draft])
        ends = finish if done + accepted + 1 >= tokens else None
        told = self.unit * cost * self.noise(self._random)
        sums = len(draft), accepted, sum(costs), told
        self.policy.learn(
            Step(
                *((0,) * (accepted + 1), *sums, "", ends),
                *(tuple(draft), tuple(costs), tuple(proposals)),
                company=company,
            )
        )
        return accepted + 1

    def _draft(self, done: int, room: int) -> tuple[list[Guess], list[float], list[Proposal]]:
        draft: list[Guess] = []
        costs: list[float] = []
        proposals: list[Proposal] = []
        while len(draft) < room:
            for source in self.sources:
                candidate = self._candidate(source, done + len(draft), len(draft))
                wanted = self.policy.wants_more(draft, candidate)
                lazy = isinstance(candidate, LazyGuess)
                behind = candidate.behind if isinstance(candidate, LazyGuess) else 0
                proposals.append(Proposal(source.name, behind, wanted))
                if wanted:
                    break
            else:
                break
            reading = source.read * (behind - 1) if lazy else 0.0
            self.read += reading
            self.seconds += source.guess + reading
            costs.append(self.unit * (source.guess + reading) * self.noise(self._random))
            confidence = source.confidence(done + len(draft), len(draft))
            draft.append(Guess(0, None, confidence, source.name))
            self._behind = {name: 1 if name == source.name else 1 + it for name, it in self._behind.items()}
        return draft, costs, proposals

    def _candidate(self, source: Source, token: int, at: int) -> Candidate:
        guess = Guess(0, None, source.confidence(token, at), source.name)
        if not source.guess:
            return guess
        free = [one for one in self.sources if not one.guess]
        instead = Guess(0, None, free[0].confidence(token, at), free[0].name) if free else None
        return LazyGuess(lambda: guess, source.name, self._behind[source.name], instead)


def best_fixed(sources: Sequence[Source], cost: Cost, most: int = 16, share: Rate | None = None) -> float:
    """Return the tokens per plain pass of the best fixed draft length of the first source, in expectation.

    Its acceptance rate must not depend on the token.
    """
    (source, *_), best = sources, 0.0
    tokens = survival = 1.0
    for length in range(most + 1):
        best = max(best, tokens / (length * source.guess + cost(length + 1)))
        survival *= (share or source.accepts)(0, length)
        tokens += survival
    return best
