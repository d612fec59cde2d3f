"""Tools for files: their results, their changes, and the paths that they must not reach."""

from __future__ import annotations

import os
import secrets
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from localspec.agent.tools import files as files_module
from localspec.agent.tools import handles
from localspec.agent.tools.edits import MAX_CONSTRAINED, Edits, renamed
from localspec.agent.tools.files import MAX_FILES
from localspec.agent.tools.folder import Folder
from localspec.agent.tools.text_files import MAX_OUTPUT, MAX_READ
from localspec.agent.tools.toolbox import built_in
from localspec.errors import BadValue
from localspec.tools import SUBSTRING_OF, Tool, ToolFailed


class Files(files_module.Files, Edits):
    """The functions of all tools for files."""


def tools(folder: Folder) -> list[Tool]:
    """Return the tools for files."""
    return [one for one in built_in(folder) if hasattr(Files, one.name)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "a.py").write_text("one\ntwo\nthree\n")
    (tmp_path / "secret.txt").write_text("secret\n")
    return folder


@pytest.fixture
def files(root: Path) -> Files:
    return Files(Folder(root))


def test_the_folder_must_exist(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="No such folder"):
        Folder(tmp_path / "none")


def test_edits_are_constrained_to_existing_text(files: Files, root: Path) -> None:
    (root / "old.txt").write_bytes(b"one\r\ntwo\r\n")
    (root / "image.png").write_bytes(b"\0" * 2 * MAX_CONSTRAINED)
    (root / "none.bin").write_bytes(b"\xff\xfe")
    (root / "empty").touch()
    assert [(one["path"]["const"], one["old"][SUBSTRING_OF]) for one in files.edit_constraints()] == [
        ("empty", ""),
        ("old.txt", "one\ntwo\n"),
        ("src/a.py", "one\ntwo\nthree\n"),
    ]
    assert files.edit_constraints()[1]["new"] == {"type": "string"}
    by_name = {one.name: one for one in tools(Folder(root))}
    assert "old.txt" in str(by_name["edit_file"].schema_now)
    assert "old.txt" not in str(by_name["edit_file"].schema)
    assert by_name["write_file"].schema_now == by_name["write_file"].schema


@pytest.mark.parametrize("many", [True, False])
def test_edits_of_large_folders_are_not_constrained(files: Files, root: Path, many: bool) -> None:
    for number in range(MAX_FILES if many else 1):
        (root / f"{number}.txt").write_text("x" * (1 if many else MAX_CONSTRAINED))
    assert files.edit_constraints() == []
    edit = next(one for one in tools(Folder(root)) if one.name == "edit_file")
    assert edit.schema_now == edit.schema


def test_a_file_is_read_from_a_given_line(files: Files, root: Path) -> None:
    assert files.read_file("src/a.py") == "one\ntwo\nthree\n"
    assert files.read_file("src/a.py", first=2) == "two\nthree\n"
    assert files.read_file(str(root / "src" / "a.py"), first=3) == "three\n"
    with pytest.raises(ToolFailed, match="has 3 lines"):
        files.read_file("src/a.py", first=4)
    with pytest.raises(ToolFailed):
        files.read_file("src/a.py", first=0)


def test_a_long_file_says_where_to_continue(files: Files, root: Path) -> None:
    (root / "long.txt").write_text("".join(f"line {number}\n" for number in range(1, 1001)))
    told = files.read_file("long.txt")
    assert told.endswith("(600 more lines: read from line 401)")
    assert files.read_file("long.txt", first=401).startswith("line 401\n")
    (root / "wide.txt").write_text("x" * 100_000)
    assert len(files.read_file("wide.txt")) < MAX_OUTPUT + 100


def test_lines_are_counted_as_editors_count_them(files: Files, root: Path) -> None:
    (root / "page.txt").write_text("a\fb\u2028c\nd\n", "utf-8")
    assert files.read_file("page.txt", first=2) == "d\n"
    assert files.search_files("d", "page.txt") == "page.txt:2: d"


