"""Settings by file, variable and flag: which one wins, and errors for wrong ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer.main
from command import MODEL, Localspec, Ran

from localspec.cli.app import app
from localspec.cli.config import NOT_SETTABLE, settable_options


class Configured:
    """The command with a settings file of its own."""

    def __init__(self, localspec: Localspec, file: Path) -> None:
        self.localspec = localspec
        self.file = file

    def run(self, *arguments: str, **more: str) -> Ran:
        if self.file.exists() or arguments[:2] == ("config", "set"):
            more = {"LOCALSPEC_CONFIG": str(self.file), **more}
        return self.localspec.run(*arguments, **more)

    def rows(self, **more: str) -> dict[str, dict[str, Any]]:
        """Return all settings by `command.key`."""
        values = self.run("config", "--json", **more).values
        assert Path(values["file"]).name == self.file.name
        return {f"{row['command']}.{row['key']}": row for row in values["settings"]}

    def answer(self, *options: str, **more: str) -> dict[str, Any]:
        return self.run("chat", MODEL, "Count from one to nine.", "--json", *options, **more).values


@pytest.fixture
def configured(localspec: Localspec, tmp_path: Path) -> Configured:
    found = Configured(localspec, tmp_path / "config.toml")
    found.file.write_text("")
    return found


def test_flags_win_over_variables_over_the_file_over_defaults(configured: Configured) -> None:
    configured.file.write_text('draft = "ngram"\nmax_tokens = 2\n\n[chat]\nseed = 1\n')
    found = configured.answer()
    assert (found["tokens"], found["speculation"]["drafter"].partition(":")[0]) == (2, "ngram")
    found = configured.answer(LOCALSPEC_DRAFT="off", LOCALSPEC_MAX_TOKENS="3")
    assert (found["tokens"], found["speculation"]["drafter"]) == (3, "none")
    found = configured.answer("--max-tokens", "4", "--draft", "suffix", LOCALSPEC_DRAFT="off")
    assert (found["tokens"], found["speculation"]["drafter"].partition(":")[0]) == (4, "suffix")


def test_flags_and_lists_can_be_set(configured: Configured) -> None:
    configured.file.write_text('stop = ["zzz", ", "]\nmax_tokens = 8\n[chat]\nstats = true\n')
    found = configured.run("chat", MODEL, "Count: one, two, three,", "--raw")
    assert found.code == 0
    assert "," not in found.out.rstrip("\n,")
    assert "tokens in" in found.err
    quiet = configured.run("chat", MODEL, "one", "--raw", LOCALSPEC_STATS="0")
    assert (quiet.code, quiet.err) == (0, "")


def test_each_value_is_shown_with_its_place(configured: Configured) -> None:
    configured.file.write_text('engine = "openvino"\n\n[chat]\ndraft = "ngram"\n')
    rows = configured.rows(LOCALSPEC_DRAFT_LENGTH="heuristic")
    assert rows["chat.draft"] == {
        "command": "chat",
        "key": "draft",
        "value": "ngram",
        "source": "file",
        "place": f"{configured.file}, line 4",
    }
    shown = {name: (row["value"], row["source"]) for name, row in rows.items()}
    assert shown["doctor.draft"] == ("auto", "default")
    assert shown["chat.engine"] == shown["doctor.engine"] == ("openvino", "file")
    assert shown["bench.draft_length"] == (["heuristic"], "environment")
    assert shown["chat.draft_length"] == ("heuristic", "environment")
    assert rows["bench.draft_length"]["place"] == "LOCALSPEC_DRAFT_LENGTH"
    assert shown["chat.verifier"] == ("exact", "default")
    lines = configured.run("config").out.splitlines()
    assert "chat" in lines
    (draft,) = [line.split() for line in lines if line.split()[:2] == ["draft", "ngram"]]
    assert " ".join(draft[2:]) == f"{configured.file}, line 4"


def test_all_options_except_those_of_a_single_call_can_be_set() -> None:
    tree: Any = typer.main.get_command(app)
    known = settable_options(tree)
    for name, command in tree.commands.items():
        if command.hidden or name == "config":
            continue
        flags = {flag for one in command.params for flag in one.opts if flag.startswith("--")}
        kept = {option.flag for option in known.get(name, ())}
        assert kept == flags - {f"--{word}" for word in NOT_SETTABLE}
    assert {option.variable for option in known["chat"]} >= {"LOCALSPEC_DRAFT", "LOCALSPEC_ENGINE"}
    variables = {option.variable for options in known.values() for option in options}
    assert variables.isdisjoint({"LOCALSPEC_HOME", "LOCALSPEC_CONFIG"})


def test_settings_are_set_and_unset(configured: Configured) -> None:
    configured.file.unlink()
    for key, value in (("draft", "ngram"), ("chat.max-tokens", "5"), ("stop", '["a", "b"]')):
        done = configured.run("config", "set", key, value)
        assert (done.code, done.err) == (0, "")
        assert str(configured.file) in done.out
    assert configured.file.read_text() == (
        'draft = "ngram"\nstop = [\n    "a",\n    "b",\n]\n\n[chat]\nmax_tokens = 5\n'
    )
    assert configured.rows()["chat.max_tokens"]["value"] == "5"
    for key in ("chat.max_tokens", "stop"):
        assert configured.run("config", "unset", key).code == 0
    assert configured.file.read_text() == 'draft = "ngram"\n'
    assert configured.run("config", "path").out == f"{configured.file}\n"
    assert list(configured.file.parent.glob(".*partial*")) == []


def test_a_message_says_that_comments_are_lost(configured: Configured) -> None:
    configured.file.write_text("# mine\nthreads = 1\n")
    done = configured.run("config", "set", "draft", "off")
    assert done.err == f"The comments in {configured.file} were lost, because the file was rewritten\n"
    assert configured.run("config", "unset", "draft").err == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["set", "darft", "x"], ["Unknown setting `darft`", "`draft`"]),
        (["set", "chatt.draft", "x"], ["Unknown command `chatt`", "`chat`"]),
        (["set", "chat.minutes", "1"], ["Unknown setting `chat.minutes`"]),
        (["set", "json", "true"], ["Unknown setting `json`"]),
        (["set", "threads", "many"], ["`threads` of `localspec chat` cannot be `many`", "--help"]),
        (["set", "threads", "0"], ["`threads` of `localspec chat` cannot be `0`"]),
        (["set", "seed", "1.5"], ["`seed` of `localspec chat` cannot be `1.5`"]),
        (["set", "chat.draft", '["a", "b"]'], ["cannot be", "it takes one value"]),
        (["unset", "drft"], ["`drft` is not set", "`draft`"]),
        (["unset", "chat.seed"], ["`chat.seed` is not set", "Nothing is set there"]),
    ],
)
def test_wrong_settings_are_refused(configured: Configured, arguments: list[str], said: list[str]) -> None:
    configured.file.write_text('draft = "off"\n')
    configured.run("config", *arguments).refused(2, *said)
    assert configured.file.read_text() == 'draft = "off"\n'


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("threads = 'many'", ["`threads` cannot be `many` in `{}`, line 1"]),
        ("\n\n[chat]\nseed = 1.5", ["`seed` cannot be `1.5` in `{}`, line 4"]),
        ("stats = 'perhaps'", ["`stats` cannot be `perhaps` in `{}`, line 1"]),
        ("darft = 'x'", ["Unknown setting `darft`", "`{}`, line 1", "`draft`"]),
        ("draft = ngram", ["`{}` is not TOML", "line 1"]),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(
    configured: Configured, content: str, said: list[str]
) -> None:
    configured.file.write_text(content)
    told = [text.format(configured.file) for text in said]
    for command in (("chat", MODEL, "hi"), ("config", "--json")):
        configured.run(*command).refused(2, *told)
    assert configured.run("chat", "--help").code == 0
    assert configured.run("config", "path").code == 0
    assert configured.file.read_text() == content


def test_a_wrong_value_can_be_corrected(configured: Configured) -> None:
    configured.file.write_text("threads = 'many'\ndarft = 1\n")
    assert configured.run("config", "set", "threads", "1").code == 0
    assert configured.run("config", "unset", "darft").code == 0
    assert configured.rows()["chat.threads"]["value"] == "1"


def test_a_wrong_variable_is_named(configured: Configured) -> None:
    arguments = ("chat", MODEL, "hi")
    configured.run(*arguments, LOCALSPEC_THREADS="x").refused(
        2, "`threads` cannot be `x` in `LOCALSPEC_THREADS`"
    )
    configured.run(*arguments, LOCALSPEC_CONFIG="/none/x").refused(2, "No such file: `/none/x`", "config set")
    told = configured.run("config", LOCALSPEC_DEVCE="x")
    assert (told.code, told.err) == (
        0,
        "`LOCALSPEC_DEVCE` sets nothing. Did you mean `LOCALSPEC_DEVICE`?\n",
    )


def test_errors_of_the_command_name_the_place_too(configured: Configured) -> None:
    configured.file.write_text('\ndraft = "ngrm"\n')
    arguments = ("chat", MODEL, "hi", "--max-tokens", "1")
    place = f"`draft` is set in `{configured.file}`, line 2"
    configured.run(*arguments).refused(2, "drafter or model `ngrm`", place, "`ngram`")
    flagged = configured.run(*arguments, "--draft", "ngrm")
    flagged.refused(2, "drafter or model `ngrm`")
    assert place not in flagged.err
    configured.file.write_text('draft = "ngram:longst=4"')
    configured.run(*arguments).refused(2, f"`draft` is set in `{configured.file}`, line 1")
    raw = configured.run(*arguments, "--raw", LOCALSPEC_SYSTEM="Be kind", LOCALSPEC_DRAFT="off")
    raw.refused(1, "`--system`", "`system` is set in `LOCALSPEC_SYSTEM`")


def test_a_folder_that_cannot_be_written(localspec: Localspec, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    inside = str(tmp_path / "file" / "config.toml")
    done = localspec.run("config", "set", "draft", "off", LOCALSPEC_CONFIG=inside)
    done.refused(1, f"`{inside}` cannot be written", "`LOCALSPEC_CONFIG`")
    device = localspec.run("config", "set", "draft", "off", LOCALSPEC_CONFIG="/dev/null")
    device.refused(1, "`/dev/null` is not a file")
    assert Path("/dev/null").is_char_device()


def test_the_default_path_is_in_the_configuration_folder(localspec: Localspec, tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path), "LOCALSPEC_CONFIG": ""}
    assert localspec.run("config", "path", **home).out == f"{tmp_path / 'localspec' / 'config.toml'}\n"
    assert localspec.run("config", "set", "draft", "off", **home).code == 0
    rows = json.loads(localspec.run("config", "--json", **home).out)["settings"]
    assert {row["value"] for row in rows if row["key"] == "draft"} >= {"off"}


def test_the_default_model_can_be_set(configured: Configured) -> None:
    rows = configured.rows()
    assert rows["chat.model"]["value"] == MODEL
    assert rows["agent.model"]["value"] == "qwen2.5-coder-1.5b"
    assert configured.run("config", "set", "model", "no-such").code == 0
    for command in ("chat", "run", "agent"):
        found = configured.run(command, "Say hi")
        assert found.err.startswith("no-such answers, the default model\n")
        assert f"Unknown model `no-such`; `model` is set in `{configured.file}`, line 1" in found.err
    found = configured.run("chat", "Say hi", "--max-tokens", "2", LOCALSPEC_MODEL=MODEL)
    assert (found.code, found.err) == (0, f"{MODEL} answers, the default model\n")


def test_a_named_model_is_not_told(configured: Configured) -> None:
    found = configured.run("chat", MODEL, "Say hi", "--max-tokens", "2", LOCALSPEC_MODEL="no-such")
    assert (found.code, found.err) == (0, "")


def test_a_single_word_that_is_no_model_is_unknown(configured: Configured) -> None:
    configured.run("chat", "smolm2-135m", stdin="Hi").refused(1, "Unknown model", f"`{MODEL}`")
