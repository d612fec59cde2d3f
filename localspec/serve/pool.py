"""The models that a server has loaded: threads for each, and a queue of requests before them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from time import monotonic

from localspec.core.types import shared_prefix
from localspec.errors import LocalspecError, UnknownModel, nearest, printable
from localspec.library import Library
from localspec.library.catalogue import TEXT
from localspec.runtime.generation import Runtime
from localspec.serve.generation import Event, Request, generate, prompt_of
from localspec.serve.measures.record import note

Load = Callable[[str], Sequence[Runtime]]


class Busy(LocalspecError):
    """So many requests wait for a model that another one may not; `seconds` is a time to try again after."""

    def __init__(self, name: str, waiting: int, seconds: int) -> None:
        super().__init__(f"{waiting} requests wait for `{name}`", f"Try again in {seconds} s")
        self.seconds = seconds


class Ending(LocalspecError):
    """The server ends before it has answered."""

    def __init__(self) -> None:
        super().__init__("The server ends", "Start it again: `localspec serve`")


class Served:
    """A loaded model. It answers as many requests at once as it has runtimes, the others in their order.

    A request takes the free runtime whose KV cache holds most of its prompt, else the least recently used.
    """

    def __init__(
        self, name: str, runtimes: Sequence[Runtime], max_waiting: int, ending: threading.Event
    ) -> None:
        self.name, self.runtime = name, runtimes[0]
        self.parallel = len(runtimes)
        self.used = monotonic()  # when the last answer ended
        self.keep_alive: float | None = None  # seconds, if a client said so
        self.waiting = 0  # requests, those that are answered included
        self._free = list(runtimes)  # least recently used first
        self._choosing = threading.Lock()
        self._threads = ThreadPoolExecutor(len(runtimes), f"model {name}")
        self._max_waiting, self._ending = max_waiting, ending
        self._seconds = 1.0  # of the last answers, on average

    async def answer(self, request: Request) -> AsyncGenerator[Event, None]:
        """Yield the answer to a request; leaving the loop stops the work within one pass.

        Raises Busy, Ending, and what `generate` raises.
        """
        if self.waiting >= self._max_waiting + self.parallel:
            seconds = self.waiting * self._seconds / self.parallel
            raise Busy(self.name, self.waiting - self.parallel, max(1, round(seconds)))
        loop, left = asyncio.get_running_loop(), threading.Event()
        events: asyncio.Queue[Event | Exception | None] = asyncio.Queue()

        def put(event: Event | Exception | None) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        def work() -> None:
            started = monotonic()
            try:
                self._generate(request, put, lambda: left.is_set() or self._ending.is_set())
            except Exception as error:  # noqa: BLE001 - the other thread raises it again
                put(error)
            finally:
                self._seconds += 0.2 * (monotonic() - started - self._seconds)
                put(None)

        self.waiting += 1
        working = loop.run_in_executor(self._threads, work)
        working.add_done_callback(lambda _: self._done())
        try:
            while (event := await events.get()) is not None:
                if isinstance(event, Exception):
                    raise event
                note(self.name, event)
                yield event
        finally:
            left.set()

    def _generate(
        self, request: Request, put: Callable[[Event], None], cancelled: Callable[[], bool]
    ) -> None:
        """Put the events of an answer until it is cancelled; raises Ending if the server ends first."""
        if not cancelled():
            prompt = prompt_of(self.runtime, request)
            runtime = self._take(prompt)
            try:
                with closing(generate(runtime, request, prompt, cancelled)) as answer:
                    for event in answer:
                        if cancelled():
                            break
                        put(event)
                    else:
                        return
            finally:
                self._give_back(runtime)
        if self._ending.is_set():
            raise Ending

    def _take(self, prompt: list[int]) -> Runtime:
        with self._choosing:
            found = max(self._free, key=lambda free: shared_prefix(free.target.tokens, prompt))
            self._free.remove(found)
            return found

    def _give_back(self, runtime: Runtime) -> None:
        """Let others take a runtime; the texts that are kept have no more tokens than one may have."""
        with self._choosing:
            self._free.append(runtime)
            left = sum(len(free.target.tokens) for free in self._free) - runtime.engine.context
            for free in self._free[:-1]:
                if left > 0 and free.target.tokens:
                    left -= len(free.target.tokens)
                    free.drop_text()

    def close(self) -> None:
        """Answer no more requests."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def count(self, request: Request) -> int:
        """Return the number of the prompt's tokens; raises what `prompt_of` raises."""
        return len(await asyncio.to_thread(prompt_of, self.runtime, request))

    def _done(self) -> None:
        self.waiting -= 1
        self.used = monotonic()


class Pool:
    """Loads models when they are first asked for, and drops those that were idle for `keep_alive` seconds."""

    def __init__(self, load: Load, *, keep_alive: float = 600.0, max_waiting: int = 64) -> None:
        self._load, self._keep_alive, self._max_waiting = load, keep_alive, max_waiting
        self._ending = threading.Event()
        self._rested = 0.0  # when it rested
        self._served: dict[str, Served] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    @property
    def loaded(self) -> list[Served]:
        """The loaded models."""
        return list(self._served.values())

    async def get(self, name: str) -> Served:
        """Return a model, loaded if it is not; raises what loading raises."""
        self.drop_idle()
        async with self._locks.setdefault(name, asyncio.Lock()):
            if name not in self._served:
                self.add(name, await asyncio.to_thread(self._load, name))
            return self._served[name]

    def add(self, name: str, runtimes: Sequence[Runtime]) -> None:
        """Take in the runtimes of a loaded model."""
        self._served[name] = Served(name, runtimes, self._max_waiting, self._ending)

    def drop_idle(self) -> None:
        """Drop the models that nobody has asked for a while."""
        for name, served in list(self._served.items()):
            if not served.waiting and self.seconds_left(served) < 0:
                self._served.pop(name).close()

    def rests(self) -> bool:
        """Return whether all requests have been answered since the last time that this was so."""
        used = max((served.used for served in self.loaded), default=0.0)
        if used <= self._rested or any(served.waiting for served in self.loaded):
            return False
        self._rested = monotonic()
        return True

    def seconds_left(self, served: Served) -> float:
        """Return how long a model stays if nobody asks it."""
        keep = self._keep_alive if served.keep_alive is None else served.keep_alive
        return served.used + keep - monotonic()

    def end(self) -> None:
        """End all answers within one pass; they raise Ending."""
        self._ending.set()

    def close(self) -> None:
        """Drop all models."""
        for served in self._served.values():
            served.close()
        self._served = {}


def known(pool: Pool, library: Library, name: str) -> str:
    """Return the name of a model that a client asks for, loaded or in the library; raises UnknownModel.

    A server loads what its user has: a request downloads nothing, and no path in it reaches the disk.
    """
    if any(served.name == name for served in pool.loaded):
        return name
    if (model := library.find(name)) is not None and model.kind == TEXT:
        return model.name
    names = [model.name for model in library.all(TEXT)]
    raise UnknownModel(f"No model `{printable(name)}` is in the library", nearest(name, names, "/v1/models"))
