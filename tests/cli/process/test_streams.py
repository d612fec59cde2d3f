"""Standard streams and paths that are not UTF-8, and a stdin without an end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import COMMAND, MODEL, Localspec

TASK = "Write this again: caf\xe9 \U0001f600 \u65e5"
SHORT = ("--max-tokens", "8", "--draft", "off")
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
NOT_UTF8 = "m\udce9"  # as Python has the byte E9 of a path
ECHO = """
import sys
from localspec.cli import process, app, console
def main():
    console.print_exact(sys.argv[1])
app.main = main
process.main()
"""


def raw(localspec: Localspec, *arguments: str, stdin: bytes = b"", **more: str) -> tuple[int, bytes, str]:
    """Run the command with bytes on stdin; return the exit code, the bytes on stdout, and stderr."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        check=False,
        env=localspec.environment(**more),
    )
    return done.returncode, done.stdout, done.stderr.decode()


@pytest.mark.parametrize(
    ("stdin", "encoding", "code"),
    [
        (b"caf\xe9", "utf-8", 1),
        (b"caf\xe9", "utf-8:strict", 1),
        (b"caf\xe9", "", 1),
        (b"caf\xe9", "latin-1", 0),
        ("caf\xe9".encode(), "utf-8", 0),
        ("caf\xe9".encode(), "ascii", 1),
        (b"\xff\xfea\0", "utf-8", 1),
        (b"\xef\xbb\xbfa", "utf-8", 0),
        (b"\xf0\x9f\x98", "utf-8", 1),
        (bytes(range(1, 256)), "utf-8", 1),
    ],
)
def test_stdin_of_another_encoding_is_read_or_refused(
    localspec: Localspec, stdin: bytes, encoding: str, code: int
) -> None:
    found, out, err = raw(localspec, "chat", MODEL, *SHORT, stdin=stdin, PYTHONIOENCODING=encoding)
    assert found == code
    if code:
        assert err.splitlines()[0] == f"error: The prompt is not {encoding[:5].upper() or 'UTF-8'} text"
        assert out == b""
    else:
        assert "error" not in err


def test_a_byte_order_mark_on_stdin_is_no_part_of_the_prompt(localspec: Localspec) -> None:
    texts = [
        json.loads(raw(localspec, "chat", MODEL, *SHORT, "--json", stdin=mark + b"Say hello.")[1])
        for mark in (b"", b"\xef\xbb\xbf")
    ]
    assert texts[0]["prompt_tokens"] == texts[1]["prompt_tokens"]


@pytest.mark.parametrize(
    ("encoding", "written"),
    [
        (
            "utf-8",
            "caf\xe9 \U0001f600 \udce9".encode("utf-8", "surrogatepass").replace(b"\xed\xb3\xa9", rb"\udce9"),
        ),
        ("ascii", rb"caf\u00e9 \ud83d\ude00 \udce9"),
        ("ascii:strict", rb"caf\u00e9 \ud83d\ude00 \udce9"),
        ("ascii:replace", b"caf? ? ?"),  # as the user asked
        ("latin-1", b"caf\xe9 \\ud83d\\ude00 \\udce9"),
        ("cp1252", b"caf\xe9 \\ud83d\\ude00 \\udce9"),
    ],
)
def test_characters_that_stdout_lacks_are_escaped_and_told(
    localspec: Localspec, encoding: str, written: bytes
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ECHO, "caf\xe9 \U0001f600 \udce9"],
        capture_output=True,
        check=False,
        env=localspec.environment(PYTHONIOENCODING=encoding),
    )
    assert (done.returncode, done.stdout) == (0, written)
    assert (b"The output has the encoding" in done.stderr) == (b"\\u" in written)


@pytest.mark.parametrize("locale", [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "cp1252"}, C_LOCALE])
def test_answers_and_json_survive_any_encoding(localspec: Localspec, locale: dict[str, str]) -> None:
    arguments = ("chat", MODEL, TASK, *SHORT)
    text = json.loads(raw(localspec, *arguments, "--json")[1])["text"]
    assert not text.isascii()
    code, out, err = raw(localspec, *arguments, "--json", **locale)
    assert (code, json.loads(out.decode("ascii"))["text"], err) == (0, text, "")
    code, out, err = raw(localspec, *arguments, **locale)
    assert code == 0
    assert out.decode("cp1252").startswith(("Caf\\u00e9", "Caf\xe9"))
    assert "The output has the encoding" in err


