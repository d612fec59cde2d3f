"""Mapped pages that were read do not stay in memory, and what they hold is what it was."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator
from pathlib import Path
from time import sleep

import pytest
from memory import resident

from localspec.engines.openvino import page_release
from localspec.engines.openvino.page_release import read_once

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is mapped where")

CONTENT = bytes(range(256)) * (1 << 14)  # 4 MiB


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a file of weights.bin"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture(params=[mmap.ACCESS_COPY, mmap.ACCESS_READ])
def mapped(file: Path, request: pytest.FixtureRequest) -> Iterator[mmap.mmap]:
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=request.param) as found:
        yield found


def test_what_was_read_is_dropped_and_comes_back(file: Path, mapped: mmap.mmap) -> None:
    with read_once(file):
        assert mapped[:] == CONTENT
    assert resident(file) == 0
    assert mapped[:] == CONTENT
    assert resident(file) == len(CONTENT) // 1024


def test_it_is_dropped_while_more_is_read(file: Path, mapped: mmap.mmap) -> None:
    with read_once(file):
        assert mapped[:] == CONTENT
        while resident(file):
            sleep(page_release.EVERY)
        assert mapped[:] == CONTENT


def test_it_is_dropped_where_reading_fails(file: Path, mapped: mmap.mmap) -> None:
    with pytest.raises(ValueError, match="not found"), read_once(file):
        assert mapped[:].index(b"no such token")
    assert resident(file) == 0


def test_where_nothing_is_mapped_nothing_happens(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with read_once(file):
        pass
    monkeypatch.setattr(page_release, "MAPS", file.with_name("not there"))
    with read_once(file):
        assert file.read_bytes() == CONTENT
