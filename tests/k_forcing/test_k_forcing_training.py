"""Training hints: they learn, resume after a kill, and draft for their target from the library."""

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
from localspec.drafting.build_step import TargetText
from localspec.errors import BadValue, UnknownName, UnsupportedModel
from localspec.formats.huggingface import loading
from localspec.formats.k_forcing.torch_hints import TorchHints, drawn, law
from localspec.library import Library, Silent
from localspec.runtime.choice import Choice
from localspec.runtime.generation import Runtime
from localspec.training import texts as texts_module
from localspec.training.features import tokens_of
from localspec.training.k_forcing import stages as training
from localspec.training.k_forcing.groups import GroupReader
from localspec.training.k_forcing.learner import KForcingLearner
from localspec.training.k_forcing.stages import KForcingPlan, first_weights, shape_for, train_hints

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
def texts() -> list[TargetText]:
    numbers = np.random.default_rng(0)
    return [TargetText([1, 2], numbers.integers(0, 24, 30).tolist()) for _ in range(48)]


def plan(**options: Any) -> KForcingPlan:
    return KForcingPlan(**({"seconds": 1e9, "steps": 60, "batch": 8, "rate": 4e-3} | options))


def test_hints_learn_in_stages_and_leave_the_target_as_it_was(
    target: Any, texts: list[TargetText], tmp_path: Path
) -> None:
    before = {name: value.clone() for name, value in target.state_dict().items()}
    heard = Heard()
    found = train_hints(target, texts[8:], texts[:8], plan(), tmp_path, heard)
    assert [line for line in heard.lines if line.startswith("Learning")] == [
        "Learning 2 tokens a pass",
        "Learning 4 tokens a pass",
    ]
    assert 20 < found.about["steps"] <= 60
    own, hinted = found.about["perplexity"]
    assert 1 < own < hinted
    assert found.about["agreement"][0] == found.about["greedy_agreement"][0] == 1
    first = KForcingLearner(new_hints(target), None, texts[:8], k=4).agreement(texts[:8], 0.0)
    assert sum(found.about["greedy_agreement"]) > sum(first)
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())


def new_hints(target: Any, **options: Any) -> TorchHints:
    shape = shape_for(target, plan(**options))
    return TorchHints(shape, first_weights(shape, target, 0), target)


def test_a_killed_training_resumes_in_its_stage(
    target: Any, texts: list[TargetText], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in ("whole", "killed")]
    for folder in folders:
        folder.mkdir()
    whole = train_hints(target, texts[8:], texts[:8], plan(), folders[0], Silent())

    def killed(learner: Any, *arguments: Any) -> Any:
        if "stage-4" in str(arguments[2]):
            raise KeyboardInterrupt
        return real(learner, *arguments)

    real = training.train
    with monkeypatch.context() as patch:
        patch.setattr(training, "train", killed)
        with pytest.raises(KeyboardInterrupt):
            train_hints(target, texts[8:], texts[:8], plan(), folders[1], Silent())
    heard = Heard()
    resumed = train_hints(target, texts[8:], texts[:8], plan(), folders[1], heard)
    assert resumed.about["steps"] == whole.about["steps"]
    assert "Learning 2 tokens a pass" not in heard.lines
    assert "Learning 4 tokens a pass" in heard.lines
    for name, value in whole.tensors.items():
        np.testing.assert_array_equal(value, resumed.tensors[name])


def test_groups_read_what_the_whole_text_says(target: Any, texts: list[TargetText]) -> None:
    """Tokens of a group get the logits that they have in the text, and no hint reaches them."""
    reader, hints = GroupReader(target, None), new_hints(target)
    tokens, _ = tokens_of(texts[:3], CPU)
    anchors = torch.tensor([[4, 9], [7, 2], [20, 11]])
    after = torch.stack([tokens[row][anchors[row][:, None] + 1 + torch.arange(3)] for row in range(3)])
    noise, warm = torch.rand(3, 2, 2, dtype=torch.float64), torch.ones(3, 2)
    found = GroupReader(target, hints).continued(reader.text(tokens), anchors, after, noise, warm)
    whole = target(input_ids=tokens).logits
    expected = whole.gather(1, (anchors + 3)[..., None].expand(-1, -1, whole.shape[-1]))
    torch.testing.assert_close(found[:, :, 0], expected, atol=1e-4, rtol=1e-4)
    assert found.shape == (3, 2, 3, 24)


def test_hints_see_those_before_them_alone(target: Any, texts: list[TargetText]) -> None:
    hints = new_hints(target)
    with torch.no_grad():
        for name, value in hints.weights.items():
            value += 0.1 * torch.randn(value.shape, generator=torch.Generator().manual_seed(len(name)))
    reader, (tokens, _) = GroupReader(target, hints), tokens_of(texts[:1], CPU)
    text, anchors, warm = reader.text(tokens), torch.tensor([[4, 9]]), torch.ones(1, 2)
    noise = torch.full((1, 2, 3), 0.3, dtype=torch.float64)
    other = noise.clone()
    other[0, 0, 1] = 0.8
    with torch.no_grad():
        one, two = (reader.hinted(text, anchors, each, warm) for each in (noise, other))
    same = torch.isclose(one, two, atol=1e-5).all(-1)
    assert same.tolist() == [[[True, False, False], [True, True, True]]]
    with torch.no_grad():  # at temperature 0 the noise says nothing
        cold = [reader.hinted(text, anchors, each, 0 * warm) for each in (noise, other)]
    torch.testing.assert_close(*cold)


