"""Kill commands before each change that they make to files, or by random signals, and look at what is left.

`python tests/attacks/killing.py [--signals N] [COMMAND ...]` prints a line for each command.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

SUPPORT = Path(__file__).parents[1] / "support"
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
LAST = 10_000  # no command makes so many changes

# Reads {"at": N, "arguments": [...]} and runs the command in a fork that dies before its change number N.
RUNNER = """
import json, os, signal, sys
root = sys.argv[1]
from localspec.cli.app import main
import filelock, msgspec, openvino, tomli_w, tokenizers
from localspec.build import exporting

CHANGES = {
    "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.truncate"
}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT

def changes(event, found):
    if event == "open":
        return isinstance(found[2], int) and found[2] & WRITES and str(found[0]).startswith(root)
    return event in CHANGES and any(str(each).startswith(root) for each in found[:2])

def run(at, arguments):
    seen = 0
    def note(event, found):
        nonlocal seen
        if changes(event, found):
            seen += 1
            if seen == at:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(note)
    sys.argv = ["localspec", *arguments]
    main()

for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if not child:
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1):
            os.dup2(quiet, stream)
        run(request["at"], request["arguments"])
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class Command:
    """A command that writes, the commands that prepare it, and the folders that are a start for it."""

    arguments: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()


IMPORT = ("import", "{gguf}", "--name", "small", "--copy")
COMMANDS: Mapping[str, Command] = {
    "import": Command(IMPORT),
    "rm": Command(("rm", "small", "--yes"), (IMPORT,)),
    "config": Command(("config", "set", "draft", "ngram")),
    "chat": Command(
        ("chat", "small", "hello", "--raw", "--max-tokens", "2", "--session", "s", "--engine", "openvino"),
        (IMPORT,),
    ),
    "pull": Command(("pull", "hf:owner/tiny")),
    "export": Command(("export", "small", "--to", "gguf", "--output", "{root}/out"), (IMPORT,)),
}


@dataclass
class Report:
    """The kills of one command, and each one that left a file or broke the next start."""

    kills: int = 0
    wrong: list[str] = field(default_factory=list)


class Attacked:
    """A home that is put back to its start before each kill."""

    def __init__(self, command: Command, gguf: Path, base: Path, hub: str = "") -> None:
        self.root = base / "root"
        self._hub = hub
        names = {"{gguf}": str(gguf), "{root}": str(self.root)}
        self._start = base / "start"
        self.arguments = [_filled(word, names) for word in command.arguments]
        self.root.mkdir()
        (self.root / "config.toml").write_text("")
        for arguments in command.before:
            assert self.run([_filled(word, names) for word in arguments]) == 0, arguments
        shutil.copytree(self.root, self._start, symlinks=True)
        assert self.run(self.arguments) == 0, self.arguments
        self.expected = self.files()

    def environment(self) -> dict[str, str]:
        """Return the variables of the command."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LOCALSPEC")}
        home = {"LOCALSPEC_HOME": f"{self.root}/home", "LOCALSPEC_CONFIG": f"{self.root}/config.toml"}
        hub = {"HF_ENDPOINT": self._hub, "HF_HUB_CACHE": f"{self.root}/cache", "HF_TOKEN": ""}
        return kept | home | hub | {"TMPDIR": str(self.root)}

    def start(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        """Start the command."""
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "localspec", *arguments],
            env=self.environment(),
            start_new_session=True,
            **quiet,
        )

    def run(self, arguments: list[str]) -> int:
        """Run the command to its end; return its exit code."""
        return self.start(arguments).wait()

    def reset(self) -> None:
        """Put the files back to the start."""
        shutil.rmtree(self.root)
        shutil.copytree(self._start, self.root, symlinks=True)

    def files(self) -> list[str]:
        """List all files and folders but locks and marks; digests in their names may differ.

        Python tries its folder for temporary files with a file of eight letters.
        """
        found = [str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.suffix != ".lock"]
        own = [name for name in found if not re.fullmatch(r"[a-z0-9_]{8}|home/in-use/.*", name)]
        return sorted(re.sub(r"[0-9a-f]{16,}", "*", name) for name in own)

    def repeated(self) -> str:
        """Run the command again; return an empty text if it works and leaves what it always leaves."""
        code = self.run(self.arguments)
        if code not in (0, 1, 2):
            return f"then exit code {code}"
        difference = sorted(set(self.files()) ^ set(self.expected))
        return f"then other files: {difference}" if difference else ""


def _filled(word: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        word = word.replace(name, value)
    return word


@contextmanager
def runner(attacked: Attacked) -> Iterator[subprocess.Popen[str]]:
    """Start the process that forks commands which die at a change."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", RUNNER, str(attacked.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=attacked.environment(),
    )
    with process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def kill_at_changes(attacked: Attacked, every: int = 1) -> Report:
    """Kill a command before its changes number 1, 1 + `every` and so on, each from the start."""
    report = Report()
    with runner(attacked) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for at in range(1, LAST, every):
            attacked.reset()
            process.stdin.write(json.dumps({"at": at, "arguments": attacked.arguments}) + "\n")
            process.stdin.flush()
            code = int(process.stdout.readline())
            if code != -signal.SIGKILL:
                if code:
                    report.wrong.append(f"change {at}: exit code {code}")
                return report
            report.kills += 1
            if wrong := attacked.repeated():
                report.wrong.append(f"change {at}: {wrong}")
    raise AssertionError("the command has no end")


def kill_at_random(attacked: Attacked, count: int, seconds: float = 3.0) -> Report:
    """Send a command `count` random signals, each at a random moment of its first `seconds`."""
    report, draw = Report(), random.Random(count)
    for _ in range(count):
        attacked.reset()
        process, number, delay = attacked.start(attacked.arguments), draw.choice(SIGNALS), draw.random()
        time.sleep(seconds * delay)
        children = _descendants(process.pid)
        process.send_signal(number)
        process.wait()
        report.kills += 1
        _, alive = psutil.wait_procs(children, timeout=2)
        wrong = _described(alive) or attacked.repeated()
        if wrong:
            report.wrong.append(f"{number.name} after {seconds * delay:.2f} s: {wrong}")
    return report


def _described(alive: list[psutil.Process]) -> str:
    """Return an empty text if no process lives; the dead that nobody has waited for do not."""
    lives = [child for child in alive if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    return f"then children live: {[child.cmdline() for child in lives]}" if lives else ""


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def main() -> None:
    """Attack the commands that the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help=", ".join(COMMANDS))
    parser.add_argument("--signals", type=int, default=0, help="random signals for each command")
    given = parser.parse_args()
    sys.path.insert(0, str(SUPPORT))
    import loopback
    import tiny

    for name in given.commands or COMMANDS:
        with tempfile.TemporaryDirectory() as folder, loopback.serving_hub() as hub:
            base = Path(folder).resolve()
            gguf = tiny.write_gguf(tiny.make("llama"), base / "tiny.gguf")
            hub.repositories["owner/tiny"] = {"tiny.gguf": gguf.read_bytes()}
            attacked = Attacked(COMMANDS[name], gguf, base, hub.url)
            count = given.signals
            report = kill_at_random(attacked, count) if count else kill_at_changes(attacked)
        print(f"{name:8} {report.kills:4} kills, {len(report.wrong)} with leftovers or a broken next start")
        for line in report.wrong:
            print(f"  {line}")


if __name__ == "__main__":
    main()
