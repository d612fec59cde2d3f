"""The floors of the house: a file imports only from those below its own."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import localspec

ROOT = Path(next(iter(localspec.__path__)))
FLOORS = [
    {"errors", "signals"},
    {"core", "plugins", "tools"},
    {"settings", "devices", "formats", "recipes", "grammar", "sessions", "prompts"},
    {"library", "training"},
    {"engines", "drafters", "lookaheads", "verifiers", "decodings", "steps", "dialects"} | {"choosing"},
    {"runtime"},
    {"chat", "bench", "doctor", "building"},
    {"agent", "server"},
    {"cli"},
    {"__main__", "__init__"},
]
PARTS = {"engines", "drafters", "lookaheads", "verifiers", "decodings", "steps", "dialects"}
HEAVY = {
    *("openvino", "openvino_genai", "llama_cpp", "torch", "transformers", "nncf", "peft", "fastapi"),
    *("huggingface_hub", "tokenizers", "gguf", "jinja2", "llguidance", "prompt_toolkit", "mcp", "smolagents"),
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
    if target[0] in HEAVY and each.at_once:
        return "a heavy library, at module level"
    if own[1] == "core" and target[0] not in {"numpy", *sys.stdlib_module_names}:
        inside = own[2:] == ["tokenizer"] and target[0] == "tokenizers"
        return None if inside else "core knows token ids and numpy only"
    return None


def _wrong_room(own: list[str], target: list[str]) -> str | None:
    if target == ["localspec", "__version__"]:
        return None
    here, there = own[1], target[1]
    if there in PARTS:
        same = own[1:3] == target[1:3] and len(own) > 2
        return None if same else "a part is reached through plugins alone"
    if here == there or (here, there) == ("plugins", "core"):
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
        ("localspec.core.tokenizer", "from tokenizers import Tokenizer"),
        ("localspec.tools", "from localspec.core.cursor import Cursor"),
        ("localspec.formats.gguf", "from localspec.devices import Device"),
        ("localspec.formats.gguf", "if TYPE_CHECKING:\n    from localspec.library import Library"),
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
        ("localspec.core.tokenizer", "if TYPE_CHECKING:\n    from tokenizers import Tokenizer"),
        (
            "localspec.core.sampler",
            "import math\nimport numpy as np\nfrom localspec.core.cursor import Cursor",
        ),
        ("localspec.plugins", "from localspec.core import contracts\nfrom localspec.errors import BadValue"),
        ("localspec.engines.openvino.session", "from localspec.engines.openvino import cache"),
        ("localspec.engines.openvino", "def f():\n    import openvino as ov"),
        ("localspec.engines.toy", "from localspec.library import Library"),
        ("localspec.cli.app", "from localspec import __version__, chat"),
        ("localspec.__main__", "from localspec.cli.app import main"),
    ],
)
def test_what_may_be_is_let_be(module: str, source: str) -> None:
    assert broken(module, source) == []
