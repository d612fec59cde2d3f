"""Training PIPO: it learns, resumes after a kill, and reads, writes and drafts from the library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from command import Localspec

from localspec.build import CalibrationPrompt, HeadBuild, build_head, card
from localspec.build import heads as build_module
from localspec.core.sampler import Sampling
from localspec.core.types import PAD
from localspec.drafting.build_step import TargetText
from localspec.engines.openvino.engine import OpenVino
from localspec.errors import BadValue, UnknownName, UnsupportedModel
from localspec.formats.huggingface import loading
from localspec.formats.pipo.torch_pairs import TorchPairs
from localspec.library import Library, Silent
from localspec.runtime.choice import Choice
from localspec.runtime.generation import Runtime
from localspec.training import loop
from localspec.training import texts as texts_module
from localspec.training.pipo.learner import PairLearner
from localspec.training.pipo.pair_training import PipoPlan, first_weights, shape_for, train_pairs
from localspec.training.pipo.pairs import paired
from localspec.training.pipo.rollouts import WRITTEN, continued

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("one_torch_thread")]

CPU = torch.device("cpu")
TOY = Path(__file__).parents[1] / "data" / "k_forcing" / "toy"
PROMPTS = [CalibrationPrompt("text", "abc"), CalibrationPrompt("text", "hello")]


class Heard(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture(scope="module")
def target() -> Any:
    return loading.load(TOY, CPU, torch.float32)


@pytest.fixture(scope="module")
def texts(target: Any) -> list[TargetText]:
    """Texts that the toy writes."""
    starts = torch.arange(48)[:, None] % 24
    torch.manual_seed(0)
    with torch.inference_mode():
        found = target.generate(
            torch.cat([starts, starts * 7 % 24], 1), max_new_tokens=40, do_sample=True, pad_token_id=0
        )
    return [TargetText(text[:2], text[2:]) for text in found.tolist()]


def plan(**options: Any) -> PipoPlan:
    return PipoPlan(**({"seconds": 1e9, "steps": 60, "rank": 4, "batch": 8, "rate": 4e-3} | options))


def new_pairs(target: Any, seed: int = 0) -> TorchPairs:
    shape = shape_for(TOY, target, 4)
    return TorchPairs(shape, first_weights(shape, target, seed), target)


def trained(target: Any, texts: list[TargetText], folder: Path, heard: Silent | None = None) -> Any:
    folder.mkdir(exist_ok=True)
    return train_pairs(TOY, target, texts[8:], texts[:8], plan(), folder, heard or Silent())


def test_a_latent_begins_as_the_mean_of_two_embeddings(target: Any) -> None:
    first, second = torch.tensor([[3, 5]]), torch.tensor([[7, PAD]])
    table = target.get_input_embeddings().weight
    expected = torch.stack([(table[3] + table[7]) / 2, (table[5] + table.mean(0)) / 2])[None]
    torch.testing.assert_close(new_pairs(target).latents(first, second), expected)


def test_it_learns_and_leaves_the_target_as_it_was(
    target: Any, texts: list[TargetText], tmp_path: Path
) -> None:
    before = {name: value.clone() for name, value in target.state_dict().items()}
    found = trained(target, texts, tmp_path)
    untrained = PairLearner(new_pairs(target), texts, texts[:8]).score()
    assert sum(found.about["agreement"]) / 2 > untrained + 0.1
    assert 20 < found.about["steps"] <= 60
    assert [level[0] for level in found.about["levels"]] == [0, 0.5, 0.8, 0.9, 0.95, 0.99]
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())


def test_a_killed_training_resumes(
    target: Any, texts: list[TargetText], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, steps = loop._Trainer._step, [0]

    def killed(trainer: Any, some: Any) -> None:
        steps[0] += 1
        if steps[0] == 20:
            raise KeyboardInterrupt
        real(trainer, some)

    with monkeypatch.context() as patch:
        patch.setattr(loop._Trainer, "_step", killed)
        with pytest.raises(KeyboardInterrupt):
            trained(target, texts, tmp_path)
    heard = Heard()
    found = trained(target, texts, tmp_path, heard)
    assert any(line.startswith("Resuming after ") for line in heard.lines)
    assert 20 < found.about["steps"] <= 60


def test_the_second_part_learns_from_its_own_continuations(
    target: Any, texts: list[TargetText], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, asked = PairLearner(new_pairs(target), texts, texts[:8]), []
    monkeypatch.setattr(
        "localspec.training.pipo.learner.continued",
        lambda *given: asked.append(given[2]) or [TargetText([1, 2], [3, 4, 5])] * given[2],
    )
    learner.loss(texts[:4], 0.5)
    learner.loss(texts[:4], 1.0)  # as the loop asks what a step takes
    assert asked == []
    losses = [learner.loss(texts[:4], 0.7) for _ in range(17)]
    assert asked == [64, 64]  # 16 batches of 4 at a time
    assert all(torch.isfinite(loss) and loss.requires_grad for loss in losses)


def test_no_other_weight_learns_from_the_confidence(target: Any, texts: list[TargetText]) -> None:
    pairs = new_pairs(target)
    before, after, own = pairs.read(torch.tensor([[3, 5]]), torch.tensor([[7, 1]]))
    assert before.requires_grad
    assert own.requires_grad
    pairs.sure(before, own).sum().backward()
    learned = {name for name, value in pairs.weights.items() if value.grad is not None}
    assert learned == {f"confidence.{name}" for name in ("norm", "first", "second", "bias")}


def test_pairs_and_pads_are_what_the_text_says() -> None:
    texts = [TargetText([1, 2, 3], [4, 5, 6, 7]), TargetText([8], [9, 10])]
    numbers = np.random.default_rng(0)
    found = paired(texts, np.zeros(2), numbers, CPU)
    assert found.first[:, :4].tolist() == [[1, 3, 5, 7], [8, 10, 0, 0]]
    assert found.second[:, :4].tolist() == [[2, 4, 6, PAD], [9, PAD, 0, 0]]
    assert found.weights[0, :, :4].tolist() == [[pytest.approx(0.2), 1, 1, 0], [1, 0, 0, 0]]
    assert found.weights[1, :, :4].tolist() == [[pytest.approx(0.2), 1, 1, 0], [1, 0, 0, 0]]
    found = paired(texts, np.ones(2), numbers, CPU)
    assert found.first[0, :7].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert set(found.second[0, :7].tolist()) == {PAD}
    found = paired(texts * 8, np.full(16, 0.5), numbers, CPU)
    for row, text in enumerate(texts * 8):
        read = [
            token
            for pair in zip(found.first[row].tolist(), found.second[row].tolist(), strict=True)
            for token in pair
            if token > 0
        ]
        assert read == [*text.prompt, *text.answer]


def test_continuations_are_greedy_or_drawn(target: Any, texts: list[TargetText]) -> None:
    pairs, numbers = new_pairs(target), np.random.default_rng(0)
    made = [continued(pairs, texts, 6, numbers, torch.Generator().manual_seed(seed)) for seed in (0, 0)]
    for some in made:
        assert [len(text.prompt) for text in some] == [32] * 6
        assert [len(text.answer) for text in some] == [WRITTEN] * 6
    text = made[0][0]
    written = [*text.prompt, *text.answer]
    with torch.inference_mode():
        first, second = torch.tensor([written[::2]]), torch.tensor([written[1::2]])
        _, after, own = pairs.read(first, second)
        said = pairs.logits(after)[0, 15:-1], pairs.head.logits(own)[0, 16:]
    assert torch.stack([rows.argmax(-1) for rows in said], 1).flatten().tolist() == text.answer


def test_short_texts_alone_stay_what_they_are(target: Any) -> None:
    texts = [TargetText([1], [2, 3])]
    numbers, generator = np.random.default_rng(0), torch.Generator()
    assert continued(new_pairs(target), texts, 4, numbers, generator) == texts


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny.make("llama", "F32", interleaved=True, seed=3)
    return tiny.write_gguf(model, tmp_path_factory.mktemp("target") / "tiny.gguf")


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    for name, value in (("MAX_QUESTION", 6), ("MAX_ANSWER", 24), ("MAX_TEXTS", 32)):
        monkeypatch.setattr(texts_module, name, value)
    return Library()


def answered(library: Library, model: str, **choice: Any) -> tuple[list[int], Any]:
    runtime = Runtime.load(model, Choice(**{"engine": "torch:device=cpu"} | choice), library, Silent())
    warm = Sampling() if "decoding" in choice else Sampling(temperature=1.0)
    answer, steps = runtime.answer([3, 1, 4], sampling=warm, seed=1, max_tokens=30)
    for _ in steps:
        pass
    return answer.token_ids, runtime


def test_it_is_trained_added_and_used(library: Library, gguf: Path) -> None:
    name = library.resolve(str(gguf), Silent()).name
    build = HeadBuild(f"{name}-pipo", name, plan(seconds=60.0, steps=8), device="cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "_add_addon", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build_head(build, PROMPTS, library, Silent())
    heard = Heard()
    built = build_head(build, PROMPTS, library, heard)
    assert f"Resuming the training of `{name}-pipo`" in heard.lines
    assert (built.kind, len(card(built)["agreement"])) == ("pipo", 2)
    plain, _ = answered(library, name, draft="off")
    for draft in (f"pipo:name={name}-pipo", f"pipo:name={built.folder}"):
        drafted, runtime = answered(library, name, draft=draft)
        assert drafted == plain
        assert runtime.lossless
    plain, _ = answered(library, name, draft="off", engine="openvino")
    for draft, engine in ((f"{name}-pipo", "openvino"), (str(built.folder), "auto")):
        drafted, runtime = answered(library, name, draft=f"pipo:name={draft}", engine=engine)
        assert isinstance(runtime.engine, OpenVino)
        assert drafted == plain
    for decoding in ("pipo", f"pipo:name={built.folder},least=0.5"):
        for engine in ("openvino", "torch:device=cpu"):
            decoded, runtime = answered(library, name, decoding=decoding, engine=engine)
            assert (len(decoded), runtime.lossless) == (30, False)
    refuse(library, name, built.folder)


def refuse(library: Library, name: str, folder: Path) -> None:
    """Check what is said of weights that do not fit."""
    other = tiny.write_gguf(tiny.make("llama", "F32", layers=3, seed=3), library.home / "other.gguf")
    with pytest.raises(UnsupportedModel, match=f"trained for `{name}`.* 2 layers, and .* has 3"):
        answered(library, str(other), decoding=f"pipo:name={name}-pipo")
    with pytest.raises(UnsupportedModel, match="has no weights of PIPO"):
        answered(library, str(other), decoding="pipo")
    with pytest.raises(UnsupportedModel, match="holds no weights of PIPO"):
        answered(library, name, draft=f"pipo:name={name}")
    with pytest.raises(UnknownName, match="No weights of PIPO are called `nothing`"):
        answered(library, name, draft="pipo:name=nothing")
    with pytest.raises(BadValue, match="`hybrid` runs a model of"):
        answered(library, name, draft=f"{name}-pipo")
    with pytest.raises(UnsupportedModel, match="holds weights of PIPO"):
        answered(library, f"{name}-pipo")
    with pytest.raises(BadValue, match="needs an engine with `pairs`"):
        Runtime.load(name, Choice(engine="llamacpp", decoding="pipo"), library, Silent())
    assert folder.is_dir()


def interrupted(*arguments: Any) -> None:
    raise KeyboardInterrupt


def test_the_command_trains_shows_and_says_that_it_is_lossy(
    library: Library, gguf: Path, tmp_path: Path
) -> None:
    target, localspec = library.resolve(str(gguf), Silent()).name, Localspec(library.home)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("abc\nhello\n", "utf-8")
    given = ["--kind", "pipo", "--minutes", "0.2", "--device", "cpu", "--prompts", str(prompts)]
    done = localspec.run("train-head", target, *given)
    assert done.code == 0, done.err
    assert f"{target}-pipo, weights of PIPO for {target}" in done.out
    assert "of second tokens" in done.out
    assert "of second tokens" in localspec.run("show", f"{target}-pipo").out
    chat = ["chat", target, "a", "--max-tokens", "6", "--stats"]
    done = localspec.run(*chat, "--decoding", "pipo:least=0.9")
    assert done.code == 0, done.err
    assert "not the model's standard text" in done.err
    folder = str(library.models / f"{target}-pipo")
    assert localspec.run("import", folder, "--name", "other", "--target", target).code == 0
    assert "of second tokens" in localspec.run("show", "other").out
    for wrong, said in (
        (["--kind", "pipo", "--depth", "2"], "`--depth` does nothing beside `--kind pipo`"),
        (["--kind", "pipo", "--k", "2"], "`--k` does nothing"),
    ):
        refused = localspec.run("train-head", target, *wrong)
        assert refused.code == 2
        assert said in refused.err
