"""The files of a folder that a model needs beside the output of a program: those that it names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from localspec.agent.tools import text_files
from localspec.agent.tools.folder import Folder, is_test
from localspec.chat import fenced
from localspec.output.visible import visible

MAX_FILES = 4
MAX_BYTES = 4_000  # of one file

# `File "a/b.py", line 3` of Python, `a/b.py:3` of pytest, compilers and linters, `(/x/a/b.js:3:5)` of Node
_PLACE = r"""File "([^"\n]+)"|(?<![\w./\\-])([\w./\\-]+\.\w+)(?=:\d+|::|\)|['"`,]|\s|$)"""
_IMPORTED = r"(?:No module named|from partially initialized module|from) '([\w.]+)'"
_NAMED = re.compile(f"{_PLACE}|{_IMPORTED}", re.MULTILINE)


def named_files(folder: Folder, output: str) -> list[str]:
    """Return the names of the folder's files that a program's output names, those it names last coming first.

    Those are the files of a traceback, a module that could not be imported from, and the modules of the
    folder that a test file among them imports.
    """
    found: dict[str, None] = {}
    for name in reversed(list(_places(folder, output))):
        found.setdefault(name)
    for name in list(found):
        if is_test(name) and name.endswith(".py"):
            found |= dict.fromkeys(local_imports(folder, name))
    return list(found)


def _places(folder: Folder, output: str) -> Iterator[str]:
    for match in _NAMED.finditer(output):
        quoted, bare, module = match.groups()
        paths = [quoted or bare] if quoted or bare else _module_paths(module)
        yield from filter(None, (_inside(folder, path) for path in paths))


def local_imports(folder: Folder, name: str) -> list[str]:
    """Return the names of the folder's files that a Python file imports."""
    try:
        tree = ast.parse(text_files.content(folder, folder.root / name) or "")
    except (SyntaxError, ValueError, RecursionError):
        return []
    modules: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(PurePosixPath(name).parts[: -node.level]) if node.level else ""
            module = ".".join(filter(None, [start, node.module]))
            modules += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    paths = (path for module in modules for path in _module_paths(module))
    return list(dict.fromkeys(filter(None, (_inside(folder, path) for path in paths))))


def _module_paths(module: str) -> list[str]:
    path = module.replace(".", "/")
    return [f"{path}.py", f"{path}/__init__.py"]


def _inside(folder: Folder, path: str) -> str | None:
    """Return the name of a file that is not in a hidden folder, such as an environment; else None."""
    name = folder.inside(path)
    hidden = name is not None and any(part.startswith(".") for part in PurePosixPath(name).parts[:-1])
    return None if hidden else name


def handed_over(folder: Folder, names: Sequence[str], known: Sequence[str]) -> tuple[str, list[str]]:
    """Return the text of the short files among `names` that no text of `known` has, and their names."""
    parts: list[str] = []
    taken: list[str] = []
    for name in names:
        text = text_files.content(folder, folder.root / name, MAX_BYTES)
        if text and len(taken) < MAX_FILES and not any(text.strip() in told for told in known):
            parts.append(fenced(name, visible(text)))
            taken.append(name)
    return "\n\n".join(parts), taken
