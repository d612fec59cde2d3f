"""Passes of every width give the same logits, to the bit, so a draft never changes a text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from passes import read

import models
from localspec import devices, plugins
from localspec.core.contracts import Read
from localspec.core.cursor import Cursor
from localspec.core.rewind_check import width_fault
from localspec.core.sampler import Sampling
from localspec.engines.openvino import engine as openvino
from localspec.engines.openvino import reader
from localspec.engines.openvino.device_config import Placement
from localspec.engines.openvino.engine import OpenVino
from localspec.engines.openvino.reader import Reader
from localspec.errors import BadValue
from localspec.library import StoredModel

pytestmark = pytest.mark.engines

Make = Callable[..., OpenVino]
WIDTHS = (1, 2, 3, 5, 8, 16)
EXACT = "VNNI" in devices.cpu().vector  # elsewhere `width_fault` decides


def are_equal(engine: OpenVino, text: list[int]) -> bool:
    """Return whether passes of all widths give the logits of one pass over the text."""
    expected = read(engine.session(), text, len(text))
    return all(
        np.array_equal(read(engine.session(), text, len(text) // 4, width), expected) for width in WIDTHS
    )


@pytest.mark.parametrize("options", [{}, {"group": 32}, {"kv": "u8"}, {"hidden": True}], ids=str)
def test_logits_of_all_widths_are_equal(engine: Make, text: list[int], options: dict[str, Any]) -> None:
    made = engine(**options)
    equal = are_equal(made, text[:112])
    assert equal == (width_fault(made.session(), made.vocab) is None)
    assert equal or not EXACT


@pytest.mark.large
@pytest.mark.parametrize("name", ["qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
def test_logits_of_a_large_model_too(name: str) -> None:
    model = models.large(name)
    made = OpenVino(model.folder, threads=2)
    equal = are_equal(made, list(range(1000, 1112)))
    assert equal == (width_fault(made.session(), made.vocab) is None)
    assert equal or not EXACT


DRAFTS = ["ngram", "suffix", "recycle", "recycle:successors=8", "hybrid", "hybrid:successors=8"]


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafted_text_is_plain_text_without_any_near_tie(
    engine: Make, ask: Callable[..., Any], prompt: list[int], draft: str, temperature: float
) -> None:
    made, options = engine(), {"prompt": prompt, "room": 64, "seed": 5}
    options["sampling"] = Sampling(temperature=temperature, top_p=0.95)
    plain = ask(Cursor(made.session()), **options)
    target = Cursor(made.session())
    drafted = ask(target, plugins.parse("drafters", draft).make(target), **options)
    assert sum(last.accepted for last in drafted.steps) > 0
    assert drafted.tokens == plain.tokens or width_fault(made.session(), made.vocab) is not None


def test_a_padded_pass_reaches_the_end_of_the_context(engine: Make, text: list[int]) -> None:
    """The KV cache has a place for the second token after the last one."""
    made = engine()
    session = made.session()
    length = made.context - 1
    session.forward((text * (length // len(text) + 1))[:length], 0)
    assert session.forward([7], 1).shape == (1, made.vocab)


def test_without_padding_the_check_finds_what_rounds_differently(engine: Make, text: list[int]) -> None:
    made = engine(pad="off")
    fault = width_fault(made.session(), made.vocab)
    assert (fault is None) == are_equal(made, text[:112])
    assert fault is None or "changes logits by" in fault


def test_padding_is_refused_where_it_would_do_nothing(
    smollm2: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino, "place", lambda core, device: Placement("GPU"))
    with pytest.raises(BadValue, match="`pad` of `openvino` is for the CPU, not for GPU"):
        OpenVino(smollm2.folder, device="GPU", pad="on")


def test_shared_passes_have_few_widths(engine: Make, text: list[int]) -> None:
    """OpenVINO keeps memory for each width of a pass."""
    made = engine()
    shared = made.shared_passes(8)
    assert shared is not None
    sessions = [shared.session() for _ in range(8)]
    widths: set[int] = set()
    infer = Reader._infer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Reader,
            "_infer",
            lambda reader, parts, inputs: (
                widths.add(sum(part.size for part in parts)),
                infer(reader, parts, inputs),
            ),
        )
        for number in range(3, 60):
            shares = [number // 8 + (at < number % 8) for at in range(8)]
            shared.forward(
                [Read(each, text[:share], 1) for each, share in zip(sessions, shares, strict=True) if share]
            )
    assert not made.pads or widths <= {*range(reader.SHORT + 1), *reader.WIDTHS}


def test_widths_change_seldom_and_are_near_what_is_needed() -> None:
    widths = reader.Widths(lasting=True)
    assert [widths.of(tokens) for tokens in (1, 3, 2, 9, 4, 4, 4, 4, 4, 4, 4)] == [2, 4, 4, *[12] * 6, 4, 4]
    assert [widths.of(tokens) for tokens in (150, 33, 38, 30, 5, 300)] == [160, 40, 40, 40, 8, 300]
    widths = reader.Widths(lasting=False)
    assert [widths.of(tokens) for tokens in (150, 33, 9, 17, 5, 300)] == [160, 40, 9, 20, 5, 300]
