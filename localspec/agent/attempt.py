"""One way of doing a task, and the next one once it has failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from localspec.agent import events
from localspec.agent.events import FinishedEvent
from localspec.agent.loop_guard import LoopGuard

MAX_HAND_BACKS = 2  # faults that the first attempt hands back to the model; the others hand back one
MAX_ATTEMPTS = 6  # attempts at a task
FAILED = (events.UNVERIFIED, events.REPEATED)  # ends after which another attempt is made


@dataclass(slots=True)
class Attempt:
    """An attempt at a task. The first is the model's own; the others are sampled, each with its own seed."""

    number: int
    guard: LoopGuard
    hand_backs: int = 0

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

    def hands_back(self) -> bool:
        """Return whether a fault goes back to the model, and count it."""
        self.hand_backs += 1
        return self.hand_backs <= (1 if self.number else MAX_HAND_BACKS)

    def may_start_over(self, finished: FinishedEvent) -> bool:
        """Return whether the task is attempted again after such an end."""
        return finished.reason in FAILED and self.number + 1 < MAX_ATTEMPTS
