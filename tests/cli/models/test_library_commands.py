"""`list`, `show`, `rm`, `verify` and `import`: their output, and their changes to the library."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
from command import MODEL, Localspec, Terminal
from filelock import FileLock
from perf import library

from localspec.library import compiled_folder

LIST_KEYS = [
    *("name", "bytes", "elsewhere", "caches", "precision", "architecture", "kind", "formats", "target"),
    *("draft", "source", "created"),
]
BIN, GRAPH = "openvino_model.bin", "openvino_model.xml"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GGUF file."""
    return tiny.write_gguf(tiny.make("llama", interleaved=True), tmp_path_factory.mktemp("gguf") / "a b.gguf")


@pytest.fixture
def own(localspec: Localspec, tmp_path: Path) -> Localspec:
    """The command with SmolLM2 in a library that a test may damage; its files are links."""
    shutil.copytree(localspec.home / "models", tmp_path / "own" / "models", copy_function=os.link)
    return Localspec(tmp_path / "own")


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory, small: Path) -> Path:
    """A library with a tiny model called `small`, to be copied."""
    home = tmp_path_factory.mktemp("imported")
    assert Localspec(home).run("import", str(small), "--name", "small").code == 0
    return home


@pytest.fixture
def with_small(fresh: Localspec, imported: Path, small: Path) -> Iterator[Localspec]:
    """The command with a tiny model called `small`, whose GGUF must not change."""
    before = small.read_bytes()
    shutil.copytree(imported, fresh.home)
    yield fresh
    assert small.read_bytes() == before


def folder(localspec: Localspec, name: str) -> Path:
    return localspec.home / "models" / name


def harm(file: Path, how: Callable[[bytes], bytes]) -> None:
    """Replace a file, so that hard links to it do not change."""
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(how(content))


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def rows(localspec: Localspec) -> list[dict[str, Any]]:
    found = localspec.run("list", "--json")
    assert (found.code, found.err) == (0, "")
    listed: list[dict[str, Any]] = json.loads(found.out)
    return listed


def as_newer(localspec: Localspec, name: str) -> str:
    """Make a model look like one of a newer version; return its manifest."""
    file = folder(localspec, name) / "model.toml"
    text = file.read_text("utf-8").replace("format = 2\n", "format = 3\n") + '\n[new]\nidea = "x"\n'
    assert "format = 3" in text
    file.write_text(text, "utf-8")
    return text


def test_an_empty_library_says_how_to_start(fresh: Localspec) -> None:
    found = fresh.run("list")
    assert (found.code, found.err) == (0, "")
    assert "localspec pull smollm2-135m" in found.out
    assert rows(fresh) == []
    assert fresh.run("verify", "--json").out == "[]\n"


def test_a_model_is_listed_with_its_size(localspec: Localspec, gguf: Path) -> None:
    (row,) = rows(localspec)
    assert list(row) == LIST_KEYS
    assert (row["name"], row["architecture"], row["formats"]) == (MODEL, "llama", ["openvino", "gguf"])
    files = [file for file in folder(localspec, MODEL).iterdir() if file.name != "model.toml"]
    assert row["bytes"] == sum(file.stat().st_size for file in files)
    assert row["elsewhere"] == gguf.stat().st_size
    for command in ("list", "ls"):
        found = localspec.run(command)
        assert (found.code, found.err) == (0, "")
        assert found.out.startswith(f"{MODEL}  ")
        assert f"{row['bytes'] / 1e6:.1f} MB" in found.out


def test_the_caches_of_a_model_are_counted(with_small: Localspec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(with_small.home))
    cache = compiled_folder(folder(with_small, "small"))
    before = rows(with_small)[0]["caches"]
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "graph.bin").write_bytes(bytes(5_000_000))
    (row,) = rows(with_small)
    assert row["caches"] == before + 5_000_000
    assert " MB of caches" in with_small.run("list").out


def test_rm_asks_and_takes_no_for_an_answer(own: Localspec, terminal: Callable[..., Terminal]) -> None:
    asked = terminal(own, "rm", MODEL)
    shown = asked.until("[y/N]: ")
    assert f"Delete {MODEL} (" in shown
    assert " MB)" in shown
    asked.type("n\n")
    assert asked.end() == 1
    assert [row["name"] for row in rows(own)] == [MODEL]


