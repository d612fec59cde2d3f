"""One way of doing a task, and the next one once it has failed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from localspec.agent import events
from localspec.agent.events import FinishedEvent
from localspec.agent.loop_guard import LoopGuard

MAX_SAME, MAX_SAME_AGAIN = 3, 2  # times that the first attempt, and another one, may fail in the same way
MAX_ATTEMPTS = 6  # attempts at a task
FAILED = (events.UNVERIFIED, events.REPEATED)  # ends after which another attempt is made

_NUMBER = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?")


@dataclass(slots=True)
class Attempt:
    """An attempt at a task. The first is the model's own; the others are sampled, each with its own seed."""

    number: int
    guard: LoopGuard
    faults: Counter[str] = field(default_factory=Counter)

    @classmethod
    def begin(cls, state: Callable[[], object] | None, number: int = 0) -> Attempt:
        """Return an attempt with nothing done; `state` tells contents of the folder apart."""
        return cls(number, LoopGuard(state))

    @property
    def samples(self) -> bool:
        """Return whether a greedy model samples: its likeliest answers have led nowhere."""
        return self.number > 0 or self.guard.repeats > 1

    @property
    def seed(self) -> int:
        """Return the seed of the next answer."""
        return self.guard.repeats + 1000 * self.number

    @property
    def failed(self) -> bool:
        """Return whether the same fault has come too often; another one may be progress."""
        most = MAX_SAME_AGAIN if self.number else MAX_SAME
        return any(count > most for count in self.faults.values())

    def note(self, fault: str) -> None:
        """Count a fault; the numbers in it make no difference."""
        self.faults[_NUMBER.sub("#", fault)] += 1

    def may_start_over(self, finished: FinishedEvent) -> bool:
        """Return whether the task is attempted again after such an end."""
        return finished.reason in FAILED and self.number + 1 < MAX_ATTEMPTS
