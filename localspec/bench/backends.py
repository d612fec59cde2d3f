"""Backends to measure: plain decoding, a draft on the same engine, or another program in its own process."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localspec.children import JsonChild
from localspec.core.sampler import Sampling
from localspec.core.stats import SourceCounts
from localspec.runtime.generation import Runtime


@dataclass(slots=True)
class MeasuredAnswer:
    """One answer to one turn: its tokens, its times in seconds, and what speculation did.

    `decode_seconds` is the time of the last `decode_tokens` tokens; the time before is in `prefill_seconds`.
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
    draft_lengths: list[int] = field(default_factory=list)
    sources: dict[str, SourceCounts] = field(default_factory=dict)

    @property
    def seconds_per_token(self) -> float:
        """Seconds for each decoded token, without prefill."""
        return self.decode_seconds / max(self.decode_tokens, 1)


SEED = 0  # of sampled answers: a backend's own noise would make another text


class Backend(ABC):
    """Answers the tokens of a prompt, greedily unless it was made with another sampling."""

    name: str
    settings: dict[str, Any]

    @abstractmethod
    def answer(self, prompt: Sequence[int], tokens: int, *, fresh: bool) -> MeasuredAnswer:
        """Answer `prompt` with at most `tokens` tokens; `fresh` clears the KV cache first."""

    def peak_memory(self) -> int | None:
        """Return the peak memory of its own process in bytes, None if it has no own process."""
        return None

    def close(self) -> None:  # noqa: B027 - optional
        """Release its resources."""


class LocalspecBackend(Backend):
    """localspec itself."""

    def __init__(self, name: str, runtime: Runtime, sampling: Sampling | None = None) -> None:
        self.name = name
        self.runtime = runtime
        self.sampling = sampling or Sampling()
        self.settings = {
            "engine": str(runtime.resolution.target.spec),
            "drafter": str(runtime.draft_spec),
            "draft_length": str(runtime.resolution.draft_length),
            "verifier": str(runtime.resolution.verifier),
            "lossless": runtime.lossless,
        }

    def answer(self, prompt: Sequence[int], tokens: int, *, fresh: bool) -> MeasuredAnswer:
        """Answer with the runtime; the times are those of the decoding loop."""
        if fresh:
            self.runtime.forget()
        answer, steps = self.runtime.answer(prompt, sampling=self.sampling, seed=SEED, max_tokens=tokens)
        draft_lengths = [step.drafted for step in steps]
        stats = answer.stats
        return MeasuredAnswer(
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
            draft_lengths=draft_lengths,
            sources=stats.sources,
        )


class BaselineProcess(JsonChild):
    """Another program in its own process; `baselines.py` is its other end.

    Backends with the same weights share a process, which ends when the last of them is closed.
    """

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        super().__init__(name, "localspec.bench.baselines", name, json.dumps(settings))
        self._users = 0
        try:
            self.settings = self.reply()
        except BaseException:
            self.end()
            raise

    def open(self) -> None:
        """Add a user of the process."""
        self._users += 1

    def close(self) -> None:
        """Remove a user, and end the process after the last one."""
        self._users -= 1
        if self._users <= 0:
            self.end()


class BaselineBackend(Backend):
    """Another program, with its own best settings."""

    def __init__(self, name: str, settings: dict[str, Any], process: BaselineProcess | None = None) -> None:
        self.name = name
        self.process = process or BaselineProcess(name, settings)
        self.process.open()
        self.settings = {"baseline": name} | self.process.settings

    def answer(self, prompt: Sequence[int], tokens: int, *, fresh: bool) -> MeasuredAnswer:
        """Ask the program; raises ChildFailed if it has died."""
        request = {"row": self.name, "prompt": list(prompt), "tokens": tokens, "fresh": fresh}
        return MeasuredAnswer(**self.process.ask(request))

    def peak_memory(self) -> int | None:
        """Return the peak memory of its process in bytes."""
        return peak_memory(self.process.pid)

    def close(self) -> None:
        """Release the process."""
        self.process.close()


def peak_memory(process: int) -> int | None:
    """Return the peak memory of a process in bytes, or its current memory if the system keeps no peak."""
    import psutil

    with suppress(OSError, ValueError, StopIteration):
        lines = Path(f"/proc/{process}/status").read_text("utf-8", "replace").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    with suppress(psutil.Error):
        memory = psutil.Process(process).memory_info()
        return int(getattr(memory, "peak_wset", memory.rss))
    return None
