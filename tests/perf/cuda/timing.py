"""Seconds of work on a device, as it is replayed there."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch


def synchronize(place: torch.device) -> None:
    if place.type == "cuda":
        torch.cuda.synchronize(place)


def wall(run: Callable[[], Any], place: torch.device, repeat: int = 20, warm: int = 2) -> float:
    """Return the seconds of a call, the mean of `repeat`, with all that Python does."""
    for _ in range(warm):
        run()
    synchronize(place)
    started = perf_counter()
    for _ in range(repeat):
        run()
    synchronize(place)
    return (perf_counter() - started) / repeat


def replayed(run: Callable[[], Any], place: torch.device, repeat: int = 50, times: int = 1) -> float:
    """Return the seconds of a call without Python: `times` of them recorded, replayed `repeat` times."""
    if place.type != "cuda":
        return wall(run, place, min(repeat, 3))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            run()
    return wall(graph.replay, place, repeat) / times


def copy_bandwidth(place: torch.device) -> float:
    """Return the bytes per second that a copy moves, read and written."""
    size = 1 << (31 if place.type == "cuda" else 26)
    source = torch.ones(size, dtype=torch.uint8, device=place)
    into = torch.empty_like(source)
    return 2 * size / wall(lambda: into.copy_(source), place)
