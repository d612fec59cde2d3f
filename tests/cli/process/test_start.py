"""The start of the command: its imports, and the end of its process."""

from __future__ import annotations

import subprocess
import sys

import pytest
from command import MODEL, Localspec

# Runs the command in this Python, then prints what is left of it.
AFTER = """
import gc, sys
from localspec.cli import process
sys.argv = ["localspec", *{arguments}]
{before}
try:
    process.main()
except SystemExit as leaving:
    print({shown})
    raise
"""
NEEDLESS = {  # to answer a prompt with a model that is installed
    *(
        "localspec.library.download.hub",
        "localspec.library.download.pull",
        "localspec.library.importing.local",
    ),
    *("localspec.library.importing.local", "localspec.library.importing.source"),
    *("localspec.library.importing.addons", "localspec.agent"),
    *("localspec.cli.talk.loop", "localspec.bench.runner", "localspec.serve.app"),
    *("ssl", "asyncio", "http.client", "huggingface_hub", "rich", "prompt_toolkit", "llguidance"),
    *("transformers", "torch", "gguf", "PIL"),
}
FOR_ANSWERS = {"localspec.chat", "localspec.runtime.generation", "localspec.cli.talk.screen", "jinja2.ext"}


def ran(localspec: Localspec, *arguments: str, before: str = "", shown: str = "''") -> tuple[int, str, str]:
    script = AFTER.format(arguments=arguments, before=before, shown=shown)
    done = localspec.run(before=[sys.executable, "-c", script])
    return done.code, done.out, done.err


def test_a_prompt_is_answered_without_what_it_does_not_need(localspec: Localspec) -> None:
    shown = f"*sorted({NEEDLESS!r} & set(sys.modules))"
    code, out, err = ran(localspec, "chat", MODEL, "hi", "--max-tokens", "2", shown=shown)
    assert code == 0, err
    assert out.splitlines()[-1] == ""


def test_what_an_answer_needs_is_imported_beside_the_engine(localspec: Localspec) -> None:
    """It is there before a runtime is made, and not before something is loaded."""
    before = f"""
from localspec.runtime import loading
from localspec.runtime.loading import LoadSpec
def load(self, load=LoadSpec.load):
    early.extend({FOR_ANSWERS!r} & modules)
    return load(self)
LoadSpec.load, early = load, []
check = loading.check_memory
def checked(specs):
    global modules
    modules = set(sys.modules)
    check(specs)
from localspec.runtime import load as parallel
parallel.check_memory = checked
"""
    shown = f"early, sorted({FOR_ANSWERS!r} - set(sys.modules))"
    code, out, err = ran(localspec, "chat", MODEL, "hi", "--max-tokens", "2", before=before, shown=shown)
    assert code == 0, err
    assert out.splitlines()[-1] == "[] []"


def test_garbage_is_looked_for_once_a_command_begins(fresh: Localspec) -> None:
    before = """
from localspec.cli.machine import parts
found = []
parts.part_values = lambda *arguments: found.append((gc.isenabled(), gc.get_freeze_count() > 10_000)) or []
"""
    code, out, err = ran(fresh, "parts", "--json", before=before, shown="set(found)")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "{(True, True)}"


@pytest.mark.parametrize(("arguments", "code"), [(("parts", "--json"), 0), (("show", "no-such-model"), 1)])
def test_the_process_ends_with_its_code_after_all_that_waits_for_it(
    fresh: Localspec, arguments: tuple[str, ...], code: int
) -> None:
    shown = "start()"
    before = """
def start():
    import atexit, threading
    ended = threading.Event()
    atexit.register(print, "registered")
    threading.Thread(target=lambda: (ended.wait(0.3), print("thread"))).start()
    return "main"
"""
    found, out, _ = ran(fresh, *arguments, before=before, shown=shown)
    assert found == code
    assert out.splitlines()[-3:] == ["main", "thread", "registered"]


def test_a_model_that_has_answered_is_left_to_the_system(localspec: Localspec) -> None:
    before = """
from localspec.runtime import generation
generation.Runtime.__del__ = lambda self: print("freed")
"""
    code, out, err = ran(localspec, "chat", MODEL, "hi", "--max-tokens", "2", before=before, shown="'main'")
    assert code == 0, err
    assert out.splitlines()[-1] == "main"
    assert "freed" not in out


def test_memory_is_left_to_the_system(fresh: Localspec) -> None:
    """It takes long to free, and a prompt waits for it."""
    before = """
class Model:
    def __del__(self):
        print("freed")
model = Model()
"""
    code, out, err = ran(fresh, "parts", "--json", before=before, shown="'main'")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "main"


def test_an_output_that_is_full_at_the_end_is_told(fresh: Localspec) -> None:
    script = AFTER.format(arguments=("parts",), before="", shown="'x' * 100_000")
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-c", script], stdout=full, stderr=subprocess.PIPE, env=fresh.environment()
        )
    assert done.returncode != 0
