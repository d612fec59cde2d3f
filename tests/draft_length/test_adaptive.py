"""The measured draft-length policy on a simulated pair: costs are given, guesses stand at random."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import mul
from statistics import mean, median
from typing import Any, ClassVar

import pytest
from driven import Driven

from localspec.core.types import Guess, LazyGuess, Step
from localspec.draft_length.adaptive.policy import Adaptive

MOST = 16
OFFER = LazyGuess(lambda: Guess(0))
SEEDS = range(6)
FRESH = range(100, 112)  # on which no constant was chosen


def processed(
    draft: Sequence[Guess], accepted: int, drafting: float, target: float, finish: str | None = None
) -> Step:
    """Return a round; its drafting is spread evenly over the guesses."""
    costs = (drafting / max(len(draft), 1),) * len(draft)
    tokens = (0,) * (accepted + 1)
    return Step(tokens, len(draft), accepted, drafting, target, "", finish, tuple(draft), costs)


class Pair:
    """A target whose pass over `width` tokens takes `passes(width)` seconds, and a draft.

    The first round reads a prompt, and the first guess after rounds without any reads what the draft missed.
    """

    def __init__(
        self,
        passes: Callable[[int], float],
        guess: float,
        stands: float | Callable[[int], float],
        seed: int = 0,
    ) -> None:
        self.passes = passes
        self.guess = guess
        self.stands = stands if callable(stands) else lambda position, share=stands: share
        self.random = random.Random(seed)
        self.draft_length = Driven(Adaptive())
        self.depths: list[int] = []
        self.seconds = 0.0
        self.tokens = 0
        self.unread = 200

    def run(self, steps: int, slow: float = 1.0, finish: str | None = None) -> list[int]:
        """Return the depths of some more rounds; `slow` is how much longer each pass takes for once."""
        for _ in range(steps):
            self._round(slow, finish)
        return self.depths[-steps:]

    def _round(self, slow: float, finish: str | None) -> None:
        draft: list[Guess] = []
        while self.draft_length.wants_more(draft, OFFER):
            draft.append(Guess(0))
        accepted = 0
        while accepted < len(draft) and self.random.random() < self.stands(accepted + 1):
            accepted += 1
        reading = 40.0 if not self.depths else 0.0
        catching_up = 0.02 * self.guess * self.unread if draft else 0.0
        self.unread = 0 if draft else self.unread + 1
        target = (self.passes(len(draft) + 1) + reading) * self._blur() * slow
        drafting = self.guess * len(draft) * self._blur() + catching_up
        self.draft_length.learn(processed(draft, accepted, drafting, target, finish))
        self.depths.append(len(draft))
        self.seconds += target + drafting
        self.tokens += accepted + 1

    def _blur(self) -> float:
        return 1 + 0.05 * abs(self.random.gauss(0, 1))

    def rate(self, depth: int) -> float:
        """Return the expected tokens a second at a fixed depth."""
        tokens = survival = 1.0
        for position in range(1, depth + 1):
            survival *= self.stands(position)
            tokens += survival
        return tokens / (depth * self.guess + self.passes(depth + 1))

    def best(self) -> int:
        return max(range(MOST + 1), key=self.rate)

    def near_best(self, depth: float) -> bool:
        near = abs(depth - self.best()) <= 1
        return near or self.rate(round(depth)) >= 0.97 * self.rate(self.best())


def line(slope: float) -> Callable[[int], float]:
    return lambda width: 1 + slope * (width - 1)


PAIRS: dict[str, tuple[Callable[[int], float], float, float | Callable[[int], float], int]] = {
    "a small draft on a GPU": (line(0.02), 0.1, 0.6, 3),
    "a tiny, good one": (line(0.01), 0.01, 0.95, 16),
    "a CPU": (line(0.1), 0.15, 0.7, 2),
    "a CPU, dearer": (line(0.15), 0.3, 0.8, 2),
    "copies, good": (line(0.1), 0.0005, 0.9, 10),
    "copies, bad": (line(0.1), 0.0005, 0.3, 1),
    "tiles of eight": (lambda width: 1.0 + (width - 1) // 8, 0.03, 0.85, 7),
    "ever worse guesses": (line(0.03), 0.06, lambda position: 0.9 * 0.92**position, 4),
    "a dear draft": (line(0.1), 0.8, 0.5, 0),
    "a bad draft": (line(0.15), 0.2, 0.2, 0),
    "a cheap target": (line(0.5), 0.5, 0.6, 0),
    "guesses that never stand": (line(0.02), 0.01, 0.0, 0),
}


@pytest.mark.parametrize("name", PAIRS)
def test_it_comes_near_the_best_depth(name: str) -> None:
    passes, guess, stands, best = PAIRS[name]
    reached = []
    for seed in FRESH:
        pair = Pair(passes, guess, stands, seed)
        assert pair.best() == best
        pair.run(100)
        reached.append(mean(map(pair.rate, pair.run(40))) / pair.rate(best))
    assert mean(reached) > 0.98
    assert min(reached) > 0.93


@pytest.mark.parametrize(
    "name", ["a dear draft", "a bad draft", "a cheap target", "guesses that never stand"]
)
def test_it_is_hardly_slower_where_guessing_does_not_pay(name: str) -> None:
    pair = Pair(*PAIRS[name][:3])
    pair.run(30)
    pair.seconds = pair.tokens = 0
    pair.run(3000)
    assert pair.tokens / pair.seconds > 0.97 * pair.rate(0) / 1.04  # 1.04 is the blur on average


def test_it_stops_within_sixty_rounds_when_guesses_get_bad() -> None:
    for seed in SEEDS:
        pair = Pair(line(0.1), 0.2, 0.8, seed)
        assert median(pair.run(100)[-20:]) >= 1
        pair.stands = lambda position: 0.1
        assert pair.draft_length.reason is None
        pair.run(60)
        assert median(pair.run(20)) == 0


def test_it_starts_again_when_guesses_get_good_after_a_while() -> None:
    soon = []
    for seed in SEEDS:
        pair = Pair(line(0.1), 0.2, 0.1, seed)
        assert median(pair.run(30)[-10:]) == 0
        pair.stands = lambda position: 0.9
        pair.run(60)
        soon.append(mean(map(pair.rate, pair.run(20))))
        pair.run(120)  # a probe may have bad luck
        assert mean(map(pair.rate, pair.run(20))) > 0.9 * pair.rate(pair.best())
    assert median(soon) > 0.9 * pair.rate(pair.best())


@pytest.mark.parametrize(("before", "after"), [(0.9, 0.5), (0.4, 0.9)])
def test_it_follows_within_sixty_rounds_while_guessing(before: float, after: float) -> None:
    for seed in SEEDS:
        pair = Pair(line(0.02), 0.05, before, seed)
        pair.run(100)
        pair.stands = lambda position: after
        pair.run(60)
        assert mean(map(pair.rate, pair.run(20))) > 0.9 * pair.rate(pair.best())


def test_probes_get_ever_rarer_up_to_a_limit() -> None:
    pair = Pair(line(0.5), 0.8, 0.5)  # would not pay if every guess stood
    pair.run(6000)
    probes = [at for at in range(4, 6000) if pair.depths[at] and not pair.depths[at - 1]]
    gaps = [later - earlier for earlier, later in zip(probes, probes[1:], strict=False)]
    assert gaps[0] < 40
    assert set(gaps[-2:]) <= {513, 514}  # 512 and the probe itself
    assert sum(map(bool, pair.depths)) < 40


def test_probes_stay_frequent_where_they_lose_little() -> None:
    pair = Pair(line(0.05), 0.001, 0.02)
    pair.run(1000)
    pair.stands = lambda position: 0.95
    pair.run(60)
    assert pair.near_best(median(pair.run(20)))


def test_one_slow_pass_does_not_turn_it_off_for_long() -> None:
    for seed in SEEDS:
        pair = Pair(*PAIRS["a CPU"][:3], seed=seed)
        pair.run(60)
        pair.run(1, slow=100)
        pair.run(10)
        assert pair.near_best(median(pair.run(15)))


def test_nor_one_of_the_only_depth_there_is() -> None:
    pair = Pair(line(0.1), 0.1, 0.9)
    pair.draft_length = Driven(Adaptive(max_tokens=1))
    pair.run(45)
    pair.run(1, slow=100)
    assert pair.run(15) == [1] * 15


def test_a_prompt_read_in_the_first_pass_is_no_cost() -> None:
    pair = Pair(*PAIRS["a dear draft"][:3])
    pair.run(12)
    assert pair.draft_length.reason is not None


@pytest.mark.parametrize(("guess", "plain"), [(0.05, True), (0.01, False)])
def test_the_first_round_of_an_answer_is_plain_unless_guesses_are_free(guess: float, plain: bool) -> None:
    pair = Pair(line(0.01), guess, 0.95)
    pair.run(20)
    pair.run(1, finish="stop")
    depths = pair.run(3)
    assert (depths[0] == 0) is plain
    assert depths[-1] > 2


def test_a_changed_speed_of_plain_passes_is_noticed() -> None:
    speed = [1.0]
    pair = Pair(lambda width: speed[0] if width == 1 else 1.2, 0.05, 0.5)
    assert median(pair.run(100)[-20:]) > 0
    speed[0] = 0.4  # nothing but a plain round now and then can tell
    pair.run(400)
    assert median(pair.run(20)) == 0


def test_the_reason_names_cost_and_acceptance() -> None:
    pair = Pair(line(0.1), 0.8, 0.5)
    assert pair.draft_length.reason is None
    pair.run(200)
    reason = pair.draft_length.reason
    assert reason is not None
    assert reason.startswith("a guess costs 0.9 of a pass and ")
    assert reason.endswith("% are accepted")
    assert Pair(*PAIRS["a CPU"][:3]).run(1) == [0]


def test_no_reason_while_guessing() -> None:
    pair = Pair(*PAIRS["a tiny, good one"][:3])
    for _ in range(150):
        pair.run(1)
        assert pair.draft_length.reason is None


def test_it_asks_for_no_more_than_the_most() -> None:
    pair = Pair(line(0.0), 0.0, 1.0)
    pair.draft_length = Driven(Adaptive(max_tokens=5))
    assert max(pair.run(100)) == 5
    pair.draft_length = Driven(Adaptive(max_tokens=0))
    assert max(pair.run(100)) == 0


def test_a_drafter_without_guesses_is_asked_again() -> None:
    draft_length = Driven(Adaptive())
    for _ in range(50):
        draft_length.learn(processed([], 0, 0.001, 1.0))
    assert draft_length.wants_more([], OFFER)


def test_a_clock_that_stands_still_breaks_nothing() -> None:
    draft_length = Driven(Adaptive())
    for drafted in (0, 0, 2, 2, 2, 0, 2):
        draft_length.learn(processed([Guess(0)] * drafted, 0, 0.0, 0.0))
        assert draft_length.wants_more([], OFFER) in (True, False)
    assert draft_length.reason is None


def test_guesses_behind_the_end_of_an_answer_are_not_held_against_the_draft() -> None:
    pair = Pair(line(0.02), 0.05, 1.0)
    pair.run(30)
    for _ in range(60):
        pair.draft_length.learn(processed([Guess(0)] * 5, 2, 0.25, 1.1, "stop"))
    assert pair.run(2) == [0, MOST]


def test_asking_is_pure() -> None:
    """The same questions get the same answers, and what is learned afterwards does not depend on them."""
    asked, quiet = (Telling(CURVES["a GPU"], 0.02, 0.6) for _ in range(2))
    guesses = [Guess(0, None, confidence) for confidence in (0.9, 0.3, 0.6, 0.99)]
    for _ in range(200):
        first = [asked.draft_length.policy.wants_more(guesses[:at], guesses[at]) for at in range(4)]
        again = [asked.draft_length.policy.wants_more(guesses[:at], guesses[at]) for at in range(4)]
        assert first == again
        assert asked.run(1) == quiet.run(1)
    assert asked.draft_length.state() == quiet.draft_length.state()


def test_after_an_interrupt_the_next_answer_begins_like_any_other() -> None:
    pair = Pair(line(0.02), 0.05, 1.0)
    pair.run(300)
    usual = pair.draft_length.state()["usual_length"]
    for _ in range(20):
        pair.draft_length.end()  # Ctrl-C
        assert pair.run(30)[0] == 0
    assert pair.draft_length.state()["usual_length"] == usual
    pair.draft_length.end()
    pair.run(2)
    pair.run(1, finish="stop")
    assert pair.draft_length.state()["usual_length"] < usual  # 35 tokens; the aborted answers do not count


def test_what_an_interrupted_answer_had_planned_is_dropped() -> None:
    """The next step may be a trial of a longer draft or a plain one: neither is for another answer."""
    for steps in range(30, 130):
        pair = Pair(line(0.02), 0.05, 0.9, seed=steps)
        pair.run(steps)
        pair.draft_length.end()
        stats = pair.draft_length._sources[""]
        assert (stats.least, stats.limit, pair.draft_length._plain) == (0, MOST, False)


def points(*seconds: float) -> Callable[[int], float]:
    """Return the cost of passes from that of the widths 1, 2, 4, 8 and 16, as a share of the first."""

    def passes(width: int) -> float:
        at = next((at for at in range(4) if width <= 2 ** (at + 1)), 3)
        low, high = seconds[at], seconds[at + 1]
        return (low + (high - low) * (width - 2**at) / 2**at) / seconds[0]

    return passes


CURVES = {
    "openvino on a CPU": points(88, 95, 114, 137, 159),
    "llama.cpp on a CPU": points(37, 57, 101, 224, 253),
    "a GPU": points(20, 20.3, 20.5, 21, 22),
}
every_curve = pytest.mark.parametrize("curve", CURVES)


def expected(pair: Pair, steps: int) -> float:
    """Return the expected tokens a second of some more rounds, catching up left out."""
    depths = pair.run(steps)
    seconds = [depth * pair.guess + pair.passes(depth + 1) for depth in depths]
    tokens = [pair.rate(depth) * cost for depth, cost in zip(depths, seconds, strict=True)]
    return sum(tokens) / sum(seconds)


@every_curve
@pytest.mark.parametrize("guess", [0.001, 0.02, 0.3, 0.5, 0.8])
def test_regret_is_small(curve: str, guess: float) -> None:
    for stands in (0.1, 0.3, 0.5, 0.8, 0.95, lambda position: 0.95 * 0.9**position):
        pair = Pair(CURVES[curve], guess, stands)
        assert expected(pair, 2000) > 0.97 * pair.rate(pair.best())


@every_curve
@pytest.mark.parametrize("guess", [0.02, 0.3, 0.5, 0.8])
@pytest.mark.parametrize("start", [1, 2, 8])
def test_it_settles_within_fifty_rounds(curve: str, guess: float, start: int) -> None:
    for stands in (0.1, 0.3, 0.6, 0.9):
        ends = []
        for seed in SEEDS:
            pair = Pair(CURVES[curve], guess, stands, seed)
            pair.draft_length = Driven(Adaptive(start=start))
            pair.run(50)
            ends.append(pair.rate(round(median(pair.run(15)))))
        assert mean(ends) > 0.97 * pair.rate(pair.best())


@every_curve
def test_useless_drafts_cost_next_to_nothing(curve: str) -> None:
    pair = Pair(CURVES[curve], 0.5, 0.02)
    pair._blur = lambda: 1.0  # type: ignore[method-assign]
    pair.run(2001)
    assert pair.seconds - 40 <= 1.03 * 2001


@pytest.mark.parametrize(("before", "after"), [(0.9, 0.2), (0.3, 0.9)])
def test_it_follows_within_thirty_rounds(before: float, after: float) -> None:
    ends = []
    for seed in FRESH:
        pair = Pair(CURVES["a GPU"], 0.1, before, seed)
        pair.run(300)
        pair.stands = lambda position: after
        pair.run(30)
        ends.append(pair.rate(round(median(pair.run(15)))))
    assert mean(ends) > 0.95 * pair.rate(pair.best())


def test_a_step_in_the_costs_is_got_over() -> None:
    pairs = [Pair(CURVES["llama.cpp on a CPU"], 0.02, 0.95, seed) for seed in SEEDS]
    for pair in pairs:  # 3 guesses are the best among the first 12 and reach 0.83 of the rate of 16
        pair.run(100)
    assert mean(expected(pair, 200) for pair in pairs) > 0.96 * pairs[0].rate(16)


@every_curve
def test_slow_passes_now_and_then_do_not_matter(curve: str) -> None:
    pair = Pair(CURVES[curve], 0.1, 0.8)
    outlier = random.Random(5)
    depths = [pair.run(1, slow=5.0 if outlier.random() < 0.02 else 1.0)[0] for _ in range(1500)]
    assert mean(map(pair.rate, depths[50:])) > 0.95 * pair.rate(pair.best())


DRAFT = LazyGuess(lambda: Guess(0, None, 0.9, "a draft"), "a draft")


class Telling(Pair):
    """A pair whose drafter knows which half of its guesses is doubtful."""

    def _round(self, slow: float, finish: str | None) -> None:
        draft: list[Guess] = []
        while self.draft_length.wants_more(draft, DRAFT):
            draft.append(Guess(0, None, self.random.choice((0.9, 0.4)), "a draft"))
        accepted = 0
        while accepted < len(draft) and self.random.random() < self.share(draft[accepted]):
            accepted += 1
        target, drafting = self.passes(len(draft) + 1), self.guess * len(draft)
        self.draft_length.learn(processed(draft, accepted, drafting, target, finish))
        self.depths.append(len(draft))
        self.seconds += target + drafting
        self.tokens += accepted + 1

    @staticmethod
    def share(guess: Guess) -> float:
        return 0.95 if guess.confidence > 0.5 else 0.2


@pytest.mark.parametrize(
    ("curve", "guess"),
    [("openvino on a CPU", 0.001), ("openvino on a CPU", 0.1), ("a GPU", 0.1), ("a GPU", 0.3)],
)
def test_with_telling_confidence_it_beats_every_fixed_depth(curve: str, guess: float) -> None:
    rates = []
    for seed in SEEDS:
        pair = Telling(CURVES[curve], guess, (0.95 + 0.2) / 2, seed)
        pair.run(2000)
        rates.append(pair.tokens / pair.seconds)
    assert mean(rates) > 1.04 * pair.rate(pair.best())


def test_a_doubtful_guess_ends_the_draft_and_a_sure_one_goes_on() -> None:
    pair = Telling(CURVES["a GPU"], 0.2, 0.575)
    pair.run(300)
    sure, doubtful = Guess(0, None, 0.9, "a draft"), Guess(0, None, 0.4, "a draft")
    pair.run(1)
    assert pair.draft_length.wants_more([], DRAFT)
    assert pair.draft_length.wants_more([sure], DRAFT)
    assert not pair.draft_length.wants_more([sure, doubtful, doubtful], DRAFT)


@pytest.mark.parametrize(("guess", "stands"), [(0.05, 0.9), (0.8, 0.2), (0.001, 0.9)])
def test_a_restored_pair_starts_where_it_was(guess: float, stands: float) -> None:
    old = Pair(CURVES["openvino on a CPU"], guess, stands)
    old.run(300)
    new = Pair(old.passes, guess, stands, seed=7)
    new.draft_length.restore(json.loads(json.dumps(old.draft_length.state())))
    assert new.near_best(median(new.run(6)[1:]))
    assert len(json.dumps(old.draft_length.state())) < 4000


def test_a_state_is_fit_to_be_restored_however_long_it_learned() -> None:
    for stands in (1.0, 0.0, 0.6):
        pair = Telling(CURVES["a GPU"], 0.02, stands)
        pair.share = lambda guess, share=stands: share  # type: ignore[method-assign, assignment, misc]
        pair.run(2000)
        pair.draft_length.wants_more([Guess(0, None, 0.01, "another")], OFFER)
        pair.draft_length.learn(processed([Guess(0, None, 0.01, "another")], 0, 0.02, 1.0))
        pair.run(1000)
        again = Driven(Adaptive())
        again.restore(pair.draft_length.state())
        assert again.state()["pass_seconds"] == pair.draft_length.state()["pass_seconds"]


def test_a_restored_pair_soon_follows_what_has_changed() -> None:
    old = Pair(CURVES["a GPU"], 0.1, 0.95)
    old.run(1000)
    new = Pair(old.passes, 0.1, 0.2)
    new.draft_length.restore(old.draft_length.state())
    new.run(30)
    assert new.near_best(median(new.run(15)))


def test_a_malformed_state_changes_nothing() -> None:
    old = Pair(CURVES["a GPU"], 0.1, 0.9)
    old.run(100)
    good = old.draft_length.state()
    fresh = Driven(Adaptive()).state()
    (source,) = good["sources"].values()
    bad: list[Any] = [None, 3, [], {}, {**good, "version": 0}, {**good, "sources": {"": 3}}]
    for name in ("pass_seconds", "sources"):
        bad += [{**good, name: value} for value in ("x", [[]], [1, "x"], -1.0, [["a", "b"]], float("nan"))]
    for name in source:
        bad += [
            {**good, "sources": {"": {**source, name: value}}}
            for value in ("x", [[]], [1, "x"], -1.0, [["a", "b"]], float("nan"), {})
        ]
        bad.append({**good, "sources": {"": {key: value for key, value in source.items() if key != name}}})
    bad += [{key: value for key, value in good.items() if key != name} for name in good]
    for values in bad:
        draft_length = Driven(Adaptive())
        draft_length.restore(values)
        assert draft_length.state() == fresh
        assert not draft_length.wants_more([], OFFER)
    Driven(Adaptive()).restore(fresh)


def test_a_state_without_a_pass_over_one_token_is_taken_up() -> None:
    old = Pair(CURVES["a GPU"], 0.1, 0.9)
    old.run(100)
    good = old.draft_length.state()
    wide = [row for row in good["pass_seconds"] if row[0] > 1]
    draft_length = Driven(Adaptive())
    draft_length.restore({**good, "pass_seconds": wide, "sources": {"model": good["sources"][""]}})
    draft_length.learn(processed([], 0, 0.0, 1.0))
    draft_length.learn(processed([], 0, 0.0, 1.0))  # now the cost of one token is known
    assert not draft_length.wants_more([], LazyGuess(lambda: None, "model", 10_000))


class Mixed:
    """A text of copies and of new words, with a source for each: free copies, and a draft model that costs.

    After a refused offer, or behind it, come free guesses of a third source that seldom stand.
    """

    STANDS: ClassVar[dict[str, float]] = {"copy": 0.97, "model": 0.75, "tail": 0.35}

    def __init__(self, curve: str, guess: float, seed: int, copies: float = 0.5) -> None:
        self.passes = CURVES[curve]
        self.costs = {"copy": 0.0005, "model": guess, "tail": 0.0005}
        self.copies = copies
        self.random = random.Random(seed)
        self.draft_length = Driven(Adaptive())
        self.drafts: list[tuple[bool, list[str]]] = []
        self._left, self._copying = 0, False

    def run(self, steps: int) -> list[list[str]]:
        """Return the sources of the guesses of some more rounds."""
        for _ in range(steps):
            self._round()
        return [draft for _, draft in self.drafts[-steps:]]

    def rate(self, drafts: Iterable[Sequence[str]]) -> float:
        """Return the expected tokens a second of rounds with such drafts."""
        tokens = seconds = 0.0
        for draft in drafts:
            tokens += 1 + sum(accumulate((self.STANDS[source] for source in draft), mul))
            seconds += self.passes(len(draft) + 1) + sum(self.costs[source] for source in draft)
        return tokens / seconds

    def best(self, copying: bool) -> float:
        """Return the most expected tokens a second of fixed drafts."""
        if copying:
            return max(self.rate([["copy"] * depth]) for depth in range(MOST + 1))
        pairs = ((model, tail) for model in range(MOST + 1) for tail in range(MOST + 1 - model))
        return max(self.rate([["model"] * model + ["tail"] * tail]) for model, tail in pairs)

    def found(self, copying: bool) -> float:
        """Return the expected tokens a second of its own rounds in copies, or in new words."""
        return self.rate(draft for kind, draft in self.drafts if kind == copying)

    def _round(self) -> None:
        draft: list[Guess] = []
        for step in self._steps():
            wanted = self.draft_length.wants_more(draft, step)
            if not wanted and isinstance(step, Guess):
                break
            guess = step if isinstance(step, Guess) else step.draw() if wanted else None
            if guess is not None:
                draft.append(guess)
        accepted = 0
        while accepted < len(draft) and self.random.random() < self.STANDS[draft[accepted].source]:
            accepted += 1
        costs = tuple(self.costs[guess.source] for guess in draft)
        target = self.passes(len(draft) + 1) * (1 + 0.05 * abs(self.random.gauss(0, 1)))
        tokens = (0,) * (accepted + 1)
        self.draft_length.learn(
            Step(tokens, len(draft), accepted, sum(costs), target, "", None, tuple(draft), costs)
        )
        self.drafts.append((self._copying, [guess.source for guess in draft]))
        self._left -= accepted + 1
        if self._left < 0:
            self._copying = self.random.random() < self.copies
            self._left = self.random.randrange(20, 120)

    def _steps(self) -> Iterator[Guess | LazyGuess]:
        while self._copying:
            yield Guess(0, None, 0.97, "copy")
        drawn: list[Guess] = []

        def draw() -> Guess:
            drawn.append(Guess(0, None, 0.75, "model"))
            return drawn[-1]

        for count in range(1, 99):
            yield LazyGuess(draw, "model")
            if len(drawn) < count:
                break
        while True:
            yield Guess(0, None, 0.35, "tail")


@every_curve
@pytest.mark.parametrize("guess", [0.4, 0.9])
@pytest.mark.parametrize("copies", [0.2, 0.8])
def test_sources_that_share_a_text_each_get_their_depth(curve: str, guess: float, copies: float) -> None:
    pairs = [Mixed(curve, guess, seed, copies) for seed in SEEDS]
    for pair in pairs:
        pair.run(400)
        pair.drafts.clear()
        pair.run(1500)
    for copying in (True, False):
        assert mean(pair.found(copying) for pair in pairs) > 0.95 * pairs[0].best(copying)


def test_a_source_that_does_not_pay_is_left_out_and_the_others_go_on() -> None:
    pair = Mixed("openvino on a CPU", 0.9, 1, copies=0.8)
    pair.run(500)
    sources = [source for draft in pair.run(500) for source in draft]
    assert sources.count("copy") > 1000
    assert sources.count("model") < 60


def test_a_source_that_leads_for_the_first_time_stops_nothing() -> None:
    pair = Mixed("a GPU", 0.1, 1, copies=0.0)
    pair.run(50)
    new = Guess(0, None, 0.9, "new")
    assert pair.draft_length.wants_more([], new)
    assert pair.draft_length.wants_more([new], Guess(0, None, 0.35, "tail"))


def tried_after(finish: str | None) -> int:
    """Return how many rounds guess in a text where nothing stands, after one where all of a class did."""
    draft_length, sure, doubtful = Driven(Adaptive()), Guess(0, None, 0.85), Guess(0, None, 0.3)
    costs = [0.0, 1.0, 1.2, 1.45, 1.6, 1.75]

    def go(guess: Guess, stands: bool, finish: str | None = None) -> int:
        draft: list[Guess] = []
        while len(draft) < 4 and draft_length.wants_more(draft, guess):
            draft.append(guess)
        draft_length.learn(
            processed(draft, len(draft) * stands, 1e-5 * len(draft), costs[len(draft) + 1], finish)
        )
        return len(draft)

    for at in range(120):
        go(sure if at % 3 else doubtful, stands=at % 3 > 0)
    go(sure, True, finish)
    go(sure, False)  # an answer's first round
    return sum(go(sure, False) > 0 for _ in range(60))


def test_what_a_class_was_worth_gives_way_sooner_in_another_answer() -> None:
    assert 0 < tried_after("stop") < tried_after(None)


class Reader:
    """A draft model, all of whose guesses stand, on a simulated clock: what it has missed it reads first."""

    PASSES = (1.0, 1.3, 1.6, 1.9, 2.2, 2.5, 2.8, 3.1)
    READ = 0.06

    def __init__(self, guess: float) -> None:
        self.draft_length, self.guess = Driven(Adaptive(max_tokens=6)), guess
        self.read = self.text = 0

    def answer(self, prompt: int, tokens: int) -> float:
        """Return how many times as fast as plain decoding `tokens` tokens after a new prompt are."""
        self.text, self.read, seconds, done = prompt, 0, 0.0, 0
        while done < tokens:
            draft: list[Guess] = []
            costs: list[float] = []
            while len(draft) < min(6, tokens - done - 1):
                behind = self.text + len(draft) - self.read
                if not self.draft_length.wants_more(draft, LazyGuess(lambda: None, "model", behind)):
                    break
                draft.append(Guess(0, None, 0.9, "model"))
                costs.append(self.guess + self.READ * (behind - 1))
                self.read += behind
            cost, ends = self.PASSES[len(draft)], done + len(draft) + 1 == tokens
            self.draft_length.learn(
                Step(
                    (0,) * (len(draft) + 1),
                    len(draft),
                    len(draft),
                    sum(costs),
                    cost,
                    "",
                    "stop" if ends else None,
                    tuple(draft),
                    tuple(costs),
                )
            )
            seconds += cost + sum(costs)
            done += len(draft) + 1
            self.text += len(draft) + 1
        return tokens * self.PASSES[0] / seconds


@pytest.mark.parametrize("guess", [0.1, 0.3, 0.45])
@pytest.mark.parametrize("tokens", [40, 400])
def test_a_prompt_is_read_for_a_draft_only_where_that_pays(guess: float, tokens: int) -> None:
    reader = Reader(guess)
    reader.answer(100, 200)  # now its costs are known
    for _ in range(12):
        reader.answer(300, tokens)  # and how long answers are
    assert reader.answer(300, tokens) >= 0.985
    price, gain = reader.READ * 300, tokens * (1 - 1 / best_of(reader))
    if gain > 1.6 * price:
        assert reader.answer(300, tokens) > 1.02


def best_of(reader: Reader) -> float:
    """Return the speed-up of the best depth, once all is read."""
    return max((depth + 1) / (depth * reader.guess + cost) for depth, cost in enumerate(reader.PASSES[:7]))


def test_a_longer_answer_than_usual_pays_for_the_prompt_in_the_end() -> None:
    reader = Reader(0.1)
    reader.answer(100, 200)
    for _ in range(12):
        reader.answer(600, 20)
    assert reader.answer(600, 20) >= 0.985
    assert "reading 6" in str(reader.draft_length.reason)
    assert reader.answer(600, 2000) > 1.3
    assert reader.draft_length.reason is None


def test_what_reading_costs_is_kept() -> None:
    reader = Reader(0.1)
    reader.answer(200, 300)
    again = Driven(Adaptive(max_tokens=6))
    again.restore(reader.draft_length.state())
    assert again.state()["usual_length"] == reader.draft_length.state()["usual_length"]
    assert again.state()["sources"]["model"]["prefill_seconds"] == pytest.approx(reader.READ, rel=0.05)
