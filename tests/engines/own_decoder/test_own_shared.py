"""Several texts in one pass of the decoder of our own: few shapes, and the rows of passes apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from localspec.core.contracts import Read
from localspec.decoder import capacity
from localspec.engines.torch.decoder import shared
from localspec.engines.torch.decoder.shared import OwnSharedPasses, Shape
from localspec.engines.torch.engine import Torch

pytestmark = pytest.mark.engines

TEXT = [int(token) for token in np.random.default_rng(0).integers(0, tiny.VOCAB, 250)]
NEAR = 1e-4  # logits, in float32


@pytest.mark.parametrize(("kind", "form"), [("F32", "plain"), ("Q4_0", "int4"), ("Q8_0", "int8")])
def test_texts_of_any_lengths_share_passes_of_few_shapes(
    kind: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "FIRST_CAPACITY", 48)  # so that buffers grow under the texts
    model = tiny.make("llama", kind, interleaved=True)
    path, expected = tiny.write_gguf(model, tmp_path / "a.gguf"), tiny.logits(model, TEXT)
    passes = Torch(path, device="cpu", decoder="own", weights=form).shared_passes(3)
    assert isinstance(passes, OwnSharedPasses)
    sessions = [passes.session() for _ in range(3)]
    at, numbers = [0, 0, 0], np.random.default_rng(1)
    for turn in range(40):
        size = [int(numbers.choice([0, 1, 1, 3, 7, 16, 20, 60])) for _ in sessions]
        size = [min(count, len(TEXT) - held) for count, held in zip(size, at, strict=True)]
        reads = [
            Read(session, TEXT[held : held + count], min(count, 1 + turn % 5))
            for session, count, held in zip(sessions, size, at, strict=True)
        ]
        for place, (read, rows) in enumerate(zip(reads, passes.forward(reads), strict=True)):
            at[place] += size[place]
            same = expected[at[place] - read.rows : at[place]]
            assert rows.shape == same.shape
            assert np.abs(rows - same).max(initial=0) < NEAR
            at[place] = sessions[place].rewind(max(0, at[place] - int(numbers.integers(0, 9))))
    shapes = set(passes._ready)
    assert {shape.texts for shape in shapes} <= {1, 2, 4}
    assert {shape.width for shape in shapes} <= {1, 2, 3, 4, 6, 8, 12, 16}
    assert len({shape.end for shape in shapes}) <= 2


def test_a_shape_gets_ready_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Shape] = []
    inputs = OwnSharedPasses._inputs

    def noted(self: OwnSharedPasses, shape: Shape) -> Any:
        made.append(shape)
        return inputs(self, shape)

    monkeypatch.setattr(shared.OwnSharedPasses, "_inputs", noted)
    path = tiny.write_gguf(tiny.make("llama", interleaved=True), tmp_path / "a.gguf")
    passes = Torch(path, device="cpu", decoder="own").shared_passes(2)
    assert passes is not None
    sessions = [passes.session() for _ in range(2)]
    for token in TEXT[:30]:
        passes.forward([Read(session, [token], 1) for session in sessions])
    assert made == [Shape(2, 1, 128)]
