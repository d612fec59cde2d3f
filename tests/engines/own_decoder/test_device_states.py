"""Hidden states that stay on their device until they are asked for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from localspec.engines.torch.decoder import states as states_module
from localspec.engines.torch.decoder.states import DeviceStates


def rows(first: int, count: int) -> torch.Tensor:
    return torch.arange(first, first + count, dtype=torch.bfloat16)[:, None].repeat(1, 3)


def test_states_are_the_last_ones_that_were_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states_module, "FIRST_CAPACITY", 4)  # so that the buffer moves
    states = DeviceStates()
    states.put(0, rows(0, 5))
    states.put(5, rows(5, 1))
    assert states.first(6)[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    states.put(4, rows(40, 3))  # after a rewind
    states.put(7, rows(70, 9))
    assert states.first(5)[:, 2].tolist() == [0, 1, 2, 3, 40]
    assert states.first(16)[:, 0].tolist() == [0, 1, 2, 3, 40, 41, 42, *range(70, 79)]


def test_only_states_that_were_not_asked_for_before_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    states, copied = DeviceStates(halved=True), []
    put = states._copy.put
    monkeypatch.setattr(states._copy, "put", lambda at, new: (copied.append((at, len(new))), put(at, new)))
    states.put(0, torch.full((4, 3), 1e6))  # beyond float16
    for at in range(4, 8):
        states.put(at, rows(at, 1))
    assert copied == []
    found = states.first(7)
    assert found.dtype == np.float16
    assert found[0, 0] == np.finfo(np.float16).max
    assert states.first(7)[3:5, 0].tolist() == [np.finfo(np.float16).max, 4]
    assert states.first(8)[4:8][1:3].tensor[:, 0].tolist() == [5, 6]
    assert copied == [(0, 7)]
    assert states.first(8)[-1].tolist() == [7, 7, 7]
    assert copied == [(0, 7), (7, 1)]
