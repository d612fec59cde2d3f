"""Blocks in the decoder of our own, as a card runs them, against the plain session: here on a CPU."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_diffusion
import torch
from asking import PROMPT, filled

from localspec.core.blocks import visibility
from localspec.core.blocks.canvas import entropy, softmax
from localspec.core.blocks.pace import FixedPace
from localspec.core.blocks.types import Block
from localspec.core.rewind_check import rewind_fault
from localspec.core.sampler import Sampling
from localspec.decoder import capacity, rows
from localspec.decoder.passes import Passes
from localspec.engines.diffusion import Diffusion
from localspec.engines.diffusion.own import OwnDiffusionSession, own_decoder, widths
from localspec.engines.diffusion.session import DiffusionSession
from localspec.errors import ContextFull, ModelError
from localspec.formats.diffusion import config, weights
from localspec.formats.diffusion.decoder import BlockDecoder

MASK, NEAR = 39, 1e-4
SHAPE = config.DiffusionShape(
    "sdar", layers=2, width=32, heads=4, key_heads=2, head_width=8, inner=48, vocab=40, context=160,
    epsilon=1e-5, base=10000.0, query_norm=True, bias=False, tied=False, mask=MASK, block=4, causal=True,
    shifted=False,
)  # fmt: skip
KINDS = {
    "sdar": SHAPE,
    "block_llama": replace(SHAPE, family="block_llama", query_norm=False, tied=True),
    "biased": replace(SHAPE, bias=True),
    "wide heads": replace(SHAPE, head_width=12, key_heads=4, layers=3),
}
Numbers = np.random.Generator


def pair(kind: str, block: int, *, keeps: bool = False) -> tuple[DiffusionSession, OwnDiffusionSession]:
    """Return a plain session and one of our own decoder, which share random weights."""
    shape, numbers = replace(KINDS[kind], block=block), torch.Generator().manual_seed(0)
    found = {
        name: torch.randn(size, generator=numbers) * (0.3 if len(size) > 1 else 1.0)
        for name, size in weights.shapes(shape).items()
    }
    own = own_decoder(shape, found)
    own.keeps_rows = keeps
    decoder, place = BlockDecoder(shape, found), torch.device("cpu")
    plain = DiffusionSession(decoder, place, torch.float32, 0, 0)
    return plain, OwnDiffusionSession(own, decoder, place, torch.float32)


def blocks(numbers: Numbers, block: int, first: int) -> list[Block]:
    """Return reads of a block behind `first` tokens: half masked, with a shadow, and so many copies."""
    tokens = [int(token) if token < 40 else MASK for token in numbers.integers(0, 80, block)]
    places = list(range(first, first + block))
    found = [
        Block(tokens, places),
        Block([*tokens, *[MASK] * block], places * 2, visibility.shadow(block), block),
    ]
    for copies in {2, block, block + 1}:
        drawn = numbers.integers(0, 40, copies * block).tolist()
        table = visibility.apart(block, copies)
        found.append(Block(drawn, places * copies, table, (copies - 1) * block))
    return found


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [1, 4, 8])
def test_any_reads_and_rewinds_are_those_of_the_plain_session(
    kind: str, block: int, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "FIRST_CAPACITY", 16)  # so that the buffers grow
    numbers = np.random.default_rng(block)
    sessions = pair(kind, block, keeps=keeps)
    length = 0
    for turn in range(14):
        if turn % 4 == 3:
            length = int(numbers.integers(0, length + 1))
            assert [each.rewind(length) for each in sessions] == [length] * 2
        size = int(numbers.integers(0, 22))  # odd prompts, and blocks that nothing read yet
        tokens = numbers.integers(0, 40, size).tolist()
        asked = min(size, turn % 3)
        found = [np.array(each.forward(tokens, asked)) for each in sessions]
        assert np.abs(found[0] - found[1]).max(initial=0) < NEAR
        length += size
        more = numbers.integers(0, 40, -length % block).tolist()
        for each in sessions:
            each.forward(more, 0)
        length += len(more)
        if turn % 2:
            for read in blocks(numbers, block, length):
                plain, own = (np.array(each.denoise(read).logits) for each in sessions)
                assert plain.shape == own.shape
                assert np.abs(plain - own).max() < NEAR
        if length > 100:
            length = 5
            assert [each.rewind(length) for each in sessions] == [length] * 2


def test_the_attention_and_offsets_come_from_the_plain_passes() -> None:
    plain, own = pair("sdar", 4)
    for each in (plain, own):
        each.forward(list(range(20)), 0)
    read = Block([MASK, 3, MASK, 5], range(20, 24))
    for asked in (read, read._replace(offsets=np.full((4, 32), 0.1, np.float32)), read):
        left, right = (each.denoise(asked, attention=asked is read) for each in (plain, own))
        assert np.abs(left.logits - right.logits).max() < NEAR
        if asked is read:
            assert left.attention is not None
            assert right.attention is not None
            assert np.abs(left.attention - right.attention).max() < NEAR
        assert np.abs(plain.denoise(read).logits - own.denoise(read).logits).max() < NEAR
        assert [each.rewind(12) for each in (plain, own)] == [12, 12]
        for each in (plain, own):
            each.forward([7] * 8, 0)


def test_the_facts_are_those_of_the_rows_without_the_mask() -> None:
    _, session = pair("sdar", 8, keeps=True)
    session.forward(list(range(16)), 0)
    for copies in (1, 3, 9, 14):  # the last in a pass of its own shape
        table = visibility.apart(8, copies)
        found = session.denoise(Block([MASK] * 8 * copies, [*range(16, 24)] * copies, table, 8 * copies - 8))
        assert found.likeliest is not None
        logits = np.array(found.logits)
        logits[:, MASK] = -np.inf
        probs = softmax(logits)
        assert found.likeliest.tokens.tolist() == logits.argmax(1).tolist()
        assert np.abs(found.likeliest.probs - probs.max(1)).max() < 1e-5
        assert np.abs(found.likeliest.entropy - entropy(probs)).max() < 1e-4


def test_joined_matrices_share_their_memory() -> None:
    _, session = pair("biased", 4)
    found, layer = session._decoder.weights, session._own.decoder.weights.layers[1]
    name = "model.layers.1.self_attn.k_proj"
    assert isinstance(layer.qkv.part(32, 16).values, torch.Tensor)  # type: ignore[attr-defined]
    assert found[f"{name}.weight"].data_ptr() == layer.qkv.part(32, 16).values.data_ptr()  # type: ignore[attr-defined]
    assert found[f"{name}.bias"].data_ptr() == layer.qkv.part(32, 16).bias.data_ptr()  # type: ignore[attr-defined]


def test_widths_are_whole_blocks() -> None:
    assert widths(1) == [1, 2]
    assert widths(4) == [4, 8, 12, 16, 20]  # a block that is not read yet, and four copies
    assert widths(8) == list(range(8, 80, 8))
    assert widths(32) == [32, 64, 96]
    assert widths(64) == [64, 128]


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Diffusion]:
    """Return an engine of the tiny model, whose blocks run as on a card unless they are to be plain."""

    def made(layers: int = 2, *, plain: bool = False, block: int = 8) -> Diffusion:
        folder = tmp_path / f"{layers}-{block}"
        if not folder.exists():
            tiny_diffusion.write(folder, "sdar", layers, block_size=block)
        found = Diffusion(folder, device="cpu")
        if not plain:
            found.own = own_decoder(found.shape, dict(found.decoder.weights))
            found.own.keeps_rows = True
        return found

    return made


def test_it_rewinds_exactly(make: Callable[..., Diffusion]) -> None:
    engine = make()
    assert isinstance(engine.session(), OwnDiffusionSession)
    assert rewind_fault(engine.session(), engine.vocab) is None


@pytest.mark.parametrize(
    "spec",
    [
        "low_confidence", "low_confidence:threshold=0.1", "low_confidence:factor=1.5", "left_to_right",
        "left_to_right:k=3", "entropy_bounded:gamma=3", "adas:k=2", "wino:write=0.1,keep=0.3",
        "anchor_revocable:write=0.1,keep=0.3",
    ],
)  # fmt: skip
def test_samplers_write_the_same(make: Callable[..., Diffusion], spec: str) -> None:
    biased = {5: 3.0, MASK: 50.0}
    for sampling in (Sampling(), Sampling(temperature=0.9), Sampling(logit_bias=biased)):
        for prompt in (PROMPT, PROMPT[:3]):
            plain, own = (
                filled(make(plain=plain), spec, sampling=sampling, seed=3, prompt=prompt)
                for plain in (True, False)
            )
            assert [(step.tokens, step.passes) for step in plain.steps] == [
                (step.tokens, step.passes) for step in own.steps
            ]


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each fetch."""
    counts: list[int] = []
    fetch = rows.Fetched.__call__

    def noted(self: rows.Fetched) -> Any:
        counts.append(len(self._logits))
        return fetch(self)

    monkeypatch.setattr(rows.Fetched, "__call__", noted)
    return counts


