"""The file that defines a name which a program did not know."""

from __future__ import annotations

import re
from itertools import islice

from localspec.agent.tools import text_files
from localspec.agent.tools.folder import MAX_SCANNED, Folder

MAX_PLACES = 3

_UNKNOWN = re.compile(
    r"name '(\w+)' is not defined|cannot import name '(\w+)'|(\w+) is not defined|undefined: (\w+)"
    r"|cannot find (?:function|value|type) `(\w+)`"
)
_IDENTIFIER = re.compile(r"[^\W\d]\w*")


def definitions(folder: Folder, output: str) -> str:
    """Return the places in the folder that define the names which a program's output says to be unknown."""
    names = list(dict.fromkeys(next(filter(None, match)) for match in _UNKNOWN.findall(output)))
    found = [line for name in names[:MAX_PLACES] for line in _places(folder, name)]
    return "\n".join(found)


def _places(folder: Folder, name: str) -> list[str]:
    define = re.compile(
        rf"^\s*(?:async\s+)?(?:def|class|function|func|fn|const|let|var|type|struct)\s+{re.escape(name)}\b"
        rf"|^{re.escape(name)}\s*="
    )
    found = []
    for file in islice(folder.files(folder.root), MAX_SCANNED):
        text = text_files.content(folder, file, text_files.MAX_COUNTED)
        line = next((line for line in (text or "").splitlines() if define.match(line)), None)
        if line is not None:
            place = folder.name(file)
            module = place.removesuffix(".py").replace("/", ".")
            importable = place.endswith(".py") and all(map(_IDENTIFIER.fullmatch, module.split(".")))
            how = f": from {module} import {name}" if importable else ""
            found.append(f"`{name}` is defined in {place}{how}")
    return found[:MAX_PLACES]
