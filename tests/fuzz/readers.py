"""Damage small valid inputs of each reader and report what is no LocalspecError, hangs, or takes much memory.

    python tests/fuzz/readers.py --count 100000 [--reader gguf] [--seed 0] [--keep FOLDER]

Each reader runs in a process of its own, so that a crash or a hang in native code is a finding too. The same
seed gives the same inputs. The exit code is 1 if anything was found; `--keep` saves the inputs.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

if __name__ == "__main__":  # as a script
    tests = Path(__file__).parents[1]
    sys.path[:0] = [str(folder) for folder in (tests, tests / "support", tests.parent)]

from fuzz.mutations import mutated
from fuzz.targets import TARGETS, check_message

SECONDS = 10.0  # for one input
BYTES = 1 << 30  # of memory, at its peak


@dataclass(frozen=True)
class Finding:
    """An input that a reader does not cope with: `kind` is the same for inputs with the same fault."""

    reader: str
    case: int
    kind: str
    data: bytes


def cases(name: str, seed: int, folder: Path, first: int, count: int) -> Iterator[tuple[int, bytes]]:
    """Yield damaged inputs of a reader by their number, the same ones for a seed."""
    target = TARGETS[name]
    seeds = target.seeds(folder)
    for case in range(first, count):
        dice = random.Random(f"{name} {seed} {case}")
        yield case, mutated(dice.choice(seeds), dice, target.binary)


def fault(name: str, folder: Path, data: bytes) -> str | None:
    """Return what a reader raises beside LocalspecError, with the last line of our own; else None."""
    from localspec.errors import LocalspecError

    try:
        try:
            TARGETS[name].read(folder, data)
        except LocalspecError as error:
            check_message(error.message)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic of a native library is no Exception
        source = error.__context__ if isinstance(error, AssertionError) and error.__context__ else error
        frames = traceback.extract_tb(source.__traceback__)
        own = [frame for frame in frames if "/localspec/" in frame.filename] or frames
        place = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
        return f"{type(error).__name__} at {place}: {str(error)[:120]!r}"
    return None


def findings(name: str, count: int, seed: int, folder: Path) -> Iterator[Finding]:
    """Try a reader in this process."""
    seen: set[str] = set()
    for case, data in cases(name, seed, folder, 0, count):
        kind = fault(name, folder, data)
        if kind and kind.partition(": ")[0] not in seen:
            seen.add(kind.partition(": ")[0])
            yield Finding(name, case, kind, data)


def _work(
    parent: Connection, pipe: Connection, name: str, seed: int, first: int, count: int, folder: Path
) -> None:
    """Try a reader in a child process, which tells its parent what it finds and that it lives."""
    import resource

    parent.close()  # so that this process ends with its parent, when nobody reads from the pipe
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))  # a mistake must not take the machine
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for case, data in cases(name, seed, folder, first, count):
        pipe.send((case, None))
        started = time.monotonic()
        kind = fault(name, folder, data)
        if time.monotonic() - started > SECONDS:
            kind = f"{time.monotonic() - started:.0f} seconds"
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if most > peak + (BYTES >> 10):
            kind, peak = f"{most >> 10:,} MB of memory: {kind}", most
        if kind:
            pipe.send((case, Finding(name, case, kind, data)))
    pipe.send((count, None))


def watched(name: str, count: int, seed: int, folder: Path) -> Iterator[Finding]:
    """Try a reader in child processes; one that crashes or hangs is followed by another."""
    first = 0
    seen: set[str] = set()
    while first < count:
        last, reason = first, ""
        for last, found, reason in _reports(name, count, seed, folder, first):  # noqa: B007
            if found and found.kind.partition(": ")[0] not in seen:
                seen.add(found.kind.partition(": ")[0])
                yield found
        if reason:
            [(_, data)] = cases(name, seed, folder, last, last + 1)
            yield Finding(name, last, reason, data)
        first = last + 1


def _reports(
    name: str, count: int, seed: int, folder: Path, first: int
) -> Iterator[tuple[int, Finding | None, str]]:
    """Yield the reports of a child process: an input, a finding, and at the end why it stopped early."""
    fork = get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    child = fork.Process(target=_work, args=(receiver, sender, name, seed, first, count, folder))
    child.start()
    sender.close()
    last = first
    try:
        while last < count:
            if not receiver.poll(2 * SECONDS):
                yield last, None, "hangs"
                return
            last, found = receiver.recv()
            yield last, found, ""
    except EOFError:
        child.join()
        yield last, None, f"crashes with exit code {child.exitcode}"
    finally:
        child.kill()
        child.join()
        receiver.close()


def main() -> int:
    """Try the readers; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="inputs of each reader")
    parser.add_argument("--reader", choices=TARGETS, action="append", help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder for the inputs with findings")
    given = parser.parse_args()
    found = 0
    for name in given.reader or TARGETS:
        started = time.monotonic()
        with TemporaryDirectory() as folder:
            for finding in watched(name, given.count, given.seed, Path(folder)):
                found += 1
                print(f"{name}: input {finding.case}: {finding.kind}", flush=True)
                if given.keep:
                    given.keep.mkdir(parents=True, exist_ok=True)
                    (given.keep / f"{name}-{given.seed}-{finding.case}").write_bytes(finding.data)
        print(f"{name}: {given.count:,} inputs in {time.monotonic() - started:.0f} s", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
