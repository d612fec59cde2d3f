"""The growth of folders, while other code fills them."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

from localspec.library.progress import folder_bytes, report_growth


def test_growth_is_what_was_added(tmp_path: Path, said: Any) -> None:
    (tmp_path / "old").write_bytes(bytes(100))
    with report_growth(tmp_path, said, seconds=0.01):
        (tmp_path / "new").write_bytes(bytes(70))
        time.sleep(0.05)
        (tmp_path / "newer").write_bytes(bytes(7))
    assert said.bytes == 77
    assert folder_bytes(tmp_path) == 177


def test_folders_may_vanish_while_their_sizes_are_added_up(tmp_path: Path) -> None:
    (tmp_path / "stays").write_bytes(bytes(5))
    ended = threading.Event()

    def come_and_go() -> None:
        while not ended.is_set():
            for name in "abc":
                (tmp_path / name / "inner").mkdir(parents=True)
                (tmp_path / name / "inner" / "file").write_bytes(bytes(9))
            for name in "abc":
                shutil.rmtree(tmp_path / name)

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        assert all(folder_bytes(tmp_path) >= 5 for _ in range(1000))
    finally:
        ended.set()
        other.join()
    assert folder_bytes(tmp_path) == 5
