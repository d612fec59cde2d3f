"""An installed package adds a part: the example of docs/structure.md, installed by pip."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that pip installed the example package into."""
    source, target = tmp_path_factory.mktemp("echo"), tmp_path_factory.mktemp("site")
    text = (ROOT / "docs" / "structure.md").read_text("utf-8")
    files = dict(re.findall(r"<!-- example: (\S+) -->\n```\w+\n(.*?)^```", text, re.S | re.M))
    assert set(files) == {"pyproject.toml", "localspec_echo.py"}
    assert len(files["localspec_echo.py"].splitlines()) <= 20
    for name, content in files.items():
        (source / name).write_text(content, "utf-8")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), str(source)]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def run(installed: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(installed)}
    command = [sys.executable, "-m", "localspec", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_the_part_is_listed_with_its_options(installed: Path) -> None:
    listed = json.loads(run(installed, ["parts", "--json"]).stdout)
    (echo,) = [part for part in listed["drafters"] if part["name"] == "echo"]
    assert "Repeats the last token of the text" in json.dumps(echo)
    assert "repetitions" in json.dumps(echo)


def test_the_part_drafts(installed: Path) -> None:
    script = (
        "from localspec import plugins; from localspec.core.cursor import Cursor\n"
        "from localspec.core.sampler import Sampler, Sampling\n"
        "target = Cursor(plugins.parse('engines', 'toy').make().session())\n"
        "drafter = plugins.parse('drafters', 'echo:times=3').make(target)\n"
        "print([guess.token for guess in drafter.propose([5, 7], Sampler(Sampling()))])"
    )
    environment = os.environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stdout.strip() == "[7, 7, 7]", done.stderr


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ("echo = localspec_echo:Missing", "`echo` of `localspec-echo` cannot be imported: module"),
        ("echo = localspec_echo:Guess", "`echo` of `localspec-echo` is no `Drafter`"),
        ("ngram = localspec_echo:EchoDraft", "`localspec-echo` has a drafter called `ngram`"),
    ],
)
def test_a_part_that_cannot_be_used_is_told(
    installed: Path, tmp_path: Path, point: str, message: str
) -> None:
    for path in installed.rglob("*"):
        if path.is_file():
            copy = tmp_path / path.relative_to(installed)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    (entry_points,) = tmp_path.glob("*.dist-info/entry_points.txt")
    entry_points.write_text(f"[localspec.drafters]\n{point}\n")
    name = point.partition(" ")[0]
    done = run(tmp_path, ["chat", "smollm2-135m", "hi", "--draft", name])
    assert done.returncode == 2
    assert message in done.stderr
    assert "pip uninstall localspec-echo" in done.stderr