def test_greedy_blocks_and_drafts_fetch_no_row(make: Callable[..., Diffusion], fetched: list[int]) -> None:
    for block in (4, 8):
        target, draft = make(block=block), make(1, block=block)
        plain = filled(target, "left_to_right", room=40)
        for sampler in ("low_confidence", "entropy_bounded"):
            filled(target, sampler)
        for depth in (1, 2, 8):
            found = filled(target, "left_to_right", draft=draft, pace=FixedPace(depth), room=40)
            assert found.tokens == plain.tokens
            assert found.accepted < found.drafted
    assert fetched == []
    filled(target, "left_to_right", sampling=Sampling(temperature=1.0))
    assert fetched


def test_no_pass_of_a_draft_is_too_wide_to_be_recorded(
    make: Callable[..., Diffusion], monkeypatch: pytest.MonkeyPatch
) -> None:
    long: list[int] = []
    short: list[int] = []
    for seen, name in ((long, "long"), (short, "short")):
        run = getattr(Passes, name)
        monkeypatch.setattr(
            Passes, name, lambda *given, run=run, seen=seen: (seen.append(len(given[1])), run(*given))[1]
        )
    target = make()
    filled(target, draft=target, room=24)
    assert long == []
    assert max(short) == 8 * 8 + 8


def test_buffers_serve_the_next_text(make: Callable[..., Diffusion]) -> None:
    engine = make()
    first: Any = engine.session()
    first.forward([3] * 40, 0)
    buffers = first._passes.buffers
    del first
    gc.collect()
    second: Any = engine.session()
    assert second._passes.buffers is buffers
    fresh = make().session()
    read = Block([MASK] * 8, range(8, 16))
    for each in (second, fresh):
        each.forward(PROMPT, 0)
    assert np.abs(np.array(second.denoise(read).logits) - fresh.denoise(read).logits).max() < NEAR  # type: ignore[attr-defined]


