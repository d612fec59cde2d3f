"""K-Forcing's graph on OpenVINO against torch, and against the target's own graph."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch

from localspec.core.contracts import HintedSession
from localspec.core.rewind_check import rewind_fault
from localspec.engines.openvino.engine import OpenVino
from localspec.engines.torch import Torch
from localspec.errors import BadValue, UnsupportedModel
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph.ir import import_weights
from localspec.formats.huggingface import loading
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.formats.k_forcing import graph, layout
from localspec.formats.k_forcing.layout import StoredHints
from localspec.formats.k_forcing.torch_hints import features
from localspec.library import Silent
from localspec.training.k_forcing.stages import KForcingPlan, first_weights, shape_for

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("one_torch_thread")]

DATA = Path(__file__).parents[1] / "data" / "k_forcing"
EXACT = {"precision": "f32", "group": 0, "kv": "f32"}
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2]


def noise(position: int) -> float:
    return position * 0.37 % 1


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> tuple[OpenVino, Torch]:
    model, folder = (tmp_path_factory.mktemp(name) for name in ("toy", "hints"))
    shutil.copyfile(DATA / "toy" / "config.json", model / "config.json")
    import_weights(SafetensorsFolder.open(DATA / "toy"), model, Silent(), plain=True)
    stored = layout.read(DATA / "hints")
    layout.write(stored, folder)
    graph.write(stored, DATA / "toy", folder, plain=True)
    return (
        OpenVino(model, hints=str(folder), **EXACT),
        Torch(DATA / "toy", device="cpu", threads=1, hints=str(DATA / "hints")),
    )


def sessions(engines: tuple[OpenVino, Torch]) -> list[HintedSession]:
    return [session for engine in engines if isinstance(session := engine.session(), HintedSession)]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("rows", [1, 4])
def test_hints_say_what_they_do_on_torch(
    engines: tuple[OpenVino, Torch], rows: int, temperature: float
) -> None:
    pair = sessions(engines)
    assert len(pair) == 2
    for session in pair:
        session.forward(TEXT[:10], 0)
        session.hint(noise, temperature)
    one, other = (session.forward(TEXT[10:], rows).copy() for session in pair)
    np.testing.assert_allclose(one, other, atol=5e-3)
    told = [session.hinted().copy() for session in pair]
    assert told[0].shape == told[1].shape == (rows, 3, 24)
    np.testing.assert_allclose(told[0], told[1], atol=1e-2)
    one, other = (session.forward([7], 1) for session in pair)  # no token of the text sees them
    np.testing.assert_allclose(one, other, atol=5e-3)
    assert all(session.hinted().size == 0 for session in pair)


def test_rewinds_are_exact_and_a_full_context_leaves_hints_out(engines: tuple[OpenVino, Torch]) -> None:
    session = sessions(engines)[0]
    assert rewind_fault(session, 24) is None
    session.hint(noise, 1.0)
    assert session.forward([1] * 255, 2).shape == (2, 24)
    assert session.hinted().size == 0


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
def test_noise_has_the_features_that_were_trained(temperature: float) -> None:
    numbers = np.random.default_rng(0).random(5)
    expected = features(torch.from_numpy(numbers), torch.tensor(temperature))
    np.testing.assert_allclose(graph.features(numbers, temperature), expected.numpy(), atol=1e-6)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny.make("llama", "F32", interleaved=True, seed=3)
    return tiny.write_gguf(model, tmp_path_factory.mktemp("target") / "tiny.gguf")


def random_hints(gguf: Path) -> StoredHints:
    """Return hints for a model whose adapters change all that they say."""
    model = loading.load(gguf, torch.device("cpu"), torch.float32)
    shape = shape_for(model, KForcingPlan(1.0))
    tensors = {name: value.detach().numpy() for name, value in first_weights(shape, model, 0).items()}
    numbers = np.random.default_rng(0)
    return StoredHints(
        shape,
        {
            name: numbers.normal(size=value.shape, scale=0.1).astype(np.float32) if ".up" in name else value
            for name, value in tensors.items()
        },
    )


@pytest.mark.parametrize("hinted", [False, True])
def test_the_text_s_rows_are_those_of_the_target_s_own_graph(
    gguf: Path, tmp_path: Path, hinted: bool
) -> None:
    model, folder = tmp_path / "model", tmp_path / "hints"
    model.mkdir()
    folder.mkdir()
    import_weights(GgufFile.open(gguf), model, Silent())
    stored = random_hints(gguf)
    layout.write(stored, folder)
    graph.write(stored, gguf, folder)
    plain, session = OpenVino(model).session(), OpenVino(model, hints=str(folder)).session()
    other = Torch(gguf, device="cpu", hints=str(folder)).session()
    assert isinstance(session, HintedSession)
    assert isinstance(other, HintedSession)
    ask: Callable[..., None] = session.hint if hinted else lambda *given: None
    for tokens, rows in ((TEXT, 1), (TEXT[:4], 4), (TEXT[:1], 1)):
        ask(noise, 1.0)
        other.hint(noise, 1.0)
        np.testing.assert_array_equal(session.forward(tokens, rows), plain.forward(tokens, rows).copy())
        other.forward(tokens, rows)
        if hinted:  # rounded to eight bits
            gap = np.abs(session.hinted() - other.hinted()).max()
            assert gap < 0.2 * other.hinted().std()


def test_hints_without_a_graph_and_other_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="no OpenVINO graph"):
        OpenVino(tmp_path, hints=str(DATA / "hints"))
    with pytest.raises(BadValue, match="exclude each other"):
        OpenVino(tmp_path, hints=str(DATA / "hints"), hidden=True)
