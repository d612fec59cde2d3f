"""Settings: which source wins, which files are refused, and that writing loses nothing."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from localspec import settings
from localspec.errors import BadValue, StorageError, UnknownName
from localspec.settings import SettableOption, Settings


def number(value: settings.OptionText) -> None:
    if not isinstance(value, str) or not value.isdigit():
        raise ValueError("it takes a number")


def anything(value: settings.OptionText) -> None:
    assert isinstance(value, str)


def several(value: settings.OptionText) -> None:
    assert isinstance(value, list)


DRAFT, THREADS = (
    SettableOption("draft", "draft", anything, default="auto"),
    SettableOption("threads", "threads", number),
)
STOP, TOKENS = (
    SettableOption("stop", "stop", several, many=True),
    SettableOption("max_tokens", "limit", number),
)
COMMANDS = {"chat": (DRAFT, THREADS, STOP, TOKENS), "prune-draft": (DRAFT,)}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("LOCALSPEC_")]:
        monkeypatch.delenv(name)
    path = tmp_path / "mine.toml"
    path.write_text("")
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(path))
    return path


def given(command: str = "chat") -> dict[str, tuple[Any, str, str]]:
    """Return a command's settings: value for the parser, source and place."""
    found = Settings.read(COMMANDS).of_command(command)
    return {one.option.key: (one.for_parser(), one.source, one.place) for one in found}


def test_nothing_is_set_at_first(file: Path) -> None:
    assert given() == {}
    values = [(one.command, one.option.key, one.value, one.source) for one in Settings.read(COMMANDS).values]
    assert values[0] == ("chat", "draft", "auto", "default")
    assert len(values) == 5


def test_a_variable_wins_over_a_table_over_the_top_level(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text('# mine\ndraft = "ngram"\nthreads = 2\n\n[chat]\ndraft = "off"\n', encoding="utf-8")
    assert given() == {
        "draft": ("off", "file", f"`{file}`, line 6"),
        "threads": ("2", "file", f"`{file}`, line 3"),
    }
    assert given("prune-draft") == {"draft": ("ngram", "file", f"`{file}`, line 2")}
    monkeypatch.setenv("LOCALSPEC_DRAFT", "suffix")
    monkeypatch.setenv("LOCALSPEC_MAX_TOKENS", "7")
    monkeypatch.setenv("LOCALSPEC_THREADS", "")
    assert given() == {
        "draft": ("suffix", "environment", "`LOCALSPEC_DRAFT`"),
        "threads": ("2", "file", f"`{file}`, line 3"),
        "max_tokens": ("7", "environment", "`LOCALSPEC_MAX_TOKENS`"),
    }


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ('[chat]\n"draft" = "x"', "line 2"),
        ('chat.draft = "x"', "line 1"),
        ('\n[ "chat" ]\n  draft="x"', "line 3"),
        ("['chat']\nthreads = 1\n'draft' = 'x'", "line 3"),
        ('[prune-draft]\ndraft = "y"\n[chat]\ndraft = "x"', "line 4"),
        ('[chat]\r\ndraft = "x"\r\n', "line 2"),
        ('\ufeff[chat]\ndraft = "x"', "line 2"),
        ('chat = { draft = "x" }', ""),
    ],
)
def test_the_line_of_a_setting_is_found_in_any_notation(file: Path, written: str, line: str) -> None:
    file.write_text(written, "utf-8")
    value, _, place = given()["draft"]
    assert (value, place) == ("x", f"`{file}`, {line}" if line else f"`{file}`")


@pytest.mark.parametrize(
    ("written", "value"),
    [("threads = 4", "4"), ('threads = "4"', "4"), ("draft = true", "true"), ("draft = 0.5", "0.5")],
)
def test_values_become_texts_of_the_command_line(file: Path, written: str, value: str) -> None:
    file.write_text(written, encoding="utf-8")
    assert [found[0] for found in given().values()] == [value]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ('stop = "a b"', ["a b"]),
        ('stop = ["a", "b c"]', ["a", "b c"]),
        ("stop = []", []),
        ("stop = 1", ["1"]),
    ],
)
def test_an_option_that_may_be_repeated_takes_one_or_a_list(
    file: Path, written: str, value: list[str]
) -> None:
    file.write_text(written, encoding="utf-8")
    assert given()["stop"][0] == value


@pytest.mark.parametrize(
    ("written", "value"),
    [("a b", ["a b"]), ('["a", "\\n"]', ["a", "\n"]), ("[INST]", ["[INST]"]), ("[1, 2]", ["1", "2"])],
)
def test_a_variable_is_one_value_unless_it_is_a_list(
    file: Path, monkeypatch: pytest.MonkeyPatch, written: str, value: list[str]
) -> None:
    monkeypatch.setenv("LOCALSPEC_STOP", written)
    assert given()["stop"][0] == value


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("threads = 'many'", "`threads` cannot be `many` in `{}`, line 1: it takes a number"),
        ("\n[chat]\nthreads = 1.5", "`threads` cannot be `1.5` in `{}`, line 3: it takes a number"),
        ("threads = true", "`threads` cannot be `true` in `{}`, line 1: it takes a number"),
        ("draft = ['a', 'b']", "line 1: it takes one value"),
        ("stop = [['a']]", "line 1: it takes one value"),
    ],
)
def test_a_wrong_value_is_refused(file: Path, written: str, said: str) -> None:
    file.write_text(written, encoding="utf-8")
    with pytest.raises(BadValue) as found:
        given()
    assert said.format(file) in found.value.message
    assert found.value.hint == "See `localspec chat --help`"


