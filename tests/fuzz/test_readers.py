"""A few hundred damaged inputs of each reader, the same ones each time; readers.py tries more."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from fuzz import readers, targets
from fuzz.readers import Finding, cases, findings, watched
from fuzz.targets import TARGETS, Read, Target

from localspec.errors import BrokenModel

COUNT = 300
FEWER = {"answer": 60, "file-answer": 60}  # each needs a connection or several


@pytest.mark.parametrize("name", TARGETS)
def test_a_damaged_input_is_read_or_refused(name: str, tmp_path: Path) -> None:
    assert [(found.case, found.kind) for found in findings(name, FEWER.get(name, COUNT), 0, tmp_path)] == []


@pytest.mark.parametrize("name", TARGETS)
def test_the_inputs_are_read_before_they_are_damaged(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(targets, "each_by_itself", lambda *calls: [call() for call in calls])
    for data in TARGETS[name].seeds(tmp_path):
        TARGETS[name].read(tmp_path, data)


def test_the_same_seed_gives_the_same_inputs(tmp_path: Path) -> None:
    first = list(cases("config", 0, tmp_path, 0, 20))
    assert first == list(cases("config", 0, tmp_path, 0, 20))
    assert first[7:] == list(cases("config", 0, tmp_path, 7, 20))
    assert first != list(cases("config", 1, tmp_path, 0, 20))


def use(monkeypatch: pytest.MonkeyPatch, read: Read) -> None:
    """Make a reader of a few bytes, named `fake`."""
    monkeypatch.setitem(TARGETS, "fake", Target(read, lambda folder: [bytes(8)], binary=True))


def raising(error: BaseException) -> Read:
    def read(folder: Path, data: bytes) -> None:
        raise error

    return read


def found_by(reader: str, folder: Path, count: int = 3) -> list[Finding]:
    return list(findings(reader, count, 0, folder))


def test_our_own_errors_are_no_findings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, raising(BrokenModel("It is damaged", "Download it again")))
    assert found_by("fake", tmp_path) == []


def test_other_errors_and_messages_that_change_a_terminal_are_findings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, raising(ValueError("no")))
    [found] = found_by("fake", tmp_path)
    assert (found.case, found.kind.partition(" at ")[0]) == (0, "ValueError")
    use(monkeypatch, raising(BrokenModel("\x1b[2J")))
    assert "unprintable" in found_by("fake", tmp_path)[0].kind


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_crash_a_hang_and_much_memory_are_findings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(readers, "SECONDS", 0.2)
    monkeypatch.setattr(readers, "BYTES", 1 << 26)
    use(monkeypatch, lambda folder, data: os._exit(7))
    assert [found.kind for found in watched("fake", 2, 0, tmp_path)] == ["crashes with exit code 7"] * 2
    use(monkeypatch, lambda folder, data: time.sleep(60))
    assert [found.kind for found in watched("fake", 1, 0, tmp_path)] == ["hangs"]
    use(monkeypatch, lambda folder, data: b"x" * (1 << 27))
    assert "MB of memory" in next(watched("fake", 1, 0, tmp_path)).kind