def test_an_interrupted_pass_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, own = pair("sdar", 4)
    read = Block([MASK] * 4, range(8, 12))
    for each in (plain, own):
        each.forward(PROMPT, 0)
        each.denoise(read)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    own.rewind(4)
    own.forward([9, 9, 9, 9], 0)
    with monkeypatch.context() as patch:
        patch.setattr(Passes, "_put", interrupt)  # the keys are written
        with pytest.raises(KeyboardInterrupt):
            own.denoise(read)
    own.rewind(4)
    own.forward(PROMPT[4:], 0)
    assert np.abs(own.denoise(read).logits - plain.denoise(read).logits).max() < NEAR


def test_a_text_has_a_limit() -> None:
    _, session = pair("sdar", 8)
    with pytest.raises(ContextFull):
        session.forward([1] * 161, 0)
    session.forward([1] * 152, 0)
    table = visibility.apart(8, 9)
    last = Block([MASK] * 72, [*range(152, 160)] * 9, table, 64)  # copies beyond the context
    assert session.denoise(last).logits.shape == (72, 40)
    with pytest.raises(ContextFull):
        session.denoise(last._replace(positions=[*range(153, 161)] * 9))


def test_logits_that_are_no_numbers_are_refused(make: Callable[..., Diffusion]) -> None:
    engine = make()
    assert engine.own is not None
    with torch.inference_mode():
        engine.own.decoder.weights.norm.fill_(float("nan"))
    with pytest.raises(ModelError, match="not numbers"):
        filled(engine, "left_to_right")