def test_binary_files_are_not_read(files: Files, root: Path) -> None:
    (root / "image.bin").write_bytes(bytes(range(256)))
    with pytest.raises(ToolFailed, match="256 bytes of something else"):
        files.read_file("image.bin")
    assert files.search_files("one") == "src/a.py:1: one"
    with (root / "huge.txt").open("wb") as out:
        out.truncate(MAX_READ + 1)
    with pytest.raises(ToolFailed, match="too large"):
        files.read_file("huge.txt")
    (root / "empty.txt").touch()
    assert files.read_file("empty.txt") == "(the file is empty)"


def test_a_missing_file_gets_suggestions(files: Files) -> None:
    with pytest.raises(ToolFailed) as error:
        files.read_file("a.py")
    assert error.value.hint == "There is `src/a.py`"
    with pytest.raises(ToolFailed, match="is a folder"):
        files.read_file("src")
    with pytest.raises(ToolFailed) as error:
        files.read_file("b.py")
    assert error.value.hint == "There is `src/a.py`"


OUTSIDE = ["../secret.txt", "src/../../secret.txt", "link", "deep/secret.txt", "/etc/hostname", "a\0b", "~/x"]


@pytest.mark.parametrize("path", OUTSIDE)
def test_nothing_outside_the_folder_is_reached(files: Files, root: Path, path: str) -> None:
    (root / "link").symlink_to(root.parent / "secret.txt")
    (root / "deep").symlink_to(root.parent)
    outside = sorted(root.parent.iterdir())
    if path != "~/x":
        with pytest.raises(ToolFailed):
            files.write_file(path, "changed")
        for change in (files.preview_write, files.write_file):
            with pytest.raises(ToolFailed):
                change(path, "changed")
    for look in (files.read_file, files.list_files, lambda path: files.search_files("secret", path)):
        with pytest.raises(ToolFailed):
            look(path)
    for edit in (files.edit_file, files.preview_edit):
        with pytest.raises(ToolFailed):
            edit(path, "secret", "changed")
    assert (root.parent / "secret.txt").read_text() == "secret\n"
    assert sorted(root.parent.iterdir()) == outside


def test_links_are_skipped_in_listings_and_searches(files: Files, root: Path) -> None:
    (root / "link").symlink_to(root.parent / "secret.txt")
    (root / "deep").symlink_to(root.parent)
    (root / "round").symlink_to(root)
    assert files.search_files("secret") == "No line has `secret`"
    assert files.list_files() == "src/a.py (3 lines, 14 bytes)"


def test_a_link_within_the_folder_stays_a_link(files: Files, root: Path) -> None:
    (root / "same.py").symlink_to("src/a.py")
    assert "--- src/a.py" in files.preview_write("same.py", "new\n")
    files.write_file("same.py", "new\n")
    assert (root / "same.py").is_symlink()
    assert (root / "src" / "a.py").read_text() == "new\n"


def test_a_file_is_written_into_a_new_folder(files: Files, root: Path) -> None:
    assert files.preview_write("new/b.py", "x\n") == "--- new/b.py\n+++ new/b.py\n@@ -0,0 +1 @@\n+x\n"
    assert not (root / "new").exists()
    assert files.write_file("new/b.py", "x\ny") == "`new/b.py` has 2 lines now"
    assert (root / "new" / "b.py").read_bytes() == b"x\ny"
    assert [path.name for path in (root / "new").iterdir()] == ["b.py"]


def test_permissions_of_a_file_are_kept(files: Files, root: Path) -> None:
    (root / "src" / "a.py").chmod(0o750)
    files.write_file("src/a.py", "x\n")
    assert (root / "src" / "a.py").stat().st_mode & 0o777 == 0o750


ALIASES = [
    f"{name}/hooks/post-checkout"
    for name in (".GIT", ".Git", ".g\u200cit", "GIT~1", ".git.", ".Hg", ".git::$INDEX_ALLOCATION")
]


@pytest.mark.parametrize(
    "path", [".git/hooks/post-checkout", "sub/.git/config", ".", "src", "pipe", "src/a.py/b", *ALIASES]
)
def test_protected_paths_are_not_written(files: Files, root: Path, path: str) -> None:
    os.mkfifo(root / "pipe")
    (root / ".git").mkdir()
    with pytest.raises(ToolFailed):
        files.write_file(path, "x")
    assert list((root / ".git").iterdir()) == []
    assert (root / "src" / "a.py").read_text() == "one\ntwo\nthree\n"


