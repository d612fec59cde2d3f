"""Exports are read back and give the logits of the model itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from build_context import FakeContext, logits_of

from localspec import plugins
from localspec.drafting.build_step import Artifact
from localspec.engines.npu import graph
from localspec.errors import BadValue, UnsupportedModel
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph.ir import import_weights
from localspec.formats.graph.paged import read_stateful
from localspec.formats.huggingface import loading
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.library import Silent
from localspec.library.importing import convert

pytestmark = pytest.mark.engines

TEXT = [3, 1, 4, 1, 5, 9, 2, 6]
KEPT = [0, 2, 3, 5]


def exported(step: str, context: FakeContext, source: Artifact, into: Path) -> Artifact:
    return plugins.parse("steps", f"export:{step}").make(context).run(source, into)


def gguf_logits(gguf: Path, folder: Path) -> Any:
    """Return the rows of a GGUF file, through our own import."""
    folder.mkdir()
    import_weights(GgufFile.open(gguf), folder, Silent(), plain=True)
    return logits_of(folder, TEXT)


def torch_logits(path: Path) -> Any:
    model = loading.load(path, torch.device("cpu"), torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([TEXT])).logits[0].numpy()


def test_a_gguf_is_copied_when_nothing_changes(source: Artifact, context: FakeContext, into: Path) -> None:
    found = exported("to=gguf", context, source, into)
    assert (into / "model.gguf").read_bytes() == context.weights("source").read_bytes()
    assert found.facts["weights"] == "model.gguf"
    assert {"tokenizer.json", "tokenizer_config.json"} <= {path.name for path in into.iterdir()}


def test_removed_layers_are_not_written(
    source: Artifact, context: FakeContext, into: Path, tmp_path: Path
) -> None:
    cut = Artifact(source.folder, {"layers": KEPT, "of_layers": 6, "bits": 8})
    found = exported("to=gguf", context, cut, into)
    file = GgufFile.open(into / "model.gguf")
    assert (file.value("block_count"), found.facts["precision"]) == (4, "Q8_0")
    whole = tiny.make("llama", "Q8_0", layers=6, interleaved=True, seed=3)
    fewer = tiny.without(whole, {1, 4})
    pruned = GgufFile.open(tiny.write_gguf(fewer, tmp_path / "fewer.gguf"))
    for part in ("attn_q", "attn_k", "attn_v", "ffn_up"):
        for layer in range(4):
            name = f"blk.{layer}.{part}.weight"
            assert np.array_equal(file.raw(name), pruned.raw(name)), name
    assert np.allclose(
        gguf_logits(into / "model.gguf", tmp_path / "read"), logits_of(source.folder, TEXT), atol=2e-2
    )


@pytest.mark.parametrize(("type", "limit"), [("q4_0", 0.5), ("F16", 0.01)])
def test_another_type_is_written(
    source: Artifact, context: FakeContext, into: Path, tmp_path: Path, type: str, limit: float
) -> None:
    found = exported(f"to=gguf,type={type}", context, source, into)
    assert found.facts["precision"] == type.upper()
    expected = logits_of(source.folder, TEXT)
    off = gguf_logits(into / "model.gguf", tmp_path / "read") - expected
    assert off.std() < limit * expected.std()


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_folder_of_safetensors_becomes_a_gguf(
    context: FakeContext, into: Path, tmp_path: Path, family: str
) -> None:
    model = tiny.make(family, "F16", seed=4)
    about, folder = tmp_path / "about", tmp_path / "folder"
    about.mkdir()
    folder.mkdir()
    convert.from_gguf(tiny.write_gguf(model, tmp_path / "tiny.gguf"), about)
    tiny.write_folder(model, folder, vocab_size=tiny.VOCAB)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((about / name).read_bytes())
    context._weights = folder
    exported("to=gguf", context, Artifact(folder, {}), into)
    found = GgufFile.open(into / "model.gguf")
    assert found.metadata["tokenizer.ggml.pre"] == "smollm"
    assert found.metadata["tokenizer.ggml.eos_token_id"] == 95
    tokens = found.metadata["tokenizer.ggml.tokens"]
    assert (len(tokens), tokens[94:]) == (tiny.VOCAB, ["<|endoftext|>", "<|im_end|>"])
    expected = torch_logits(folder)
    assert np.allclose(
        gguf_logits(into / "model.gguf", tmp_path / "read"), expected, atol=0.01 * expected.std()
    )
    assert np.allclose(torch_logits(into / "model.gguf"), expected, atol=1e-3)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_hugging_face_folder_gives_the_same_logits(
    context: FakeContext, into: Path, tmp_path: Path, family: str
) -> None:
    model = tiny.make(family, "Q8_0", interleaved=family == "llama", seed=4)
    about = tmp_path / "about"
    about.mkdir()
    context._weights = tiny.write_gguf(model, tmp_path / "tiny.gguf")
    convert.from_gguf(context._weights, about)
    found = exported("to=torch", context, Artifact(about, {}), into)
    assert found.facts["weights"] == "."
    assert SafetensorsFolder.open(into).architecture == family
    assert (into / "tokenizer.json").read_bytes() == (about / "tokenizer.json").read_bytes()
    assert json.loads((into / "generation_config.json").read_text())["eos_token_id"] == [94, 95]
    expected = torch_logits(context._weights)
    assert np.allclose(torch_logits(into), expected, atol=0.01 * expected.std())


def test_an_inexpressible_rope_scaling_is_rejected(context: FakeContext, into: Path, tmp_path: Path) -> None:
    model = tiny.make("llama", interleaved=True, stretch=np.linspace(1, 3, tiny.HEAD_WIDTH // 2))
    context._weights = tiny.write_gguf(model, tmp_path / "tiny.gguf")
    with pytest.raises(UnsupportedModel, match="a config.json cannot express"):
        exported("to=torch", context, Artifact(tmp_path, {}), into)


def test_openvino_brings_the_tokenizer_of_genai(source: Artifact, context: FakeContext, into: Path) -> None:
    exported("to=openvino", context, source, into)
    assert np.array_equal(logits_of(into, TEXT), logits_of(source.folder, TEXT))
    import openvino as ov
    import openvino_tokenizers  # noqa: F401 - brings the operations

    tokenizer = ov.Core().compile_model(into / "openvino_tokenizer.xml", "CPU")
    from tokenizers import Tokenizer

    said = "abc hello 12"
    expected = Tokenizer.from_file(str(into / "tokenizer.json")).encode(said, add_special_tokens=False).ids
    assert tokenizer([said])["input_ids"][0].tolist() == expected


def test_npus_get_one_scale_per_row(source: Artifact, context: FakeContext, into: Path) -> None:
    found = exported("to=openvino,npu=on", context, source, into)
    assert found.facts["precision"] == "INT4"
    model = read_stateful(into / "openvino_model.xml")
    assert graph.group_wise(model) is None
    constants = [node for node in model.get_ops() if node.get_type_name() == "Constant"]
    assert "i4" in {node.get_element_type().get_type_name() for node in constants}


def test_a_trimmed_head_fits_into_no_other_file(source: Artifact, context: FakeContext, into: Path) -> None:
    trimmed = Artifact(source.folder, {"tokens": 50, "of_tokens": 96})
    with pytest.raises(UnsupportedModel, match="The head was trimmed, which a gguf file cannot hold"):
        exported("to=gguf", context, trimmed, into)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("to=gguf,npu=on", "`npu` of `export` is only for OpenVINO graphs"),
        ("to=torch,type=Q8_0", "`type` of `export` is only for GGUF files"),
        ("to=torch,bits=4", "`bits` of `export` is 4"),
        ("to=openvino,bits=5", "`bits` of `export` is 5"),
        ("to=gguf,type=Q9", "Unknown GGUF type `Q9`"),
    ],
)
def test_options_of_other_formats_are_rejected(context: FakeContext, step: str, said: str) -> None:
    with pytest.raises(BadValue, match=said):
        plugins.parse("steps", f"export:{step}").make(context)