def test_ctrl_c_at_the_question_deletes_nothing(own: Localspec, terminal: Callable[..., Terminal]) -> None:
    asked = terminal(own, "rm", MODEL)
    asked.until("[y/N]: ")
    time.sleep(1)  # a signal before the wait for a key is kept until that comes
    asked.type("\x03")
    assert asked.end() == 130
    assert "Traceback" not in asked.shown
    assert [row["name"] for row in rows(own)] == [MODEL]


def test_rm_takes_yes(own: Localspec, terminal: Callable[..., Terminal]) -> None:
    asked = terminal(own, "rm", MODEL)
    asked.until("[y/N]: ")
    asked.type("y\n")
    assert asked.end() == 0
    assert f"Deleted {MODEL}" in asked.shown
    assert own.names() == set()


def test_rm_without_a_terminal(with_small: Localspec) -> None:
    with_small.run("rm", "small").refused(2, "needs a confirmation", "`small`", "`--yes`")
    assert with_small.names() == {"small"}


def test_rm_prints_the_freed_bytes(with_small: Localspec, small: Path) -> None:
    (row,) = rows(with_small)
    manifest = (folder(with_small, "small") / "model.toml").stat().st_size
    found = with_small.run("rm", "small", "--json").values
    expected = {"name": "small", "freed": row["bytes"] + manifest, "elsewhere": small.stat().st_size}
    assert found == expected
    assert with_small.names() == set()


def test_rm_keeps_files_that_other_models_use(with_small: Localspec, small: Path) -> None:
    found = with_small.run("import", str(small), "--name", "twin")
    assert found.code == 0
    assert "Converting" not in found.err
    assert (folder(with_small, "twin") / BIN).samefile(folder(with_small, "small") / BIN)
    manifest = (folder(with_small, "small") / "model.toml").stat().st_size
    assert with_small.run("rm", "small", "--json").values["freed"] == manifest
    assert with_small.run("verify", "twin").code == 0
    (row,) = rows(with_small)
    said = with_small.run("rm", "twin", "--yes")
    assert f"Deleted twin, {(row['bytes'] + manifest) / 1e6:.1f} MB freed" in said.out
    assert f"stay in {small.resolve()}" in said.out


@pytest.mark.parametrize("command", [("rm", "--yes"), ("verify",), ("show",)])
def test_an_unknown_name(with_small: Localspec, command: tuple[str, ...]) -> None:
    with_small.run(*command, "smal").refused(1, "`smal` is not in the library", "`small`")


def test_good_models_are_good(with_small: Localspec) -> None:
    found = with_small.run("verify")
    assert (found.code, found.out) == (0, "small: good, 7 files read\n")
    values = json.loads(with_small.run("verify", "small", "--json").out)
    assert values == [{"name": "small", "read": 7, "wrong": [], "newer": False}]


def test_the_real_model_is_good_until_a_bit_flips(own: Localspec) -> None:
    found = own.run("verify", MODEL)
    assert (found.code, found.out) == (0, f"{MODEL}: good, 8 files read\n")
    file = folder(own, MODEL) / BIN
    harm(file, flipped)
    found = own.run("verify")
    assert found.code == 1
    assert f"{file} has the sha256 " in found.out