def test_a_wrong_value_does_not_stop_other_commands(file: Path) -> None:
    file.write_text("threads = 'many'", encoding="utf-8")
    assert given("prune-draft") == {}


@pytest.mark.parametrize(
    ("written", "said", "near"),
    [
        ("[chat]\ndarft = 'x'", "Unknown setting `chat.darft` in `{}`, line 2", "`draft`"),
        ("\ntreads = 1", "Unknown setting `treads` in `{}`, line 2", "`threads`"),
        ("[chatt]\ndraft = 'x'", "Unknown command `chatt` of a table in `{}`", "`chat`"),
        ("[prune-draft]\nthreads = 1", "Unknown setting `prune-draft.threads`", "`draft`"),
        ("[chat]\nmax-tokens = 1", "Unknown setting `chat.max-tokens`", "`max_tokens`"),
        ("chat = 1", "Unknown setting `chat`", ""),
    ],
)
def test_an_unknown_key_gets_suggestions(file: Path, written: str, said: str, near: str) -> None:
    file.write_text(written, encoding="utf-8")
    with pytest.raises(UnknownName) as found:
        Settings.read(COMMANDS)
    assert said.format(file) in found.value.message
    assert near in str(found.value.hint)


@pytest.mark.parametrize("content", [b"draft = ngram", b"[chat", b"\xff\xfe", b"draft = 'a'\ndraft = 'b'"])
def test_a_file_that_is_not_toml(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(BadValue, match="is not") as found:
        given()
    assert str(file) in found.value.message


def test_a_missing_chosen_file_is_an_error(file: Path) -> None:
    file.unlink()
    with pytest.raises(BadValue, match="`LOCALSPEC_CONFIG` names") as found:
        given()
    assert "config set" in str(found.value.hint)


def test_the_default_file_may_be_missing(file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LOCALSPEC_CONFIG")
    monkeypatch.setattr("platformdirs.user_config_path", lambda *_, **__: tmp_path / "none")
    assert settings.path() == tmp_path / "none" / "config.toml"
    assert given() == {}


def test_a_folder_in_place_of_the_file(file: Path) -> None:
    file.unlink()
    file.mkdir()
    with pytest.raises(StorageError, match="cannot be read"):
        given()
    with pytest.raises(StorageError, match="is not a file"):
        settings.save({}, file)


def test_unknown_variables_are_reported() -> None:
    fine = ("LOCALSPEC_HOME", "LOCALSPEC_CONFIG", "LOCALSPEC_DRAFT", "LOCALSPEC_TEST_LARGE", "DARFT")
    there = dict.fromkeys((*fine, "LOCALSPEC_DARFT", "LOCALSPEC_MAXTOKENS"), "x")
    assert settings.unknown_variables(COMMANDS, there) == [
        "`LOCALSPEC_DARFT` sets nothing. Did you mean `LOCALSPEC_DRAFT`?",
        "`LOCALSPEC_MAXTOKENS` sets nothing. Did you mean `LOCALSPEC_MAX_TOKENS`?",
    ]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("4", 4),
        ("0.5", 0.5),
        ("true", True),
        ("off", "off"),
        ("1e-3", "1e-3"),
        ("007", "007"),
        ("2024-01-01", "2024-01-01"),
        ('"quoted"', '"quoted"'),
        ('["a", "b"]', ["a", "b"]),
        ("ngram:longest=4", "ngram:longest=4"),
        ("", ""),
        ("1 # one", "1 # one"),
    ],
)
def test_a_typed_value_keeps_its_text(written: str, value: Any) -> None:
    found = settings.parse_value(written)
    assert (found, type(found)) == (value, type(value))
    if not isinstance(value, list):
        assert settings.as_text(found) == written


def test_saving_keeps_links_and_permissions(file: Path, tmp_path: Path) -> None:
    file.chmod(0o600)
    link = tmp_path / "link.toml"
    link.symlink_to(file)
    settings.save({"draft": "x", "chat": {"threads": 2}}, link)
    assert link.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text(encoding="utf-8") == 'draft = "x"\n\n[chat]\nthreads = 2\n'
    assert sorted(tmp_path.iterdir()) == [link, file]


def test_a_full_disk_leaves_the_file_as_it_was(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    file.write_text("threads = 1\n", encoding="utf-8")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left") as found:
        settings.save({"threads": 2}, file)
    assert "`LOCALSPEC_CONFIG`" in str(found.value.hint)
    assert file.read_text(encoding="utf-8") == "threads = 1\n"
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        settings.save({}, tmp_path / "file" / "config.toml")
