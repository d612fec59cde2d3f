"""The measured lookahead on a simulated pair: costs are given, guesses stand at random."""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import mean, median

import pytest

from localspec.core.contracts import Guess, Round
from localspec.lookaheads.measured import Measured

MOST = 16
SEEDS = range(6)


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
        self.lookahead = Measured()
        self.depths: list[int] = []
        self.seconds = 0.0
        self.tokens = 0
        self.unread = 200

    def run(self, rounds: int, slow: float = 1.0, finish: str | None = None) -> list[int]:
        """Return the depths of some more rounds; `slow` is how much longer each pass takes for once."""
        for _ in range(rounds):
            self._round(slow, finish)
        return self.depths[-rounds:]

    def _round(self, slow: float, finish: str | None) -> None:
        draft: list[Guess] = []
        while self.lookahead.wants_more(draft):
            draft.append(Guess(0))
        accepted = 0
        while accepted < len(draft) and self.random.random() < self.stands(accepted + 1):
            accepted += 1
        reading = 40.0 if not self.depths else 0.0
        catching_up = 0.02 * self.guess * self.unread if draft else 0.0
        self.unread = 0 if draft else self.unread + 1
        target = (self.passes(len(draft) + 1) + reading) * self._blur() * slow
        drafting = self.guess * len(draft) * self._blur() + catching_up
        self.lookahead.learn(Round((0,) * (accepted + 1), len(draft), accepted, drafting, target, "", finish))
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
    for seed in SEEDS:
        pair = Pair(passes, guess, stands, seed)
        assert pair.best() == best
        pair.run(100)
        depths = pair.run(40)
        assert pair.near_best(median(depths))
        assert mean(pair.rate(depth) for depth in depths) > 0.9 * pair.rate(best)


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
        assert pair.lookahead.reason is None
        pair.run(60)
        assert median(pair.run(20)) == 0


def test_it_starts_again_when_guesses_get_good_after_a_while() -> None:
    for seed in SEEDS:
        pair = Pair(line(0.1), 0.2, 0.1, seed)
        assert median(pair.run(30)[-10:]) == 0
        pair.stands = lambda position: 0.9
        pair.run(60)
        assert mean(map(pair.rate, pair.run(20))) > 0.9 * pair.rate(pair.best())


@pytest.mark.parametrize(("before", "after"), [(0.9, 0.5), (0.4, 0.9)])
def test_it_follows_within_sixty_rounds_while_guessing(before: float, after: float) -> None:
    for seed in SEEDS:
        pair = Pair(line(0.02), 0.05, before, seed)
        pair.run(100)
        pair.stands = lambda position: after
        pair.run(60)
        assert mean(map(pair.rate, pair.run(20))) > 0.9 * pair.rate(pair.best())


def test_probes_get_ever_rarer_up_to_a_limit() -> None:
    pair = Pair(*PAIRS["a dear draft"][:3])
    pair.run(4000)
    probes = [at for at in range(10, 4000) if pair.depths[at] and not pair.depths[at - 1]]
    gaps = [later - earlier for earlier, later in zip(probes, probes[1:], strict=False)]
    assert gaps == sorted(gaps)
    assert gaps[0] < 40
    assert gaps[-2:] == [514, 514]  # 512 and the probe itself
    assert sum(map(bool, pair.depths)) < 40


def test_one_slow_pass_does_not_turn_it_off_for_long() -> None:
    for seed in SEEDS:
        pair = Pair(*PAIRS["a CPU"][:3], seed=seed)
        pair.run(60)
        pair.run(1, slow=100)
        pair.run(10)
        assert pair.near_best(median(pair.run(15)))


def test_nor_one_of_the_only_depth_there_is() -> None:
    pair = Pair(line(0.1), 0.1, 0.9)
    pair.lookahead = Measured(most=1)
    pair.run(45)
    pair.run(1, slow=100)
    assert pair.run(15) == [1] * 15


def test_a_prompt_read_in_the_first_pass_is_no_cost() -> None:
    pair = Pair(*PAIRS["a dear draft"][:3])
    pair.run(12)
    assert pair.lookahead.reason is not None


def test_the_first_round_of_each_answer_is_plain() -> None:
    pair = Pair(*PAIRS["a tiny, good one"][:3])
    pair.run(20)
    pair.run(1, finish="stop")
    assert pair.run(3)[0] == 0
    assert pair.depths[-1] > 2


def test_a_changed_speed_of_plain_passes_is_noticed() -> None:
    speed = [1.0]
    pair = Pair(lambda width: speed[0] if width == 1 else 1.2, 0.05, 0.5)
    assert median(pair.run(100)[-20:]) > 0
    speed[0] = 0.4  # nothing but a plain round now and then can tell
    pair.run(400)
    assert median(pair.run(20)) == 0


def test_the_reason_names_cost_and_acceptance() -> None:
    pair = Pair(line(0.1), 0.8, 0.5)
    assert pair.lookahead.reason is None
    pair.run(200)
    reason = pair.lookahead.reason
    assert reason is not None
    assert reason.startswith("a guess costs 0.9 of a pass and ")
    assert reason.endswith("% stand")
    assert Pair(*PAIRS["a CPU"][:3]).run(1) == [0]


def test_no_reason_while_guessing() -> None:
    pair = Pair(*PAIRS["a tiny, good one"][:3])
    for _ in range(150):
        pair.run(1)
        assert pair.lookahead.reason is None


def test_it_asks_for_no_more_than_the_most() -> None:
    pair = Pair(line(0.0), 0.0, 1.0)
    pair.lookahead = Measured(most=5)
    assert max(pair.run(100)) == 5
    pair.lookahead = Measured(most=0)
    assert max(pair.run(100)) == 0


def test_a_drafter_without_guesses_is_asked_again() -> None:
    lookahead = Measured()
    for _ in range(50):
        lookahead.learn(Round((1,), 0, 0, 0.001, 1.0))
    assert lookahead.wants_more([])


def test_a_clock_that_stands_still_breaks_nothing() -> None:
    lookahead = Measured()
    for drafted in (0, 0, 2, 2, 2, 0, 2):
        lookahead.learn(Round((1,), drafted, 0, 0.0, 0.0))
        lookahead.wants_more([])


def test_guesses_behind_the_end_of_an_answer_are_not_held_against_the_draft() -> None:
    pair = Pair(line(0.02), 0.05, 1.0)
    pair.run(30)
    for _ in range(60):
        pair.lookahead.learn(Round((1, 2), 5, 2, 0.25, 1.1, "", "stop"))
    assert pair.run(2) == [0, MOST]
