"""The samplers: what they write in which pass, by their formulas, on the toy and on tiny random models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_diffusion
from asking import PROMPT, canvas_on, filled
from passes import Numbers

from localspec import plugins
from localspec.core.blocks import quota, visibility
from localspec.core.blocks.quota import Quota
from localspec.core.blocks.types import Candidates
from localspec.core.contracts import Engine
from localspec.core.cursor import Cursor
from localspec.core.decode import decode
from localspec.core.sampler import Sampler, Sampling
from localspec.core.stop import OutputProcessor
from localspec.engines.diffusion import Diffusion
from localspec.engines.toy import Toy
from localspec.errors import BadValue
from localspec.samplers.adas import picked

TOY = Toy(vocab_size=32, block=8)
SPECS = [
    *("low_confidence", "low_confidence:k=3", "low_confidence:threshold=0.4", "low_confidence:factor=1.0"),
    *("entropy_bounded:gamma=2.0", "left_to_right", "left_to_right:k=3", "adas", "adas:k=1,gamma=2.0"),
    *("wino", "wino:write=0.2,keep=0.5", "anchor_revocable", "anchor_revocable:write=0.2,keep=0.5"),
]
every_sampler = pytest.mark.parametrize("spec", SPECS)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Diffusion:
    folder = tiny_diffusion.write(tmp_path_factory.mktemp("tiny") / "sdar", "sdar", block_size=8)
    return Diffusion(folder, device="cpu")


def test_all_samplers_are_looked_at() -> None:
    assert {spec.partition(":")[0] for spec in SPECS} == set(plugins.names("samplers"))


@every_sampler
@pytest.mark.parametrize("prompt", [PROMPT, PROMPT[:3], PROMPT + [7], [1]])
def test_a_block_is_filled_in_whole_at_any_prompt_length(spec: str, prompt: list[int]) -> None:
    found = filled(TOY, spec, prompt=prompt, room=20)
    assert len(found.tokens) == 20
    assert 31 not in found.tokens  # the mask
    first = len(found.steps[0].tokens)
    assert first == 8 - len(prompt) % 8
    assert found.steps[-1].finish == "length"
    assert all(step.passes <= 2 * 8 + 1 for step in found.steps)


@every_sampler
def test_limit_and_stops_cut_the_same_text(spec: str) -> None:
    """A block is filled in whole, so no limit and no stop changes what stands before it."""
    for sampling, seed in ((Sampling(), 0), (Sampling(temperature=1.0), 5)):
        whole = filled(TOY, spec, sampling=sampling, seed=seed, room=40)
        assert filled(TOY, spec, sampling=sampling, seed=seed, room=11).tokens == whole.tokens[:11]
        at = next(at for at in range(9, 40) if whole.tokens[at] not in whole.tokens[:at])
        ended = filled(TOY, spec, sampling=sampling, seed=seed, room=40, stop_tokens=[whole.tokens[at]])
        assert ended.tokens == whole.tokens[: at + 1]
        assert ended.steps[-1].finish == "stop"
        cut = filled(TOY, spec, sampling=sampling, seed=seed, room=40, stop=[f".{whole.tokens[at]}."])
        assert whole.text.startswith(cut.text)
        assert cut.steps[-1].finish == "stop"


@every_sampler
def test_a_seed_stands_for_a_text(spec: str) -> None:
    warm = Sampling(temperature=1.0, top_p=0.95)
    texts = [filled(TOY, spec, sampling=warm, seed=seed).tokens for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("engine", ["toy", "tiny"])
def test_one_token_a_pass_is_the_same_in_any_way(engine: str, tiny: Diffusion) -> None:
    """ADAS with one token a step is its base, and so are all rules that admit no second token."""
    made: Engine = TOY if engine == "toy" else tiny
    for sampling in (Sampling(), Sampling(temperature=0.8)):
        base = filled(made, "low_confidence", sampling=sampling, seed=3)
        assert base.passes == 24
        for spec in ("adas:k=1", "adas:k=1,alpha=1000", "low_confidence:threshold=1", "adas:k=1,threshold=1"):
            assert filled(made, spec, sampling=sampling, seed=3).tokens == base.tokens, spec


def test_adas_writes_as_many_as_its_base_but_others(tiny: Diffusion) -> None:
    differing = 0
    for seed in range(4):
        prompt = [*PROMPT, seed]
        base, adas = (filled(tiny, spec, prompt=prompt) for spec in ("low_confidence:k=4", "adas:k=4"))
        assert base.passes == adas.passes
        differing += base.tokens != adas.tokens
        unweighted = filled(tiny, "adas:k=4,alpha=0", prompt=prompt)
        assert unweighted.tokens == base.tokens
    assert differing


def test_adas_is_its_formula() -> None:
    """The sums kept from pick to pick are those of the definition."""
    dice = np.random.default_rng(0)
    for _ in range(50):
        count = int(dice.integers(2, 9))
        attention = dice.dirichlet(np.ones(count), count).astype(np.float32)
        confidence = dice.uniform(0.05, 1, count)
        places = np.arange(count)
        chosen: list[int] = []
        while len(chosen) < count - 1:
            scores = {
                at: confidence[at]
                - 40 * sum(float(attention[at, other]) * (1 - confidence[other]) for other in chosen)
                for at in range(count)
                if at not in chosen
            }
            chosen.append(max(scores, key=lambda at: scores[at]))
        found = picked(Candidates(places, places, confidence, confidence, attention), count - 1, 40.0)
        assert found.tolist() == chosen


def candidates(confidence: list[float], entropies: list[float] | None = None) -> Candidates:
    places = np.arange(len(confidence))
    return Candidates(places, places, np.array(confidence), np.array(entropies or confidence))


@pytest.mark.parametrize(
    ("rule", "count"),
    [
        (Quota(k=2), 2),
        (Quota(k=9), 4),
        (Quota(threshold=0.7), 2),
        (Quota(k=3, threshold=0.7), 3),
        (Quota(threshold=0.99), 1),
        (Quota(factor=0.35), 1),  # 2 * 0.1 < 0.35, 3 * 0.2 is not
        (Quota(factor=0.61), 2),
        (Quota(factor=100), 4),
        (Quota(gamma=0.25), 2),  # entropies 0.1, 0.2, 0.4, 0.5: spread 0, 0.1, 0.3, 0.7
        (Quota(gamma=0.31), 3),
        (Quota(gamma=0.8), 4),
    ],
)
def test_a_rule_admits_so_many(rule: Quota, count: int) -> None:
    assert rule.of(candidates([0.8, 0.5, 0.9, 0.3], [0.2, 0.4, 0.1, 0.5])) == count


def test_two_rules_exclude_each_other() -> None:
    for part, options in (("low_confidence", "threshold=0.5,factor=1"), ("adas", "gamma=1,factor=1")):
        with pytest.raises(BadValue, match="exclude each other"):
            plugins.parse("samplers", f"{part}:{options}").make()


def test_of_equal_scores_the_left_one_is_first() -> None:
    assert quota.ranked(np.array([0.5, 0.9, 0.5, 0.9])).tolist() == [1, 3, 0, 2]


@pytest.mark.parametrize("engine", ["toy", "tiny"])
def test_without_anchors_it_is_wino_to_the_bit(engine: str, tiny: Diffusion) -> None:
    made: Engine = TOY if engine == "toy" else tiny
    revoked = 0
    for number in range(6):
        prompt = [*PROMPT, number]
        for thresholds in ("write=0.6,keep=0.9", "write=0.1,keep=0.5", "write=0.05,keep=0.05"):
            wino = filled(made, f"wino:{thresholds}", prompt=prompt)
            off = filled(made, f"anchor_revocable:{thresholds},guide=0,noise=0,stable=0", prompt=prompt)
            assert [(step.tokens, step.passes) for step in off.steps] == [
                (step.tokens, step.passes) for step in wino.steps
            ]
            revoked += wino.passes
    assert revoked > 0


def test_wino_takes_back_what_its_shadow_doubts(tiny: Diffusion) -> None:
    """Never confirmed and always confirmed tokens: the former take more passes, within the bound."""
    doubting = filled(tiny, "wino:write=0.01,keep=1")
    trusting = filled(tiny, "wino:write=0.01,keep=0")
    assert trusting.passes < doubting.passes
    assert max(step.passes for step in doubting.steps) <= 16
    assert doubting.tokens != trusting.tokens


def test_anchors_and_noise_change_the_passes(tiny: Diffusion) -> None:
    plain = filled(tiny, "wino:write=0.05,keep=0.5").tokens
    guided, noisy = (
        filled(tiny, f"anchor_revocable:write=0.05,keep=0.5,{options}").tokens
        for options in ("guide=5,noise=0", "guide=0,noise=2")
    )
    assert guided != plain
    assert noisy != plain
    assert noisy == filled(tiny, "anchor_revocable:write=0.05,keep=0.5,guide=0,noise=2").tokens


def test_tables() -> None:
    shadow = [[1, 1, 0, 0], [1, 1, 0, 0], [0, 1, 1, 1], [1, 0, 1, 1]]
    assert visibility.shadow(2).astype(int).tolist() == shadow
    steps = [2, 1, 3]
    table = visibility.two_copies(steps)
    for i in range(3):
        for j in range(3):
            assert table[i, j] == (steps[j] <= steps[i])
            assert table[i, 3 + j] == (steps[j] > steps[i])
            assert table[3 + i, j] == (steps[j] < steps[i])
            assert table[3 + i, 3 + j] == (steps[j] >= steps[i])
    assert visibility.apart(1, 2).tolist() == [[True, False], [False, True]]
    assert visibility.blockwise([0, 1, 2, 3], 2).astype(int).tolist() == [
        [1, 1, 0, 0],
        [1, 1, 0, 0],
        [1, 1, 1, 1],
        [1, 1, 1, 1],
    ]


@pytest.mark.parametrize("family", ["sdar", "block_llama", "llada", "dream"])
def test_blocks_of_one_token_are_autoregressive_decoding(tmp_path: Path, family: str) -> None:
    both_ways = family in ("llada", "dream")
    folder = tiny_diffusion.write(tmp_path / family, family, **({} if both_ways else {"block_size": 1}))
    engine = Diffusion(folder, device="cpu", block=1)
    never = {tiny_diffusion.MASK: -100.0}  # the loop over tokens knows no mask
    for temperature, seed in ((0.0, 0), (1.0, 4)):
        sampling = Sampling(temperature=temperature, logit_bias=never)
        by_blocks = filled(engine, sampling=sampling, seed=seed)
        target = Cursor(engine.session())
        steps = decode(
            PROMPT,
            target,
            plugins.parse("drafters", "none").make(target),
            plugins.parse("draft_length", "fixed:tokens=0").make(),
            plugins.parse("verifiers", "exact").make(),
            Sampler(sampling, seed=seed, answer_from=len(PROMPT)),
            OutputProcessor(Numbers(), max_new_tokens=24),
        )
        tokens = [token for step in steps for token in step.tokens]
        assert by_blocks.tokens == tokens
        assert by_blocks.passes == len(tokens)


def test_a_canvas_counts_its_passes(tiny: Diffusion) -> None:
    canvas = canvas_on(tiny, PROMPT, 8)
    candidates = canvas.candidates()
    canvas.chosen_of(candidates, np.array([2, 5]))
    assert (canvas.passes, canvas.masked) == (1, [0, 1, 3, 4, 6, 7])
    assert canvas.revealed_by == [0, 0, 1, 0, 0, 1, 0, 0]
    canvas.conceal([5])
    assert canvas.masked == [0, 1, 3, 4, 5, 6, 7]
