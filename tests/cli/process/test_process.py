"""Standard streams that are closed, full or gone, Ctrl-C at the start, and faults of localspec's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import loopback
import pytest
from command import COMMAND, MODEL, SECONDS, Localspec, Ran, Terminal

from localspec.disk import atomic

FULL = "error: The output cannot be written: No space left on device"
# Runs the command with a fault put into it, in the place of a real one.
BROKEN = """
import sys
from localspec.cli import process
from localspec.cli.machine import parts
def broken(*arguments):
    raise {error}
parts.part_values = broken
sys.argv = ["localspec", "parts"]
process.main()
"""


@pytest.fixture
def hub() -> Iterator[loopback.Hub]:
    with loopback.serving_hub() as found:
        yield found


def marks(localspec: Localspec) -> list[Path]:
    """List the marks of use that other processes than this one have left."""
    found = (localspec.home / "in-use").glob("*")
    return [mark for mark in found if not mark.read_text().startswith(f"{os.getpid()} ")]


def shell(localspec: Localspec, line: str, **more: str) -> Ran:
    """Run a line of the shell in which `localspec` stands for the command."""
    command = " ".join(COMMAND)
    done = subprocess.run(
        ["bash", "-c", f'localspec() {{ {command} "$@"; }}\n{line}'],
        capture_output=True,
        timeout=SECONDS,
        check=False,
        env=localspec.environment(**more),
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.parametrize(
    "command",
    ["parts", "parts --json", "devices", "--help", "--version", "config", "config path", "list --json"]
    + [f"show {MODEL}", f"show {MODEL} --template", f"verify {MODEL}", f"chat {MODEL} hi --max-tokens 2"],
)
def test_a_full_disk_is_one_error(localspec: Localspec, command: str) -> None:
    found = shell(localspec, f"localspec {command} > /dev/full")
    assert found.code == 1
    assert found.err.count("error: ") == 1
    assert FULL in found.err
    assert "Traceback" not in found.err


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams(fresh: Localspec, tmp_path: Path, closed: str) -> None:
    """No file gets the number of a stream, so no output lands in one; the exit codes stay true."""
    file = tmp_path / "config.toml"
    file.touch()
    assert shell(fresh, f"localspec config set threads 2 {closed}", LOCALSPEC_CONFIG=str(file)).code == 0
    assert file.read_text() == "threads = 2\n"
    for command, code in (("parts", 0), ("rm nope", 1), ("chat nope hi --draft-length x", 2)):
        found = shell(fresh, f"localspec {command} {closed}")
        assert found.code == code
        assert bool(found.out) is (code == 0 and ">&-" not in closed.replace("2>&-", ""))
        assert bool(found.err) is (code != 0 and "2>&-" not in closed)
        assert "Traceback" not in found.err
    assert {path.name for path in fresh.home.rglob("*") if path.is_file()} == set()


def test_a_full_stderr_changes_no_exit_code(fresh: Localspec) -> None:
    assert shell(fresh, "localspec rm nope 2> /dev/full").code == 1
    assert shell(fresh, "localspec parts 2> /dev/full").code == 0


def test_a_pipe_that_ends_is_quiet(fresh: Localspec) -> None:
    for command in ("parts --json", "--help", "config"):
        found = shell(fresh, f"localspec {command} | head -1")
        assert (found.code, found.err) == (0, "")
        assert found.out


def test_ctrl_c_during_the_imports_is_quiet(fresh: Localspec) -> None:
    """Python lists each module on stderr as it is imported."""
    for module in ("localspec.cli.console", "typer", "localspec.cli.config"):
        process = subprocess.Popen(
            [sys.executable, "-X", "importtime", "-m", "localspec", "parts"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=fresh.environment(),
        )
        assert process.stderr is not None
        while process.stderr.readline().split(b"|")[-1].strip() != module.encode():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS)
        assert (process.returncode, out) == (130, b"")
        assert b"Traceback" not in err
        assert b"KeyboardInterrupt" not in err


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("ZeroDivisionError('a\\x1b[2J\\nb')", "ZeroDivisionError: a\ufffd[2J"),
        ("KeyError", "KeyError"),
        ("OSError(5, 'no')", "OSError: [Errno 5] no"),
        ("RecursionError", "RecursionError"),
    ],
)
def test_a_fault_of_localspec_is_one_line(fresh: Localspec, error: str, told: str) -> None:
    script = (sys.executable, "-c", BROKEN.format(error=error))
    found = fresh.run(before=script)
    assert (found.code, found.out) == (70, "")
    assert found.err.splitlines()[0] == f"internal error: {told}"
    assert "hint: Run it again with `LOCALSPEC_DEBUG=1`" in found.err
    assert "Traceback" not in found.err
    found = fresh.run(before=script, LOCALSPEC_DEBUG="1")
    assert found.code == 70
    assert found.err.startswith("Traceback")
    assert f"internal error: {told}" in found.err
    assert "LOCALSPEC_DEBUG" not in found.err


def test_tracebacks_of_our_own_errors_are_shown_on_request(fresh: Localspec) -> None:
    assert fresh.run("rm", "nope").err.startswith("error: ")
    found = fresh.run("rm", "nope", LOCALSPEC_DEBUG="1")
    assert found.code == 1
    assert found.err.startswith("Traceback")
    assert "\nerror: `nope` is not in the library" in found.err
    assert "DEBUG" not in fresh.run("config", LOCALSPEC_DEBUG="1").err


@pytest.mark.parametrize("sign", ["Downloading", "lighthouse"])
def test_a_closed_terminal_ends_the_command_in_order(
    localspec: Localspec, fresh: Localspec, hub: loopback.Hub, terminal: Callable[..., Terminal], sign: str
) -> None:
    """During a download, and during an answer: exit code 129, no temporary file, no mark of use."""
    hub.repositories["owner/slow"] = {"model.gguf": bytes(10_000_000)}
    hub.piece, hub.pause = 1000, 0.05
    variables = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(fresh.home / "cache")}
    question = "Write a long story about a lighthouse keeper and his cat."
    command, home = {
        "Downloading": (("pull", "hf:owner/slow"), fresh),
        "lighthouse": (("chat", MODEL, question, "--max-tokens", "2000"), localspec),
    }[sign]
    started = terminal(home, *command, **variables)
    started.until(sign)
    assert started.hang_up() == 129
    assert list(atomic.partials(home.home)) == []
    assert marks(home) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_in_order(localspec: Localspec, number: signal.Signals) -> None:
    process = localspec.start("chat", MODEL, "Write a long story.", "--max-tokens", "2000")
    assert process.stdout is not None
    process.stdout.read(1)
    process.send_signal(number)
    _, told = process.communicate(timeout=SECONDS)
    assert process.returncode == 128 + number
    assert b"Traceback" not in told
    assert b"internal error" not in told
    assert marks(localspec) == []


def test_an_ignored_ctrl_c_stays_ignored(fresh: Localspec) -> None:
    """As below `nohup`, or in the background of a script."""
    script = (
        "import signal; from localspec.cli import process, app; app.main = lambda: print(signal.getsignal(2))"
    )
    found = subprocess.run(
        [sys.executable, "-c", f"{script}; process.main()"],
        capture_output=True,
        check=True,
        env=fresh.environment(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert found.stdout.strip() in (b"1", b"Handlers.SIG_IGN")
