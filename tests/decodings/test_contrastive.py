"""Contrastive search against its formula in float64, on the toy and on tiny models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from numpy.typing import NDArray

from localspec.core.contracts import Engine, HiddenStates
from localspec.core.cursor import Cursor
from localspec.core.decode import run_decoding
from localspec.core.stop import OutputProcessor
from localspec.decodings.contrastive import Contrastive, likeliest
from localspec.engines.openvino.engine import OpenVino
from localspec.engines.torch.engine import Torch
from localspec.engines.toy import Toy
from localspec.errors import BadValue, UnsupportedModel
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph.ir import import_weights
from localspec.library import Silent
from localspec.runtime.choice import Choice, decoding_spec, engine_spec, serving

Values = NDArray[np.float64]
Read = Callable[[list[int]], tuple[Values, Values]]
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
TOY = Toy(hidden=True)


def by_the_formula(read: Read, prompt: list[int], alpha: float, k: int, count: int) -> list[int]:
    """Return the answer by Su et al. 2022, equation 5, each text read anew.

    `read` returns the logits [tokens, vocab] and last hidden states [tokens, width] of a text.
    """
    text = list(prompt)
    for _ in range(count):
        logits, states = read(text)
        weights = np.exp(logits[-1] - logits[-1].max())
        probs = weights / weights.sum()
        best, found = -np.inf, -1
        for token in sorted(range(len(probs)), key=lambda token: -probs[token])[:k]:
            own = read([*text, token])[1][-1]
            likeness = [own @ other / np.sqrt(own @ own) / np.sqrt(other @ other) for other in states]
            score = (1 - alpha) * probs[token] - alpha * max(likeness)
            if score > best:
                best, found = score, token
        text.append(found)
    return text[len(prompt) :]


class Numbers:
    def push(self, token: int) -> str:
        return f"{token}."

    def flush(self) -> str:
        return ""


def answer(decoding: Contrastive, prompt: list[int] = PROMPT, room: int = 24, **stops: Any) -> Any:
    """Return the tokens, the text and the finish of an answer."""
    steps = list(run_decoding(prompt, decoding, OutputProcessor(Numbers(), max_new_tokens=room, **stops)))
    assert all(last.drafted == 0 and last.target_seconds > 0 for last in steps)
    tokens = [token for last in steps for token in last.tokens]
    return tokens, "".join(last.text for last in steps), steps[-1].finish


def made(engine: Engine, **options: Any) -> Contrastive:
    return Contrastive(Cursor(engine.session()), **options)


def toy_read(text: list[int]) -> tuple[Values, Values]:
    session = TOY.session()
    assert isinstance(session, HiddenStates)
    rows = session.forward(text, len(text)).astype(np.float64)
    return rows, session.hidden().astype(np.float64)


@pytest.mark.parametrize("block_size", [1, 8, 0])
@pytest.mark.parametrize(("alpha", "k"), [(0.6, 4), (0.3, 7), (1.0, 2), (0.0, 5), (0.6, 1), (0.2, 64)])
def test_the_text_is_that_of_the_formula(alpha: float, k: int, block_size: int) -> None:
    decoding = made(Toy(hidden=True, block_size=block_size), alpha=alpha, k=k)
    for prompt in (PROMPT, [*PROMPT, 7, 7], [5], PROMPT):  # answers of one decoding, one after another
        expected = by_the_formula(toy_read, prompt, alpha, k, 12)
        assert answer(decoding, prompt, 12)[0] == expected


def test_without_a_penalty_or_a_choice_it_is_greedy(ask: Callable[..., Any]) -> None:
    greedy = ask(Cursor(Toy().session())).tokens
    assert answer(made(Toy(hidden=True), alpha=0.0))[0] == greedy
    assert answer(made(Toy(hidden=True), k=1))[0] == greedy
    assert answer(made(Toy(hidden=True)))[0] != greedy


def test_it_stops_where_any_answer_stops() -> None:
    whole = answer(made(Toy(hidden=True)))[0]
    assert answer(made(Toy(hidden=True)))[2] == "length"
    found = answer(made(Toy(hidden=True)), stop_tokens=[whole[6]])
    assert (found[0], found[2]) == (whole[: whole.index(whole[6]) + 1], "stop")
    tokens, text, finish = answer(made(Toy(hidden=True)), stop=[f"{whole[9]}.{whole[10]}."])
    assert (tokens, finish) == (whole[:11], "stop")
    assert text == "".join(f"{token}." for token in whole[:9])


def test_an_answer_may_fill_the_context() -> None:
    found = answer(made(Toy(hidden=True, context=12)), room=4)
    assert found[0] == answer(made(Toy(hidden=True)))[0][:4]


def test_an_interrupted_choice_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    decoding = made(Toy(hidden=True))
    expected = answer(made(Toy(hidden=True)))[0]
    text = [*PROMPT, decoding.choose(PROMPT)]
    passes: list[int] = []

    def interrupted(tokens: list[int], rows: int = 1) -> Any:
        passes.append(len(tokens))
        if len(passes) == 3:
            raise KeyboardInterrupt
        return Cursor.read(decoding._target, tokens, rows)

    with monkeypatch.context() as patch:
        patch.setattr(decoding._target, "read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            decoding.choose(text)
    assert answer(decoding)[0] == expected


def test_candidates_are_the_likeliest() -> None:
    row = np.array([0.5, 3.0, -1.0, 3.0, 2.0], np.float32)
    assert likeliest(row, 3).tolist() in ([1, 3, 4], [3, 1, 4])
    assert likeliest(row, 9).tolist()[2:] == [4, 0, 2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a tiny Qwen2: its GGUF file, and the folder of its OpenVINO graph."""
    path = tmp_path_factory.mktemp("contrastive")
    gguf = tiny.write_gguf(tiny.make("qwen2"), path / "a.gguf")
    import_weights(GgufFile.open(gguf), path, Silent())
    return gguf, path