@pytest.mark.parametrize(
    "arguments", ["--help", "chat --help", "list", "devices", "parts", "doctor", "config"]
)
@pytest.mark.parametrize("locale", [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "utf-16"}, C_LOCALE])
def test_every_command_prints_in_any_encoding(
    localspec: Localspec, arguments: str, locale: dict[str, str]
) -> None:
    code, out, err = raw(localspec, *arguments.split(), **locale)
    assert (code, "error" in err) == (0, False)
    assert out


def test_the_user_is_told_that_the_command_waits_for_stdin(fresh: Localspec) -> None:
    process = subprocess.Popen(
        [*COMMAND, "chat", "nosuch", "hi"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=fresh.environment(),
    )
    assert process.stdin is not None
    assert process.stderr is not None
    assert b"Waiting for the end of stdin" in process.stderr.readline()
    process.stdin.write(b"one\ntwo\n")
    process.stdin.close()
    said = process.stderr.read().decode()
    process.wait()
    process.stderr.close()
    assert process.stdout is not None
    process.stdout.close()
    assert said.startswith("The prompt goes on with stdin: 2 lines\n")


def test_a_loop_over_lines_is_told_what_the_first_call_took(fresh: Localspec) -> None:
    line = 'while read question; do localspec chat nosuch "$question"; done'
    done = subprocess.run(
        ["bash", "-c", f'localspec() {{ {" ".join(COMMAND)} "$@"; }}\n{line}'],
        input=b"one\ntwo\nthree\n",
        capture_output=True,
        check=False,
        env=fresh.environment(),
    )
    assert done.stderr.decode().count("The prompt goes on with stdin: 2 lines") == 1


def test_a_stdin_without_an_end_is_refused(fresh: Localspec) -> None:
    with open(os.devnull.replace("null", "zero"), "rb") as endless:
        done = subprocess.run(
            [*COMMAND, "chat", "nosuch"],
            stdin=endless,
            capture_output=True,
            check=False,
            env=fresh.environment(),
        )
    assert done.returncode == 1
    assert b"stdin has more than 64,000,000 characters" in done.stderr


@pytest.mark.parametrize("option", ["--system", "--stop"])
def test_an_option_that_is_not_utf8(fresh: Localspec, option: str) -> None:
    fresh.run("chat", "nosuch", "hi", option, f"caf{NOT_UTF8}").refused(2, f"`{option}` is not UTF-8 text")
    fresh.run("chat", "nosuch", f"caf{NOT_UTF8}").refused(1, "The prompt is not UTF-8 text")


COMMANDS = [
    "chat {} hi",
    "agent {} hi",
    "bench {}",
    "doctor {}",
    "tune {}",
    "import {} --name x",
    "quantize {}",
]


@pytest.mark.parametrize("line", [*COMMANDS, "prune-draft {}", "export {} --to gguf", "pull {}", "show {}"])
def test_a_model_whose_path_is_not_utf8(fresh: Localspec, tmp_path: Path, line: str) -> None:
    folder = tmp_path / NOT_UTF8
    folder.mkdir()
    done = fresh.run(*(part.format(folder) for part in line.split()))
    assert done.code in (1, 2)
    assert "internal error" not in done.err
    assert [line[:7] for line in done.err.splitlines()].count("error: ") == 1


def test_a_home_whose_path_is_not_utf8(tmp_path: Path) -> None:
    for arguments in (["list"], ["chat", MODEL, "hi"], ["devices"], ["clean"]):
        done = Localspec(tmp_path / NOT_UTF8).run(*arguments)
        assert (done.code, "is not a UTF-8 path" in done.err, "internal" in done.err) == (2, True, False)


def test_a_file_whose_name_is_not_utf8_can_be_attached(localspec: Localspec, tmp_path: Path) -> None:
    file = tmp_path / NOT_UTF8
    file.write_text("x = 1\n", "utf-8")
    found = localspec.chat("Explain", "--file", str(file), "--json", *SHORT)
    assert found.values["text"]
