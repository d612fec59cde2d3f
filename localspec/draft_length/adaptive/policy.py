"""Drafts as many tokens as pay, none included, by measured pass costs and acceptance rates."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from localspec.core.contracts import DraftLengthPolicy
from localspec.core.types import Candidate, Guess, LazyGuess, Proposal, Step, Tokens
from localspec.draft_length.adaptive.costs import FEW, PassCosts
from localspec.draft_length.adaptive.draft_prefill import PrefillPolicy
from localspec.draft_length.adaptive.source_stats import SourceStats
from localspec.draft_length.adaptive.validation import VERSION, is_valid
from localspec.drafting.acceptance import class_of, expected_tokens
from localspec.plugins import Option

STEP = 2  # how far past the deepest verified guess a draft may go
UNKNOWN = 5  # steps with guesses between two trials of a width that may beat all known ones
EXPERIMENT = 32  # the same when none may; doubles up to LAST_EXPERIMENT
LAST_EXPERIMENT = 128
BETTER = 1.05  # times the present rate must be possible for a trial
CHEAP = 0.02  # of a pass: a guess that cheap does not delay the first token


class Adaptive(DraftLengthPolicy):
    """Takes the draft length with the most expected tokens per second; stops drafting when that is none.

    For a length d: (1 + sum over i <= d of a_1 ... a_i) / (d * draft + target(d + 1)), with a_i the
    acceptance rate at position i given that all before it were accepted (Leviathan et al. 2023, section 3,
    with measured numbers in place of one alpha). An unlikely guess ends the draft early, a likely one
    prolongs it: at the best rate r, one more guess pays when its expected tokens / r exceed its seconds
    (source_stats.py). Sources that share a draft have statistics of their own.

    While guessing does not pay, the policy probes ever more rarely. The first step of an answer is plain
    unless guesses are nearly free, so the first token does not wait for a draft model to read the whole
    prompt; its seconds do not count, because engines do one-time work there. A draft model reads what it has
    missed where the rest of the answer is likely to pay for it (draft_prefill.py).
    """

    def __init__(
        self,
        *,
        max_tokens: Annotated[int, Option("maximum guesses per step", least=0, most=256)] = 16,
        start: Annotated[int, Option("guesses of the first draft and of a probe", least=1, most=256)] = 2,
    ) -> None:
        self._max = max_tokens
        self._start = min(start, max_tokens)
        self._costs = PassCosts()
        self._curve: list[float] = []
        self._sources: dict[str, SourceStats] = {}
        self._prefill = PrefillPolicy()
        self._unread = 0  # tokens that were too many to read for a draft of this answer
        self._last_seen = _Seen()
        self._plain = False  # must the next step be a plain one
        self._opening = True  # is the next step the first of its answer
        self._finished = True
        self._paying = 0  # steps with guesses since the last experiment
        self._pause = EXPERIMENT
        self._experiments = 0

    def begin(self, prompt: Tokens) -> None:
        """Start an answer: its first step is plain, and the last answer's acceptance counts for little."""
        self._opening, self._finished = True, False
        self._prefill.begin()
        for stats in self._sources.values():
            stats.begin()

    def end(self) -> None:
        """End the answer; what was planned for the next step of an interrupted one is dropped."""
        if not self._finished:
            self._plain = False
            for stats in self._sources.values():
                stats.least, stats.limit = 0, self._max

    def wants_more(self, draft: Sequence[Guess], candidate: Candidate) -> bool:
        """Return whether the expected tokens of `candidate` are worth more than its seconds."""
        count, stats = len(draft), self._stats_of(candidate.source)
        if not self._curve or self._plain or count >= self._max:
            return False
        seen, lazy = self._seen(draft), isinstance(candidate, LazyGuess)
        own = seen.own.get(candidate.source, 0)
        if stats.guess_cost is None:  # its cost must be measured first
            return own < self._start and not (lazy and self._opening)
        if isinstance(candidate, LazyGuess) and not self._affords(stats, candidate.behind):
            return False
        if own < stats.least or own >= stats.limit:
            return own < stats.limit
        return self._pays(stats, draft, candidate, seen)

    def _stats_of(self, source: str) -> SourceStats:
        """Return the statistics of a source, empty ones for a new source."""
        return self._sources.get(source) or SourceStats()

    def _affords(self, stats: SourceStats, behind: int) -> bool:
        """Return whether a lazy guess costs no more at once than it may: the first token waits for little."""
        if self._opening and stats.cost > CHEAP * self._curve[0]:
            return False
        return not self._missed(behind) or self._prefill.affords(stats, self._curve[0], behind)

    def _missed(self, behind: int) -> bool:
        """Return whether a lazy guess must read more than a step leaves unread."""
        return behind > self._max + 1

    def _seen(self, draft: Sequence[Guess]) -> _Seen:
        """Return the classes of a draft's guesses and their joint acceptance probability.

        Drafts grow guess by guess, so the result for the last draft is extended rather than made anew.
        """
        seen, count = self._last_seen, len(self._last_seen.names)
        if count > len(draft) or (count and draft[count - 1] is not seen.last):
            seen, count = _Seen(), 0
            self._last_seen = seen
        while count < len(draft):
            seen.last = guess = draft[count]
            name = class_of(guess.source, guess.confidence, count)
            stats = self._stats_of(guess.source)
            seen.survival.append(seen.survival[-1] * stats.chance(stats.rates.at(count), name))
            seen.names.append(name)
            seen.own[guess.source] = seen.own.get(guess.source, 0) + 1
            count += 1
        return seen

    def _pays(self, stats: SourceStats, draft: Sequence[Guess], candidate: Candidate, seen: _Seen) -> bool:
        """Return whether a candidate is worth its seconds; a guess already made has a known confidence."""
        count, curve, survival = len(draft), self._curve, seen.survival[-1]
        if count + 1 >= len(curve):
            return False
        leading = self._stats_of(draft[0].source) if draft else stats
        rate = leading.rate or 1 / curve[0]  # a new source has no rate yet
        if isinstance(candidate, LazyGuess):
            if not draft:
                return stats.pays
            chance = stats.next_chance(stats.rates.at(count), seen.names[-1])
            return stats.worth(curve, rate, count, (survival, chance)) > 0
        name = class_of(candidate.source, candidate.confidence, count)
        survival *= stats.chance(stats.rates.at(count), name)
        cost = curve[count + 1] - curve[count]
        return survival / rate > cost or stats.worth_of(curve, rate, count + 1, survival, name) > cost

    def learn(self, last: Step) -> None:
        """Take in what the pass and the guesses cost and which were accepted, and plan the next step."""
        lazy_first = {one.source: one.behind > 0 for one in reversed(last.proposals)}
        seen = self._seen(last.draft)
        self._learn_declined(last, seen)
        prefilled = self._learn_prefill(last.proposals)
        for proposal in last.proposals:
            self._sources.setdefault(proposal.source, SourceStats())
        if not self._opening:
            self._costs.learn(last.drafted + 1, last.target_seconds)
        if last.drafted:
            self._learn_draft(last, seen, prefilled)
        for source, stats in self._sources.items():
            stats.asked = source in lazy_first and (source in seen.own or not lazy_first[source])
        open_to_draft = not last.draft or lazy_first.get(last.draft[0].source, False)
        self._finished = last.finish is not None
        seconds = last.target_seconds + last.draft_seconds
        self._prefill.learn(len(last.tokens), seconds, open_to_draft, self._finished)
        self._opening = False
        self._plan(last, seen, lazy_first.keys())
        self._last_seen = _Seen()

    def _learn_declined(self, last: Step, seen: _Seen) -> None:
        """Relax the class of a guess that was declined because it did not pay."""
        declined = last.proposals[-1] if last.proposals else None
        if declined is None or declined.taken or declined.behind or len(last.draft) >= self._max:
            return
        stats, own = self._stats_of(declined.source), seen.own.get(declined.source, 0)
        judged = stats.guess_cost is not None and stats.least <= own < stats.limit and not self._plain
        if judged and len(last.draft) + 1 < len(self._curve):
            stats.classes.relax(class_of(declined.source, declined.confidence, len(last.draft)))

    def _learn_prefill(self, proposals: Sequence[Proposal]) -> dict[str, int]:
        """Return the tokens that draft models read before their first guess, and note what was too much."""
        prefilled = {}
        for proposal in proposals:
            if not self._missed(proposal.behind):
                continue
            stats = self._stats_of(proposal.source)
            if proposal.taken:
                prefilled[proposal.source], self._unread = proposal.behind, 0
                if not stats.pays:
                    self._prefill.waited = 0.0
            elif self._curve and stats.guess_cost is not None and not self._affords(stats, proposal.behind):
                self._unread = proposal.behind if stats.pays else 0
        if self._opening:
            self._unread = 0
        return prefilled

    def _learn_draft(self, last: Step, seen: _Seen, prefilled: Mapping[str, int]) -> None:
        sources = [guess.source for guess in last.draft]
        for source in sources:
            self._sources.setdefault(source, SourceStats())
        # the guess after the last accepted one was rejected, unless the answer ended there
        verified = min(last.accepted + (last.finish is None), last.drafted)
        leading = self._sources[sources[0]]
        if leading.least < leading.limit and last.drafted < len(self._curve):
            seconds = sum(self._sources[source].cost for source in sources) + self._curve[last.drafted]
            leading.learn_rate(sum(seen.survival[: last.drafted + 1]), seconds)
        for source in dict.fromkeys(sources):
            stats, own = self._sources[source], [at for at, name in enumerate(sources) if name == source]
            if behind := prefilled.get(source):
                stats.learn_prefill(last.costs[own[0]], behind)
            stats.learn_cost(sum(last.costs[at] for at in own) / len(own))
            stats.rates.extend(own[-1] + 1)
            for at in own:
                if at < verified:
                    before = seen.names[at - 1] if at else None
                    stats.learn_guess(at, at < last.accepted, seen.names[at], before)
            stats.learn_first(seen.names[own[0]], own[0] < verified)
            stats.update()

    @property
    def reason(self) -> str | None:
        """Why the policy does not draft: what a guess costs and how many are accepted, or what is unread."""
        if self._unread:
            return f"reading {self._unread:,} tokens would cost the draft more than it is likely to save"
        known = [stats for stats in self._sources.values() if stats.guess_cost is not None]
        if not known or any(stats.pays for stats in known):
            return None
        one, two = self._costs.curve(2)
        cost, rate = known[0].cost + two - one, known[0].rates.at(0)
        return f"a guess costs {cost / one:.1f} of a pass and {rate:.0%} are accepted"

    def state(self) -> dict[str, Any]:
        """Return what was learned, as plain values for `restore`."""
        return {
            "version": VERSION,
            "usual_length": self._prefill.usual_length,
            "waited_seconds": self._prefill.waited,
            "pass_seconds": [[width, self._costs.mean[width]] for width in sorted(self._costs.mean)],
            "sources": {source: stats.state() for source, stats in self._sources.items()},
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        """Restore a `state`; a malformed one, or one of another version, changes nothing."""
        if not is_valid(values):
            return
        self._costs.mean = {width: float(seconds) for width, seconds in values["pass_seconds"]}
        self._costs.seen = dict.fromkeys(self._costs.mean, FEW)
        self._prefill.usual_length = float(values["usual_length"])
        self._prefill.waited = float(values["waited_seconds"])
        for source, known in values["sources"].items():
            self._sources[source] = SourceStats()
            self._sources[source].restore(known)
        self._plan(None, _Seen(), self._sources.keys())

    def _plan(self, last: Step | None, seen: _Seen, proposed: Collection[str]) -> None:
        """Choose the least and the most guesses of the next step."""
        self._plain = False
        if 1 not in self._costs.mean:
            return
        deepest = max((len(stats.rates.accepted) for stats in self._sources.values()), default=0)
        self._curve = self._costs.curve(min(self._max, deepest + STEP) + 1)
        accepted = {guess.source for guess in last.draft[: last.accepted]} if last else set()
        alone = len(self._sources) == 1
        for source, stats in self._sources.items():
            stats.least, stats.limit = 0, self._max
            if source not in proposed and stats.rate:
                continue
            if source not in seen.own:
                stats.declined()
            stats.update_rate(self._curve, alone)
            if stats.guess_cost is None:
                continue
            if stats.pays:
                stats.relieve()
            else:
                stats.probe(self._curve, alone, source in seen.own, source in accepted)
        leading = self._sources[last.draft[0].source] if last and last.draft else None
        if leading and leading.pays and not self._finished:
            self._vary(leading, len(seen.names))

    def _vary(self, stats: SourceStats, drafted: int) -> None:
        """Try another draft length now and then: a width that is never tried is never known."""
        self._paying += 1
        if self._paying % UNKNOWN == 0:
            length = self._promising(stats)
            if length:
                stats.least = stats.limit = length
                return
        if self._paying >= self._pause:
            self._paying, self._pause = 0, min(2 * self._pause, LAST_EXPERIMENT)
            self._experiments += 1
            self._plain = self._experiments % 2 == 1
            stats.least = stats.limit = min(drafted + STEP, self._max)

    def _promising(self, stats: SourceStats) -> int:
        """Return a draft length that would be the best if its pass cost as little as it may, or 0."""
        best, highest = 0, stats.rate * BETTER
        tokens = [1.0, *expected_tokens(stats.rates.first(self._max))]
        width = 2
        while width // 2 <= self._max:
            length = min(width - 1, self._max)
            if self._costs.seen.get(length + 1, 0) < FEW:
                seconds = self._costs.lower_bound(length + 1) + length * stats.cost
                if tokens[length] / seconds > highest:
                    best, highest = length, tokens[length] / seconds
            width *= 2
        return best


@dataclass(slots=True)
class _Seen:
    """The classes of a draft's guesses, their number by source, and the chance of accepting the first n."""

    names: list[str] = field(default_factory=list)
    own: dict[str, int] = field(default_factory=dict)
    survival: list[float] = field(default_factory=lambda: [1.0])
    last: Guess | None = None