@pytest.fixture(scope="module")
def reference(model: tuple[Path, Path]) -> Read:
    """Return a reader of the same model in float64: transformers' own states, no cache."""
    import torch

    from localspec.formats.huggingface import loading

    loaded = loading.load(model[0], torch.device("cpu"), torch.float64)

    def read(text: list[int]) -> tuple[Values, Values]:
        with torch.inference_mode():
            found = loaded(torch.tensor([text]), output_hidden_states=True)
        return found.logits[0].numpy(), found.hidden_states[-1][0].numpy()

    return read


def engines(model: tuple[Path, Path], name: str, **options: Any) -> Engine:
    gguf, graph = model
    if name == "torch":
        return Torch(gguf, device="cpu", **options)
    return OpenVino(graph, group=0, kv="f32", **options)


@pytest.mark.engines
@pytest.mark.parametrize("name", ["torch", "openvino"])
@pytest.mark.parametrize(("alpha", "k"), [(0.6, 4), (0.9, 7)])
def test_real_engines_write_the_text_of_the_formula(
    model: tuple[Path, Path], reference: Read, name: str, alpha: float, k: int
) -> None:
    found = answer(made(engines(model, name, hidden=True), alpha=alpha, k=k), room=10)[0]
    assert found == by_the_formula(reference, PROMPT, alpha, k, 10)
    assert found != by_the_formula(reference, PROMPT, 0.0, 1, 10)


@pytest.mark.engines
@pytest.mark.parametrize("name", ["torch", "openvino"])
def test_hidden_states_are_those_of_the_whole_text(
    model: tuple[Path, Path], reference: Read, name: str
) -> None:
    session: Any = engines(model, name, hidden=True).session()
    plain = engines(model, name).session()
    assert not isinstance(plain, HiddenStates)
    text = [at % tiny.VOCAB for at in range(5, 45)]
    session.forward(text[:30], 0)
    session.forward([1, 2, 3], 2)
    assert session.rewind(30) == 30
    assert session.hidden().shape == (30, tiny.WIDTH)
    session.forward(text[30:31], 1)
    rows = session.forward(text[31:], 3)
    assert session.hidden().dtype == np.float32
    assert np.abs(session.hidden() - reference(text)[1]).max() < 2e-3
    assert np.abs(rows - reference(text)[0][-3:]).max() < 2e-3
    plain.forward(text[:30], 0)
    plain.forward(text[30:31], 1)
    near = 1e-3 if name == "torch" else 0.0  # its products round by the number of rows on some processors
    assert np.abs(rows - plain.forward(text[31:], 3)).max() <= near


@pytest.mark.engines
def test_a_state_that_cannot_be_shown_is_refused(tmp_path: Path, model: tuple[Path, Path]) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "pad_token_id": 0}
    AutoModelForCausalLM.from_config(AutoConfig.for_model("mamba", **shape)).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="exposes no hidden states"):
        Torch(tmp_path, device="cpu", hidden=True)
    for name in ("torch", "openvino"):
        with pytest.raises(BadValue, match="exclude each other"):
            engines(model, name, hidden=True, exit=1)
    with pytest.raises(BadValue, match="exclude each other"):
        Toy(hidden=True, exit=1)


def test_what_does_nothing_beside_it_is_refused() -> None:
    Choice(decoding="contrastive:alpha=0.5,k=3", draft="off").check()
    for other in ({"draft": "ngram"}, {"draft_length": "fixed"}, {"verifier": "rejection"}):
        (name,) = other
        option = name.replace("_", "-")
        with pytest.raises(BadValue, match=f"`--{option}` does nothing beside `--decoding contrastive`"):
            Choice(decoding="contrastive", **other).check()


def test_an_engine_that_shows_no_states_is_refused() -> None:
    spec = decoding_spec("contrastive")
    assert str(serving(spec, engine_spec("openvino"))) == "openvino:hidden=True"
    with pytest.raises(BadValue, match="needs an engine with `hidden`, which `llamacpp` does not") as caught:
        Choice(engine="llamacpp", decoding="contrastive").check()
    assert "`--engine openvino`" in (caught.value.hint or "")
    with pytest.raises(BadValue, match="needs an engine with `hidden` states"):
        made(Toy())
