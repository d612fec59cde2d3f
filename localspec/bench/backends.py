"""Who is measured: plain decoding, a draft on the same engine, or another program in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from localspec.core.sampler import Sampling
from localspec.core.stats import SourceCounts
from localspec.errors import LocalspecError
from localspec.runtime.generation import Runtime

PLAIN = "plain"


@dataclass(slots=True)
class Answered:
    """One answer to one turn: its tokens, its times in seconds, and what guessing did.

    `decode_seconds` made `decode_tokens` of the tokens; what came before them is in `prefill_seconds`.
    """

    token_ids: list[int]
    prompt_tokens: int
    prefill_seconds: float
    decode_seconds: float
    decode_tokens: int
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    sources: dict[str, SourceCounts] = field(default_factory=dict)

    @property
    def seconds_per_token(self) -> float:
        """Seconds a token, the prompt's reading apart."""
        return self.decode_seconds / max(self.decode_tokens, 1)


class PeerFailed(LocalspecError):
    """Another program could not be started, or died."""


class Contender(ABC):
    """Answers the tokens of a prompt, greedily."""

    name: str
    settings: dict[str, Any]

    @abstractmethod
    def answer(self, prompt: Sequence[int], tokens: int, *, anew: bool) -> Answered:
        """Answer `prompt`, at most `tokens` tokens; `anew` forgets what was read before."""

    def peak_memory(self) -> int | None:
        """Return the most bytes that its process held, None where it shares one."""
        return None

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Give back what it holds."""


class Own(Contender):
    """localspec itself."""

    def __init__(self, name: str, runtime: Runtime) -> None:
        self.name = name
        self.runtime = runtime
        self.settings = {
            "engine": str(runtime.engine_spec),
            "drafter": str(runtime.draft_spec),
            "draft_length": str(runtime.draft_length_spec),
        }

    def answer(self, prompt: Sequence[int], tokens: int, *, anew: bool) -> Answered:
        """Answer with the runtime's parts; times are the loop's own."""
        if anew:
            self.runtime.forget()
        answer, steps = self.runtime.answer(prompt, sampling=Sampling(), max_tokens=tokens)
        depths = [last.drafted for last in steps]
        stats = answer.stats
        return Answered(
            token_ids=answer.token_ids,
            prompt_tokens=answer.prompt_tokens,
            prefill_seconds=answer.prompt_seconds,
            decode_seconds=answer.seconds - answer.prompt_seconds,
            decode_tokens=len(answer.token_ids),
            passes=stats.passes,
            drafted=stats.drafted,
            accepted=stats.accepted,
            draft_seconds=stats.draft_seconds,
            target_seconds=stats.target_seconds,
            drafted_at=stats.drafted_at,
            accepted_at=stats.accepted_at,
            depths=depths,
            sources=stats.sources,
        )


class Program:
    """Another program in a process of its own, which reads a request a line and writes a reply a line.

    See `peers.py`. Rows that run the same weights share one, which ends when the last of them is closed.
    """

    def __init__(self, name: str, given: dict[str, Any]) -> None:
        self.name = name
        self._users = 0
        self._words = TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - a pipe could fill up
        command = [sys.executable, "-m", "localspec.bench.baselines", name, json.dumps(given)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._words, text=True
        )
        try:
            self.settings = self._reply()
        except BaseException:
            self._end()
            raise

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the reply to a request; raises PeerFailed when the process is gone."""
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            raise self._failed() from None
        return self._reply()

    def open(self) -> None:
        """Count one more user."""
        self._users += 1

    def close(self) -> None:
        """Count one user less, and end the process after the last."""
        self._users -= 1
        if self._users <= 0:
            self._end()

    def _end(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout, self._words):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        try:
            found: dict[str, Any] = json.loads(line)
        except ValueError:
            raise self._failed() from None
        if "error" in found:
            raise PeerFailed(f"`{self.name}`: {found['error']}", found.get("hint"))
        return found

    def _failed(self) -> PeerFailed:
        self._process.kill()
        code = self._process.wait()
        self._words.seek(0)
        last = [line for line in self._words.read().splitlines() if line.strip()]
        return PeerFailed(f"`{self.name}` died with {code}: {last[-1] if last else 'it said nothing'}")


class Peer(Contender):
    """Another program, driven through its own best settings."""

    def __init__(self, name: str, given: dict[str, Any], program: Program | None = None) -> None:
        self.name = name
        self.program = program or Program(name, given)
        self.program.open()
        self.settings = {"peer": name} | self.program.settings

    def answer(self, prompt: Sequence[int], tokens: int, *, anew: bool) -> Answered:
        """Ask the program; raises PeerFailed when it is gone."""
        request = {"row": self.name, "prompt": list(prompt), "tokens": tokens, "anew": anew}
        return Answered(**self.program.ask(request))

    def peak_memory(self) -> int | None:
        """Return the most bytes that its process has held so far."""
        return peak_memory(self.program.pid)

    def close(self) -> None:
        """Leave the program."""
        self.program.close()


def peak_memory(process: int) -> int | None:
    """Return the most bytes that a process has held, or what it holds where the system keeps no peak."""
    import psutil

    with suppress(OSError, ValueError, StopIteration):
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    with suppress(psutil.Error):
        held = psutil.Process(process).memory_info()
        return int(getattr(held, "peak_wset", held.rss))
    return None
