"""Training a tiny head: it learns, resumes after a kill, and becomes a draft of its target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from command import Localspec
from said import Said

from localspec.build import CalibrationPrompt, HeadBuild, build_head, card
from localspec.build import heads as build_module
from localspec.core.sampler import Sampling
from localspec.drafting.build_step import TargetText
from localspec.drafting.speedup import chain_speedup
from localspec.errors import BadValue, UnknownDevice, UnsupportedModel
from localspec.formats.heads import layout
from localspec.formats.heads.torch_head import TorchHead
from localspec.formats.huggingface import loading
from localspec.library import Library, Silent
from localspec.runtime.choice import Choice
from localspec.runtime.generation import Runtime
from localspec.training import texts as texts_module
from localspec.training.features import Features
from localspec.training.head_training import HeadPlan, train_head
from localspec.training.heads import EVALUATED, HeadLearner
from localspec.training.new_head import first_weights, likely_tokens, shape_for
from localspec.training.texts import write_texts

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("one_torch_thread")]

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def teacher(gguf: Path) -> Any:
    return loading.load(gguf, CPU, torch.float32)


@pytest.fixture(scope="module")
def texts(gguf: Path, teacher: Any) -> list[TargetText]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts_module, "MAX_QUESTION", 6)
        patch.setattr(texts_module, "MAX_ANSWER", 20)
        found = write_texts(teacher, gguf, [([3, 1], [4])], [95], seconds=1e9, max_texts=40, batch=20, seed=0)
        return [text for some in found for text in some]


def plan(**options: Any) -> HeadPlan:
    return HeadPlan(**({"seconds": 1e9, "steps": 40, "kept": 80, "batch": 8, "rate": 3e-3} | options))


def trained(gguf: Path, teacher: Any, texts: list[TargetText], state: Path, **options: Any) -> Any:
    heard = Said()
    known = texts[6:12]  # a random target has nothing that holds for other texts
    found = train_head(gguf, teacher, texts[6:], known, [95], plan(**options), state, heard)
    return *found, heard.lines


@pytest.mark.parametrize(
    "options", [{"loss": "tv"}, {"loss": "ce"}, {"deep": True}, {"inner": 64, "depth": 1}], ids=str
)
def test_a_head_learns(
    gguf: Path, teacher: Any, texts: list[TargetText], tmp_path: Path, options: dict[str, Any]
) -> None:
    head, accepted, lines = trained(gguf, teacher, texts, tmp_path / "state.pt", **options)
    assert accepted.guesses > head.about["before"] + 0.1
    assert accepted.rates[0] > 0.2
    assert head.about["acceptance"] == [round(rate, 4) for rate in accepted.rates]
    assert head.shape.taps == ((5,) if options.get("deep") else (1, 2, 5))
    assert len(head.tokens) == 80
    assert 95 in head.tokens
    assert any("guesses accepted, by position" in line for line in lines)


def test_the_target_stays_as_it_was(
    gguf: Path, teacher: Any, texts: list[TargetText], tmp_path: Path
) -> None:
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    trained(gguf, teacher, texts, tmp_path / "state.pt", steps=2)
    assert all(torch.equal(teacher.state_dict()[name], value) for name, value in before.items())
    assert not any(layer._forward_hooks for layer in teacher.base_model.layers)


def test_a_killed_training_resumes(
    gguf: Path, teacher: Any, texts: list[TargetText], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, real = 0, HeadLearner.score

    def killed(self: HeadLearner) -> float:
        nonlocal looks
        looks += 1
        if looks == 4:
            raise KeyboardInterrupt
        return real(self)

    state = tmp_path / "state.pt"
    with monkeypatch.context() as patch:
        patch.setattr(HeadLearner, "score", killed)
        with pytest.raises(KeyboardInterrupt):
            trained(gguf, teacher, texts, state)
    steps = torch.load(state, weights_only=True)["counters"][1]
    head, _, lines = trained(gguf, teacher, texts, state)
    assert f"Resuming after {steps} steps" in lines
    assert head.about["steps"] > steps


def test_features_are_those_of_the_target(gguf: Path, teacher: Any, texts: list[TargetText]) -> None:
    """Texts of several lengths in one batch have the states of each alone, whether kept or read again."""
    for room in (1 << 30, 0):
        features = Features(teacher, [1, 4], room)
        batches = [features.batch(texts[:5]) for _ in range(2)]
        features.close()
        for row, (prompt, answer) in enumerate(texts[:5]):
            given = torch.tensor([[*prompt, *answer]])
            with torch.no_grad():
                outputs = teacher(given, output_hidden_states=True)
            end = given.shape[1]
            expected = torch.cat([outputs.hidden_states[tap][0] for tap in (1, 4)], -1)
            mass = outputs.logits[0].logsumexp(-1)
            for batch in batches:
                assert torch.allclose(batch.states[row, :end], expected, atol=1e-4)
                counted = batch.answers[row]
                assert counted.nonzero()[:, 0].tolist() == list(range(len(prompt) - 1, end - 1))
                assert torch.allclose(batch.mass[row][counted], mass[counted[:end]], atol=1e-4)


def test_acceptance_is_that_of_drafting_one_by_one(gguf: Path, teacher: Any, texts: list[TargetText]) -> None:
    shape = shape_for(gguf, teacher, kept=90)
    tokens = likely_tokens(texts, [95], shape.vocab, shape.kept)
    weights = first_weights(shape, tokens, teacher, seed=1)
    numbers = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for value in weights.values():
            value += torch.randn(value.shape, generator=numbers) * 0.02
    head = TorchHead(shape, weights, teacher.get_input_embeddings().weight)
    features = Features(teacher, shape.taps, 1 << 30)
    found = HeadLearner(head, tokens, features, texts[:3], depth=1, loss="ce", warm=0.5).acceptance(texts[:3])
    counts = np.zeros(EVALUATED + 1)
    with torch.no_grad():
        for text in texts[:3]:
            whole, states = [*text.prompt, *text.answer], features.batch([text]).states
            chains = list(head.unroll(torch.tensor([whole]), states, EVALUATED))
            for at in range(len(text.prompt) - 2, len(whole) - 1 - EVALUATED):
                counts[0] += 1
                for guess, chain in enumerate(chains):
                    if tokens[int(head.logits(chain[0, at]).argmax())] != whole[at + 2 + guess]:
                        break
                    counts[guess + 1] += 1
    features.close()
    assert found.guesses == pytest.approx(counts[1:].sum() / counts[0])


def test_losses_are_their_formulas(gguf: Path, teacher: Any, texts: list[TargetText]) -> None:
    """TV is one minus the expected share of accepted guesses; lost probability counts as rejected."""
    shape = shape_for(gguf, teacher, kept=40)
    tokens = likely_tokens(texts, [95], shape.vocab, shape.kept)
    head = TorchHead(
        shape, first_weights(shape, tokens, teacher, seed=1), teacher.get_input_embeddings().weight
    )
    features, text, depth = Features(teacher, shape.taps, 0), texts[0], 2
    learner = HeadLearner(head, tokens, features, texts[:1], depth=depth, loss="tv", warm=0.6)
    loss = float(learner.loss([text], 0.7).detach())
    entropy = float(learner.loss([text], 0.5).detach())
    whole = [*text.prompt, *text.answer]
    with torch.no_grad():
        target = teacher(torch.tensor([whole])).logits[0].softmax(-1).numpy()[:, tokens]
        states = features.batch([text]).states
        drafts = [
            head.logits(each)[0].softmax(-1).numpy()
            for each in head.unroll(torch.tensor([whole]), states, depth)
        ]
        single = float(learner.loss([text], 0.1))
        long = [
            head.logits(each)[0].softmax(-1).numpy()
            for each in head.unroll(torch.tensor([whole]), states, EVALUATED)
        ]
    sampled = learner.sampled([text])
    features.close()
    expected = [
        np.cumprod([np.minimum(target[at + 1 + j], long[j][at]).sum() for j in range(EVALUATED)]).sum()
        for at in range(len(text.prompt) - 2, len(whole) - 1 - EVALUATED)
    ]
    assert sampled == pytest.approx(np.mean(expected), abs=1e-5)
    accepted, entropies = [], [[], []]
    for at in range(len(text.prompt) - 2, len(whole) - 1 - depth):
        overlaps = [np.minimum(target[at + 1 + guess], drafts[guess][at]).sum() for guess in range(depth)]
        accepted.append(np.cumprod(overlaps).mean())
        for guess in range(depth):
            entropies[guess].append(-(target[at + 1 + guess] * np.log(drafts[guess][at])).sum())
    assert loss == pytest.approx(1 - np.mean(accepted), abs=1e-5)
    first = [
        -(target[at + 1] * np.log(drafts[0][at])).sum() for at in range(len(text.prompt) - 2, len(whole) - 2)
    ]
    assert single == pytest.approx(np.mean(first), rel=1e-4)
    assert entropy == pytest.approx((np.mean(entropies[0]) + 0.8 * np.mean(entropies[1])) / 1.8, rel=1e-4)


def test_the_likely_tokens() -> None:
    texts = [TargetText([9, 9, 9, 9], [7, 7, 3]), TargetText([1], [3, 7, 8])]
    assert likely_tokens(texts, [19], 20, 4).tolist() == [3, 7, 8, 19]
    assert likely_tokens(texts, [19], 20, 6).tolist() == [0, 1, 3, 7, 8, 19]


def test_a_scaled_target_is_refused(teacher: Any, tmp_path: Path) -> None:
    granite = tiny.write_gguf(tiny.make("granite", "F32"), tmp_path / "granite.gguf", logit_scale=8)
    with pytest.raises(UnsupportedModel, match="scales"):
        shape_for(granite, teacher, kept=40)


def test_the_gain_of_a_chain() -> None:
    found = chain_speedup([0.5, 0.5, 0.0], [1.0, 1.0, 1.0, 1.0], 0.25)
    assert (found.draft_length, found.tokens_per_step) == (1, 1.5)
    assert found.speedup == pytest.approx(1.5 / 1.25)
    assert chain_speedup([0.1], [1.0, 1.5], 0.5).draft_length == 0


PROMPTS = [CalibrationPrompt("words", text) for text in ("abc", "hello", "12 34", "def f")]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts_module, "MAX_QUESTION", 6)
    monkeypatch.setattr(texts_module, "MAX_ANSWER", 24)
    monkeypatch.setattr(texts_module, "MAX_TEXTS", 32)


def test_a_head_is_trained_added_and_drafts(library: Library, gguf: Path, short: None) -> None:
    build = HeadBuild("own", str(gguf), plan(seconds=60.0, steps=12, rate=3e-3), device="cpu")
    heard = Said()
    built = build_head(build, PROMPTS, library, heard)
    target = library.resolve(str(gguf), Silent())
    assert built.kind == "head"
    found = card(built)
    assert (found["target"], found["steps"], found["depth"]) == (target.name, 12, 3)
    assert len(found["acceptance"]) == EVALUATED
    assert found["cost_ratio"] > 0
    assert set(found["predicted"]) == {"draft_length", "tokens_per_step", "speedup"}
    assert built.manifest.target == (target.name if found["predicted"]["speedup"] > 1 else "")
    assert not (library.home / "building" / "own").exists()
    assert layout.noted(built.folder)["target"] == target.name
    texts = []
    for draft in ("off", "head:name=own"):
        chosen = Choice(engine="openvino", draft=draft, draft_length="fixed:tokens=3")
        runtime = Runtime.load(str(gguf), chosen, library, Silent())
        answer, steps = runtime.answer([3, 1, 4], sampling=Sampling(), max_tokens=30)
        for _ in steps:
            pass
        texts.append(answer)
    assert texts[0].token_ids == texts[1].token_ids
    assert texts[1].stats.accepted > 0
    with pytest.raises(BadValue, match="exists"):
        build_head(build, PROMPTS, library, Silent())


def test_a_killed_build_of_a_head_resumes(
    library: Library, gguf: Path, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = HeadBuild("own", str(gguf), plan(seconds=60.0, steps=8), device="cpu")
    with monkeypatch.context() as patch:
        patch.setattr(build_module, "_add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build_head(build, PROMPTS, library, Silent())
    assert library.find("own") is None
    written = (library.home / "building" / "own" / build_module.TEXTS).read_text("utf-8")
    assert len(written.splitlines()) > 8
    heard = Said()
    build_head(build, PROMPTS, library, heard)
    assert "Resuming the training of `own`" in heard.lines
    assert library.find("own") is not None


def interrupted(*arguments: Any) -> None:
    raise KeyboardInterrupt


def test_a_missing_device_is_named_first(library: Library, gguf: Path) -> None:
    with pytest.raises(UnknownDevice, match="cuda:9"):
        build_head(HeadBuild("own", str(gguf), plan(), device="cuda:9"), PROMPTS, library, Silent())
    assert library.all() == []


def test_the_command_trains_shows_and_imports(library: Library, gguf: Path, tmp_path: Path) -> None:
    target, localspec = library.resolve(str(gguf), Silent()).name, Localspec(library.home)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("abc\nhello\n", "utf-8")
    options = [
        "--minutes",
        "0.2",
        "--vocab",
        "80",
        "--device",
        "cpu",
        "--name",
        "own",
        "--prompts",
        str(prompts),
    ]
    done = localspec.run("train-head", target, *options)
    assert done.code == 0, done.err
    assert f"own, a head for {target}" in done.out
    assert "by position" in done.out
    shown = localspec.run("show", "own")
    assert "head" in shown.out
    assert "of 5 guesses in a row" in shown.out
    folder = library.models / "own"
    refused = localspec.run("import", str(folder), "--name", "other")
    assert refused.code == 2
    assert "--target" in refused.err
    done = localspec.run("import", str(folder), "--name", "other", "--target", target, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["kind"] == "head"
    assert "of 5 guesses in a row" in localspec.run("show", "other").out  # what its training noted
    assert localspec.run("train-head", target, "--loss", "kl").code == 2
