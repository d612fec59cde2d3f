"""The torch engine on OpenVINO graphs that NNCF compressed: OpenVINO's own logits, from the same codes."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
import tiny
import torch
from passes import read
from random_models import SIZES, saved

from localspec.decoder.compressed import EightBits, FourBits
from localspec.drafting.build_step import TargetText
from localspec.engines.torch.engine import Torch
from localspec.errors import BrokenModel, UnsupportedModel
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph import ir, surgery
from localspec.formats.graph.compress import compress
from localspec.formats.graph.paged import read_stateful
from localspec.formats.graph.runner import graph_inputs
from localspec.formats.graph_weights.folder import GraphFolder, GraphWeights
from localspec.library import Silent

pytestmark = pytest.mark.engines

TEXT = [int(token) for token in np.random.default_rng(0).integers(0, tiny.VOCAB, 50)]
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0, "KV_CACHE_PRECISION": "f32"}
NEAR = 1e-4  # of the spread of logits: both compute in float32
FAMILIES: dict[str, dict[str, Any]] = {  # as optimum-intel exports them
    "llama": {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "phi3": {},
    "olmo2": {},
    "granite": {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.0},
}


def expected(folder: Path, text: Sequence[int] = TEXT) -> Any:
    """Return OpenVINO's own logits [tokens, vocab] of a graph, without rounded activations."""
    model = ov.Core().read_model(folder / "openvino_model.xml")
    compiled = ov.Core().compile_model(model, "CPU", EXACT)
    given = graph_inputs({port.any_name for port in model.inputs}, list(text))
    return np.array(compiled.create_infer_request().infer(given)["logits"])[0]


def check(folder: Path, form: str, text: Sequence[int] = TEXT, near: float = NEAR) -> Torch:
    """Return the engine on a graph, whose logits must be OpenVINO's."""
    engine, wanted = Torch(folder, device="cpu", weights=form), expected(folder, text)
    found = engine.session().forward(list(text), len(text))
    assert np.abs(found - wanted).max() < near * wanted.std()
    return engine


def layer_of(engine: Torch) -> Any:
    assert engine.own is not None
    return engine.own.decoder.weights.layers[1]


def written(graph: Any, config: Path, into: Path) -> Path:
    """Write a graph beside a config.json."""
    into.mkdir(parents=True)
    ir.save(graph, into)
    shutil.copy(config / "config.json", into)
    return into


@pytest.fixture
def ours(tmp_path: Path) -> Callable[..., Path]:
    """Return what writes a graph of our own builder, from GGUF: it is compressed afterwards."""

    def write(family: str, bits: int, **options: Any) -> Path:
        model = tiny.make(family, "F16", interleaved=family == "llama", tied=family == "qwen2")
        plain = tmp_path / "plain"
        plain.mkdir()
        ir.import_plain(tiny.write_gguf(model, tmp_path / "a.gguf"), plain, Silent())
        graph = compress(read_stateful(plain / "openvino_model.xml"), bits, **options)
        return written(graph, plain, tmp_path / "graph")

    return write


@pytest.fixture
def optimums(tmp_path: Path) -> Callable[..., tuple[Path, Any]]:
    """Return what writes a compressed graph of optimum-intel's, and the transformers model it is of."""

    def write(family: str, bits: int, **options: Any) -> tuple[Path, Any]:
        model = saved(family, tmp_path / "hf", **FAMILIES[family])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of the libraries that it imports
            from optimum.exporters.openvino import main_export

            task = "text-generation-with-past"
            main_export(str(tmp_path / "hf"), str(tmp_path / "plain"), task=task, convert_tokenizer=False)
            graph = compress(read_stateful(tmp_path / "plain" / "openvino_model.xml"), bits, **options)
        return written(graph, tmp_path / "plain", tmp_path / "graph"), model

    return write


@pytest.mark.parametrize(
    ("family", "group", "zero"),
    [
        ("llama", 32, False),
        ("llama", 64, True),
        ("qwen2", 128, True),
        ("qwen2", -1, False),
        ("qwen3", 128, False),
        ("qwen3", -1, True),
    ],
)
def test_four_bits_of_our_own_graphs(ours: Any, family: str, group: int, zero: bool) -> None:
    folder = ours(family, 4, group=group, zero=zero)
    assert isinstance(layer_of(check(folder, "int4")).down, FourBits if group > 0 else EightBits)
    assert isinstance(layer_of(check(folder, "int8")).down, EightBits)
    assert Torch.weighs(folder, weights="int4") < 0.7 * Torch.weighs(folder, weights="int8")


@pytest.mark.parametrize("zero", [False, True])
def test_eight_bits_keep_their_codes(ours: Any, zero: bool) -> None:
    folder = ours("qwen2", 8, zero=zero)
    down = layer_of(check(folder, "int8")).down
    assert (down.rest is not None) == zero
    with pytest.raises(UnsupportedModel, match="no matrices in 4 bits") as caught:
        Torch(folder, device="cpu", weights="int4")
    assert "weights=int8" in str(caught.value.hint)


