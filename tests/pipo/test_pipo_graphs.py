"""PIPO's graphs on OpenVINO against torch."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny

from localspec.core.contracts import PairSession
from localspec.core.rewind_check import rewind_fault
from localspec.engines.openvino.engine import OpenVino
from localspec.engines.torch import Torch
from localspec.errors import BadValue, UnsupportedModel
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph.ir import import_weights
from localspec.formats.pipo import graph, layout
from localspec.formats.pipo.layout import StoredPairs
from localspec.library import Silent

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("one_torch_thread")]

DATA = Path(__file__).parents[1] / "data"
TOY, PAIRS = DATA / "k_forcing" / "toy", DATA / "pipo"
EXACT = {"precision": "f32", "group": 0, "kv": "f32"}
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2]


def on_openvino(model: Path, folder: Path) -> OpenVino:
    (model / "openvino_model.bin").touch()  # its own graph is not read
    return OpenVino(model, pairs=str(folder), **EXACT)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> tuple[OpenVino, Torch]:
    model, folder = (tmp_path_factory.mktemp(name) for name in ("toy", "pairs"))
    shutil.copyfile(TOY / "config.json", model / "config.json")
    stored = layout.read(PAIRS)
    layout.write(stored, folder)
    graph.write(stored, TOY, folder, plain=True)
    return on_openvino(model, folder), Torch(TOY, device="cpu", threads=1, pairs=str(PAIRS))


def sessions(engines: tuple[OpenVino, Torch], least: float = 0.0) -> list[PairSession]:
    found = [engine.session() for engine in engines]
    for session in found:
        assert isinstance(session, PairSession)
        session.least = least
    return [session for session in found if isinstance(session, PairSession)]


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 16, 17])
@pytest.mark.parametrize("length", [17, 16])
def test_rows_are_those_of_torch(engines: tuple[OpenVino, Torch], rows: int, length: int) -> None:
    rows = min(rows, length)
    one, other = (session.forward(TEXT[:length], rows) for session in sessions(engines))
    assert one.shape == other.shape == (rows, 24)
    np.testing.assert_allclose(one, other, atol=5e-3)


def test_both_are_as_sure_and_put_pads_at_the_same_places(engines: tuple[OpenVino, Torch]) -> None:
    pair = sessions(engines, least=0.98)
    sure = []
    for token in TEXT:
        one, other = (session.forward([token], 1) for session in pair)
        np.testing.assert_allclose(one, other, atol=1e-2)
        found = [session.confidence() for session in pair]
        assert (found[0] is None) == (found[1] is None)
        if found[0] is not None:
            assert found[0] == pytest.approx(found[1], abs=1e-3)
        sure.append(found[0])
    assert None in sure
    assert any(value is not None for value in sure)


def test_rewinds_are_exact(engines: tuple[OpenVino, Torch]) -> None:
    session = sessions(engines)[0]
    assert rewind_fault(session, 24) is None
    for length in range(17):
        session.rewind(0)
        session.forward(TEXT, 1)
        assert session.rewind(length) == length
        expected = sessions(engines)[0].forward([*TEXT[:length], 7, 7, 2], 3).copy()
        np.testing.assert_allclose(session.forward([7, 7, 2], 3), expected, atol=1e-4)


def test_the_rows_of_a_gguf_file_get_their_own_adapters(tmp_path: Path) -> None:
    """llama.cpp orders the rows of queries and keys otherwise than those of the adapters are."""
    file = tiny.write_gguf(tiny.make("llama", "F32", interleaved=True, seed=3), tmp_path / "tiny.gguf")
    model, folder = tmp_path / "model", tmp_path / "pairs"
    model.mkdir()
    folder.mkdir()
    import_weights(GgufFile.open(file), model, Silent())
    stored = random_pairs(file)
    layout.write(stored, folder)
    graph.write(layout.read(folder), file, folder, plain=True)
    pair = OpenVino(model, pairs=str(folder), **EXACT), Torch(file, device="cpu", pairs=str(folder))
    one, other = (session.forward(TEXT, 17).copy() for session in sessions(pair))
    assert np.abs(one - other).max() < 0.01 * other.std()


def random_pairs(file: Path) -> StoredPairs:
    """Return weights of PIPO for a model whose adapters change all that it says."""
    import torch

    from localspec.formats.huggingface import loading
    from localspec.training.pipo.pair_training import first_weights, shape_for

    model = loading.load(file, torch.device("cpu"), torch.float32)
    shape = shape_for(file, model, 4)
    numbers = np.random.default_rng(0)
    tensors = {name: value.detach().numpy() for name, value in first_weights(shape, model, 0).items()}
    for name, value in tensors.items():
        if name.endswith(".up"):
            tensors[name] = numbers.normal(size=value.shape, scale=0.1).astype(np.float32)
    return StoredPairs(shape, tensors)


def test_weights_without_graphs_and_other_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="no OpenVINO graph"):
        OpenVino(tmp_path, pairs=str(PAIRS))
    with pytest.raises(BadValue, match="exclude each other"):
        OpenVino(tmp_path, pairs=str(PAIRS), hidden=True)
