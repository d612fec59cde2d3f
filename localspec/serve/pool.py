"""The models that a server has loaded: one thread for each, and a queue of requests before it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from time import monotonic

from localspec.errors import LocalspecError, UnknownModel, nearest, printable
from localspec.library import Library
from localspec.runtime.generation import Runtime
from localspec.serve.generation import Event, Request, generate, prompt_of
from localspec.serve.measures.record import note

Load = Callable[[str], Runtime]


class Busy(LocalspecError):
    """So many requests wait for a model that another one may not; `seconds` is a time to try again after."""

    def __init__(self, name: str, waiting: int, seconds: int) -> None:
        super().__init__(f"{waiting} requests wait for `{name}`", f"Try again in {seconds} s")
        self.seconds = seconds


class Served:
    """A loaded model. It answers requests in the order in which they came, in a thread of its own."""

    def __init__(self, name: str, runtime: Runtime, thread: ThreadPoolExecutor, max_waiting: int) -> None:
        self.name, self.runtime = name, runtime
        self.used = monotonic()  # when the last answer ended
        self.keep_alive: float | None = None  # seconds, if a client said so
        self.waiting = 0  # requests, that which is answered included
        self._thread = thread
        self._max_waiting = max_waiting
        self._seconds = 1.0  # of the last answers, on average

    async def answer(self, request: Request) -> AsyncGenerator[Event, None]:
        """Yield the answer to a request; leaving the loop stops the work within one pass.

        Raises Busy, and what `generate` raises.
        """
        if self.waiting >= self._max_waiting:
            raise Busy(self.name, self.waiting, max(1, round(self.waiting * self._seconds)))
        loop, left = asyncio.get_running_loop(), threading.Event()
        events: asyncio.Queue[Event | Exception | None] = asyncio.Queue()

        def put(event: Event | Exception | None) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        def work() -> None:
            started = monotonic()
            try:
                if not left.is_set():
                    with closing(generate(self.runtime, request)) as answer:
                        for event in answer:
                            put(event)
                            if left.is_set():
                                break
            except Exception as error:  # noqa: BLE001 - the other thread raises it again
                put(error)
            finally:
                self._seconds += 0.2 * (monotonic() - started - self._seconds)
                put(None)

        self.waiting += 1
        working = loop.run_in_executor(self._thread, work)
        working.add_done_callback(lambda _: self._done())
        try:
            while (event := await events.get()) is not None:
                if isinstance(event, Exception):
                    raise event
                note(self.name, event)
                yield event
        finally:
            left.set()

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
        self._served: dict[str, Served] = {}
        self._threads: dict[str, ThreadPoolExecutor] = {}
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

    def add(self, name: str, runtime: Runtime) -> None:
        """Take in a loaded model."""
        self._threads[name] = ThreadPoolExecutor(1, f"model {name}")
        self._served[name] = Served(name, runtime, self._threads[name], self._max_waiting)

    def drop_idle(self) -> None:
        """Drop the models that nobody has asked for a while."""
        for name, served in list(self._served.items()):
            if not served.waiting and self.seconds_left(served) < 0:
                del self._served[name]
                self._threads.pop(name).shutdown(wait=False)

    def seconds_left(self, served: Served) -> float:
        """Return how long a model stays if nobody asks it."""
        keep = self._keep_alive if served.keep_alive is None else served.keep_alive
        return served.used + keep - monotonic()

    def close(self) -> None:
        """Drop all models."""
        for thread in self._threads.values():
            thread.shutdown(wait=False, cancel_futures=True)
        self._served, self._threads = {}, {}


def known(pool: Pool, library: Library, name: str) -> str:
    """Return the name of a model that a client asks for, loaded or in the library; raises UnknownModel.

    A server loads what its user has: a request downloads nothing, and no path in it reaches the disk.
    """
    if any(served.name == name for served in pool.loaded):
        return name
    if (model := library.find(name)) is not None:
        return model.name
    names = [model.name for model in library.all()]
    raise UnknownModel(f"No model `{printable(name)}` is in the library", nearest(name, names, "/v1/models"))