def test_likelihoods_are_those_of_the_whole_text(target: Any, texts: list[TargetText]) -> None:
    reader, (tokens, _) = GroupReader(target, None), tokens_of(texts[:2], CPU)
    anchors = torch.tensor([[4, 9], [7, 2]])
    at = anchors[..., None] + torch.arange(3)
    after = tokens[torch.arange(2)[:, None, None], at + 1]
    found = reader.likelihoods(reader.text(tokens), anchors, after)
    whole = target(input_ids=tokens).logits.log_softmax(-1)
    expected = whole[torch.arange(2)[:, None, None], at, after]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_the_inverse_cdf_is_in_the_order_of_the_vocabulary() -> None:
    logits = torch.log(torch.tensor([[0.2, 0.5, 0.3]])).expand(5, 3)
    noise = torch.tensor([0.0, 0.19, 0.21, 0.71, 1 - 1e-12], dtype=torch.float64)
    assert drawn(law(logits, torch.ones(5)), noise).tolist() == [0, 0, 1, 2, 2]
    assert drawn(law(logits, torch.zeros(5)), noise).tolist() == [1] * 5


@pytest.mark.parametrize("k", [0, 1, 3, 5, 32])
def test_only_powers_of_two_are_learned(k: int) -> None:
    with pytest.raises(BadValue, match=f"`k` is {k}"):
        plan(k=k)


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


def test_hints_are_trained_added_and_draft(library: Library, gguf: Path) -> None:
    build = HeadBuild("own", str(gguf), plan(seconds=60.0, steps=8, k=2), device="cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_module, "_add_addon", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build_head(build, PROMPTS, library, Silent())
    heard = Heard()
    built = build_head(build, PROMPTS, library, heard)
    assert "Resuming the training of `own`" in heard.lines
    assert (built.kind, card(built)["k"], card(built)["steps"] > 0) == ("k-forcing", 2, True)
    name = library.resolve(str(gguf), Silent()).name
    verifier = "exact:noise=position"
    plain, _ = answered(library, name, draft="off", verifier=verifier)
    for draft in ("k_forcing:name=own", f"k_forcing:name={built.folder}"):
        drafted, runtime = answered(library, name, draft=draft, verifier=verifier)
        assert drafted == plain
        assert runtime.lossless
    own, _ = answered(library, name, draft="off", verifier=verifier, engine="openvino")
    drafted, runtime = answered(
        library, name, draft="k_forcing:name=own", verifier=verifier, engine="openvino"
    )
    assert drafted == own
    assert runtime.lossless
    assert plain != answered(library, name, draft="off")[0]
    decoded, runtime = answered(library, name, decoding="k_forcing:name=own")
    assert (len(decoded), runtime.lossless) == (30, False)
    refuse(library, name, built.folder)


def refuse(library: Library, name: str, folder: Path) -> None:
    """Check what is said of hints that do not fit."""
    other = tiny.write_gguf(tiny.make("llama", "F32", layers=3, seed=3), library.home / "other.gguf")
    with pytest.raises(UnsupportedModel, match=f"trained for `{name}`.* 2 layers, and .* has 3"):
        answered(library, str(other), draft="k_forcing:name=own")
    with pytest.raises(UnsupportedModel, match="holds no hints"):
        answered(library, name, draft=f"k_forcing:name={name}")
    with pytest.raises(UnknownName, match="No hints are called `nothing`"):
        answered(library, name, draft="k_forcing:name=nothing")
    with pytest.raises(BadValue, match="`hybrid` runs a model of"):
        answered(library, name, draft="own")
    with pytest.raises(UnsupportedModel, match="answer no prompt"):
        answered(library, "own")
    with pytest.raises(BadValue, match="trained for 2 tokens a pass"):
        answered(library, name, draft="k_forcing:name=own,k=4")
    with pytest.raises(BadValue, match="needs an engine with `hints`"):
        Runtime.load(name, Choice(engine="llamacpp", draft="k_forcing:name=own"), library, Silent())


def interrupted(*arguments: Any) -> None:
    raise KeyboardInterrupt


def test_the_command_trains_and_shows(library: Library, gguf: Path, tmp_path: Path) -> None:
    target, localspec = library.resolve(str(gguf), Silent()).name, Localspec(library.home)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("abc\nhello\n", "utf-8")
    given = ["--kind", "k-forcing", "--minutes", "0.2", "--device", "cpu", "--prompts", str(prompts)]
    done = localspec.run("train-head", target, *given, "--k", "2")
    assert done.code == 0, done.err
    assert f"{target}-k-forcing, hints for {target}" in done.out
    assert "tokens a pass are right" in done.out
    assert "tokens a pass are right" in localspec.run("show", f"{target}-k-forcing").out
    folder = str(library.models / f"{target}-k-forcing")
    refused = localspec.run("import", folder, "--name", "other")
    assert refused.code == 2
    assert "--target" in refused.err
    assert localspec.run("import", folder, "--name", "other", "--target", target).code == 0
    assert "tokens a pass are right" in localspec.run("show", "other").out
    refused = localspec.run("chat", target, "a", "--engine", "llamacpp", "--draft", "k_forcing:name=other")
    assert refused.code == 2
    assert "`--engine torch`" in refused.err
    assert localspec.run("chat", target, "a", "--draft", "k_forcing:name=other").code == 0
    for wrong, said in (
        (["--kind", "k-forcing", "--k", "3"], "2, 4, 8 or 16 tokens"),
        (["--kind", "k-forcing", "--depth", "2"], "`--depth` does nothing"),
        (["--kind", "medusa"], "Unknown kind `medusa`"),
        (["--k", "2"], "`--k` does nothing"),
    ):
        refused = localspec.run("train-head", target, *wrong)
        assert refused.code == 2
        assert said in refused.err
