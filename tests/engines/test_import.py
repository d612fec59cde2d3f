"""Imported weights: blocks to the last bit, models against float64 numpy, a text against llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

import models
from localspec.engines.openvino.engine import OpenVino
from localspec.errors import BrokenModel, UnsupportedModel
from localspec.formats.gguf.file import GgufFile
from localspec.formats.gguf.quants import READERS, unpack
from localspec.formats.graph.ir import import_weights
from localspec.formats.graph.linear import noted_form, noted_group
from localspec.formats.graph.weights import FOUR_BITS, ROWS, WITH_OFFSETS, eight_bits, sixteen_bits
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.library import Silent, StoredModel

DATA = Path(__file__).parents[1] / "data"
TOKENS = np.random.default_rng(1).integers(0, tiny.VOCAB, 40).tolist()
CLOSE = 1e-4  # logits of about 1 in float32 against float64
FAMILIES = ("llama", "qwen2", "qwen3")


@pytest.mark.parametrize("kind", READERS)
def test_blocks_are_read_to_the_last_bit(kind: str) -> None:
    raw = tiny.random_blocks(kind, 50, 512, np.random.default_rng(3))
    affine = unpack(kind, raw)
    assert affine is not None
    assert np.array_equal(affine.values(), dequantize(raw, GGMLQuantizationType[kind]))


def test_a_kind_without_codes_is_left_to_others() -> None:
    assert unpack("F16", np.zeros((2, 64), np.uint8)) is None


def test_eight_bits_are_off_by_a_254th_of_the_largest_at_most() -> None:
    dice = np.random.default_rng(4)
    rows = ROWS + 7  # more than one thread's piece
    values = (dice.normal(0, 1, (rows, 64)) * 10.0 ** dice.integers(-1, 3, (rows, 1))).astype(np.float32)
    values[5] = 0
    found = eight_bits(lambda part: values[part], rows)
    largest = np.abs(values).max(axis=-1, keepdims=True)
    assert (np.abs(found.values() - values) <= largest / 254 * 1.002).all()
    assert not found.values()[5].any()


@pytest.mark.parametrize(
    ("value", "error"), [(1e9, UnsupportedModel), (np.inf, BrokenModel), (np.nan, BrokenModel)]
)
@pytest.mark.parametrize("convert", [eight_bits, sixteen_bits])
def test_only_numbers_that_are_not_finite_are_damage(
    convert: Any, value: float, error: type[Exception]
) -> None:
    values = np.ones((4, 64), np.float32)
    values[2, 3] = value
    with pytest.raises(error):
        convert(values.__getitem__, 4)


def run(source: GgufFile | SafetensorsFolder, into: Path, offsets: bool = False) -> Any:
    """Import a model and return its logits for TOKENS, read in pieces of several sizes."""
    into.mkdir()
    import_weights(source, into, Silent(), offsets)
    session = OpenVino(into, precision="f32", kv="f32", group=0).session()
    return np.concatenate(
        [session.forward(TOKENS[at:end], end - at).copy() for at, end in ((0, 11), (11, 12), (12, 40))]
    )


def imported(model: tiny.Tiny, folder: Path, offsets: bool = False, **metadata: Any) -> Any:
    return run(
        GgufFile.open(tiny.write_gguf(model, folder / "tiny.gguf", **metadata)), folder / "ir", offsets
    )


def as_rounded(model: tiny.Tiny, kept: tuple[str, ...]) -> tiny.Tiny:
    """Replace the values of matrices that are not `kept` by what eight bits make of them."""
    for name, values in model.values.items():
        if values.ndim == 2 and model.kinds[name] not in kept:
            exact = values.astype(np.float32)
            model.values[name] = eight_bits(exact.__getitem__, len(exact)).values().astype(np.float64)
    return model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["F32", *FOUR_BITS])
def test_a_gguf_gives_the_logits_of_the_reference(family: str, kind: str, tmp_path: Path) -> None:
    model = tiny.make(family, kind, interleaved=family == "llama")
    found = imported(model, tmp_path)
    assert np.abs(found - tiny.logits(as_rounded(model, FOUR_BITS), TOKENS)).max() < CLOSE


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q5_0", "Q4_1", "Q5_1", "Q4_K", "Q5_K", "Q6_K"])
def test_other_formats_are_rounded_to_eight_bits_and_no_further(kind: str, tmp_path: Path) -> None:
    model = tiny.make("qwen2", kind)
    exact = tiny.logits(model, TOKENS)
    found = imported(model, tmp_path)
    assert np.abs(found - tiny.logits(as_rounded(model, FOUR_BITS), TOKENS)).max() < CLOSE
    assert np.sqrt(((found - exact) ** 2).mean()) < 0.04 * exact.std()


@pytest.mark.parametrize(("kind", "close"), [("Q4_1", CLOSE), ("Q4_K", 0.02)])
def test_offsets_in_a_second_product_keep_their_values(kind: str, close: float, tmp_path: Path) -> None:
    # a scale of Q4_K is a product of two numbers, which float16 rounds
    model = tiny.make("llama", kind, interleaved=True)
    model.put("token_embd.weight", "F32", tiny.matrix("F32", (tiny.VOCAB, tiny.WIDTH), tiny.dice(5)))
    found = imported(model, tmp_path, offsets=True)
    assert np.abs(found - tiny.logits(model, TOKENS)).max() < close


@pytest.mark.parametrize("kind", WITH_OFFSETS)
def test_a_table_with_offsets_is_rounded_to_eight_bits(kind: str, tmp_path: Path) -> None:
    model = tiny.make("qwen2", kind)
    exact = tiny.logits(model, TOKENS)
    found = imported(model, tmp_path, offsets=True)
    assert np.sqrt(((found - exact) ** 2).mean()) < 0.02 * exact.std()


def test_a_head_that_is_the_embedding(tmp_path: Path) -> None:
    model = tiny.make("qwen2", tied=True)
    assert np.abs(imported(model, tmp_path) - tiny.logits(model, TOKENS)).max() < CLOSE


@pytest.mark.parametrize(
    ("family", "kind", "offsets", "group", "form"),
    [
        ("llama", "Q8_0", False, 256, "8 bits with a scale for 256"),
        ("qwen3", "Q8_0", False, 128, "8 bits with a scale for 256, 8 bits with a scale for 128"),
        ("qwen2", "Q4_K", True, 32, "4 bits with a scale for 32, 8 bits with a scale for 256"),
    ],
)
def test_a_graph_notes_its_form(
    family: str, kind: str, offsets: bool, group: int, form: str, tmp_path: Path
) -> None:
    imported(tiny.make(family, kind), tmp_path, offsets)
    graph = tmp_path / "ir" / "openvino_model.xml"
    assert noted_group(graph) == group
    assert noted_form(graph) == form
    assert (noted_group(tmp_path), noted_form(tmp_path)) == (None, None)


def test_a_gguf_stretches_positions_by_its_factors(tmp_path: Path) -> None:
    model = tiny.make("llama", stretch=np.linspace(1, 8, tiny.HEAD_WIDTH // 2), interleaved=True)
    reference = tiny.logits(model, TOKENS)
    assert np.abs(imported(model, tmp_path) - reference).max() < CLOSE
    model.stretch = None
    assert np.abs(tiny.logits(model, TOKENS) - reference).max() > 0.01  # the factors matter


@pytest.mark.parametrize("family", [*FAMILIES, "mistral"])
def test_a_folder_gives_the_logits_of_the_reference(family: str, tmp_path: Path) -> None:
    model = tiny.make(family, tied=family == "qwen3")
    found = run(SafetensorsFolder.open(tiny.write_folder(model, tmp_path)), tmp_path / "ir")
    assert np.abs(found - tiny.logits(model, TOKENS)).max() < CLOSE


def test_a_folder_stretches_low_frequencies_as_llama_3_does(tmp_path: Path) -> None:
    """By the cases of Meta's apply_scaling: long waves, short waves, and a ramp between."""
    factor, low, high, original = 8.0, 1.0, 4.0, 64.0
    model = tiny.make("llama")
    stretch = []
    for frequency in model.frequencies:
        wave = 2 * np.pi / frequency
        ramp = (original / wave - low) / (high - low)
        slow = 1.0 if wave < original / high else 1 / factor
        mixed = slow if wave < original / high or wave > original / low else (1 - ramp) / factor + ramp
        stretch.append(1 / mixed)
    assert len({1.0, factor} & set(stretch)) == 2
    assert any(1 < part < factor for part in stretch)
    model.stretch = np.array(stretch)
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
    folder = tiny.write_folder(model, tmp_path, rope_scaling=scaling)
    found = run(SafetensorsFolder.open(folder), tmp_path / "ir")
    assert np.abs(found - tiny.logits(model, TOKENS)).max() < CLOSE