HARM: dict[str, tuple[str, Callable[[bytes], bytes] | None, str]] = {
    "flipped": (GRAPH, flipped, "has the sha256 "),
    "short": (BIN, lambda content: content[:-9], "bytes, expected "),
    "missing": ("tokenizer.json", None, "is missing"),
    "manifest": ("model.toml", lambda content: content[: len(content) // 2], "is missing or damaged"),
}


@pytest.mark.parametrize("how", HARM)
def test_wrong_files_are_named_and_left_alone(with_small: Localspec, small: Path, how: str) -> None:
    with_small.run("import", str(small), "--name", "other", "--copy")
    name, change, said = HARM[how]
    file = folder(with_small, "small") / name
    harm(file, change) if change else file.unlink()
    before = {path: path.read_bytes() for path in with_small.home.rglob("*") if path.is_file()}
    found = with_small.run("verify")
    assert found.code == 1
    good, bad = found.out.splitlines()[:2] if how == "manifest" else sorted(found.out.splitlines())
    assert good == "other: good, 7 files read"
    assert bad.startswith(f"small: {file} ")
    assert said in bad
    values = json.loads(with_small.run("verify", "small", "--json").out)
    assert [one["name"] for one in values] == ["small"]
    assert len(values[0]["wrong"]) == 1
    assert with_small.run("verify", "other").code == 0
    assert {path: path.read_bytes() for path in with_small.home.rglob("*") if path.is_file()} == before


def test_an_incomplete_model_is_reported_and_not_listed(with_small: Localspec) -> None:
    (folder(with_small, "small") / BIN).unlink()
    found = with_small.run("list", "--json")
    assert (found.code, found.out) == (0, "[]\n")
    assert found.err == "small is incomplete: localspec verify small\n"
    with_small.run("show", "small").refused(1, "`small` is incomplete", "localspec verify small")


def test_an_imported_file_that_was_changed_or_moved(fresh: Localspec, small: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(small, tmp_path / "mine.gguf"))
    fresh.run("import", str(path), "--name", "mine")
    harm(path, flipped)
    assert f"{path} has the sha256 " in fresh.run("verify", "mine").out
    path.unlink()
    found = fresh.run("verify", "mine")
    assert (found.code, found.out) == (1, f"mine: {path} is missing\n")


def test_a_gguf_is_imported_and_chats(fresh: Localspec, gguf: Path) -> None:
    found = fresh.run("import", str(gguf), "--name", "coder")
    assert found.code == 0
    assert found.out.startswith("coder: openvino, gguf; ")
    assert "elsewhere" in found.out
    answer = fresh.run("chat", "coder", "Hi", "--max-tokens", "3", "--json").values
    assert (answer["model"], answer["tokens"]) == ("coder", 3)
    plain = fresh.run("chat", str(gguf), "Hi", "--max-tokens", "3", "--json").values
    assert plain["token_ids"] == answer["token_ids"]
    assert fresh.names() == {"coder"}


def test_a_copy_does_not_need_the_original(fresh: Localspec, small: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(small, tmp_path / "mine.gguf"))
    values = fresh.run("import", str(path), "--name", "mine", "--copy", "--json").values
    assert (values["name"], values["elsewhere"]) == ("mine", 0)
    path.unlink()
    assert fresh.run("verify", "mine").out == "mine: good, 7 files read\n"
    assert fresh.run("chat", "mine", "a", "--raw", "--max-tokens", "2", "--json").values["tokens"] >= 1


@pytest.mark.parametrize("copy", [False, True])
def test_an_openvino_folder(localspec: Localspec, fresh: Localspec, tmp_path: Path, copy: bool) -> None:
    source = tmp_path / "ir"
    shutil.copytree(folder(localspec, MODEL), source, copy_function=os.link)
    (source / "model.toml").unlink()
    (source / "model.toml").write_text("this is none of ours")
    values = fresh.run("import", str(source), "--name", "ir", "--json", *["--copy"] * copy).values
    assert values["formats"] == ["openvino"]
    assert (values["elsewhere"] == 0) == copy
    harm(source / "config.json", flipped)
    assert fresh.run("verify", "ir").code == (0 if copy else 1)
    if copy:
        shutil.rmtree(source)
        assert fresh.run("chat", "ir", "Hi", "--max-tokens", "1", "--json").values["tokens"] == 1


@pytest.mark.parametrize("copy", [False, True])
def test_a_hugging_face_folder(with_small: Localspec, tmp_path: Path, copy: bool) -> None:
    source = tmp_path / "hf"
    source.mkdir()
    tiny.write_folder(tiny.make("llama"), source)
    shutil.copy(folder(with_small, "small") / "tokenizer.json", source)
    values = with_small.run("import", str(source), "--name", "hf", "--json", *["--copy"] * copy).values
    assert values["formats"] == ["openvino", "safetensors"]
    assert (values["elsewhere"] == 0) == copy
    assert with_small.run("verify", "hf").code == 0
    harm(source / "model.safetensors", flipped)
    found = with_small.run("verify", "hf")
    assert found.code == (0 if copy else 1)
    assert copy or f"{source / 'model.safetensors'} has the sha256 " in found.out
    answer = with_small.run("chat", "hf", "a", "--raw", "--max-tokens", "1", "--json")
    if copy:
        assert answer.values["tokens"] == 1
    else:
        answer.refused(1, "is damaged, or was changed since it was added", "localspec verify hf")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("small", "A model called `small` already exists"),
        ("a b", "`a b` cannot be a model's name"),
        ("模型", "`模型` cannot be a model's name"),
        ("..", "`..` cannot be a model's name"),
        ("a/../b", "`a/../b` cannot be a model's name"),
        ("a..b", "`a..b` cannot be a model's name"),
        ("", "`` cannot be a model's name"),
        (MODEL, "is a name of the catalogue"),
    ],
)
def test_invalid_names_for_an_import(with_small: Localspec, small: Path, name: str, said: str) -> None:
    with_small.run("import", str(small), "--name", name).refused(2, said)
    assert with_small.names() == {"small"}


