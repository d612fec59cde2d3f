"""The folder of localspec's data, and the names that a model can have."""

from __future__ import annotations

import os
import re
from pathlib import Path

from localspec.disk import given
from localspec.errors import BadValue
from localspec.library import storage

HOME = "LOCALSPEC_HOME"  # the variable that names the data folder
MAX_NAME = 200  # bytes, so that locks and temporary files can have longer names

_NAME = re.compile(r"\w[\w.-]*")


def check_name(name: str) -> None:
    """Raise BadValue for a name that cannot be a model's: it is also the name of a folder."""
    if not _NAME.fullmatch(name) or ".." in name or len(name.encode()) > MAX_NAME:
        raise BadValue(
            f"`{name}` cannot be a model's name",
            "Use letters, digits, `-`, `_` and `.`, starting with a letter or digit",
        )


def home() -> Path:
    """Return the data folder: `LOCALSPEC_HOME`, else the platform's user data folder.

    Raises BadValue for one whose path is not UTF-8.
    """
    chosen = os.environ.get(HOME)
    folder = Path(chosen).expanduser() if chosen else default_home()
    given.check_utf8(folder)
    return folder


def default_home() -> Path:
    """Return the platform's user data folder."""
    import platformdirs

    return platformdirs.user_data_path("localspec", appauthor=False)


def compiled_folder(model: Path) -> Path:
    """Return the folder of what engines compiled from the model folder `model`; it may not exist."""
    return home() / "compiled" / storage.digest_of_text(str(model.resolve()))[:16]
