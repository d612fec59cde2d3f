"""The torch engine on a CUDA card with the real SmolLM2: the same contract, and the same answers as a CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import parity
import pytest
import torch
from passes import read

from localspec import plugins
from localspec.core.contracts import DraftModel, Read
from localspec.core.cursor import Cursor
from localspec.drafters.draft_model import ModelDraft
from localspec.engines.torch.engine import Torch
from localspec.errors import TooLittleMemory, UnknownDevice
from localspec.formats.gguf.file import GgufFile
from localspec.formats.huggingface import torch_devices
from localspec.formats.tokenizer import vocabulary

pytestmark = [pytest.mark.engines, pytest.mark.cuda]

# What two kernels for the same numbers may differ by, in logits.
TRACE = {"f32": 1e-3, "bf16": 0.5}
TIE = {"f32": parity.UNROUNDED, "bf16": 0.5}
PROMPTS = ("The capital of France is", "def shared_prefix(left, right):\n", "Once upon a time there was")
CODE = (
    "def halves(items):\n    middle = len(items) // 2\n    return items[:middle], items[middle:]\n\n\n"
    "def merged(left, right):\n    found = []\n    while left and right:\n        source = left\n"
    "        if right[0] < left[0]:\n            source = right\n        found.append(source.pop(0))\n"
    "    return found + left + right\n"
)
EDIT = f"<|im_start|>user\nRepeat this word for word.\n\n{CODE}<|im_end|>\n<|im_start|>assistant\n"

Ask = Callable[..., Any]
Make = Callable[..., Torch]
every_precision = pytest.mark.parametrize("precision", ["f32", "bf16"])


@pytest.fixture(scope="module")
def on(smollm2_gguf: Path) -> Make:
    """Return SmolLM2 on a device, made once."""

    @cache
    def make(precision: str, device: str = "cuda") -> Torch:
        return Torch(smollm2_gguf, device=device, precision=precision)

    return make


@pytest.fixture(scope="module")
def ids(smollm2_gguf: Path) -> Callable[[str], list[int]]:
    tokenizer = vocabulary.from_gguf(GgufFile.open(smollm2_gguf).metadata)
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


@every_precision
def test_it_says_what_it_runs_on(on: Make, precision: str) -> None:
    engine = on(precision)
    assert (engine.device, engine.vocab, engine.context) == ("cuda:0", 49152, 8192)
    assert {values.device.type for values in engine.model.parameters()} == {"cuda"}


@every_precision
def test_texts_share_a_pass(on: Make, ids: Callable[[str], list[int]], precision: str) -> None:
    text, engine = ids(CODE * 3), on(precision)
    shared = engine.shared_passes(2)
    assert shared is not None
    for start, session in ((0, shared.session()), (50, shared.session())):
        other, alone = shared.session(), engine.session()
        for size in (40, 1, 4):
            tokens = text[start : start + size]
            reads = [Read(session, tokens, min(size, 4)), Read(other, text[9 : 9 + size // 2], 0)]
            found, _ = shared.forward(reads)
            assert np.abs(found - alone.forward(tokens, min(size, 4))).max() < TRACE[precision]
            start += size


@every_precision
@pytest.mark.parametrize("kept", [31, 64, 127])
def test_a_rewind_leaves_no_trace(
    on: Make, ids: Callable[[str], list[int]], precision: str, kept: int
) -> None:
    text, used, fresh = ids(CODE * 3), on(precision).session(), on(precision).session()
    used.forward(text[:kept], 0)
    fresh.forward(text[:kept], 0)
    rejected = used.forward(text[130:139], 9).copy()
    assert used.rewind(kept) == kept
    after, expected = read(used, text[kept : kept + 20], 4, 1), read(fresh, text[kept : kept + 20], 4, 1)
    assert np.abs(after - expected).max() < TRACE[precision]
    assert np.abs(rejected - expected[:9]).max() > 1.0
    assert used.rewind(999) == kept + 20


@every_precision
def test_pieces_of_any_width_are_one_read(on: Make, ids: Callable[[str], list[int]], precision: str) -> None:
    text = ids(CODE * 6)[:400]  # so that the buffers grow
    whole = on(precision).session().forward(text, 50).copy()
    for pieces in (
        read(on(precision).session(), text, 100, 1, 3, 7)[-50:],
        Cursor(on(precision).session(), chunk=64).read(text, 50),
    ):
        chosen = np.take_along_axis(whole, pieces.argmax(axis=1)[:, None], axis=1)[:, 0]
        assert (whole.max(axis=1) - chosen).max() < TIE[precision]
        assert np.abs(whole - pieces).mean() < TIE[precision]


@every_precision
def test_only_the_last_rows_are_made(on: Make, ids: Callable[[str], list[int]], precision: str) -> None:
    text, session = ids(CODE), on(precision).session()
    every = on(precision).session().forward(text[:40], 40).copy()
    last = session.forward(text[:40], 3)
    assert (last.shape, last.dtype) == ((3, 49152), np.float32)
    assert np.abs(last - every[-3:]).max() < TRACE[precision]
    assert session.forward(text[40:45], 0).shape == session.forward([], 0).shape == (0, 49152)


@every_precision
@pytest.mark.parametrize("draft", ["ngram", "itself"])
def test_a_draft_does_not_change_the_text(
    on: Make, ids: Callable[[str], list[int]], ask: Ask, precision: str, draft: str
) -> None:
    engine, prompt = on(precision), ids(EDIT)
    plain, target = ask(opened(engine, prompt), prompt=prompt, room=64), opened(engine, prompt)
    source = (
        ModelDraft(target, DraftModel(engine, engine.vocab), name="itself")
        if draft == "itself"
        else plugins.parse("drafters", draft).make(target)
    )
    drafted = ask(target, source, prompt=prompt, room=64)
    assert sum(last.accepted for last in drafted.steps) > 8
    parity.check(plain.tokens, drafted.tokens, engine=engine, prompt=prompt, tolerance=TIE[precision])


def opened(engine: Torch, prompt: list[int]) -> Cursor:
    """Return a cursor that has read the prompt as the runtime reads it: up to its last token."""
    cursor = Cursor(engine.session())
    cursor.read(prompt[:-1], rows=0)
    return cursor


def test_logits_are_those_of_a_cpu(on: Make, ids: Callable[[str], list[int]]) -> None:
    text = ids(CODE)
    card, cpu = (on("f32", device).session().forward(text, len(text)) for device in ("cuda", "cpu"))
    assert np.abs(card - cpu).max() < 1e-2
    half = on("bf16").session().forward(text, len(text))
    assert np.mean(half.argmax(axis=1) == cpu.argmax(axis=1)) > 0.9


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_is_that_of_a_cpu(
    on: Make, ids: Callable[[str], list[int]], ask: Ask, prompt: str
) -> None:
    tokens, cpu = ids(prompt), on("f32", "cpu")
    ours, theirs = (ask(opened(engine, tokens), prompt=tokens, room=32).tokens for engine in (cpu, on("f32")))
    parity.check(ours, theirs, engine=cpu, prompt=tokens, tolerance=parity.UNROUNDED)


def test_weights_are_on_the_card_once(on: Make, smollm2_gguf: Path) -> None:
    first = on("bf16")
    before = torch.cuda.memory_allocated()
    second = Torch(smollm2_gguf, device="cuda:0", precision="bf16")
    assert second.model is first.model
    assert torch.cuda.memory_allocated() == before
    session = second.session()
    session.forward([1] * 100, 1)
    assert torch.cuda.memory_allocated() - before < 0.2 * Torch.weighs(smollm2_gguf, precision="bf16")


def test_a_full_card_is_told_in_numbers(smollm2_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_devices, "free_memory", lambda _: 1_000_000)
    with pytest.raises(TooLittleMemory, match=r"needs about 0\.3 GB .* 0\.0 GB are free"):
        Torch(smollm2_gguf, device="cuda", precision="f16")


def test_a_card_that_is_not_there_is_refused(smollm2_gguf: Path) -> None:
    with pytest.raises(UnknownDevice, match="Unknown device `cuda:99`") as caught:
        Torch(smollm2_gguf, device="cuda:99")
    assert "`cuda:0`" in (caught.value.hint or "")
