"""As many guesses as pay, none included, by what passes and guesses have cost and how many stood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from localspec.core.contracts import DraftLengthPolicy
from localspec.core.types import Guess, LazyGuess, Step
from localspec.draft_length.adaptive.costs import Costs
from localspec.draft_length.adaptive.draft_prefill import Answers
from localspec.draft_length.adaptive.source_stats import Pace
from localspec.draft_length.adaptive.validation import VERSION, fit
from localspec.drafting.acceptance import LITTLE, class_of, survivals
from localspec.plugins import Option

STEP = 2  # how far past the deepest guess seen it may go
UNKNOWN = 5  # rounds of guessing between two trials of a width that may be better than all known ones
EXPERIMENT = 32  # the same when none may be; doubles up to LAST_EXPERIMENT
LAST_EXPERIMENT = 128
BETTER = 1.05  # times the rate so far must be possible for a trial
CHEAP = 0.02  # of a pass: such a guess delays no first token


class Adaptive(DraftLengthPolicy):
    """Takes the depth with the most expected tokens a second; stops guessing when that is none.

    For a depth d: (1 + sum over i <= d of a_1 ... a_i) / (d * draft + target(d + 1)), with a_i the share of
    guesses at position i that stood given that those before did (Leviathan et al. 2023, section 3, with
    measured numbers in place of one alpha). A doubtful guess ends the draft early, a sure one prolongs it:
    at the best rate r, one more guess pays when its expected tokens / r exceed its seconds (core/pace.py).
    Sources that share a draft have a pace each: their guesses cost and stand differently.

    While guessing does not pay it tries again, ever more rarely. The first round of an answer is plain unless
    guesses are as good as free, so the first token does not wait for a draft that must read the whole prompt.
    Its seconds are not counted: what an engine does once, it does there. A draft that must read what it has
    missed does so where the rest of the answer is likely to pay for it (core/catchup.py).
    """

    def __init__(
        self,
        *,
        most: Annotated[int, Option("most guesses a round", least=0, most=256)] = 16,
        start: Annotated[int, Option("guesses of the first draft and of a probe", least=1, most=256)] = 2,
    ) -> None:
        self._most = most
        self._start = min(start, most)
        self._costs = Costs()
        self._curve: list[float] = []
        self._paces: dict[str, Pace] = {}
        self._answers = Answers()
        self._unread = 0  # tokens that were too many to be read for a draft of this answer
        self._behind: dict[str, int] = {}  # tokens that were read for a source's first guess of this round
        self._met: dict[str, bool] = {}  # sources that had a step this round: was it an offer
        self._names: list[str] = []  # classes of this round's guesses
        self._own: dict[str, int] = {}  # this round's guesses by source
        self._survival: list[float] = [1.0]  # chance that this round's guesses up to here all stand
        self._plain = False  # must the round to come be a plain one
        self._opening = True
        self._paid = 0
        self._pause = EXPERIMENT
        self._turn = 0

    def wants_more(self, draft: Sequence[Guess], step: Guess | LazyGuess) -> bool:
        """Tell whether the expected tokens of going on are worth more than its seconds."""
        wanted = self._wants(draft, step)
        if wanted and isinstance(step, LazyGuess) and self._missed(step):
            self._behind[step.source], self._unread = step.behind, 0
            if not self._pace(step.source).pays:
                self._answers.waited = 0.0
        return wanted

    def _wants(self, draft: Sequence[Guess], step: Guess | LazyGuess) -> bool:
        count, source = len(draft), step.source
        if count < len(self._names):
            self._forget()
        for guess in draft[len(self._names) :]:
            self._see(guess)
        offered = isinstance(step, LazyGuess)
        self._met.setdefault(source, offered)
        pace = self._pace(source)
        if not self._curve or self._plain or count >= self._most:
            return False
        own = self._own.get(source, 0)
        if pace.spent is None:  # what it costs must be seen first
            return own < self._start and not (offered and self._opening)
        if isinstance(step, LazyGuess) and not self._affords(pace, step):
            return False
        if own < pace.least or own >= pace.limit:
            return own < pace.limit
        return self._pays(pace, draft, step)

    def _affords(self, pace: Pace, step: LazyGuess) -> bool:
        """Tell whether an offer costs no more at once than it may: the first token waits for little."""
        if self._opening and pace.cost > CHEAP * self._curve[0]:
            return False
        if not self._missed(step) or self._answers.affords(pace, self._curve[0], step.behind):
            return True
        self._unread = step.behind if pace.pays else 0
        return False

    def _missed(self, step: LazyGuess) -> bool:
        """Tell whether an offer must read more than a round leaves behind."""
        return step.behind > self._most + 1

    def learn(self, last: Step) -> None:
        """Take in what the pass and the guesses cost and which of them stood, and choose the next depth."""
        if self._opening:
            self._unread = 0
        else:
            self._costs.learn(last.drafted + 1, last.target_seconds)
        if last.drafted:
            self._learn_draft(last)
        for source, pace in self._paces.items():
            pace.asked = source in self._met and (source in self._own or not self._met[source])
        asked = not last.draft or last.draft[0].source in self._met and self._met[last.draft[0].source]
        seconds = last.target_seconds + last.draft_seconds
        self._answers.learn(len(last.tokens), seconds, asked, last.finish is not None)
        self._opening = last.finish is not None
        if self._opening:
            for pace in self._paces.values():
                pace.begin()
        self._plan(last)
        self._forget()
        self._met = {}

    @property
    def reason(self) -> str | None:
        """Say what a guess costs and how many stand, or what is not read, where that stops it."""
        if self._unread:
            return f"to read {self._unread:,} tokens costs a draft more than it is likely to save here"
        known = [pace for pace in self._paces.values() if pace.spent is not None]
        if not known or any(pace.pays for pace in known):
            return None
        one, two = self._costs.curve(2)
        cost, share = known[0].cost + two - one, known[0].shares.at(0)
        return f"a guess costs {cost / one:.1f} of a pass and {share:.0%} stand"

    def state(self) -> dict[str, Any]:
        """Return what was learnt, as plain values for `restore`."""
        return {
            "version": VERSION,
            "usual": self._answers.usual,
            "waited": self._answers.waited,
            "passes": [[width, self._costs.mean[width]] for width in sorted(self._costs.mean)],
            "sources": {source: pace.state() for source, pace in self._paces.items()},
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take up a `state`. What is malformed or of another version changes nothing."""
        if not fit(values):
            return
        self._costs.mean = {width: float(seconds) for width, seconds in values["passes"]}
        self._costs.seen = dict.fromkeys(self._costs.mean, 2)
        self._answers.usual, self._answers.waited = float(values["usual"]), float(values["waited"])
        for source, known in values["sources"].items():
            self._paces[source] = Pace()
            self._paces[source].restore(known)
        self._plan(None)

    def _forget(self) -> None:
        self._names, self._own, self._survival, self._behind = [], {}, [1.0], {}

    def _pace(self, source: str) -> Pace:
        """Return what is known of a source, nothing of a new one."""
        if source not in self._paces:
            self._paces[source] = Pace()
        return self._paces[source]

    def _see(self, guess: Guess) -> None:
        """Take in a new guess of this round."""
        name = class_of(guess.source, guess.confidence, len(self._names))
        pace = self._pace(guess.source)
        share = pace.shares.at(len(self._names))
        self._survival.append(self._survival[-1] * pace.chance(share, name))
        self._names.append(name)
        self._own[guess.source] = self._own.get(guess.source, 0) + 1

    def _pays(self, pace: Pace, draft: Sequence[Guess], step: Guess | LazyGuess) -> bool:
        """Tell whether a step is worth its seconds; of a guess that was made one knows how sure it is."""
        count, curve, survival = len(draft), self._curve, self._survival[-1]
        if count + 1 >= len(curve):
            return False
        leading = self._paces[draft[0].source] if draft else pace
        rate = leading.rate or 1 / curve[0]  # of a source that is new, no more is known
        if isinstance(step, LazyGuess):
            if not draft:
                return pace.pays
            chance = pace.next_chance(pace.shares.at(count), self._names[-1])
            return pace.worth(curve, rate, count, (survival, chance)) > 0
        name = class_of(step.source, step.confidence, count)
        survival *= pace.chance(pace.shares.at(count), name)
        costs = curve[count + 1] - curve[count]
        pays = survival / rate > costs or pace.worth_of(curve, rate, count + 1, survival, name) > costs
        if not pays:
            pace.classes.doubt(name)
        return pays

    def _plan(self, last: Step | None) -> None:
        """Choose the least and the most guesses of the round to come."""
        self._plain = False
        if 1 not in self._costs.mean:
            return
        deepest = max((len(pace.shares.stood) for pace in self._paces.values()), default=0)
        self._curve = self._costs.curve(min(self._most, deepest + STEP) + 1)
        alone = len(self._paces) == 1
        for source, pace in self._paces.items():
            pace.least, pace.limit = 0, self._most
            if last is not None and source not in self._met:
                continue
            if source not in self._own:
                pace.refused()
            pace.weigh(self._curve, alone)
            if pace.spent is None:
                continue
            if pace.pays:
                pace.relieve()
            else:
                stood = last.draft[: last.accepted] if last else ()
                accepted = any(guess.source == source for guess in stood)
                pace.probe(self._curve, alone, source in self._own, accepted)
        leading = self._paces[last.draft[0].source] if last and last.draft else None
        if leading and leading.pays and not self._opening:
            self._vary(leading)

    def _vary(self, pace: Pace) -> None:
        """Now and then try another depth: what is never tried is never known."""
        self._paid += 1
        if self._paid % UNKNOWN == 0:
            depth = self._promising(pace)
            if depth:
                pace.least = pace.limit = depth
                return
        if self._paid >= self._pause:
            self._paid, self._pause = 0, min(2 * self._pause, LAST_EXPERIMENT)
            self._turn += 1
            self._plain = self._turn % 2 == 1
            pace.least = pace.limit = min(len(self._names) + STEP, self._most)

    def _promising(self, pace: Pace) -> int:
        """Return a depth that would be the best one if its pass cost as little as it may, or 0."""
        best, highest = 0, pace.rate * BETTER
        tokens = [1.0, *survivals(pace.shares.reaching(self._most))]
        width = 2
        while width // 2 <= self._most:
            depth = min(width - 1, self._most)
            if self._costs.seen.get(depth + 1, 0) < LITTLE:
                seconds = self._costs.least(depth + 1) + depth * pace.cost
                if tokens[depth] / seconds > highest:
                    best, highest = depth, tokens[depth] / seconds
            width *= 2
        return best

    def _learn_draft(self, last: Step) -> None:
        for guess in last.draft[len(self._names) :]:  # nobody asked to go on from the last one
            self._see(guess)
        sources = [guess.source for guess in last.draft]
        # the guess after the last that stood was wrong, unless the answer ended there
        judged = min(last.accepted + (last.finish is None), last.drafted)
        leading = self._paces[sources[0]]
        if leading.least < leading.limit and last.drafted < len(self._curve):
            seconds = sum(self._paces[source].cost for source in sources) + self._curve[last.drafted]
            leading.learn_rate(sum(self._survival[: last.drafted + 1]), seconds)
        for source in dict.fromkeys(sources):
            pace, own = self._paces[source], [at for at, name in enumerate(sources) if name == source]
            if behind := self._behind.get(source):
                pace.learn_reading(last.costs[own[0]], behind)
            pace.learn_cost(sum(last.costs[at] for at in own) / len(own))
            pace.shares.reach(own[-1] + 1)
            for at in own:
                if at < judged:
                    before = self._names[at - 1] if at else None
                    pace.learn_guess(at, at < last.accepted, self._names[at], before)
            pace.learn_first(self._names[own[0]], own[0] < judged)
            pace.settle()
