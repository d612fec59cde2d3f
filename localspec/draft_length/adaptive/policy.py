"""Drafts as many tokens as pay, none included, by measured costs and rates; what it tries has a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Annotated, Any

from localspec.core.contracts import DraftLengthPolicy
from localspec.core.types import Candidate, Company, Guess, LazyGuess, Step, Tokens, path_of
from localspec.draft_length.adaptive import branches
from localspec.draft_length.adaptive.acceptance import HALF_LIFE, STRENGTH, Acceptance
from localspec.draft_length.adaptive.costs import Costs
from localspec.draft_length.adaptive.ledger import Ledger
from localspec.draft_length.adaptive.state import VERSION
from localspec.plugins import Option

NEW = 0.25  # weight of the last pass in what is known of other texts


class Adaptive(DraftLengthPolicy):
    """Takes each guess that is worth more than its seconds, and tries others within a budget.

    With S the probability that a draft and one more guess are accepted, c(n) the seconds of a pass over n
    tokens, d those of the guess and v those that a token takes at the present speed, the guess is worth
    S v - d - (c(n + 1) - c(n)), and the guesses that may follow it are worth what they add in the best case.
    Taking what is worth more than nothing at the best speed maximizes tokens per second (Dinkelbach 1967, On
    nonlinear fractional programming; Leviathan et al. 2023, section 3, for the draft). A draft model's guess
    must be worth more than the retrieved token that it would replace.

    A draft model that has missed a text reads it once its guesses would have saved as much as reading costs,
    which loses at most twice what is lost in hindsight (ski rental; Karlin et al. 1988).

    A guess that is not worth its seconds at the mean acceptance rate, but at a rate drawn from its
    distribution (Thompson 1933), is tried while the budget allows it (ledger.py). One pass in HALF_LIFE is
    plain, because everything is compared with it. The first step of an answer runs no draft model, so the
    first token does not wait, and its seconds do not count, because engines do one-time work there.

    Where other texts share the passes, seconds are worth the tokens of all: with n texts alike, v is 1/n of
    what a token of this text takes, and c(n) is beside the tokens of the others. So the more texts, the fewer
    guesses, down to those that cost nothing.

    A guess of a branch is worth S (v - (c(n + 1) - c(n))) - (c(n + 1) - c(n)): where the target comes to it,
    the next pass reads it again, and gives one token more.
    """

    def __init__(
        self,
        *,
        max_tokens: Annotated[int, Option("maximum guesses per step", least=0, most=256)] = 16,
    ) -> None:
        self._max = max_tokens
        self._costs = Costs(max_tokens + 2)
        self._acceptance = Acceptance()
        self._trials = Ledger()  # what the guesses that were tried were expected to lose, of all time
        self._random = Random(0)
        self._luck = 0.0  # standard deviations above the mean rate at which guesses are tried in this step
        self._drafting = HALF_LIFE  # passes since the last plain one
        self._others = (0.0, 0.0)  # texts that share passes with this one, and their tokens, of late
        self._saved: dict[str, float] = {}
        self._begin()

    def _begin(self) -> None:
        self._answer = Ledger()
        self._opening = True
        self._speed = (0.0, 0.0)  # tokens of this answer and their seconds, faded
        # seconds, by source: what this step's first guess is worth, and what it saves a token
        self._asked: dict[str, tuple[float, float]] = {}
        self._gains: dict[str, tuple[float, int]] = {}  # what first guesses were worth, and their number
        # what a draft model's guesses would have saved, with half of the last answer's, up to a plain pass
        one = self._costs.curve[0]
        self._saved = {source: min(seconds / 2, one) for source, seconds in self._saved.items()}
        self._tried: dict[int, float] = {}  # by position: seconds that a guess which is tried may lose
        self._known: list[tuple[Guess, float, float]] = []  # guesses of a draft and what `_judged` said of it
        self._unread = 0  # tokens that a draft model did not read in the last step

    def begin(self, prompt: Tokens) -> None:
        """Start an answer."""
        self._begin()
        self._acceptance.begin()

    def wants_more(self, draft: Sequence[Guess], candidate: Candidate) -> bool:
        """Return whether `candidate` is worth more than its seconds, or may be tried."""
        if len(draft) >= self._most:
            return False
        if isinstance(candidate, Guess) and candidate.after is not None:
            return self._wants_branch(draft, candidate)
        survival, spent = self._judged(draft)
        if isinstance(candidate, LazyGuess):
            return not self._opening and self._wants_lazy(draft, candidate, survival, spent)
        at, source = len(draft), candidate.source
        worth = self._worth_of(candidate, draft, survival)
        if not draft:
            self._asked[source] = worth, 0.0
        price = spent + self._wider(at)
        if worth > 0:
            return self._answer.allows(price - worth, self._costs.curve[0])
        tried = self._may_try(price, -worth) and self._worth_of(candidate, draft, survival, self._luck) > 0
        if tried:
            self._tried[at] = -worth
        return tried

    def _wants_branch(self, draft: Sequence[Guess], candidate: Guess) -> bool:
        """Return the same for a guess of a branch."""
        at, price = len(draft), self._judged(draft)[1] + self._wider(len(draft))
        reached = branches.reaching(draft, candidate.after or (), self._acceptance)

        def worth(luck: float, curve: Sequence[float]) -> float:
            rate = self._acceptance.of_branch(candidate.source, candidate.confidence, luck)
            return branches.worth(reached * rate, self._seconds_per_token, curve[at + 1] - curve[at])

        if (mean := worth(0.0, self._costs.curve)) > 0:
            return self._answer.allows(price - mean, self._costs.curve[0])
        tried = self._may_try(price, -mean) and worth(self._luck, self._costs.least) > 0
        if tried:
            self._tried[at] = -mean
        return tried

    def _wants_lazy(
        self, draft: Sequence[Guess], candidate: LazyGuess, survival: float, spent: float
    ) -> bool:
        """Return the same for a guess of a draft model, which may have to read first."""
        source, at = candidate.source, len(draft)
        reading = self._costs.reading(source, candidate.behind)
        worth, better, tokens = self._worth_of_lazy(draft, candidate, survival)
        if not draft:
            self._asked[source] = worth, max(better, 0.0) / tokens
        price = spent + self._costs.guess(source, lazy=True) + self._wider(at)
        if better > 0:
            saved = self._saved.get(source, 0.0)
            paid = candidate.behind <= 2 or saved >= reading
            return paid and self._answer.allows(price - better, self._costs.curve[0])
        tried = self._may_try(price + reading, reading - better)
        tried = tried and self._worth_of_lazy(draft, candidate, survival, self._luck)[1] > 0
        if tried:
            self._tried[at] = reading - better
        return tried

    @property
    def _most(self) -> int:
        """The most guesses of a draft: none where a plain pass is due."""
        if self._drafting >= HALF_LIFE and not self._opening or not self._costs.knows_plain:
            return 0
        return min(self._max, self._costs.reach - 1)

    def _judged(self, draft: Sequence[Guess]) -> tuple[float, float]:
        """Return the probability that a whole draft is accepted, and the seconds of its guesses."""
        known = self._known
        if known and (len(known) > len(draft) or known[-1][0] is not draft[len(known) - 1]):
            known = self._known = []  # of another draft
        survival, spent = known[-1][1:] if known else (1.0, 0.0)
        on_path = len(path_of(draft[: len(known)]))
        for guess in draft[len(known) :]:
            if guess.after is None:
                survival *= self._acceptance.of(guess.source, guess.confidence, on_path)
                on_path += 1
            spent += self._costs.guess(guess.source)
            known.append((guess, survival, spent))
        return survival, spent

    def _worth_of(self, guess: Guess, draft: Sequence[Guess], survival: float, luck: float = 0.0) -> float:
        at, place = len(draft), len(path_of(draft))
        rate = self._acceptance.of(guess.source, guess.confidence, place, luck)
        following = self._acceptance.next(guess.source, guess.confidence, luck)
        return self._worth(at, survival * rate, following, self._costs.guess(guess.source), luck)[0]

    def _worth_of_lazy(
        self, draft: Sequence[Guess], candidate: LazyGuess, survival: float, luck: float = 0.0
    ) -> tuple[float, float, float]:
        """Return what a guess to be made is worth, how much more than the one that it would replace, and the
        expected tokens of its step.
        """
        source, at = candidate.source, len(draft)
        path = path_of(draft)
        rate = self._acceptance.next(source, path[-1].confidence if path else None, luck)
        run = self._acceptance.run(source, rate, luck)
        worth, tokens = self._worth(at, survival * rate, run, self._costs.guess(source, lazy=True), luck)
        other = self._worth_of(candidate.instead, draft, survival, luck) if candidate.instead else 0.0
        return worth, worth - max(other, 0.0), 1 + tokens

    def _worth(
        self, at: int, survival: float, following: float, seconds: float, luck: float
    ) -> tuple[float, float]:
        """Return the seconds that a guess at position `at` saves, and its tokens, with the best ones after.

        All up to it are accepted with probability `survival`, each one after it with probability `following`,
        and each takes `seconds`. With `luck`, passes wider than any that was measured cost no more.
        """
        curve = self._costs.least if luck else self._costs.curve
        token, total, tokens, best = self._seconds_per_token, 0.0, 0.0, (-float("inf"), 0.0)
        for count in range(at + 1, self._most + 1):
            total += survival * token - seconds - curve[count] + curve[count - 1]
            tokens += survival
            if total > best[0]:
                best = total, tokens
            survival *= following
        return best

    def _wider(self, at: int) -> float:
        """Return the seconds by which a pass that verifies position `at` takes longer than a plain one."""
        return self._costs.curve[at + 1] - self._costs.curve[0]

    @property
    def _seconds_per_token(self) -> float:
        """Seconds of a token of any text at the present speed, at most those in plain passes."""
        (tokens, seconds), one = self._speed, self._costs.curve[0]
        return min((seconds + STRENGTH * one) / (tokens + STRENGTH), one) / self._texts

    @property
    def _texts(self) -> float:
        """Texts in a pass."""
        return 1 + self._others[0]

    def _may_try(self, price: float, loss: float) -> bool:
        """Return whether a guess may be tried: this answer can bear its price, and the process its loss."""
        one = self._costs.curve[0]
        return self._luck > 0 and self._answer.allows(price, one) and self._trials.allows(loss, one)

    def learn(self, last: Step) -> None:
        """Take in what the pass and the guesses cost and which were accepted."""
        behind = {one.source: one.behind for one in reversed(last.proposals) if one.taken and one.behind}
        self._learn_draft(last, behind)
        alike = self._share(last.company)
        if not self._opening:
            guesses = last.drafted + len(last.branches)
            asked = [source for source in behind if not guesses]  # and told nothing yet
            self._drafting = self._drafting + 1 if guesses or asked else 0
            if asked:
                self._costs.learn_asking(asked[0], last.target_seconds)
            elif alike:
                beside = last.company.tokens + last.company.drafts
                self._costs.learn_pass(guesses + 1, last.target_seconds, beside)
            self._settle(last, behind)
        for source in {one.source for one in last.proposals} & self._asked.keys():
            worth, better = self._asked[source]
            total, count = self._gains.get(source, (0.0, 0))
            self._gains[source] = total + worth, count + 1
            self._saved[source] = self._saved.get(source, 0.0) + better * len(last.tokens)
        if last.drafted or last.proposals:
            self._unread = 0 if last.drafted else last.proposals[0].behind
        self._asked, self._tried, self._known, self._opening = {}, {}, [], False
        self._luck = self._random.gauss()

    def _share(self, company: Company) -> bool:
        """Take in the other texts of a pass; return False if it read a prompt of theirs: that ends soon."""
        texts, tokens = company.texts, company.tokens
        if tokens > texts * (self._max + 1):
            return False
        new = 1.0 if self._opening else NEW
        self._others = (1 - new) * self._others[0] + new * texts, (1 - new) * self._others[1] + new * tokens
        self._costs.share(round(self._others[1]) + company.drafts)
        return True

    def _learn_draft(self, last: Step, behind: Mapping[str, int]) -> None:
        self._acceptance.advance(len(last.tokens))
        before = None
        # the guess after the last accepted one was rejected, unless the answer ended there
        for at, guess in enumerate(last.draft[: last.accepted + (last.finish is None)]):
            self._acceptance.learn(guess.source, guess.confidence, at, before, at < last.accepted)
            before = guess.confidence
        branches.learn(last, self._acceptance)
        for source in dict.fromkeys(guess.source for guess in last.draft):
            own = [cost for guess, cost in zip(last.draft, last.costs, strict=True) if guess.source == source]
            self._costs.learn_guesses(source, own, behind.get(source, 0))

    def _settle(self, last: Step, behind: Mapping[str, int]) -> None:
        """Enter a step in the ledgers, at what it is known to cost, and bring the speed up to date."""
        one, tokens = self._costs.curve[0], len(last.tokens)
        guesses = min(last.drafted + len(last.branches), self._max)
        seconds = self._costs.curve[guesses] + self._judged(last.draft)[1]
        if not guesses:
            seconds += sum(self._costs.guess(source) for source in behind)
        reading = sum(self._costs.reading(source, count) for source, count in behind.items())
        self._answer.enter(seconds - one - (tokens - 1) * one / self._texts, seconds)
        tried = sum(loss for at, loss in self._tried.items() if at < guesses)
        self._trials.enter(tried, seconds + reading)
        fade = 0.5 ** (tokens / HALF_LIFE)
        self._speed = fade * self._speed[0] + tokens, fade * self._speed[1] + seconds

    @property
    def gains(self) -> dict[str, float]:
        """The expected gain of a step's first guess in this answer by source, in passes over one token."""
        one = self._costs.curve[0]
        return {source: total / count / one for source, (total, count) in self._gains.items()}

    @property
    def reason(self) -> str | None:
        """Why the policy does not draft: what a guess costs and how many are accepted, or what is unread."""
        if not (gains := self.gains):
            return None
        source = max(gains, key=gains.__getitem__)
        if gains[source] > 0:
            if self._unread <= 2 or self._opening:
                return None
            return (
                f"reading {self._unread:,} tokens would cost the draft more than it has been likely to save"
            )
        one, two = self._costs.curve[:2]
        cost, rate = self._costs.guess(source) + two - one, self._acceptance.next(source, None)
        shared = f", and {self._texts:.0f} texts share a pass" if round(self._texts) > 1 else ""
        return f"a guess costs {cost / one:.1f} of a pass and {rate:.0%} are accepted{shared}"

    def state(self) -> dict[str, Any]:
        """Return what was learned, as plain values for `restore`."""
        return {"version": VERSION, **self._costs.state(), "accepted": self._acceptance.state()}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Restore a `state`; a malformed one, or one of another version, changes nothing."""
        costs, acceptance = Costs(self._max + 2), Acceptance()
        try:
            if values["version"] != VERSION:
                return
            costs.restore(values)
            acceptance.restore(values["accepted"])
        except (KeyError, TypeError, ValueError):
            return
        self._costs, self._acceptance = costs, acceptance
        self._drafting = 0.0 if costs.knows_plain else HALF_LIFE
