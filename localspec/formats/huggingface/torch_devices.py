"""Torch devices: find one by name, its natural dtype and its free memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psutil

from localspec.errors import TooLittleMemory, UnknownDevice

Item = TypeVar("Item")
Output = TypeVar("Output")


def find_device(name: str) -> tuple[str, Any]:
    """Return the full name and the torch device of `name`; raises UnknownDevice."""
    available = _devices()
    short_names = {"auto": next(iter(available)), "cuda": "cuda:0", "hpu": "hpu:0"}
    full_name = short_names.get(name.lower(), name.lower())
    if full_name not in available:
        raise UnknownDevice(name, ["auto", *available])
    return full_name, available[full_name]


def _devices() -> dict[str, Any]:
    """Return this machine's devices by name, best first."""
    import torch

    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = {f"cuda:{card}": torch.device("cuda", card) for card in range(cards)}
    devices |= {f"hpu:{card}": torch.device("hpu", card) for card in range(_gaudi_count())}
    if torch.backends.mps.is_available():
        devices["mps"] = torch.device("mps")
    return devices | {"cpu": torch.device("cpu")}


def _gaudi_count() -> int:
    """Count the Gaudi cards; importing their library registers them with torch."""
    try:
        import habana_frameworks.torch.hpu as hpu
    except ImportError:
        return 0
    return int(hpu.device_count()) if hpu.is_available() else 0


def natural_dtype(device: Any) -> Any:
    """Return the dtype that a device computes in best."""
    import torch

    if device.type == "cpu":
        return torch.float32
    old = device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0)
    return torch.float16 if old or device.type == "mps" else torch.bfloat16


def use_threads(count: int) -> None:
    """Let torch compute in so many threads."""
    import torch

    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def free_memory(device: Any) -> int:
    """Return a device's free bytes, including those that torch has reserved but not allocated."""
    import torch

    if device.type != "cuda":
        return int(psutil.virtual_memory().available)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + unused)


def check_memory(name: str, model: Any, device: Any) -> None:
    """Raise TooLittleMemory if the model `name` does not fit on a CUDA device."""
    if device.type != "cuda":
        return
    needed = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    if needed > free_memory(device):
        raise TooLittleMemory(name, needed, free_memory(device))


@contextmanager
def memory_errors(device: Any, what: str) -> Iterator[None]:
    """Turn torch's OutOfMemoryError into TooLittleMemory for `what`."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        match = re.search(r"allocate ([\d.]+) (\w)iB", str(error))
        free = free_memory(device)
        needed = float(match[1]) * 1024 ** (1 + "KMGT".index(match[2])) if match else free
        raise TooLittleMemory(what, int(needed), free) from None


def run_in_halves(items: list[Item], run: Callable[[list[Item]], list[Output]]) -> list[Output]:
    """Return `run(items)`; if a GPU runs out of memory, run each half of the items by itself."""
    import torch

    try:
        return run(items)
    except torch.OutOfMemoryError:
        if len(items) < 2:
            raise
    torch.cuda.empty_cache()
    half = len(items) // 2
    return run_in_halves(items[:half], run) + run_in_halves(items[half:], run)
