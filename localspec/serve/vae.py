"""Remote autoencoders' own requests: latents to pictures, and back, one at a time from a short queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import Response

from localspec import pictures
from localspec.serve.pool import Busy
from localspec.vae import wire
from localspec.vae.local import Autoencoder
from localspec.vae.tensors import Tensor
from localspec.vae.wire import Asked

WAITING = 16  # requests, beside the one that runs
RETRY = 5  # seconds
Found = TypeVar("Found")


class Queue:
    """Runs one request after the other."""

    def __init__(self, most: int = WAITING) -> None:
        self._thread = ThreadPoolExecutor(1, "vae")
        self._most, self._waiting = most, 0

    async def run(self, work: Callable[[], Found]) -> Found:
        """Return what `work` finds; raises Busy if too many wait."""
        if self._waiting > self._most:
            raise Busy("the autoencoder", self._waiting, RETRY)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._waiting -= 1


def routes(autoencoder: Autoencoder) -> APIRouter:
    """Return the paths of an autoencoder."""
    router, queue = APIRouter(), Queue()

    @router.post("/vae/decode")
    async def decode(request: Request) -> Response:
        asked, given = Asked.of(request.query_params), request.query_params
        shape = [side for each in given.getlist("shape") for side in each.strip("[]").split(",")]
        shape = [side.strip() for side in shape]
        latents = wire.tensor_of(await request.body(), shape, given.get("dtype"), "The request")
        content, headers = await queue.run(lambda: autoencoder.decode(latents, asked))
        return Response(content, media_type=asked.accepts, headers=headers)

    @router.post("/vae/encode")
    async def encode(request: Request) -> Response:
        asked, content = Asked.of(request.query_params), await request.body()

        def work() -> Tensor:
            return autoencoder.encode(pictures.of_bytes(content, "the picture").pixels, asked)

        found = await queue.run(work)
        headers = {"shape": str(list(found.shape)), "dtype": found.dtype}
        return Response(found.data, media_type=wire.BINARY, headers=headers)

    return router
