"""The kernels of a card's decoder, against the formulas that torch computes step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from localspec.decoder.card import CardDecoder
from localspec.decoder.forward import Decoder
from localspec.decoder.own import OwnDecoder
from localspec.engines.torch.decoder.session import OwnSession
from localspec.engines.torch.engine import Torch

pytestmark = [pytest.mark.engines, pytest.mark.cuda]

HALF = torch.bfloat16
NEAR = 0.02  # of what rounds to eight bits


def randn(*shape: int) -> Any:
    return torch.randn(*shape, device="cuda")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("width", [64, 200, 1536])
def test_a_norm_is_that_of_the_rounded_sum(width: int) -> None:
    from localspec.decoder.kernels import fused

    x, y, weight = randn(3, width).to(HALF), randn(3, width).to(HALF), randn(width).to(HALF)
    added, normed = fused.added_norm(x, y, weight, 1e-5, 0.5)
    assert torch.equal(added, (x.float() + y.float() * 0.5).to(HALF))
    expected = rms_norm(added.float(), (width,), weight.float(), 1e-5)
    assert (normed.float() - expected).abs().max() < NEAR * expected.abs().max()
    assert torch.equal(fused.added_norm(x, None, weight, 1e-5, 0.5)[0], x)


def test_a_gated_product() -> None:
    from localspec.decoder.kernels import fused

    joined = randn(3, 3000).to(HALF)
    gate, up = joined.float().chunk(2, -1)
    assert (fused.gated(joined).float() - silu(gate) * up).abs().max() < NEAR * 4


@pytest.mark.parametrize(
    ("tokens", "heads", "key_heads", "width"),
    [(1, 12, 2, 128), (16, 14, 2, 64), (5, 9, 3, 96), (72, 9, 3, 64)],
)
@pytest.mark.parametrize("at", [0, 130, 2000])
def test_attention_of_a_tree_behind_a_text(
    tokens: int, heads: int, key_heads: int, width: int, at: int
) -> None:
    from localspec.decoder.kernels import attention

    end = max(128, 1 << (at + tokens).bit_length())
    queries = randn(tokens, heads, width).to(HALF)
    keys, values = (randn(key_heads, end + 9, width).to(HALF) for _ in range(2))
    mask = torch.zeros(tokens, end, dtype=torch.bool, device="cuda")
    mask[:, :at] = True
    mask[:, at : at + tokens] = (randn(tokens, tokens) > 0).tril() | torch.eye(tokens, device="cuda").bool()
    ends = torch.tensor([at + tokens], device="cuda")
    found = attention.attend(queries, keys, values, mask, ends, 0.1, None)
    seen = (part[None, :, :end].float() for part in (keys, values))
    expected = (
        scaled_dot_product_attention(
            queries.float().transpose(0, 1)[None], *seen, attn_mask=mask, scale=0.1, enable_gqa=True
        )[0]
        .transpose(0, 1)
        .flatten(1)
    )
    assert (found.float() - expected).abs().max() < NEAR * expected.abs().max()


def test_attention_of_texts_in_rows_of_common_buffers() -> None:
    from localspec.decoder.kernels import attention

    texts, positions = torch.tensor([4, 0, 2]).cuda(), torch.tensor([[10, 11], [200, 201], [77, 78]]).cuda()
    queries = randn(6, 4, 64).to(HALF)
    keys, values = (randn(5, 2, 300, 64).to(HALF) for _ in range(2))
    mask = torch.arange(256, device="cuda") <= positions[..., None]
    found = attention.attend(queries, keys, values, mask, positions.amax(1) + 1, 0.125, texts)
    seen = (part[texts][:, :, :256].float() for part in (keys, values))
    rows = queries.float().unflatten(0, (3, 2)).transpose(1, 2)
    expected = scaled_dot_product_attention(
        rows, *seen, attn_mask=mask[:, None], scale=0.125, enable_gqa=True
    )
    expected = expected.transpose(1, 2).flatten(2).flatten(0, 1)
    assert (found.float() - expected).abs().max() < NEAR * expected.abs().max()


@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("tokens", [1, 5, 16, 33])
def test_codes_in_four_bits_are_packed_multiplied_and_made_dense(group: int, tokens: int) -> None:
    from localspec.decoder.kernels import products

    codes = torch.randint(0, 16, (200, 1536), dtype=torch.uint8, device="cuda")
    scales = torch.rand(1536 // group, 200, 2, device="cuda").half()
    packed, bias = products.packed_four(codes), randn(200)
    assert torch.equal(products.unpacked_four(packed), codes)
    size, rest = (scales[..., at].T.float()[..., None] for at in (0, 1))
    dense = ((codes.float() - 8).unflatten(1, (-1, group)) * size + rest).flatten(1)
    assert (products.dense_four(packed, scales, group, torch.float32) - dense).abs().max() < 1e-4
    for dtype, near in ((torch.float32, 1e-4), (HALF, NEAR)):
        x = randn(tokens, 1536).to(dtype)
        expected = x.float() @ dense.T + bias
        found = products.four_bit_product(x, packed, scales, group, bias)
        assert (found.float() - expected).abs().max() < near * expected.std()


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_card_computes_the_families_as_torch_does(family: str, tmp_path: Path) -> None:
    model = tiny.write_gguf(tiny.make(family, "F32", interleaved=family == "llama"), tmp_path / "m.gguf")
    engine = Torch(model, device="cuda", decoder="own", precision="bf16")
    assert engine.own is not None
    assert isinstance(engine.own.decoder, CardDecoder)
    plain = OwnSession(OwnDecoder(Decoder(engine.own.decoder.weights), 512))
    text, ours = (
        [int(token) for token in np.random.default_rng(0).integers(0, tiny.VOCAB, 90)],
        engine.session(),
    )
    for begin, end in ((0, 60), (60, 61), (61, 66), (66, 90)):
        expected = plain.forward(text[begin:end], end - begin).copy()
        found = ours.forward(text[begin:end], end - begin).copy()
        assert np.abs(found - expected).max() < 0.15 * expected.std()
