"""Flipped bits in kept files give the same answer or an error, never another answer."""

from __future__ import annotations

import pytest
import tiny
from attacks.flips import KINDS, Asked


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    base = tmp_path_factory.mktemp("flips").resolve()
    return Asked(tiny.write_gguf(tiny.make("llama"), base / "tiny.gguf"), base)


@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bits_never_change_an_answer(asked: Asked, kind: str) -> None:
    assert {asked.flipped(kind, seed) for seed in range(2)} <= {"same", "told"}
