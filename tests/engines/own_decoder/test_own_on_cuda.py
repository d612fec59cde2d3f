"""The decoder of our own on a CUDA card: recorded passes, its kernels, and the answers of a CPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from passes import check_rewinds, read

from localspec.core.contracts import Read
from localspec.core.sessions import Tree
from localspec.decoder import capacity
from localspec.decoder.compressed import EightBits, FourBits, four_bits
from localspec.decoder.passes import WIDTHS
from localspec.decoder.rows import DeviceRows
from localspec.engines.torch.engine import Torch
from localspec.formats.gguf.quants import unpack
from localspec.formats.graph.weights import eight_bits

pytestmark = [pytest.mark.engines, pytest.mark.cuda]

TEXT = [int(token) for token in np.random.default_rng(0).integers(0, tiny.VOCAB, 250)]
NEAR = 1e-3  # logits, in float32


def written(kind: str, folder: Path) -> Path:
    return tiny.write_gguf(tiny.make("llama", kind, interleaved=True), folder / f"{kind}.gguf")


@pytest.mark.parametrize(("kind", "form"), [("F32", "plain"), ("Q8_0", "int8"), ("Q4_0", "int4")])
def test_recorded_passes_are_those_that_run_as_they_are(kind: str, form: str, tmp_path: Path) -> None:
    engine: Any = Torch(written(kind, tmp_path), device="cuda", decoder="own", precision="bf16", weights=form)
    session = engine.session()
    session.forward(TEXT[:100], 0)
    passes = session._passes
    for width in WIDTHS:
        with torch.inference_mode():
            passes.short(TEXT[100 : 100 + width], Tree(100, width, []), 100)
            recorded = passes.logits[:width].clone()
            passes._pass(width, passes._decoder.first_end)
            assert torch.equal(recorded, passes.logits[:width])


@pytest.mark.parametrize(("kind", "form"), [("F32", "plain"), ("Q8_0", "int8")])
def test_any_widths_and_rewinds_give_the_logits_of_the_formulas(
    kind: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "FIRST_CAPACITY", 64)  # so that buffers move, and recordings with them
    expected = tiny.logits(tiny.make("llama", kind, interleaved=True), TEXT)
    engine = Torch(written(kind, tmp_path), device="cuda", decoder="own", precision="f32", weights=form)
    check_rewinds(engine.session(), TEXT, expected, NEAR)


def test_texts_share_recorded_passes(tmp_path: Path) -> None:
    expected = tiny.logits(tiny.make("llama", "F32", interleaved=True), TEXT)
    passes = Torch(written("F32", tmp_path), device="cuda", decoder="own", precision="f32").shared_passes(3)
    assert passes is not None
    sessions, at = [passes.session() for _ in range(3)], 0
    for size in (1, 5, 16, 40, 1, 1, 3, 30):
        found = passes.forward([Read(session, TEXT[at : at + size], size) for session in sessions])
        for rows in found:
            assert np.abs(rows - expected[at : at + size]).max() < NEAR
        at += size


def test_greedy_choices_leave_the_rows_on_the_card(tmp_path: Path) -> None:
    session = Torch(written("F32", tmp_path), device="cuda", decoder="own", precision="f32").session()
    for count in (1, 7, 40):
        found: Any = session.forward(TEXT[:count], count)
        assert isinstance(found, DeviceRows)
        best = found.argmax(axis=1)
        assert found._array._rows is None  # type: ignore[attr-defined]
        plain = found.copy()
        assert best.tolist() == plain.argmax(axis=1).tolist()
        assert found[0].highest == plain[0].max()


def test_sessions_in_two_threads_do_not_disturb_each_other(tmp_path: Path) -> None:
    engine = Torch(written("F32", tmp_path), device="cuda", decoder="own", precision="f32")
    texts = (TEXT[:60], TEXT[90:150])
    alone = [read(engine.session(), tokens, 20, 1, 3) for tokens in texts]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda tokens: read(engine.session(), tokens, 20, 1, 3), texts))
    for left, right in zip(alone, together, strict=True):
        assert np.abs(left - right).max() < NEAR


@pytest.mark.parametrize("columns", [512, 1536, 8960])
@pytest.mark.parametrize("tokens", [1, 3, 16, 32, 100])
def test_a_product_in_eight_bits_is_that_of_its_dense_matrix(columns: int, tokens: int) -> None:
    numbers = np.random.default_rng(0)
    values = (numbers.normal(size=(200, columns)) / columns**0.5).astype(np.float32)
    for group in (256, 32, 16):
        stored = eight_bits(lambda rows: values[rows], 200) if group == 256 else None
        if stored is None:
            codes = numbers.integers(-127, 128, (200, columns)).astype(np.int8)
            scale = numbers.uniform(1e-4, 4e-4, (200, columns // group)).astype(np.float16)
        else:
            codes, scale = stored.codes.reshape(200, -1), stored.scale.astype(np.float16)
        found = EightBits(torch.from_numpy(np.array(codes)).cuda(), torch.from_numpy(scale).cuda())
        for dtype, near in ((torch.float32, 1e-4), (torch.bfloat16, 2e-2)):
            x = torch.from_numpy(numbers.normal(size=(tokens, columns)).astype(np.float32)).cuda().to(dtype)
            dense = found._dense(found.codes, found.scale, torch.float32)
            expected = x.float() @ dense.T
            assert (found.product(x).float() - expected).abs().max() < near * expected.std()


@pytest.mark.parametrize("columns", [96, 1536])
@pytest.mark.parametrize("tokens", [1, 3, 16, 100])
def test_a_product_in_eight_bits_adds_the_rest_of_each_row(columns: int, tokens: int) -> None:
    numbers = np.random.default_rng(0)
    codes = torch.from_numpy(numbers.integers(-128, 128, (200, columns)).astype(np.int8)).cuda()
    scale = torch.from_numpy(numbers.uniform(1e-4, 4e-4, (200, 1)).astype(np.float16)).cuda()
    rest = torch.from_numpy(numbers.normal(0, 4e-3, 200).astype(np.float32)).cuda()
    found = EightBits(codes, scale, None, rest)
    for dtype, near in ((torch.float32, 1e-4), (torch.bfloat16, 3e-2)):
        x = torch.from_numpy(numbers.normal(size=(tokens, columns)).astype(np.float32)).cuda().to(dtype)
        expected = x.double() @ (codes.double() * scale.double() + rest.double()[:, None]).T
        assert (found.product(x).double() - expected).abs().max() < near * expected.std()
    ids = torch.tensor([3, 190]).cuda()
    rows = codes[ids].double() * scale[ids].double() + rest[ids].double()[:, None]
    assert (found.lookup(ids).double() - rows).abs().max() < 1e-6


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K"])
def test_a_product_in_four_bits_is_that_of_the_files_numbers(kind: str) -> None:
    numbers = np.random.default_rng(0)
    stored = unpack(kind, tiny.matrix(kind, (96, 512), numbers))
    assert stored is not None
    found = FourBits(*four_bits(stored, torch.device("cuda"), torch.bfloat16), stored.codes.shape[-1])
    x = torch.from_numpy(numbers.normal(size=(5, 512)).astype(np.float32)).cuda().bfloat16()
    expected = x.float().cpu().numpy() @ stored.values().T
    assert np.abs(found.product(x).float().cpu().numpy() - expected).max() < 0.03 * expected.std()
