from __future__ import annotations

import numpy as np
import pytest

from localspec.core import sessions
from localspec.core.sessions import HiddenStateBuffer


def test_vectors_are_those_that_were_put_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "FIRST_CAPACITY", 4)
    numbers = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    kept, expected = HiddenStateBuffer(), np.empty((0, 3), np.float32)
    for at, count in ((0, 3), (3, 1), (2, 5), (7, 20), (4, 1)):
        new = numbers[at + 5 : at + 5 + count]
        kept.put(at, new)
        expected = np.concatenate([expected[:at], new])
        assert np.array_equal(kept.first(at + count), expected)
