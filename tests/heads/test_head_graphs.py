"""A head's graphs on OpenVINO against torch, and the hidden states that they read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from random_heads import TAPS, random_tensors, write_head

from localspec.core.contracts import HeadSession, LayerStates
from localspec.engines.openvino.engine import OpenVino
from localspec.engines.torch.engine import Torch
from localspec.errors import BadValue, ContextFull
from localspec.formats.heads import graph, layout
from localspec.formats.heads.torch_head import TorchHead
from localspec.formats.huggingface import loading
from localspec.library import StoredModel

pytestmark = pytest.mark.engines

EXACT = {"precision": "f32", "group": 0, "kv": "f32"}
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 8, 9]


@pytest.fixture(params=[False, True], ids=["plain residual", "normed residual"])
def folder(tmp_path: Path, target: StoredModel, request: pytest.FixtureRequest) -> Path:
    published = write_head(tmp_path / "published", random_tensors(), norm_before_residual=request.param)
    head, into = layout.read(published), tmp_path / "head"
    into.mkdir()
    layout.write(head, into)
    graph.write(head, target.folder / "openvino_model.xml", into, plain=True)
    return into


def sessions(folder: Path, gguf: Path) -> list[HeadSession]:
    """Return the head on both engines, computed in float32."""
    found = [
        OpenVino(folder, **EXACT).session(),
        Torch(folder, device="cpu", precision="f32", target=str(gguf)).session(),
    ]
    return [session for session in found if isinstance(session, HeadSession)]


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).normal(size=shape).astype(np.float32)


def test_openvino_computes_what_torch_does(folder: Path, gguf: Path) -> None:
    one, other = sessions(folder, gguf)
    states = drawn(len(TEXT), len(TAPS) * 256)
    fused = one.fuse(states)
    assert np.allclose(fused, other.fuse(states), atol=1e-4)
    for session in (one, other):
        session.lead(fused)
    rows = [session.forward(TEXT, 4).copy() for session in (one, other)]
    assert rows[0].std() > 0.5
    assert np.abs(rows[0] - rows[1]).max() < 1e-3
    assert np.abs(one.own() - other.own()).max() < 1e-3
    for guess in (7, 11, 2):  # led by its own states
        rows = []
        for session in (one, other):
            session.lead(session.own()[-1:].copy())
            rows.append(session.forward([guess], 1).copy())
        assert np.abs(rows[0] - rows[1]).max() < 1e-3


def test_a_rewound_head_reads_as_a_new_one(folder: Path, gguf: Path) -> None:
    for session in sessions(folder, gguf):
        fused = session.fuse(drawn(len(TEXT), len(TAPS) * 256))
        session.lead(fused)
        whole = session.forward(TEXT, len(TEXT)).copy()
        session.lead(-fused[:3])
        session.forward([1, 2, 3], 1)  # guesses that are rejected
        assert session.rewind(5) == 5
        session.lead(fused[5:])
        assert np.abs(session.forward(TEXT[5:], len(TEXT) - 5) - whole[5:]).max() < 1e-3
        session.lead(drawn(300, 256))
        with pytest.raises(ContextFull):
            session.forward([1] * 300, 1)


def test_the_head_of_a_compressed_target_reads_its_embedding_alone(folder: Path, gguf: Path) -> None:
    found = []
    for weights in ("plain", "int8"):
        engine = Torch(folder, device="cpu", precision="f32", target=str(gguf), weights=weights)
        assert hasattr(engine, "model") == (weights == "plain")
        session = engine.session()
        assert isinstance(session, HeadSession)
        session.lead(session.fuse(drawn(len(TEXT), len(TAPS) * 256)))
        found.append(session.forward(TEXT, 4).copy())
    assert np.abs(found[0] - found[1]).max() < 0.01 * found[0].std()  # it is rounded to float16


def test_training_and_drafting_compute_the_same(folder: Path, gguf: Path) -> None:
    """The unrolled guesses of the training are those of a session that reads its own states."""
    head, session = layout.read(folder), sessions(folder, gguf)[0]
    target = loading.load(gguf, torch.device("cpu"), torch.float32)
    own = TorchHead(
        head.shape,
        {name: torch.from_numpy(values) for name, values in head.tensors.items()},
        target.get_input_embeddings().weight,
    )
    states = drawn(len(TEXT), len(TAPS) * 256)
    with torch.no_grad():
        unrolled = list(own.unroll(torch.tensor([TEXT]), torch.from_numpy(states)[None], 3))
        expected = [own.logits(each)[0].numpy() for each in unrolled]
    for at in (0, 4, 8):
        session.rewind(0)
        session.lead(session.fuse(states[: at + 1]))
        rows = [session.forward(TEXT[1 : at + 2], 1)[0].copy()]
        for guess in (1, 2):
            session.lead(session.own()[-1:].copy())
            rows.append(session.forward([TEXT[at + 1 + guess]], 1)[0].copy())
        for guess, row in enumerate(rows):
            assert np.abs(row - expected[guess][at]).max() < 1e-3, (at, guess)


def test_both_engines_show_the_same_states(target: StoredModel, gguf: Path) -> None:
    found = []
    for engine in (OpenVino(target.folder, taps="1-2-4", **EXACT), Torch(gguf, device="cpu", taps="1-2-4")):
        session = engine.session()
        assert isinstance(session, LayerStates)
        session.forward(TEXT[:5], 1)
        session.forward([99 - 50, 1], 2)
        session.rewind(5)
        session.forward(TEXT[5:], 1)
        found.append(session.states().astype(np.float32))
    assert found[0].shape == (len(TEXT), 3 * 256)
    assert np.abs(found[0] - found[1]).max() < 0.02 * found[0].std()
    model = loading.load(gguf, torch.device("cpu"), torch.float32)
    with torch.no_grad():
        hidden = model(torch.tensor([TEXT]), output_hidden_states=True).hidden_states
    expected = np.concatenate([hidden[tap][0].numpy() for tap in (1, 2, 4)], -1)
    assert np.abs(found[1] - expected).max() < 0.002 * np.abs(expected).max()


def test_states_do_not_change_the_logits(target: StoredModel) -> None:
    plain, tapped = (OpenVino(target.folder, **more).session() for more in ({}, {"taps": "1-2-4"}))
    for count in (7, 1, 3, 1):
        part = TEXT[:count]
        assert np.array_equal(plain.forward(part, count), tapped.forward(part, count))


@pytest.mark.parametrize("taps", ["", "2-1", "0-1", "x", "2-"])
def test_layers_that_are_none_are_refused(target: StoredModel, gguf: Path, taps: str) -> None:
    if not taps:
        with pytest.raises(BadValue, match="9"):
            OpenVino(target.folder, taps="1-9")
        with pytest.raises(BadValue, match="exclude"):
            OpenVino(target.folder, taps="1", hidden=True)
        with pytest.raises(BadValue, match="exclude"):
            Torch(gguf, taps="1", exit=2)
        with pytest.raises(BadValue, match="9"):
            Torch(gguf, device="cpu", taps="1-9").session().forward([1], 1)
        return
    for engine, path in ((OpenVino, target.folder), (Torch, gguf)):
        with pytest.raises(BadValue, match="taps"):
            engine(path, taps=taps)