def test_a_failed_write_keeps_the_old_file(files: Files, root: Path) -> None:
    with pytest.raises(ToolFailed, match="cannot be written"):
        files.write_file("src/a.py", "lone \ud800 surrogate")
    with pytest.raises(ToolFailed, match="is not a path: File name too long"):
        files.write_file("n" * 300, "x")
    assert (root / "src" / "a.py").read_text() == "one\ntwo\nthree\n"
    assert [path.name for path in (root / "src").iterdir()] == ["a.py"]


def test_an_edit_replaces_a_text_exactly(files: Files, root: Path) -> None:
    shown = files.preview_edit("src/a.py", "two\n", "2\n")
    assert shown == "--- src/a.py\n+++ src/a.py\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
    assert files.edit_file("src/a.py", "two\n", "2\n") == "`src/a.py` is changed"
    assert (root / "src" / "a.py").read_text() == "one\n2\nthree\n"


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        *(
            ("def load(path):", "def read(path):", "load"),
            ("x = f(f)", "x = go(go)", "f"),
            ("A b", "A c", "b"),
        ),
        *(("x = f(f)", "x = go(f)", ""), ("a = 30", "a = 60", ""), ("a = b", "a = sum(b)", "")),
        *(("a + b", "b + a", ""), ("a", "", ""), ("", "a", ""), ("f(a, b)", "g(a, c)", "")),
    ],
)
def test_a_renamed_name_is_detected(old: str, new: str, name: str) -> None:
    assert renamed(old, new) == name


def test_a_rename_lists_the_other_uses(files: Files, root: Path) -> None:
    (root / "src" / "a.py").write_text("def load(path):\n    return load\n")
    (root / "b.py").write_text("import a\nreload, loads\na.load(1)\n")
    assert files.edit_file("src/a.py", "def load(path):", "def read(path):").splitlines() == [
        *("`src/a.py` is changed", "`load` is still there:"),
        *("b.py:3: a.load(1)", "src/a.py:2: return load"),
    ]
    assert files.edit_file("src/a.py", "return load", "return 1") == "`src/a.py` is changed"


def test_a_search_falls_back_to_the_whole_folder(files: Files, root: Path) -> None:
    (root / "b.py").write_text("four (4)\n")
    found = "No line of `src` has `(4)`, but there is:\nb.py:1: four (4)"
    assert files.search_files("(4)", "src") == found
    assert files.search_files("(4)") == "b.py:1: four (4)"
    assert files.search_files("five", "src") == "No line has `five`"


@pytest.mark.parametrize(
    ("old", "said"),
    [("twoo", "does not have the text"), ("e", "3 times"), ("one", "are the same")],
)
def test_a_failed_edit_changes_nothing(files: Files, root: Path, old: str, said: str) -> None:
    with pytest.raises(ToolFailed, match=said):
        files.edit_file("src/a.py", old, "one")
    assert (root / "src" / "a.py").read_text() == "one\ntwo\nthree\n"


def test_an_edit_of_empty_text_appends(files: Files, root: Path) -> None:
    assert "+four" in files.preview_edit("src/a.py", "", "four\n")
    files.edit_file("src/a.py", "", "four\n")
    assert (root / "src" / "a.py").read_text() == "one\ntwo\nthree\nfour\n"


