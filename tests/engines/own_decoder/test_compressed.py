"""Matrices in 8 and 4 bits: the numbers of the file, through the products of torch's operators on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import parity
import pytest
import tiny
import torch
from passes import read
from random_models import saved

from localspec.core.cursor import Cursor
from localspec.decoder import compressed, loading
from localspec.decoder.compressed import EightBits, FourBits, Several
from localspec.engines.torch.engine import Torch
from localspec.errors import BadValue, BrokenModel, TooLittleMemory, UnsupportedModel
from localspec.formats.gguf.quants import unpack
from localspec.formats.graph.weights import eight_bits
from localspec.formats.huggingface import torch_devices
from localspec.plugins import parse

pytestmark = pytest.mark.engines

TEXT = [int(token) for token in np.random.default_rng(0).integers(0, tiny.VOCAB, 60)]


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_in_four_bits_is_that_of_the_files_numbers(kind: str, dtype: Any) -> None:
    numbers = np.random.default_rng(0)
    stored = unpack(kind, tiny.matrix(kind, (96, 512), numbers))
    assert stored is not None
    packed, scales = compressed.four_bits(stored, torch.device("cpu"), dtype)
    bias = torch.from_numpy(numbers.normal(size=96).astype(np.float32)).to(dtype)
    found = FourBits(packed, scales, stored.codes.shape[-1], bias)
    assert found.rows == 96
    x = torch.from_numpy(numbers.normal(size=(5, 512)).astype(np.float32)).to(dtype)
    expected = x.float().numpy() @ stored.values().T + bias.float().numpy()
    near = 1e-5 if dtype == torch.float32 else 0.02
    assert np.abs(found.product(x).float().numpy() - expected).max() < near * expected.std()


def test_a_product_in_eight_bits_has_a_scale_for_each_group() -> None:
    numbers = np.random.default_rng(0)
    values = (numbers.normal(size=(48, 96)) * numbers.uniform(0.1, 9, (48, 96))).astype(np.float32)
    stored = eight_bits(lambda rows: values[rows], 48)
    codes = torch.from_numpy(stored.codes.reshape(48, -1))
    found = EightBits(codes, torch.from_numpy(stored.scale.astype(np.float16)))
    assert found.scale.shape == (48, 3)
    x = torch.from_numpy(numbers.normal(size=(3, 96)).astype(np.float32))
    expected = x.numpy() @ stored.values().T
    assert np.abs(found.product(x).numpy() - expected).max() < 1e-4
    assert np.abs(found.lookup(torch.tensor([4, 7])).numpy() - stored.values()[[4, 7]]).max() < 1e-6


def own(path: Path, form: str, **options: Any) -> Torch:
    return Torch(path, device="cpu", weights=form, **options)


def layer_of(engine: Torch) -> Any:
    assert engine.own is not None
    return engine.own.decoder.weights.layers[0]


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K", "Q8_0"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_gguf_file_gives_the_logits_of_its_numbers(family: str, kind: str, tmp_path: Path) -> None:
    model = tiny.make(family, kind, interleaved=family == "llama", tied=family == "qwen2")
    path = tiny.write_gguf(model, tmp_path / "a.gguf")
    expected = tiny.logits(model, TEXT)
    for form in ("int8",) if kind == "Q8_0" else ("int4", "int8"):
        engine = own(path, form)
        found = read(engine.session(), TEXT, 20, 1, 4)
        # Q4_K has offsets: its table gets 8 bits with wider groups, and with int8 the other matrices too
        rounded = 0.03 if kind == "Q4_K" else 1e-5
        assert np.abs(found - expected).mean() < rounded * expected.std()
        assert isinstance(layer_of(engine).down, FourBits if form == "int4" else EightBits)
        assert isinstance(engine.own.decoder.weights.table, EightBits)  # type: ignore[union-attr]


def test_matrices_of_several_forms_are_read_together(tmp_path: Path) -> None:
    model = tiny.make("llama", "Q4_0", interleaved=True)
    for layer in range(tiny.LAYERS):
        name = f"blk.{layer}.attn_v.weight"
        model.put(name, "Q8_0", tiny.matrix("Q8_0", model.values[name].shape, tiny.dice(layer)))  # type: ignore[arg-type]
    engine = own(tiny.write_gguf(model, tmp_path / "a.gguf"), "int4")
    joined = layer_of(engine).qkv
    assert isinstance(joined, Several)
    assert [type(part) for part in joined.parts] == [FourBits, EightBits]
    expected = tiny.logits(model, TEXT)
    assert np.abs(engine.session().forward(TEXT, 60) - expected).max() < 1e-4 * expected.std()


def test_a_folder_is_read_in_eight_bits(tmp_path: Path) -> None:
    model = saved("phi3", tmp_path, sliding_window=None)
    with torch.no_grad():
        expected = model(torch.tensor([TEXT])).logits[0].numpy()
    found = own(tmp_path, "int8").session().forward(TEXT, 60)
    assert 1e-3 * expected.std() < np.abs(found - expected).mean() < 0.05 * expected.std()
    with pytest.raises(UnsupportedModel, match="no matrices in 4 bits"):
        own(tmp_path, "int4")


def test_the_real_smollm2_writes_the_same_text_with_and_without_a_draft(
    smollm2_gguf: Path, ask: Any, prompt: list[int]
) -> None:
    engine, plain = own(smollm2_gguf, "int8"), Torch(smollm2_gguf, device="cpu")
    rows = engine.session().forward(prompt, 40).copy()
    expected = plain.session().forward(prompt, 40)
    assert np.mean(rows.argmax(1) == expected.argmax(1)) > 0.9
    texts = []
    for draft in ("none", "ngram"):
        target = Cursor(engine.session())
        texts.append(ask(target, parse("drafters", draft).make(target), prompt=prompt, room=24))
    assert sum(last.accepted for last in texts[1].steps) > 4
    parity.check(texts[0].tokens, texts[1].tokens, engine=engine, prompt=prompt, tolerance=parity.UNROUNDED)


def test_it_weighs_what_it_takes(tmp_path: Path) -> None:
    path = tiny.write_gguf(tiny.make("qwen2", "Q4_0"), tmp_path / "a.gguf")
    plain, eight, four = (
        Torch.weighs(path, weights=form, device="cpu") for form in ("plain", "int8", "int4")
    )
    assert 0.26 < eight / plain < 0.27  # of float32
    assert 0.15 < four / plain < 0.17
    for form, told in (("int8", eight), ("int4", four)):
        assert 0.9 < sum(sizes(own(path, form, precision="bf16").own)) / told < 1.1


def sizes(found: Any) -> Any:
    """Yield the bytes of the tensors of a decoder's weights."""
    if isinstance(found, torch.Tensor):
        yield found.numel() * found.element_size()
    elif isinstance(found, tuple):
        for each in found:
            yield from sizes(each)
    elif hasattr(found, "decoder"):
        weights = found.decoder.weights
        yield from sizes((weights.table, weights.layers, weights.norm, weights.head))
    elif hasattr(found, "__slots__"):
        yield from sizes(tuple(getattr(found, name) for name in found.__slots__))


def test_a_full_card_is_told_in_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny.write_gguf(tiny.make("qwen2", "Q4_0"), tmp_path / "a.gguf")
    monkeypatch.setattr(loading, "free_memory", lambda _: 1000)
    with pytest.raises(TooLittleMemory, match=r"needs about 0\.0 GB .* 0\.0 GB are free"):
        loading._check_card(path, torch.device("cuda"), "int4")


def test_what_cannot_be_compressed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved("gpt2", tmp_path / "gpt2")
    with pytest.raises(UnsupportedModel, match="`gpt2` model"):
        own(tmp_path / "gpt2", "int8")
    path = tiny.write_gguf(tiny.make("llama", "Q4_0", interleaved=True), tmp_path / "a.gguf")
    for options in ({"skip": True}, {"decoder": "transformers"}):
        with pytest.raises(BadValue, match="`weights` and .* exclude each other"):
            own(path, "int8", **options)
    monkeypatch.setattr(torch_devices, "_devices", lambda: {"mps": torch.device("meta")})
    with pytest.raises(UnsupportedModel, match="compresses no weights"):
        Torch(path, device="mps", weights="int8", precision="f32")
    monkeypatch.undo()
    path.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(BrokenModel):
        own(path, "int4")
