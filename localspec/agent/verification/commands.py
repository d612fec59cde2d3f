"""The shell commands that run the tests of a folder, or the program that a task says to fail."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import PurePosixPath

from localspec import children
from localspec.agent.tools import text_files
from localspec.agent.tools.folder import MAX_SCANNED, Folder, is_test
from localspec.agent.verification.task import FAILS

MAX_FILES = 50  # test files that a command names; more are left to the test runner
PROBE_TIMEOUT = 20.0  # seconds
ENVIRONMENTS = (".venv", "venv")

_PYTHON_TEST = re.compile(r"(test_.*|.*_test)\.py", re.IGNORECASE)
_FAILING_PROGRAM = re.compile(
    rf"(?<![\w./-])([\w/-]+\.(?:py|js|sh))`?\s+(?:always |now |sometimes )?{FAILS}"
    rf"|\b(?:running|run|starting|calling)\s+`?([\w/-]+\.(?:py|js|sh))`?\s+{FAILS}"
    rf"|\bwhy\s+(?:does|did|do)\s+`?([\w/-]+\.(?:py|js|sh))`?\s+{FAILS}",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"`([^`\n]+)`")
_RUNS_TESTS = re.compile(
    r"(python[\d.]* |pytest|tox|nox|make |npm |cargo |go |bash |sh |\./).*", re.IGNORECASE
)


def command_of_tests(folder: Folder, task: str) -> str | None:
    """Return the shell command that runs the tests; None if there are none, or nothing to run them with.

    A command between backquotes in the task that runs tests comes first, then the test files that the task
    names, then those of the folder, then the test target of its package.
    """
    quoted: Iterator[str] = (
        part for part in _QUOTED.findall(task) if _RUNS_TESTS.fullmatch(part) and "test" in part
    )
    if command := next(quoted, None):
        return command
    tests = _python_tests(folder, task)
    named = any(_names(task, name) for name in tests)
    commands = [*_python_commands(folder, tests), *([] if named else _package_commands(folder))]
    return " && ".join(commands) or None


def _python_tests(folder: Folder, task: str) -> list[str]:
    """Return the Python test files that the task names, or else all of the folder."""
    names = [folder.name(file) for file in islice(folder.files(folder.root), MAX_SCANNED)]
    tests = [name for name in names if _PYTHON_TEST.fullmatch(PurePosixPath(name).name)]
    return [name for name in tests if _names(task, name)] or tests


def _names(task: str, name: str) -> bool:
    return re.search(rf"(?<![\w./-]){re.escape(name)}(?![\w/-])", task) is not None


def _text(folder: Folder, name: str) -> str:
    """Return the text of a file, "" if there is none or it is no text."""
    return text_files.content(folder, folder.root / name) or ""


def missing_runner(folder: Folder, task: str) -> str | None:
    """Return why test files of the folder cannot be run; None if there are none, or all can."""
    python, tests = python_of(folder), _python_tests(folder, task)
    functions = [name for name in tests[: MAX_FILES + 1] if _kind(_text(folder, name)) == "functions"]
    if not functions or _has_pytest(folder, python):
        return None
    return f"{functions[0]} needs pytest, which `{python}` does not have: it was not run"


def command_of_failing_program(folder: Folder, task: str) -> str | None:
    """Return the shell command of the program that the task says to fail; None if it names none."""
    for found in _FAILING_PROGRAM.findall(task):
        name = folder.inside(next(filter(None, found)))
        if name is not None and not is_test(name):
            program = {".py": python_of(folder), ".js": "node", ".sh": "bash"}[PurePosixPath(name).suffix]
            return _script(program, name) if name.endswith(".py") else _line([program, name])
    return None


def _python_commands(folder: Folder, tests: Sequence[str]) -> Iterator[str]:
    """Yield the commands of Python test files: one of a runner, and one for each that is a script."""
    kinds = {name: _kind(_text(folder, name)) for name in tests[: MAX_FILES + 1]}
    python = python_of(folder)
    by_runner = [name for name, kind in kinds.items() if kind in ("functions", "unittest")]
    if by_runner and _has_pytest(folder, python):
        yield _line([python, "-m", "pytest", "-q", *(by_runner if len(tests) <= MAX_FILES else ())])
    elif by_runner:
        cases = [name for name in by_runner if kinds[name] == "unittest"]
        if cases:
            yield _line([python, "-m", "unittest", "-q", *cases])
    yield from (_script(python, name) for name, kind in kinds.items() if kind == "script")


def _script(python: str, name: str) -> str:
    """Return the command of a script that imports from the folder, wherever in it the script is."""
    *folders, last = PurePosixPath(name).with_suffix("").parts
    module = ".".join([*folders, last])
    as_module = folders and all(part.isidentifier() for part in (*folders, last))
    return _line([python, "-m", module] if as_module else [python, name])


def _kind(text: str) -> str:
    """Return how a test file is run: as `functions`, `unittest` cases or a `script`; "" for not at all."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return "script"  # running it shows the fault
    if any(isinstance(node, ast.ClassDef) and "TestCase" in ast.unparse(node) for node in tree.body):
        return "unittest"
    tested = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    named = {
        node.name for node in tree.body if isinstance(node, tested) and node.name.lower().startswith("test")
    }
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    if named and not named & called:
        return "functions"
    return "script" if any(not isinstance(node, ast.Import | ast.ImportFrom) for node in tree.body) else ""


def _package_commands(folder: Folder) -> Iterator[str]:
    """Yield the command of each other kind of package that has tests and whose program is here."""
    with suppress(ValueError, AttributeError, RecursionError):
        script = json.loads(_text(folder, "package.json")).get("scripts", {}).get("test", "")
        if script and "no test specified" not in script and shutil.which("npm"):
            yield "npm test --silent"
    if _text(folder, "Cargo.toml") and shutil.which("cargo"):
        yield "cargo test -q"
    if _text(folder, "go.mod") and shutil.which("go"):
        yield "go test ./..."
    if re.search(r"^test\s*:", _text(folder, "Makefile"), re.MULTILINE) and shutil.which("make"):
        yield "make test"


def python_of(folder: Folder) -> str:
    """Return the Python of the folder's virtual environment, or else the one on the path."""
    scripts = "Scripts/python.exe" if os.name == "nt" else "bin/python"
    for name in ENVIRONMENTS:
        if (folder.root / name / scripts).is_file():
            return f"{name}/{scripts}"
    return next((name for name in ("python", "python3") if shutil.which(name)), sys.executable)


def _has_pytest(folder: Folder, python: str) -> bool:
    """Return whether a Python has pytest; one inside the folder is not run, for nobody has allowed it yet."""
    if python != sys.executable and "/" in python:
        top = folder.root / python.partition("/")[0]
        return (
            any(top.glob("lib/python*/site-packages/pytest")) or (top / "Lib/site-packages/pytest").is_dir()
        )
    program = "import sys; from importlib.util import find_spec; sys.exit(find_spec('pytest') is None)"
    try:
        return children.run([python, "-I", "-c", program], timeout=PROBE_TIMEOUT).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _line(words: Iterable[str]) -> str:
    return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)