def test_an_unknown_family_is_refused_by_name(tmp_path: Path) -> None:
    model = tiny.make("qwen2")
    model.family = "gemma3"
    with pytest.raises(UnsupportedModel, match="`gemma3` model") as caught:
        imported(model, tmp_path)
    assert "qwen3" in (caught.value.hint or "")


def test_stretched_positions_of_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="`dynamic`"):
        imported(tiny.make("qwen2"), tmp_path, rope__scaling__type="dynamic")
    folder = tiny.write_folder(tiny.make("qwen2"), tmp_path, rope_scaling={"type": "dynamic", "factor": 4.0})
    with pytest.raises(UnsupportedModel, match="`dynamic`"):
        run(SafetensorsFolder.open(folder), tmp_path / "folder")


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("qwen2", {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 1}),
        ("mistral", {"sliding_window": 128}),
    ],
)
def test_a_sliding_window_is_refused(family: str, config: dict[str, Any], tmp_path: Path) -> None:
    folder = tiny.write_folder(tiny.make(family), tmp_path, **config)
    with pytest.raises(UnsupportedModel, match="sliding window"):
        run(SafetensorsFolder.open(folder), tmp_path / "ir")


def test_a_sliding_window_in_a_gguf_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="sliding window of 128"):
        imported(tiny.make("llama"), tmp_path, attention__sliding_window=128)