def test_line_endings_are_kept(files: Files, root: Path) -> None:
    (root / "dos.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    files.edit_file("dos.txt", "one\ntwo\n", "1\n2\n")
    assert (root / "dos.txt").read_bytes() == b"1\r\n2\r\nthree\r\n"


def test_a_missing_final_newline_is_shown(files: Files, root: Path) -> None:
    (root / "end.txt").write_bytes(b"a")
    assert "No newline at end of file" in files.preview_write("end.txt", "a\n")


def test_tool_folders_are_not_listed(files: Files, root: Path) -> None:
    for name in (".git", "node_modules"):
        (root / name).mkdir()
        (root / name / "x").write_text("one\n")
    assert files.list_files() == "src/a.py (3 lines, 14 bytes)"
    assert files.list_files("src/a.py") == "src/a.py (3 lines, 14 bytes)"
    with pytest.raises(ToolFailed, match="no folder"):
        files.list_files("none")


def test_long_results_are_shortened(files: Files, root: Path) -> None:
    for number in range(250):
        (root / f"f{number:03}").write_text("many\n")
    assert files.list_files().endswith("(more than 200 files: look in one folder)")
    assert "more than 100 lines" in files.search_files("many")
    with pytest.raises(ToolFailed):
        files.search_files("")


def test_a_slow_search_is_stopped(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "SEARCH_TIMEOUT", -1.0)
    assert files.search_files("one") == "(stopped after -1 seconds: look in one folder)"


def test_an_undecodable_name_is_listed(files: Files, root: Path) -> None:
    (root / os.fsdecode(b"caf\xe9.txt")).write_text("one\n")
    assert "caf?.txt (1 line, 4 bytes)" in files.list_files()
    assert "caf?.txt:1: one" in files.search_files("one")
    with pytest.raises(ToolFailed, match="There is no file"):
        files.read_file("caf?.txt")


def test_each_tool_has_its_access(root: Path) -> None:
    (root / "test_b.py").write_text("x = 1\n")
    folder = Folder(root)
    arguments = {
        "write_file": {"path": "test_b.py", "text": "y\n"},
        "edit_file": {"path": "test_b.py", "old": "x", "new": "y"},
        "replace_in_files": {"old": "x", "new": "y"},
    }
    for protected in (False, True):
        folder.protects_tests = protected
        needed = {one.name: [*one.needed(arguments.get(one.name, {}))] for one in tools(folder)}
        changed = {name: shown[0] for name, shown in needed.items() if name in arguments}
        kind = "test" if protected else "write"
        assert {name: access for name, (access, _) in changed.items()} == {
            "write_file": kind,
            "edit_file": kind,
            "replace_in_files": "write",
        }
        assert all("--- test_b.py" in diff for _, diff in changed.values())
        reads = {name: shown for name, shown in needed.items() if name not in arguments}
        assert reads == dict.fromkeys(("read_file", "list_files", "search_files"), [("read", "")])


def test_a_test_that_the_task_has_written_is_not_protected(root: Path) -> None:
    folder = Folder(root)
    folder.protects_tests = True
    assert not folder.is_protected("test_new.py")
    Files(folder).write_file("test_new.py", "x = 1\n")
    assert not folder.is_protected("test_new.py")
    folder.changes.begin()
    assert folder.is_protected("test_new.py")
    assert not folder.is_protected("src/a.py")


def test_a_name_is_replaced_in_all_files(files: Files, root: Path) -> None:
    (root / "b.py").write_text("two = twofold = 2\n")
    assert files.preview_replace("two", "three").count("--- ") == 2
    assert files.replace_in_files("two", "three") == "`two` is `three` now in `b.py`, `src/a.py`"
    assert (root / "b.py").read_text() == "three = twofold = 2\n"
    assert (root / "src" / "a.py").read_text() == "one\nthree\nthree\n"
    with pytest.raises(ToolFailed, match="No file has `fold`"):
        files.replace_in_files("fold", "x")
    with pytest.raises(ToolFailed, match="are the same"):
        files.replace_in_files("three", "three")


def test_an_edit_that_breaks_a_file_is_not_made(files: Files, root: Path) -> None:
    (root / "b.py").write_text("def f(x):\n    return x\n")
    with pytest.raises(ToolFailed, match="Not changed, for `b.py` would not parse: line 2") as raised:
        files.edit_file("b.py", "def f(x):", "def f(x): return x")
    assert "return x" in str(raised.value.hint)
    assert (root / "b.py").read_text() == "def f(x):\n    return x\n"
    (root / "b.py").write_text("def f(x:\n    return x\n")  # broken before: any edit may be a step
    with pytest.raises(ToolFailed, match="`b.py` is changed\n`b.py` does not parse: line 1"):
        files.edit_file("b.py", "return x", "return x + 1")
    assert files.edit_file("b.py", "f(x:", "f(x):") == "`b.py` is changed"


def test_a_written_file_that_does_not_parse_is_told(files: Files, root: Path) -> None:
    with pytest.raises(ToolFailed, match="has 1 line now\n`b.py` does not parse: line 1"):
        files.write_file("b.py", "def f(x:")
    assert (root / "b.py").read_text() == "def f(x:"


def test_line_ends_that_were_escaped_twice_are_written_as_such(files: Files, root: Path) -> None:
    said = files.write_file("b.py", "x = 1\\ny = 2\\n")
    assert said == "`b.py` has 2 lines now (each `\\n` in it became the end of a line)"
    assert (root / "b.py").read_text() == "x = 1\ny = 2\n"
    assert "+y = 3" in files.preview_edit("b.py", "y = 2", "y = 3\\nz = 4")
    assert "became the end" in files.edit_file("b.py", "y = 2", "y = 3\\nz = 4")
    assert (root / "b.py").read_text() == "x = 1\ny = 3\nz = 4\n"


def test_a_search_tells_what_it_misses(files: Files, root: Path) -> None:
    (root / "b.py").write_text("two\nTwo\n")
    (root / "src2").mkdir()
    (root / "src2" / "c.py").write_text("two\n")
    found = files.search_files("two", "src").splitlines()
    assert found[0] == "src/a.py:2: two"
    assert found[1:] == ["2 lines of other files match too:", "b.py:1: two", "src2/c.py:1: two"]
    found = files.search_files("THREE").splitlines()
    assert found == ["No line has `THREE`, but in other letter case there is:", "src/a.py:3: three"]


def test_a_link_in_place_of_the_partial_file_is_not_followed(
    files: Files, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even under the name that the next write uses."""
    monkeypatch.setattr(secrets, "token_hex", lambda size: "0" * 2 * size)
    secret = root.parent / "secret.txt"
    for end in ("", "-00000000"):
        (root / "src" / f".a.py.partial-{os.getpid()}{end}").symlink_to(secret)
    with pytest.raises(ToolFailed, match="File exists"):
        files.write_file("src/a.py", "changed")
    assert secret.read_text() == "secret\n"
    monkeypatch.undo()
    files.write_file("src/a.py", "changed")
    assert secret.read_text() == "secret\n"
    assert (root / "src" / "a.py").read_text() == "changed"


def test_a_folder_that_becomes_a_link_leads_nowhere(files: Files, root: Path) -> None:
    """Another program swaps a folder for a link to a folder outside while files are written and read."""
    outside, inside, over = root.parent / "outside", root / "src", threading.Event()
    outside.mkdir()
    (outside / "a.py").write_text("secret\n")

    def swap() -> None:
        while not over.is_set():
            inside.rename(root / "kept")
            with suppress(FileExistsError):  # a write has made the folder anew
                inside.symlink_to(outside)
                inside.unlink()
            while (root / "kept").exists():
                shutil.rmtree(inside, ignore_errors=True)
                with suppress(OSError):
                    (root / "kept").rename(inside)

    thread = threading.Thread(target=swap)
    thread.start()
    written = 0
    try:
        for number in range(400):
            with suppress(ToolFailed):
                assert "secret" not in files.read_file("src/a.py")
            with suppress(ToolFailed):
                files.write_file("src/a.py", f"{number}\n")
                written += 1
            with suppress(ToolFailed):
                assert ":1: secret" not in files.search_files("secret", "src")
    finally:
        over.set()
        thread.join()
    assert written
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"a.py": "secret\n"}


def test_a_folder_swapped_between_check_and_use(
    files: Files, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "a.py").write_text("secret\n")
    place = Folder.place

    def swapped(self: Folder, path: str) -> Path:
        found = place(self, path)
        if not (root / "kept").exists():
            (root / "src").rename(root / "kept")
            (root / "src").symlink_to(outside)
        return found

    for use in (lambda: files.write_file("src/a.py", "x"), lambda: files.read_file("src/a.py")):
        monkeypatch.setattr(Folder, "place", swapped)
        with pytest.raises(ToolFailed, match="Not a directory|symbolic links"):
            use()
        monkeypatch.undo()
        (root / "src").unlink()
        (root / "kept").rename(root / "src")
    assert (outside / "a.py").read_text() == "secret\n"
    assert len(list(outside.iterdir())) == 1


def test_pipes_and_devices_are_not_read(files: Files, root: Path) -> None:
    """Nor waited for, where a file becomes one after the check."""
    os.mkfifo(root / "pipe")
    for path in (root / "pipe", Path("/dev/zero"), Path("/dev/tty0")):
        with pytest.raises(OSError, match="not a regular file|No such|Permission|denied"):
            handles.read_bytes(path.parent, path, 10)
    with pytest.raises(ToolFailed, match="There is no file"):
        files.read_file("pipe")
    with pytest.raises(OSError, match="not a regular file"):
        handles.write_bytes(root, root / "pipe", b"x")


def test_files_that_the_system_makes_up_are_read_up_to_the_limit() -> None:
    proc = Files(Folder(Path("/proc/self")))
    assert "Name:" in proc.read_file("status")
    own = Path("/proc/self").resolve()
    assert handles.read_bytes(own, own / "status", 5) == (b"Name:", 5)
    with pytest.raises(ToolFailed, match="outside the folder"):
        proc.read_file("exe")
    with pytest.raises(ToolFailed):
        proc.read_file("mem")
    with pytest.raises(ToolFailed, match="cannot be written"):
        proc.write_file("new", "x")


def test_a_system_without_handles(files: Files, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "HAS_HANDLES", False)
    files.write_file("new/b.py", "x\n")
    files.write_file("src/a.py", "y\n")
    assert (files.read_file("new/b.py"), files.read_file("src/a.py")) == ("x\n", "y\n")
    assert sorted(path.name for path in root.rglob("*")) == ["a.py", "b.py", "new", "src"]


def test_what_a_task_has_written_is_told_and_undone(tmp_path: Path) -> None:
    (tmp_path / "work" / "sub").mkdir(parents=True)
    kept = tmp_path / "home" / "undo.json"
    folder = Folder(tmp_path / "work", kept)
    old, both, binary = (folder.root / name for name in ("old.txt", "sub/both.txt", "b.bin"))
    old.write_bytes(b"one\r\ntwo\nthree")
    both.write_bytes(b"a\nb\n")
    binary.write_bytes(b"\0\xff")
    known = {tool.name: tool for tool in tools(folder)}
    known["write_file"].run(path="old.txt", text="one\n2\n")
    known["write_file"].run(path="old.txt", text="1\n2\n")
    known["edit_file"].run(path="sub/both.txt", old="b", new="c\nd")
    known["write_file"].run(path="new/deep.txt", text="x\n")
    known["write_file"].run(path="b.bin", text="text")
    assert folder.changes.lines() == [
        "old.txt (+2 -3)",
        "sub/both.txt (+2 -1)",
        "new/deep.txt (new, 1 line)",
        "b.bin (+1 -1)",
    ]
    folder.changes.keep()
    assert kept.stat().st_mode & 0o077 == 0
    both.write_bytes(b"by hand\n")
    again = Folder(folder.root, kept)
    again.changes.read()
    assert again.changes.undo() == (["old.txt", "new/deep.txt", "b.bin"], ["sub/both.txt"])
    assert old.read_bytes() == b"one\r\ntwo\nthree"
    assert both.read_bytes() == b"by hand\n"
    assert binary.read_bytes() == b"\0\xff"
    assert not (folder.root / "new" / "deep.txt").exists()
    again.changes.read()
    assert again.changes.undo() == ([], [])


def test_a_damaged_record_of_changes_restores_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "undo.json"
    folder = Folder(tmp_path, kept)
    Files(folder).write_file(path="a.txt", text="x")
    folder.changes.keep()
    kept.write_text(kept.read_text("utf-8").replace("a.txt", "b.txt"), "utf-8")
    folder.changes.read()
    assert folder.changes.undo() == ([], [])
    assert (tmp_path / "a.txt").read_text("utf-8") == "x"


def test_a_write_that_fails_is_no_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(tmp_path)
    write = Files(folder).write_file
    (tmp_path / "a.txt").write_text("0", "utf-8")
    write(path="a.txt", text="1")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(handles, "write_bytes", full)
        for name in ("a.txt", "b.txt"):
            with pytest.raises(ToolFailed, match="No space left"):
                write(path=name, text="2")
    assert folder.changes.undo() == (["a.txt"], [])
    assert (tmp_path / "a.txt").read_text("utf-8") == "0"


def test_the_next_task_begins_anew(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    write = Files(folder).write_file
    write(path="a.txt", text="1")
    folder.changes.begin()
    write(path="a.txt", text="2")
    assert folder.changes.undo().restored == ["a.txt"]
    assert (tmp_path / "a.txt").read_text("utf-8") == "1"
