"""Processes of localspec's own: they answer, they die, they are late, and they import nothing from here."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.children import JsonChild
from localspec.errors import ChildFailed

ECHO = """
import json, sys, time
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request == "fail": print(json.dumps({"error": "no", "hint": "try"}), flush=True)
    elif request == "die": sys.exit("out of memory")
    elif request == "sleep": time.sleep(60)
    else: print(json.dumps({"echo": request}), flush=True)
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JsonChild:
    (tmp_path / "echo_child.py").write_text(ECHO)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    child = JsonChild("echo", "echo_child")
    assert child.reply() == {"ready": True}
    return child


def test_a_child_answers_until_it_ends(child: JsonChild) -> None:
    assert child.ask([1, "two"]) == {"echo": [1, "two"]}
    with pytest.raises(ChildFailed, match="`echo`: no") as caught:
        child.ask("fail")
    assert caught.value.hint == "try"
    assert child.ask(3) == {"echo": 3}
    child.end()


def test_the_last_words_of_a_child_that_dies(child: JsonChild) -> None:
    with pytest.raises(ChildFailed, match="`echo` exited with 1: out of memory"):
        child.ask("die")
    child.end()


def test_a_child_that_is_late_is_ended(child: JsonChild) -> None:
    with pytest.raises(TimeoutError):
        child.ask("sleep", seconds=0.05)
    child.end()


def test_a_child_imports_nothing_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('code of the folder ran')")
    monkeypatch.chdir(tmp_path)
    child = JsonChild("race", "localspec.runtime.engine_race")
    with pytest.raises(ChildFailed, match="missing 3 required positional arguments"):
        child.reply()
    child.end()