@pytest.mark.parametrize("name", ["blk.1.ffn_up.weight", "output_norm.weight", "token_embd.weight"])
def test_a_missing_tensor_is_named(name: str, tmp_path: Path) -> None:
    model = tiny.make("llama")
    for found in (model.stored, model.values):
        del found[name]
    with pytest.raises(BrokenModel, match=f"no tensor `{name}`"):
        imported(model, tmp_path)
    with pytest.raises(BrokenModel, match=f"no tensor `{tiny.theirs(name)}`"):
        run(SafetensorsFolder.open(tiny.write_folder(model, tmp_path)), tmp_path / "folder")


def test_a_tensor_type_that_nobody_reads_is_named(tmp_path: Path) -> None:
    model = tiny.make("qwen2")
    name = "blk.0.ffn_up.weight"
    model.stored[name], model.kinds[name] = np.zeros((tiny.INNER, tiny.WIDTH), np.int32), "I32"
    with pytest.raises(UnsupportedModel, match=rf"`{name}` .* I32"):
        imported(model, tmp_path)


def perplexity(model: StoredModel) -> tuple[int, float]:
    """Return how many tokens the fixed text has, and its perplexity."""
    text = (DATA / "perplexity.txt").read_text("utf-8")
    tokens = model.tokenizer().encode(text, add_special_tokens=False).ids
    session = OpenVino(model.folder).session()
    losses: list[float] = []
    for at in range(0, len(tokens) - 1, 128):
        wanted = tokens[at + 1 : at + 129]
        rows = session.forward(tokens[at : at + 128], len(tokens[at : at + 128]))[: len(wanted)]
        rows = (rows - rows.max(axis=-1, keepdims=True)).astype(np.float64)
        losses += list(np.log(np.exp(rows).sum(axis=-1)) - rows[np.arange(len(wanted)), wanted])
    return len(tokens), float(np.exp(np.mean(losses)))


def test_smollm2_knows_a_text_as_well_as_in_llama_cpp(smollm2: StoredModel) -> None:
    check_perplexity(smollm2)


@pytest.mark.large
@pytest.mark.parametrize("name", ["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
def test_qwen_knows_a_text_as_well_as_in_llama_cpp(name: str) -> None:
    check_perplexity(models.large(name))


def check_perplexity(model: StoredModel) -> None:
    expected = json.loads((DATA / "perplexity.json").read_text("utf-8"))[model.name]
    tokens, found = perplexity(model)
    assert tokens == expected["tokens"]
    assert abs(found / expected["perplexity"] - 1) < 0.02
