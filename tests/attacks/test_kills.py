"""Commands that are killed before a change of a file leave nothing behind, and work when repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import loopback
import pytest
import tiny
from attacks.killing import COMMANDS, Attacked, kill_at_changes, kill_at_random

Attack = Callable[[str], Attacked]


@pytest.fixture
def attack(tmp_path: Path) -> Iterator[Attack]:
    gguf = tiny.write_gguf(tiny.make("llama"), tmp_path / "tiny.gguf")
    with loopback.serving_hub() as hub:
        hub.repositories["owner/tiny"] = {"tiny.gguf": gguf.read_bytes()}
        yield lambda name: Attacked(COMMANDS[name], gguf, tmp_path.resolve(), hub.url)


@pytest.mark.parametrize(
    ("name", "every"), [("config", 1), ("rm", 1), ("import", 5), ("pull", 9), ("chat", 9)]
)
def test_a_kill_before_a_change_leaves_nothing(attack: Attack, name: str, every: int) -> None:
    report = kill_at_changes(attack(name), every)
    assert report.wrong == []
    assert report.kills >= 3


def test_a_kill_leaves_no_export_and_no_child(attack: Attack) -> None:
    report = kill_at_random(attack("export"), 3)
    assert report.wrong == []
    assert report.kills == 3