def test_paths_without_a_model(fresh: Localspec, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("these are notes, not a model")
    (tmp_path / "empty").mkdir()
    (tmp_path / "ir").mkdir()
    (tmp_path / "ir" / GRAPH).write_text("<net/>")
    for path, said in (
        (tmp_path / "none", "No such file or folder"),
        (notes, "is not a GGUF file"),
        (tmp_path / "empty", "no .safetensors files"),
        (tmp_path / "ir", "no `tokenizer.json`"),
    ):
        fresh.run("import", str(path), "--name", "x").refused(1, said, str(path))
    assert fresh.names() == set()


def test_the_template_is_printed_unchanged(localspec: Localspec) -> None:
    kept = (folder(localspec, MODEL) / "chat_template.jinja").read_text("utf-8")
    assert localspec.run("show", MODEL, "--template").out == kept
    assert localspec.run("show", MODEL, "--template", "--json").values == {"template": kept}


def test_a_model_without_a_template(with_small: Localspec) -> None:
    with_small.run("show", "small", "--template").refused(1, "`small` has no chat template")


def test_a_newer_manifest_is_neither_broken_nor_touched(with_small: Localspec, small: Path) -> None:
    with_small.run("import", str(small), "--name", "other", "--copy")
    text = as_newer(with_small, "small")
    with_small.run("show", "small").refused(1, "`small` was written by a newer localspec", "--upgrade")
    listed = with_small.run("list", "--json")
    assert [row["name"] for row in json.loads(listed.out)] == ["other"]
    assert listed.err == "small was written by a newer localspec: localspec show small\n"
    checked = with_small.run("verify")
    assert checked.code == 0
    assert "small: not checked, written by a newer localspec\n" in checked.out
    with_small.run("import", str(small), "--name", "small").refused(2, "`small` already")
    assert (folder(with_small, "small") / "model.toml").read_text("utf-8") == text


# Runs the command and then tells on stderr which files below a folder it opened, and how often.
COUNTING = """
import collections, json, runpy, sys
home, sys.argv = sys.argv[1], ["localspec", *sys.argv[2:]]
opened = collections.Counter()
def see(event, values):
    if event == "open" and str(values[0]).startswith(home):
        opened[str(values[0])] += 1
sys.addaudithook(see)
try:
    runpy.run_module("localspec", run_name="__main__")
finally:
    print(json.dumps(opened), file=sys.stderr)
"""


def test_a_list_of_many_models_reads_each_manifest_once_and_nothing_else(fresh: Localspec) -> None:
    names = library.fill(fresh.home, 200)
    found = fresh.run("list", "--json", before=(sys.executable, "-c", COUNTING, str(fresh.home)))
    assert found.code == 0
    assert [row["name"] for row in json.loads(found.out)] == names
    opened = json.loads(found.err)
    assert opened == {str(folder(fresh, name) / "model.toml"): 1 for name in names}


def test_a_newer_model_is_never_replaced(with_small: Localspec) -> None:
    text = as_newer(with_small, "small")
    for command in (("chat", "small", "hi"), ("rm", "small", "--yes")):
        with_small.run(*command).refused(1, "`small` was written by a newer localspec", "--upgrade")
    with_small.home.joinpath("models", "small").rename(with_small.home / "models" / MODEL)
    for command in (("chat", MODEL, "hi"), ("pull", MODEL)):
        with_small.run(*command).refused(1, "written by a newer localspec", "--upgrade")
    assert (folder(with_small, MODEL) / "model.toml").read_text("utf-8") == text


def test_an_incomplete_model_can_be_removed(with_small: Localspec) -> None:
    (folder(with_small, "small") / BIN).unlink()
    assert with_small.run("rm", "small", "--json").values["freed"] > 0
    assert with_small.names() == set()


def test_what_can_be_made_again_is_counted_and_deleted(with_small: Localspec) -> None:
    home = with_small.home
    parts = home / "downloads" / "other" / ".parts-0"
    parts.mkdir(parents=True)
    (parts / "001-a").write_bytes(bytes(3_000_000))
    assert with_small.run("chat", "small", "a", "--raw", "--max-tokens", "1", "--session", "s").code == 0
    assert with_small.run("list").err == "3.0 MB of interrupted downloads: localspec clean\n"
    asked = with_small.run("clean")
    assert asked.code == 2
    assert "  3.0 MB  interrupted downloads\n" in asked.out
    assert "compiled graphs and prompt caches\n" in asked.out
    freed = with_small.run("clean", "--json").values
    assert freed["kinds"]["interrupted downloads"] == 3_000_000
    assert freed["freed"] == sum(freed["kinds"].values()) > 3_000_000
    assert with_small.run("clean", "--yes").out == "Nothing to delete\n"
    assert with_small.run("chat", "small", "a", "--raw", "--max-tokens", "1", "--session", "s").code == 0
    assert with_small.run("verify", "small").code == 0


def test_a_download_in_progress_is_not_deleted(with_small: Localspec) -> None:
    (with_small.home / "downloads" / "other").mkdir(parents=True)
    (with_small.home / "downloads" / "other" / "a").write_bytes(bytes(1000))
    with FileLock(with_small.home / "models" / ".other.lock"):
        left = with_small.run("clean", "--yes")
    assert "Another localspec is using `other`: it stays" in left.err
    assert (with_small.home / "downloads" / "other" / "a").exists()
    assert with_small.run("clean", "--yes").code == 0
    assert not (with_small.home / "downloads" / "other").exists()


def test_clean_and_rm_remove_the_locks_that_nobody_needs(with_small: Localspec) -> None:
    models, building = with_small.home / "models", with_small.home / "building"
    building.mkdir(exist_ok=True)
    for file in (
        models / ".gone.lock",
        models / ".small.lock",
        building / ".old.lock",
        building / ".busy.lock",
    ):
        file.touch()
    with FileLock(building / ".busy.lock"):
        assert with_small.run("clean", "--yes").code == 0
    assert sorted(path.name for path in models.glob(".*.lock")) == [".small.lock"]
    assert [path.name for path in building.glob(".*")] == [".busy.lock"]
    assert with_small.run("rm", "small", "--yes").code == 0
    assert not list(models.glob(".*.lock"))


def test_a_file_that_is_only_asked_about_leaves_nothing(fresh: Localspec, gguf: Path) -> None:
    fresh.run("show", str(gguf)).refused(1, "is not in the library", f"localspec import {gguf} --name NAME")
    fresh.run("verify", str(gguf)).refused(1, "is not in the library")
    fresh.run("rm", str(gguf), "--yes").refused(1, "is not in the library")
    assert not fresh.home.exists()


def test_only_the_graph_is_kept(with_small: Localspec) -> None:
    before = with_small.run("list", "--json").values[0]
    assert before["formats"] == ["openvino", "gguf"]
    ran = with_small.run("pull", "small", "--drop-source")
    assert ran.code == 0, ran.err
    assert "is its OpenVINO graph alone" in ran.err
    assert with_small.run("list", "--json").values[0]["formats"] == ["openvino"]
    assert with_small.run("verify", "small").code == 0
    assert with_small.run("chat", "small", "a", "--raw", "--max-tokens", "1").code == 0
    asked = with_small.run("chat", "small", "a", "--raw", "--engine", "llamacpp")
    asked.refused(1, "`llamacpp` reads gguf, which `--drop-source` removed from `small`", "Give it instead")
    with_small.run("pull", "small", "--drop-source", "--format", "gguf").refused(2, "keeps only that")
