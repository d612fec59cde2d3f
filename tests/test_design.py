"""docs/design.md shows the tree, the floors and the contracts that the code has."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from itertools import takewhile

import pytest
from test_architecture import FLOORS, ROOT

TEXT = (ROOT.parent / "docs" / "design.md").read_text("utf-8")
PLACES = (
    "core.types",
    "core.contracts",
    "core.sampler",
    "core.cursor",
    "core.blocks.parts",
    "drafting.build_step",
    "output.tool_format",
)


def block(start: str) -> str:
    """Return the text of the first fenced block that begins with `start`, without the fence."""
    found = re.search(rf"^```\w*\n({re.escape(start)}.*?)^```", TEXT, re.S | re.M)
    assert found, f"no block begins with {start!r}"
    return found[1]


def tree() -> dict[str, str]:
    """Return the entries below `localspec/` in the tree, with what is said of each."""
    below = block("README.md").partition("localspec/\n")[2]
    found: dict[str, str] = {}
    for line in below.splitlines():
        if line.startswith("   "):
            found[list(found)[-1]] += f" {line.strip()}"
            continue
        words = line.split()
        names = list(takewhile(lambda word: word.endswith((".py", ".typed")), words)) or words[:1]
        found |= {name: " ".join(words[len(names) :]) for name in names}
    return found


def test_the_tree_names_every_room_and_no_other() -> None:
    there = {path.name + "/" * path.is_dir() for path in ROOT.iterdir() if path.name != "__pycache__"}
    assert set(tree()) == there - {name for name in there if name.startswith("_") and name.endswith("/")}


@pytest.mark.parametrize("room", ["core", "drafters", "draft_length", "engines", "steps"])
def test_the_tree_names_the_files_of_a_room(room: str) -> None:
    words = set(re.findall(r"[a-z_]+", tree()[f"{room}/"]))
    files = {path.stem for path in (ROOT / room).iterdir() if not path.name.startswith("__")}
    assert files <= words


def test_the_floors_are_those_of_the_code() -> None:
    lines = block("1   ").splitlines()
    assert [set(line.split()[1:]) for line in lines] == FLOORS


def shown() -> list[ast.ClassDef]:
    return [node for node in ast.parse(block("class Distribution")).body if isinstance(node, ast.ClassDef)]


def real(name: str) -> type:
    modules = [importlib.import_module(f"localspec.{place}") for place in PLACES]
    (found,) = {vars(module)[name] for module in modules if name in vars(module)}
    assert isinstance(found, type)
    return found


@pytest.mark.parametrize("node", shown(), ids=lambda node: str(node.name))
def test_a_contract_is_that_of_the_code(node: ast.ClassDef) -> None:
    found = real(node.name)
    own = {name for name in {**vars(found), **found.__annotations__} if not name.startswith("_")}
    methods = {child.name: child for child in node.body if isinstance(child, ast.FunctionDef)}
    values = {ast.unparse(child.target) for child in node.body if isinstance(child, ast.AnnAssign)}
    assert {*methods, *values} <= own
    assert {name for name in own if inspect.isfunction(getattr(found, name, None))} <= set(methods)
    for name, method in methods.items():
        given = [
            arg.arg for arg in (*method.args.args, *method.args.kwonlyargs) if arg.arg not in ("self", "cls")
        ]
        parameters = inspect.signature(getattr(found, name)).parameters.values()
        kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        assert [one.name for one in parameters if one.name != "self" and one.kind not in kinds] == given
