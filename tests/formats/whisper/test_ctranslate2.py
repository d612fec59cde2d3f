from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_whisper

from localspec.errors import BrokenModel, UnknownModel, UnsupportedModel
from localspec.formats.ctranslate2.file import Ctranslate2File
from localspec.formats.ctranslate2.whisper import Ctranslate2Whisper
from localspec.formats.whisper.weights import open_whisper

VOCABULARY = 300
WEIGHTS = tiny_whisper.weights(VOCABULARY)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.bin").write_bytes(tiny_whisper.model_bin(WEIGHTS))
    return tmp_path


def changed(folder: Path, **changes: np.ndarray | None) -> Path:
    """Write the model with some tensors replaced, or without them; `_` stands for `/` in their names."""
    tensors = dict(WEIGHTS)
    for name, values in changes.items():
        name = name.replace("__", "/")
        if values is None:
            del tensors[name]
        else:
            tensors[name] = values
    (folder / "model.bin").write_bytes(tiny_whisper.model_bin(tensors))
    return folder


def test_tensors_come_back_exactly(folder: Path) -> None:
    found = Ctranslate2File.open(folder / "model.bin")
    assert found.spec == "WhisperSpec"
    for name, values in WEIGHTS.items():
        assert found.array(name).dtype == np.float16
        assert np.array_equal(found.array(name), values)
    assert found.tensors["decoder/projection/weight"] is found.tensors["decoder/embeddings/weight"]
    assert found.array("encoder/num_heads").shape == ()
    assert int(found.array("encoder/num_heads")) == tiny_whisper.HEADS


def test_other_types_come_back(folder: Path) -> None:
    single = np.linspace(-1, 1, 5, dtype=np.float32)
    small = np.arange(-3, 3, dtype=np.int8)
    found = Ctranslate2File.open(changed(folder, single=single, small=small) / "model.bin")
    assert np.array_equal(found.array("single"), single)
    assert np.array_equal(found.array("small"), small)


def test_joined_rows_are_separated(folder: Path) -> None:
    found = open_whisper(folder)
    joined = WEIGHTS["decoder/layer_1/self_attention/linear_0/weight"].astype(np.float32)
    for part, name in enumerate(("q_proj", "k_proj", "v_proj")):
        rows = joined[part * tiny_whisper.WIDTH : (part + 1) * tiny_whisper.WIDTH]
        assert np.array_equal(found.array(f"model.decoder.layers.1.self_attn.{name}.weight"), rows)
    crossed = WEIGHTS["decoder/layer_0/attention/linear_1/bias"].astype(np.float32)
    value = found.array("model.decoder.layers.0.encoder_attn.v_proj.bias")
    assert np.array_equal(value, crossed[tiny_whisper.WIDTH :])
    assert "model.decoder.layers.0.encoder_attn.k_proj.bias" not in found.names
    assert found.shape("model.encoder.conv1.weight") == (tiny_whisper.WIDTH, tiny_whisper.MELS, 3)


def test_its_shape_is_that_of_a_config(folder: Path) -> None:
    config = Ctranslate2Whisper.open(folder).shape_config()
    expected = {
        "d_model": tiny_whisper.WIDTH,
        "vocab_size": VOCABULARY,
        "encoder_layers": tiny_whisper.LAYERS,
        "decoder_layers": tiny_whisper.LAYERS,
        "encoder_attention_heads": tiny_whisper.HEADS,
        "decoder_ffn_dim": tiny_whisper.INNER,
        "num_mel_bins": tiny_whisper.MELS,
        "max_source_positions": tiny_whisper.FRAMES,
        "max_target_positions": tiny_whisper.CONTEXT,
    }
    assert {key: config[key] for key in expected} == expected


def test_a_hugging_face_folder_gives_the_same(tmp_path: Path) -> None:
    source = tiny_whisper.ctranslate2_folder(tmp_path / "ct2")
    ours, theirs = (
        open_whisper(source),
        open_whisper(tiny_whisper.huggingface_folder(source, tmp_path / "hf")),
    )
    assert sorted(ours.names) == sorted(theirs.names)
    for name in ours.names:
        assert ours.shape(name) == theirs.shape(name)
        assert np.array_equal(ours.array(name), theirs.array(name))


def test_every_cut_file_is_an_error(folder: Path, tmp_path: Path) -> None:
    data = (folder / "model.bin").read_bytes()
    cut = tmp_path / "cut.bin"
    for length in [*range(1, 400, 7), *range(400, len(data), 9973), len(data) - 1]:
        cut.write_bytes(data[:length])
        with pytest.raises(BrokenModel, match="truncated|damaged|not a CTranslate2"):
            Ctranslate2File.open(cut)


def test_other_files_are_refused(folder: Path) -> None:
    path = folder / "model.bin"
    for data, expected in (
        (b"GGUF" + bytes(100), (BrokenModel, "not a CTranslate2 model")),
        (tiny_whisper.model_bin(WEIGHTS, version=4), (UnsupportedModel, "format 4")),
        (tiny_whisper.model_bin(WEIGHTS, spec="TransformerSpec"), (UnsupportedModel, "TransformerSpec")),
        (b"", (BrokenModel, "is empty")),
    ):
        path.unlink()
        path.write_bytes(data)
        with pytest.raises(expected[0], match=expected[1]):
            open_whisper(folder)
    path.unlink()
    with pytest.raises(UnknownModel):
        Ctranslate2Whisper.open(folder)


def test_what_is_not_whisper_is_refused(folder: Path) -> None:
    bias = WEIGHTS["encoder/layer_0/self_attention/linear_0/bias"]
    for changes, error, words in (
        (
            {"encoder__layer_0__self_attention__linear_0__bias": bias + np.float16(1)},
            UnsupportedModel,
            "bias",
        ),
        ({"encoder__conv1__weight": np.zeros((2, 2), np.int8)}, UnsupportedModel, "quantized"),
        ({"encoder__conv2__bias": None}, BrokenModel, "encoder/conv2/bias"),
        ({"encoder__layer_0__ffn__linear_0__weight": None}, BrokenModel, "layers of the encoder"),
        ({"encoder__layer_0__self_attention__linear_0__bias": bias[:-1]}, BrokenModel, "shape"),
    ):
        with pytest.raises(error, match=words):
            Ctranslate2Whisper.open(changed(folder, **changes))


def test_a_tensor_whose_bytes_are_counted_wrongly_is_damage(folder: Path) -> None:
    path = folder / "model.bin"
    data = bytearray(path.read_bytes())
    at = data.index(b"decoder/embeddings/weight\0") + len(b"decoder/embeddings/weight\0") + 1
    data[at] ^= 1  # the number of rows
    path.write_bytes(data)
    with pytest.raises(BrokenModel, match="its shape needs"):
        Ctranslate2File.open(path)
