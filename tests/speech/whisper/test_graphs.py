"""Whisper's graphs on OpenVINO: the encoder, the decoder in passes of any width, its attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_whisper

from localspec.core.contracts import SpeechSession
from localspec.core.cursor import Cursor
from localspec.engines.openvino.engine import OpenVino
from localspec.errors import BrokenModel
from localspec.formats.files import read_json
from localspec.formats.whisper import graphs as whisper
from localspec.formats.whisper.weights import open_whisper
from localspec.library import Silent

TEXT = [3, 77, 5, 200, 9, 1000, 4, 8, 15, 16, 23, 42]
FEATURES = np.random.default_rng(1).normal(size=(80, 200)).astype(np.float32)


@pytest.fixture
def session(folder: Path) -> SpeechSession:
    found = OpenVino(folder).session()
    assert isinstance(found, SpeechSession)
    return found


def logits(session: SpeechSession, widths: int) -> Any:
    session.rewind(0)
    rows = [
        session.forward(TEXT[at : at + widths], len(TEXT[at : at + widths])).copy()
        for at in range(0, len(TEXT), widths)
    ]
    return np.concatenate(rows)


def test_passes_of_all_widths_give_equal_rows_and_a_rewind_is_exact(session: SpeechSession) -> None:
    session.hear(session.encode(FEATURES))
    whole = logits(session, len(TEXT))
    for width in (1, 2, 3, 5, 8):
        np.testing.assert_array_equal(logits(session, width), whole)
    session.rewind(4)
    session.forward([9, 9, 9], 0)
    session.rewind(4)
    np.testing.assert_array_equal(session.forward(TEXT[4:], len(TEXT) - 4), whole[4:])


def test_what_is_heard_next_begins_a_new_text(session: SpeechSession) -> None:
    first = session.encode(FEATURES)
    session.hear(first)
    before = logits(session, 4)
    session.hear(session.encode(FEATURES[:, ::-1]))
    assert Cursor(session).read(TEXT, 1).shape[0] == 1
    assert np.abs(logits(session, 4) - before).max() > 0.01
    session.hear(first)
    np.testing.assert_array_equal(logits(session, 4), before)


@pytest.mark.parametrize("frames", [2, 50, 1500])
def test_the_encoder_reads_any_number_of_frames(session: SpeechSession, frames: int) -> None:
    states = session.encode(np.zeros((80, 2 * frames), np.float32))
    assert states.shape == (frames, tiny_whisper.WIDTH)
    session.hear(states)
    assert np.isfinite(session.forward(TEXT, 1)).all()


def test_attention_is_a_distribution_over_the_frames(session: SpeechSession) -> None:
    session.hear(session.encode(FEATURES))
    session.forward(TEXT[:3], 0)
    found = session.listened(TEXT, [(0, 1), (1, 0)])
    assert found.shape == (2, len(TEXT), 100)
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-5)
    kept = session.forward(TEXT[3:], 1).copy()  # the session's own text is untouched
    session.rewind(0)
    np.testing.assert_array_equal(session.forward(TEXT, 1), kept)


def test_a_config_that_does_not_fit_is_refused(source: Path, tmp_path: Path) -> None:
    tensors, config = open_whisper(source), read_json(source / "config.json")
    with pytest.raises(BrokenModel, match="d_model"):
        whisper.write(tensors, config | {"d_model": "wide"}, tmp_path, Silent())
    with pytest.raises(BrokenModel):
        whisper.write(tensors, config | {"encoder_layers": 9}, tmp_path, Silent())


@pytest.mark.engines
def test_graphs_compute_what_transformers_does(source: Path) -> None:
    torch = pytest.importorskip("torch")
    import openvino as ov
    from transformers import WhisperForConditionalGeneration

    model = WhisperForConditionalGeneration.from_pretrained(
        source, dtype=torch.float32, attn_implementation="eager"
    )
    model.eval()
    tensors, shape = open_whisper(source), whisper.Shape.of(read_json(source / "config.json"))
    core, exact = ov.Core(), {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    features = np.random.default_rng(0).normal(size=(1, 80, 3000)).astype(np.float32)
    states = core.compile_model(whisper.encoder(shape, tensors, 16), "CPU", exact)({"features": features})[0]
    crossed = core.compile_model(whisper.cross(shape, tensors, 16), "CPU", exact)
    heard = crossed({"states": states})
    decoder = core.compile_model(whisper.decoder(shape, tensors, 16), "CPU", exact)
    inputs = {port.any_name: heard[port] for port in crossed.outputs} | {
        "input_ids": np.array([TEXT]),
        "attention_mask": np.ones((1, len(TEXT)), np.int64),
        "position_ids": np.arange(len(TEXT))[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    found = decoder.create_infer_request().infer(inputs)[decoder.output("logits")]
    with torch.no_grad():
        expected = model(torch.tensor(features), decoder_input_ids=torch.tensor([TEXT]))
    np.testing.assert_allclose(states, expected.encoder_last_hidden_state.numpy(), atol=2e-3)
    np.testing.assert_allclose(found, expected.logits.numpy(), atol=5e-3)
