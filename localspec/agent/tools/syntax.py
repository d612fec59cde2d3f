"""Whether a file parses, by the rules of its language; nothing in it is run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from localspec import children

TIMEOUT = 20.0  # seconds
JSX = "Unexpected token '<'"  # what node says of markup, which other tools turn into JavaScript

_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_LAST_COMMA = re.compile(r",(?=\s*[\]}])")
_ESCAPED = re.compile(r'\\([nt"\\])')
_MEANING = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}
MAX_MESSAGE = 600  # characters
NO_PROGRAM = 127  # exit code
JAVASCRIPT = (("node", "--input-type=module", "--check", "-"), ("node", "--check", "-"))
CHECKERS = {  # by the end of a name: programs that parse stdin without running it; one must accept it
    ".sh": (("bash", "-n"),),
    ".js": JAVASCRIPT,
    ".mjs": JAVASCRIPT,
    ".cjs": JAVASCRIPT,
    ".rb": (("ruby", "-c"),),
    ".php": (("php", "-l"),),
}


def fault(name: str, text: str) -> str | None:
    """Return why the file `name` with this text does not parse; None if it does, or if nothing can tell."""
    end = Path(name).suffix.casefold()
    if end in PARSERS:
        return PARSERS[end](text)
    return _checked(end, text) if end in CHECKERS else None


def unescaped(name: str, text: str, whole: Callable[[str], str] = str) -> str:
    r"""Return a text that a model has escaped twice with real line ends for its `\n`.

    It is taken for one if it has no other line end, and if the file, which is `whole` of the text, parses
    with line ends and does not parse without; a file that nothing can parse is taken to mean line ends.
    """
    if "\\n" not in text or "\n" in text:
        return text
    meant = _ESCAPED.sub(lambda match: _MEANING[match[1]], text)
    if known(name):
        return meant if fault(name, whole(text)) and not fault(name, whole(meant)) else text
    return meant


def known(name: str) -> bool:
    """Return whether the language of a file can be checked here."""
    end = Path(name).suffix.casefold()
    return end in PARSERS or (end in CHECKERS and shutil.which(CHECKERS[end][0][0]) is not None)


def _python(text: str) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "file", "exec", dont_inherit=True)
    except SyntaxError as error:
        line = f": {error.text.strip()}" if error.text else ""
        return f"line {error.lineno or 1}: {error.msg}{line}"
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        return str(error) or type(error).__name__
    return None


def _json(text: str) -> str | None:
    """Return why JSON does not parse; comments and last commas are let be, as editors' settings have them."""
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        with suppress(ValueError, RecursionError):
            json.loads(_LAST_COMMA.sub("", _COMMENT.sub(lambda match: match[1] or "", text)))
            return None
        return str(error)
    return None


def _toml(text: str) -> str | None:
    try:
        tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        return str(error)
    return None


PARSERS: dict[str, Callable[[str], str | None]] = {
    ".py": _python,
    ".pyi": _python,
    ".json": _json,
    ".toml": _toml,
}


def _checked(end: str, text: str) -> str | None:
    """Return what the last checker of a language prints about a text that none of them accepts."""
    printed = None
    for command in CHECKERS[end]:
        try:
            result = children.run(
                command,
                input=text.encode("utf-8", "replace"),
                timeout=TIMEOUT,
                stderr=subprocess.STDOUT,
                cwd=children.ROOT,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        if result.returncode in (0, NO_PROGRAM):
            return None
        printed = result.stdout.decode("utf-8", "replace").strip()[:MAX_MESSAGE]
        if JSX in printed:
            return None
    return printed
