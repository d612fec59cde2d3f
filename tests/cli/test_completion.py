"""Completion in a shell, in the protocol of bash and zsh."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command import COMMAND, MODEL, Localspec

from localspec import plugins
from localspec.bench import suites
from localspec.build import recipes
from localspec.library import catalogue
from localspec.state.conversations import Sessions

# The command as the script `localspec`, after whose name the variables of the protocol are called.
SCRIPT = "import sys; sys.argv[0] = 'localspec'; from localspec.cli.process import main; main()"
HEAVY = (
    "localspec.library.store",
    "localspec.runtime",
    "msgspec",
    "huggingface_hub",
    "tokenizers",
    "openvino",
)
TEXTS = [entry.name for entry in catalogue.entries() if entry.kind == catalogue.TEXT]
Complete = Callable[..., list[str]]


@pytest.fixture
def complete(fresh: Localspec) -> Complete:
    """Complete the last word of a line, with two models and two conversations in the library."""
    for name in (MODEL, "mine"):
        (fresh.home / "models" / name).mkdir(parents=True)
    (fresh.home / "models" / f"{MODEL}.lock").touch()
    (fresh.home / "models" / ".partial").mkdir()
    kept = Sessions(fresh.home / "sessions.db")
    kept.write("trip", MODEL, [{"role": "user", "content": "Hi"}])
    kept.write("work", MODEL, [{"role": "user", "content": "Hi"}])

    def run(line: str, **more: str) -> list[str]:
        words = line.split(" ")
        found = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=fresh.environment(
                _LOCALSPEC_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1), **more
            ),
            capture_output=True,
            text=True,
            check=True,
        )
        assert found.stderr == ""
        return found.stdout.split()

    return run


@pytest.mark.parametrize(
    "line", ["chat ", "agent ", "bench ", "quantize ", "prune-draft ", "prune-draft x --from "]
)
def test_models_of_the_library_come_before_those_of_the_catalogue(complete: Complete, line: str) -> None:
    assert complete(f"localspec {line}") == ["mine", MODEL, *(name for name in TEXTS if name != MODEL)]


def test_models_of_every_kind_are_pulled(complete: Complete) -> None:
    others = [name for name in catalogue.names() if name != MODEL]
    assert complete("localspec pull ") == ["mine", MODEL, *others]


def test_models_of_speech(complete: Complete) -> None:
    speech = catalogue.names(catalogue.SPEECH)
    assert complete("localspec transcribe a.wav --model ") == ["mine", *speech]
    ways = ["auto", "off", "copies", "self"]
    assert complete("localspec transcribe a.wav --draft ") == [*ways, "mine", *speech]


def test_only_names_that_begin_so(complete: Complete) -> None:
    assert complete("localspec chat qwen3-8") == ["qwen3-8b"]
    assert complete("localspec chat whisper") == []
    assert complete("localspec chat zzz") == []


@pytest.mark.parametrize("command", ["show", "rm", "verify", "stop", "launch aider"])
def test_installed_models(complete: Complete, command: str) -> None:
    assert complete(f"localspec {command} ") == ["mine", MODEL]


def test_drafts(complete: Complete) -> None:
    found = complete("localspec chat mine --draft ")
    assert found[:2] == ["auto", "off"]
    assert {*plugins.names("drafters"), "mine", "qwen3-0.6b"} <= set(found)
    assert complete("localspec doctor mine --draft ngr") == ["ngram"]


def test_other_names(complete: Complete) -> None:
    assert complete("localspec chat --session ") == ["work", "trip"]
    assert complete("localspec build ") == recipes.names()
    assert complete("localspec bench mine --suite ") == suites.names()
    assert complete("localspec chat --engine ") == ["auto", *plugins.names("engines")]
    assert complete("localspec chat --draft-length ") == list(plugins.names("draft_length"))
    assert complete("localspec chat --verifier ") == list(plugins.names("verifiers"))


def test_tools(complete: Complete) -> None:
    assert complete("localspec launch ") == ["aider", "claude", "codex", "continue", "opencode", "zed"]


def test_settings(complete: Complete, tmp_path: Path) -> None:
    assert complete("localspec config set max_t") == ["max_tokens"]
    assert complete("localspec config set chat.max") == ["chat.max_tokens"]
    assert complete("localspec config set mod") == ["model"]
    file = tmp_path / "own.toml"
    file.write_text('draft = "ngram"\n[chat]\nseed = 1\n')
    assert complete("localspec config unset ", LOCALSPEC_CONFIG=str(file)) == ["draft", "chat.seed"]


def test_a_shell_that_shows_more_gets_titles(fresh: Localspec) -> None:
    more = {"_LOCALSPEC_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "localspec chat qwen3-8"}
    found = fresh.run(before=[sys.executable, "-c", SCRIPT], **more)
    assert (found.code, found.err) == (0, "")
    assert '"qwen3-8b":"Qwen3 8B"' in found.out


def test_damaged_files_complete_to_nothing(complete: Complete, fresh: Localspec, tmp_path: Path) -> None:
    (fresh.home / "sessions.db").write_bytes(b"no database" * 100)
    assert complete("localspec chat --session ") == []
    file = tmp_path / "broken.toml"
    file.write_text("[")
    assert complete("localspec config unset ", LOCALSPEC_CONFIG=str(file)) == []


def test_completing_a_model_imports_nothing_heavy(fresh: Localspec) -> None:
    code = (
        "import sys; from localspec.cli import app, completion; completion.models('q');"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    assert fresh.run(before=[COMMAND[0], "-c", code]).out == "[]\n"


def test_the_command_line_starts_without_large_libraries() -> None:
    """numpy alone would be a third of the time that `list` takes."""
    code = "import sys; from localspec.cli import app; print(*{'numpy', 'rich', 'jinja2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == b"\n"