def test_offsets_in_a_second_product_are_those_of_the_file(tmp_path: Path) -> None:
    model = tiny.make("llama", "Q4_K", interleaved=True)
    path = tiny.write_gguf(model, tmp_path / "a.gguf")
    ir.import_weights(GgufFile.open(path), tmp_path, Silent(), offsets=True)
    engine = check(tmp_path, "int4", near=1e-3)  # zero points and rests are rounded to float16 by both
    assert layer_of(engine).down.rests
    found = read(engine.session(), TEXT, 20, 1, 4)
    assert np.abs(found - tiny.logits(model, TEXT)[-len(found) :]).mean() < 0.03


def dequantize(model: Any, folder: GraphFolder) -> None:
    """Give a transformers model the numbers that the matrices of a graph stand for."""
    values = {f"{name}.weight": product.affine().values() for name, product in folder.products.items()}
    values["token_embd.weight"] = GraphWeights(folder).table("token_embd").values()
    joined = {"attn_qkv": ("attn_q", "attn_k", "attn_v"), "ffn_gate_up": ("ffn_gate", "ffn_up")}
    for at in range(SIZES["num_hidden_layers"]):
        for whole, parts in joined.items():
            rows = [values[f"blk.{at}.{part}.weight"] for part in parts]
            values[f"blk.{at}.{whole}.weight"] = np.concatenate(rows)
    state = model.state_dict()
    for name, found in values.items():
        if tiny.theirs(name) in state:  # Phi-3 has the joined ones, the others those of each part
            state[tiny.theirs(name)].copy_(torch.from_numpy(found))


@pytest.mark.parametrize("family", FAMILIES)
def test_graphs_of_optimum_intel(optimums: Any, family: str) -> None:
    folder, model = optimums(family, 4, group=32, zero=family != "qwen3")
    text = [token % SIZES["vocab_size"] for token in TEXT]
    for form in ("int4", "int8"):
        check(folder, form, text)
    dequantize(model, GraphFolder(folder))
    with torch.no_grad():
        wanted = model(torch.tensor([text])).logits[0].numpy()
    found = Torch(folder, device="cpu", weights="int4").session().forward(text, len(text))
    assert np.abs(found - wanted).max() < NEAR * wanted.std()


def test_factors_that_awq_leaves_are_those_of_rows(optimums: Any) -> None:
    numbers = np.random.default_rng(0)
    texts = [TargetText(numbers.integers(0, 96, 60).tolist(), []) for _ in range(8)]
    folder, _ = optimums("llama", 4, group=32, method="awq", texts=texts)
    ups = [product for name, product in GraphFolder(folder).products.items() if name.endswith("ffn_up")]
    assert any(product.factors is not None for product in ups)
    check(folder, "int4")


def test_other_graphs_are_refused_before_anything_is_loaded(ours: Any, tmp_path: Path) -> None:
    folder = ours("llama", 4, group=64)
    config = json.loads((folder / "config.json").read_text())

    def refused(match: str, error: type[Exception] = UnsupportedModel) -> None:
        with pytest.raises(error, match=match):
            Torch.weighs(folder, weights="int8")
        with pytest.raises(error, match=match) as caught:
            Torch(folder, device="cpu", weights="int8")
        assert getattr(caught.value, "hint", None)

    def configured(**changed: Any) -> None:
        (folder / "config.json").write_text(json.dumps(config | changed))

    configured(model_type="gemma2")
    refused("is a `gemma2` model")
    configured(num_attention_heads=8, num_key_value_heads=4, head_dim=32)
    refused("other heads", BrokenModel)
    configured(num_hidden_layers=3)
    refused("has no tensor `model.layers.2", BrokenModel)
    configured()
    graph = read_stateful(folder / "openvino_model.xml")
    surgery.trim_head(graph, np.arange(20))
    shutil.rmtree(folder)
    written(graph, tmp_path / "plain", folder)
    refused(r"`Gather_\d+` \(Gather\) stands where the head is expected")


def test_matrices_in_other_types_are_refused_by_name(tmp_path: Path, ours: Any) -> None:
    import nncf

    ours("llama", 4)
    graph = read_stateful(tmp_path / "plain" / "openvino_model.xml")
    small = nncf.compress_weights(graph, mode=nncf.CompressWeightsMode.NF4, group_size=64)
    folder = written(small, tmp_path / "plain", tmp_path / "other")
    with pytest.raises(UnsupportedModel, match=r"`Constant_\d+` holds .* in `nf4`"):
        Torch(folder, device="cpu", weights="int4")


def test_the_real_model_in_openvinos_format(smollm2_gguf: Path, tmp_path: Path) -> None:
    text = [504, 2365, 338, 253, 1345, 283, 7171, 28, 284, 260, 3575, 282]
    ir.import_plain(smollm2_gguf, tmp_path, Silent())
    graph = compress(read_stateful(tmp_path / "openvino_model.xml"), 4, group=64, zero=True)
    check(written(graph, tmp_path, tmp_path / "int4"), "int4", text, near=1e-3)
