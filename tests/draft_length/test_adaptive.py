"""The adaptive draft-length policy on simulated texts."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from statistics import mean
from typing import Any

import pytest
from simulated import Simulation, Source, best_fixed, points, steady

from localspec.core.types import Company, Guess, LazyGuess, Proposal, Step
from localspec.draft_length.adaptive.policy import Adaptive

FLAT = points((1, 1.0), (16, 1.2))
STEEP = points((1, 1.0), (2, 1.45), (4, 1.7), (8, 2.4), (16, 4.0))
GOOD, BAD = Source(steady(0.95), steady(0.9)), Source(steady(0.05), steady(0.3))


def model(share: float, guess: float = 0.2, read: float = 0.02) -> Source:
    return Source(steady(share), name="model", guess=guess, read=read)


def settled(*sources: Source, cost: Any = FLAT, tokens: int = 1000, **options: Any) -> Simulation:
    """Return a simulation after an answer."""
    found = Simulation(Adaptive(**options), sources, cost)
    found.answer(tokens)
    found.seconds = found.tokens = 0
    found.drafts = []
    return found


def lengths(found: Simulation) -> list[int]:
    return [len(draft) for draft in found.drafts]


def processed(drafted: int, accepted: int = 0, seconds: float = 1.0, finish: str | None = None) -> Step:
    draft, costs = (Guess(0, None, 0.8),) * drafted, (1e-5,) * drafted
    return Step((0,) * (accepted + 1), drafted, accepted, sum(costs), seconds, "", finish, draft, costs)


def test_a_sure_guess_prolongs_a_draft_and_a_doubtful_one_ends_it() -> None:
    telling = Source(
        lambda token, at: 0.95 if token % 4 else 0.1, lambda token, at: 0.9 if token % 4 else 0.3, guess=0.1
    )
    found = settled(telling, cost=points((1, 1.0), (16, 3.0)), tokens=3000)
    found.answer(3000)
    assert found.tokens / found.seconds > 1.1 * best_fixed([telling], found.cost, share=steady(0.74))
    sure, doubtful = Guess(0, None, 0.9, "suffix"), Guess(0, None, 0.3, "suffix")
    found.begin()
    found.step(0, 99)
    assert found.policy.wants_more([], sure)
    assert found.policy.wants_more([sure], sure)
    assert not found.policy.wants_more([doubtful] * 3, doubtful)


def test_useless_guesses_are_soon_left_out() -> None:
    found = settled(BAD, model(0.05, guess=0.5), cost=STEEP)
    found.answer(2000)
    assert sum(lengths(found)) < 150
    assert found.tokens / found.seconds > 0.975


def test_it_stops_when_guesses_get_bad_and_starts_again_when_they_get_good() -> None:
    share = [0.9]
    found = settled(Source(lambda token, at: share[0]), cost=STEEP)
    found.answer(400)
    assert mean(lengths(found)[-30:]) > 1
    share[0] = 0.05
    found.answer(400)
    assert mean(lengths(found)[-100:]) < 0.4
    share[0] = 0.9
    found.answer(400)
    assert mean(lengths(found)[-30:]) > 1


def test_a_source_that_does_not_pay_is_left_out_and_the_others_go_on() -> None:
    found = settled(model(0.6, guess=0.9), GOOD)
    found.answer(1000)
    drafted = [source for draft in found.drafts for source in draft]
    assert drafted.count("suffix") > 700
    assert drafted.count("model") < 20


def test_a_model_guesses_where_it_is_worth_more_than_the_copy_that_it_replaces() -> None:
    copies = Source(
        lambda token, at: 0.95 if (token // 60) % 2 else 0.05,
        lambda token, at: 0.9 if (token // 60) % 2 else 0.25,
    )
    found = settled(model(0.8), copies, tokens=2000)
    found.answer(2000)
    drafted = [source for draft in found.drafts for source in draft]
    assert min(drafted.count("model"), drafted.count("suffix")) > 400
    alone = [settled(source, tokens=2000) for source in (model(0.8), copies)]
    for one in alone:
        one.answer(2000)
    assert found.tokens / found.seconds > 1.15 * max(one.tokens / one.seconds for one in alone)


def test_a_model_reads_a_prompt_once_its_guesses_would_have_saved_as_much() -> None:
    found = settled(model(0.9))
    found.answer(400, prompt=500)  # reading costs as much as ten passes
    first = next(at for at, draft in enumerate(found.drafts) if draft)
    assert 4 <= first <= 25
    found.drafts = []
    found.answer(400, prompt=50)
    assert next(at for at, draft in enumerate(found.drafts) if draft) <= 4


def test_what_a_model_saved_in_the_last_answer_pays_for_reading_as_long_as_a_pass_takes() -> None:
    found = settled(model(0.9))
    for prompt, waits in ((40, False), (60, True)):  # 0.8 and 1.2 passes
        found.drafts = []
        found.answer(200, prompt=prompt)
        first = next(at for at, draft in enumerate(found.drafts) if draft)
        assert (first > 1) == waits


def test_a_short_answer_to_a_long_prompt_never_waits_for_the_draft_to_read() -> None:
    found = settled(model(0.9))
    for _ in range(5):
        assert found.answer(20, prompt=2000) == 1.0
    reason = str(found.policy.reason)
    assert reason.startswith("reading 2,0")
    assert reason.endswith("tokens would cost the draft more than it has been likely to save")


def test_the_first_token_waits_for_no_model_but_may_follow_copies() -> None:
    found = settled(model(0.9), GOOD)
    for _ in range(5):
        found.drafts = []
        found.answer(50)
        assert set(found.drafts[0]) == {"suffix"}


@pytest.mark.parametrize("width", [1, 4])
def test_one_stalled_pass_counts_little(width: int) -> None:
    """A pass takes a hundred times as long, the first of its width or a later one."""
    for at in (3, 200):
        passes = [0]

        def stall(random: Any, at: int = at, passes: list[int] = passes) -> float:
            passes[0] += 1
            return 100.0 if passes[0] == at else 1.0

        found = Simulation(Adaptive(max_tokens=width), [GOOD], FLAT, stall)
        found.answer(600)
        found.seconds = found.tokens = 0
        found.answer(600)
        assert found.tokens / found.seconds > 0.93 * best_fixed([GOOD], FLAT, width)


def test_a_step_in_the_costs_is_got_over() -> None:
    """Three guesses are the best of up to twelve, and sixteen are better: only a trial can tell."""
    cost = points((1, 1.0), (2, 1.54), (4, 2.73), (8, 6.05), (16, 6.84))
    found = settled(GOOD, cost=cost, tokens=3000)
    found.answer(2000)
    assert found.tokens / found.seconds > 0.95 * best_fixed([GOOD], cost)


def test_a_changed_speed_of_plain_passes_is_noticed() -> None:
    plain = [1.0]
    found = settled(Source(steady(0.5)), cost=lambda width: plain[0] if width == 1 else 1.2)
    found.answer(300)
    assert mean(lengths(found)) > 0.8
    plain[0] = 0.4
    found.answer(1500)
    assert sum(map(bool, lengths(found)[-300:])) < 30


def test_it_asks_for_no_more_than_the_most() -> None:
    for most in (0, 1, 5):
        found = settled(Source(steady(1.0), steady(1.0)), cost=lambda width: 1.0, max_tokens=most)
        found.answer(300)
        assert max(lengths(found)) == most


def test_a_drafter_without_guesses_is_asked_again() -> None:
    policy = Adaptive()
    policy.begin([])
    for _ in range(50):
        policy.learn(processed(0))
    assert policy.wants_more([], Guess(0, None, 0.8))


@pytest.mark.parametrize(("share", "dear", "least"), [(0.5, 2.0, 0.97), (0.8, 1.3, 1.5)])
def test_what_rides_in_the_passes_of_the_model_is_compared_with_passes_without(
    share: float, dear: float, least: float
) -> None:
    """A pass that a source uses for the guesses of the next step is no plain one, also without guesses."""
    policy, random = Adaptive(), Random(0)
    told, seconds, count = False, 0.0, 0
    policy.begin([1])
    for number in range(3000):
        asked = policy.wants_more([], LazyGuess(lambda: None, source="hints"))
        draft = [Guess(0, None, 0.5, "hints")] if asked and told else []
        while draft and len(draft) < 3 and policy.wants_more(draft, draft[0]):
            draft.append(draft[0])
        accepted = next((at for at in range(len(draft)) if random.random() >= share), len(draft))
        step = processed(len(draft), accepted, dear + 0.05 * len(draft) if asked else 1.0)
        draft = [Guess(0, None, 0.5, "hints")] * len(draft)
        policy.learn(replace(step, draft=tuple(draft), proposals=(Proposal("hints", 1, asked),)))
        told = asked
        if number > 300:
            seconds, count = seconds + step.target_seconds, count + accepted + 1
    assert count / seconds > least


def test_a_clock_that_stands_still_breaks_nothing() -> None:
    policy = Adaptive()
    policy.begin([])
    for drafted in (0, 0, 2, 2, 2, 0, 2):
        policy.learn(processed(drafted, seconds=0.0))
        assert policy.wants_more([], LazyGuess(lambda: Guess(0))) in (True, False)


def test_guesses_behind_the_end_of_an_answer_are_not_held_against_the_draft() -> None:
    found = settled(GOOD)
    for _ in range(60):
        found.begin()
        found.policy.learn(processed(5, 2, 1.05, "stop"))
    found.answer(300)
    assert max(lengths(found)[:4]) > 3


def test_asking_is_pure() -> None:
    """The same questions get the same answers, and what is learned afterwards does not depend on them."""
    asked, quiet = (settled(model(0.6), GOOD, cost=STEEP) for _ in range(2))
    guesses = [Guess(0, None, confidence, "suffix") for confidence in (0.9, 0.3, 0.6, 0.99)]
    for found in (asked, quiet):
        found.begin()
    done = 0
    while done < 600:
        questions = [(guesses[:at], guesses[at]) for at in range(4)]
        lazy = [([], LazyGuess(lambda: None, "model", behind)) for behind in (1, 2)]
        first = [asked.policy.wants_more(*question) for question in (*questions, *lazy)]
        again = [asked.policy.wants_more(*question) for question in (*questions, *lazy)]
        assert first == again
        added = asked.step(done, 600)
        assert added == quiet.step(done, 600)
        done += added
    assert asked.policy.state() == quiet.policy.state()
    assert asked.drafts == quiet.drafts


def test_an_interrupted_answer_leaves_nothing_behind() -> None:
    found = settled(model(0.9), GOOD)
    for steps in range(1, 40):
        found.begin()
        done = sum(found.step(at, 999) for at in range(steps))
        assert done >= steps
        found.policy.end()  # Ctrl-C
    found.drafts = []
    found.answer(200)
    assert set(found.drafts[0]) == {"suffix"}
    assert found.policy.reason is None


def test_the_reason_names_cost_and_acceptance() -> None:
    found = settled(model(0.5, guess=0.8), cost=points((1, 1.0), (16, 2.5)))
    found.answer(400)
    reason = found.policy.reason
    assert reason is not None
    assert reason.startswith("a guess costs 0.")
    assert reason.endswith("% are accepted")
    assert Adaptive().reason is None


def test_gains_tell_what_each_source_is_expected_to_save() -> None:
    found = settled(model(0.6, guess=0.9), GOOD)
    found.answer(300)
    gains = found.policy.gains
    assert gains["suffix"] > 2
    assert gains["model"] < 0
    assert found.policy.reason is None


@pytest.mark.parametrize("sources", [(GOOD,), (BAD,), (model(0.8), GOOD), (model(0.2, guess=0.8),)])
def test_a_restored_policy_starts_where_it_was(sources: tuple[Source, ...]) -> None:
    old = settled(*sources, cost=STEEP)
    new = Simulation(Adaptive(), sources, STEEP, seed=7)
    state = json.loads(json.dumps(old.policy.state()))
    new.policy.restore(state)
    assert new.policy.state() == state
    assert new.answer(300) > 0.9 * old.answer(300)
    assert len(json.dumps(state)) < 4000


def test_a_restored_policy_soon_follows_what_has_changed() -> None:
    old = settled(model(0.95))
    new = Simulation(Adaptive(), [model(0.1, guess=0.8)], STEEP)
    new.policy.restore(old.policy.state())
    assert new.answer(400) > 0.9
    assert new.answer(400) > 0.96


def test_a_malformed_state_changes_nothing() -> None:
    good = settled(model(0.8)).policy.state()
    fresh = Adaptive().state()
    bad: list[Any] = [None, 3, [], {}, "x", {**good, "version": 0}]
    for name in ("passes", "guesses", "readings", "accepted"):
        values: list[Any] = ["x", [[]], [1, "x"], -1.0, [["a", "b"]], float("nan"), {}, None, [[1, 2, 3]]]
        row = list(good[name][0])
        values += [
            [[*row[:-1], worse]] for worse in (-1.0, float("nan"), float("inf"), "x", None, True, 1e12)
        ]
        bad += [{**good, name: value} for value in values]
        bad.append({key: value for key, value in good.items() if key != name})
    source, bin_, place, accepted, count = good["accepted"][0]
    bad += [
        {**good, "accepted": [[source, *row]]} for row in ((99, place, 1, 1), (bin_, 9, 1, 1), (1, 1, 3, 2))
    ]
    for values in bad:
        policy = Adaptive()
        policy.restore(values)
        assert policy.state() == fresh
    policy = Adaptive()
    policy.restore(fresh)
    policy.restore(good)
    assert policy.state() == good
    assert accepted <= count


def test_a_state_without_a_pass_over_one_token_is_taken_up() -> None:
    good = settled(GOOD).policy.state()
    policy = Adaptive()
    policy.restore({**good, "passes": [row for row in good["passes"] if row[0] > 1]})
    policy.begin([])
    policy.learn(processed(0, seconds=0.05))
    assert not policy.wants_more([], Guess(0, None, 0.9, "suffix"))  # a plain pass comes first
    policy.learn(processed(0, seconds=0.05))
    assert policy.wants_more([], Guess(0, None, 0.9, "suffix"))


RISING = points((1, 1.0), (4, 1.1), (8, 1.6), (200, 40.0))  # nearly free up to four tokens, then 0.2 each


@pytest.mark.parametrize("source", [Source(steady(0.6)), model(0.7)], ids=["copies", "model"])
def test_the_more_texts_share_a_pass_the_fewer_guesses(source: Source) -> None:
    means, speeds = [], []
    for others in (0, 1, 3, 15):
        found = Simulation(Adaptive(), [source], RISING, others=others)
        found.answer(1000)
        found.seconds = found.tokens = 0
        found.drafts = []
        found.answer(2000)
        means.append(mean(lengths(found)))
        speeds.append(found.tokens / found.seconds * RISING(1 + others))
    assert means == sorted(means, reverse=True)
    assert means[0] > 1.2
    assert means[-1] < 0.15
    assert min(speeds) > 0.97
    assert speeds[0] > 1.2


def test_texts_that_come_and_go_change_the_drafts_within_an_answer() -> None:
    found = settled(Source(steady(0.6)), cost=RISING, tokens=2000)
    for others, wanted in ((0, True), (15, False), (0, True)):
        found.others, found.drafts = others, []
        found.answer(300)
        assert (mean(lengths(found)[20:]) > 0.8) is wanted


def test_a_pass_with_a_prompt_of_another_text_teaches_no_costs() -> None:
    policy = Adaptive()
    policy.begin([])
    for _ in range(30):
        policy.learn(processed(0))
    before = policy.state()["passes"]
    prompt = Company(texts=1, tokens=128)
    policy.learn(replace(processed(0, seconds=30.0), company=prompt))
    assert policy.state()["passes"] == before
