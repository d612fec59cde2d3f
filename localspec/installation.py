"""How this copy of localspec was installed, and the command that adds the libraries of an extra to it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

NAME = "localspec"
WINDOWS = os.name == "nt"
UV_RECEIPT, PIPX_METADATA = "uv-receipt.toml", "pipx_metadata.json"  # in the environment of such a tool


def install_command(extra: str | None = None, *more: str) -> str:
    """Return what to type to install an extra, or localspec itself, and `more` packages where this copy runs.

    It names what this copy came from: a package index, a folder, a wheel or a repository; and pip, uv or
    pipx, whichever made the environment. If the folder or wheel is gone, the command names the extra's
    requirements instead.
    """
    try:
        own: Distribution | None = distribution(NAME)
    except PackageNotFoundError:  # it runs from its source
        own = None
    prefix = Path(sys.prefix)
    extras = [extra] if extra else []
    if (prefix / PIPX_METADATA).is_file():
        packages = [*_requirements(own, extras), *more]
        return _line(["pipx", "inject", prefix.name], packages or [NAME])
    if (receipt := prefix / UV_RECEIPT).is_file():
        with_more = [part for package in more for part in ("--with", package)]
        flags, packages = _origin(own, sorted({*_extras_in(receipt), *extras}))
        return _line(["uv", "tool", "install", *flags], [*packages, *with_more])
    flags, packages = _origin(own, extras)
    return _line([*_pip_install(), *flags], [*packages, *more])


def _origin(own: Distribution | None, extras: list[str]) -> tuple[list[str], list[str]]:
    """Return the flags and the packages that install this copy again from its origin, with `extras`."""
    brackets = f"[{','.join(extras)}]" if extras else ""
    found = _direct_url(own)
    url = found.get("url")
    if not isinstance(url, str):
        return [], [f"{NAME}{brackets}"]
    if "vcs_info" in found:
        return [], [f"{NAME}{brackets} @ {found['vcs_info'].get('vcs', 'git')}+{url}"]
    parts = urlsplit(url)
    if parts.scheme != "file":
        return [], [f"{NAME}{brackets} @ {url}"]
    path = Path(_windows_path(parts.path) if WINDOWS else unquote(parts.path))
    if not path.exists():
        return [], _requirements(own, extras) or [f"{NAME}{brackets}"]
    editable = found.get("dir_info", {}).get("editable", False)
    return ["-e"] if editable else [], [f"{path}{brackets}"]


def _windows_path(path: str) -> str:
    from urllib.request import url2pathname  # slow to import

    return url2pathname(path)


def _direct_url(own: Distribution | None) -> dict[str, Any]:
    """Return where a copy was installed from (PEP 610), empty if it was a package index."""
    try:
        found = json.loads((own and own.read_text("direct_url.json")) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _requirements(own: Distribution | None, extras: Iterable[str]) -> list[str]:
    """Return the requirements of extras, as the metadata of a copy lists them."""
    found = [line.partition(";") for line in (own and own.requires) or ()]
    return [
        requirement.strip()
        for requirement, _, marker in found
        if any(marker.replace('"', "'").strip() == f"extra == '{extra}'" for extra in extras)
    ]


def _extras_in(receipt: Path) -> list[str]:
    """Return the extras that a tool of uv was installed with: a new installation replaces it."""
    try:
        listed = tomllib.loads(receipt.read_text("utf-8"))["tool"]["requirements"]
        return [str(extra) for each in listed if each["name"] == NAME for extra in each.get("extras", ())]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def _pip_install() -> list[str]:
    """Return the words that install into this environment: its own pip, or uv if it has none."""
    try:
        distribution("pip")
    except PackageNotFoundError:
        active = os.environ.get("VIRTUAL_ENV") == sys.prefix
        return ["uv", "pip", "install", *([] if active else ["--python", sys.executable])]
    on_path = shutil.which("pip")
    own = on_path and Path(on_path).parent == Path(sys.executable).parent
    return [*(["pip"] if own else [sys.executable, "-m", "pip"]), "install"]


def _line(command: list[str], packages: list[str]) -> str:
    return " ".join(map(_quoted, [*command, *packages]))


def _quoted(word: str) -> str:
    """Return a word as a shell reads it; Windows has double quotes only."""
    if not WINDOWS:
        return shlex.quote(word)
    return word if all(letter.isalnum() or letter in "-_.:\\/" for letter in word) else f'"{word}"'
