"""llama.cpp as a library: its weights, its devices, and what it says when something fails."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from localspec.errors import BrokenModel, MissingExtra, UnknownDevice, UnknownModel, UnsupportedModel

CPU, GPUS = 0, (1, 2)  # ggml_backend_dev_type: a processor, and graphics of its own or shared memory
ERROR, GOES_ON = 4, 5  # ggml_log_level
WRAPPINGS = ("error loading model", "error loading model vocabulary")
UNKNOWN = ("unknown model architecture", "unknown pre-tokenizer", "unknown tokenizer")

WORDS: deque[str] = deque(maxlen=20)  # the last errors that llama.cpp logged
HELD: weakref.WeakValueDictionary[tuple[Any, ...], Weights] = weakref.WeakValueDictionary()
LOADING = threading.Lock()


class Weights:
    """A loaded model, freed when no engine or cache needs it any more."""

    def __init__(self, path: Path, device: str, layers: int, repack: bool) -> None:
        llama = library()
        params = llama.llama_model_default_params()
        self.device, chosen = devices_of(device, layers)
        params.n_gpu_layers = layers
        params.use_extra_bufts = repack
        if chosen is not None:
            params.devices = ctypes.addressof(chosen)
        WORDS.clear()
        self.handle = undisturbed(llama.llama_model_load_from_file, os.fsencode(path), params)
        if not self.handle:
            why = reason()
            kind = UnsupportedModel if why.startswith(UNKNOWN) else BrokenModel
            raise kind(f"llama.cpp cannot load `{path}`: {why}", "Download the model again, or choose another")
        self.contexts: set[int] = set()
        weakref.finalize(self, _free_weights, llama, self.handle, self.contexts)
        if llama.llama_model_has_encoder(self.handle) or llama.llama_model_is_diffusion(self.handle):
            raise UnsupportedModel(f"`{path}` does not write from left to right", "Choose a decoder")
        self.vocab = int(llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.handle)))
        self.context = int(llama.llama_model_n_ctx_train(self.handle))
        self.window = int(llama.llama_model_n_swa(self.handle))
        recurrent = llama.llama_model_is_recurrent(self.handle) or llama.llama_model_is_hybrid(self.handle)
        self.whole = not self.window and not recurrent  # does a cache hold every token by itself?


def free_context(llama: Any, handle: int, contexts: set[int], busy: threading.Lock) -> None:
    """Free a context, unless the program ends while a thread still computes with it."""
    if busy.acquire(blocking=False):
        contexts.discard(handle)
        llama.llama_free(handle)


def _free_weights(llama: Any, handle: int, contexts: set[int]) -> None:
    """Free a model that no context uses."""
    if not contexts:
        llama.llama_model_free(handle)


def open_weights(path: Path, device: str, layers: int, repack: bool) -> Weights:
    """Return the weights of the file `path`, the same ones for the same file and choices."""
    library()
    try:
        file = path.stat()
    except OSError:
        raise UnknownModel(f"There is no file `{path}`", "Download the model again") from None
    key = (file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns, device, layers, repack)
    with LOADING:
        weights = HELD.get(key)
        if weights is None:
            weights = HELD[key] = Weights(path, device, layers, repack)
        return weights


def undisturbed(call: Callable[..., Any], *arguments: Any) -> Any:
    """Make a call that logs in a thread of its own: an interrupt within our callback would be lost."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call, *arguments).result()


@functools.cache
def library() -> Any:
    """Return llama_cpp, told to keep its log to itself; raises MissingExtra.

    Its threads sleep while they wait: those that spin, as is OpenMP's habit, made a pass 2 to 5 times slower
    where another program wanted the cores too.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        import llama_cpp
    except ImportError:
        raise MissingExtra("llama-cpp-python", "gguf") from None
    llama_cpp.llama_log_set(_listen(llama_cpp), None)
    llama_cpp.llama_backend_init()
    return llama_cpp


@functools.cache
def _listen(llama_cpp: Any) -> Any:
    """Return the callback that keeps errors; it must live as long as the library."""
    last = 0

    def hear(level: int, text: bytes, _: Any) -> None:
        nonlocal last
        last = last if level == GOES_ON else level
        if last == ERROR:
            WORDS.append(text.decode("utf-8", "replace").strip())

    return llama_cpp.llama_log_callback(hear)


def reason(otherwise: str = "no reason given") -> str:
    """Return the error that llama.cpp logged first, without the names of its functions."""
    line = WORDS[0] if WORDS else otherwise
    while (first := line.partition(": "))[1] and (first[0].isidentifier() or first[0] in WRAPPINGS):
        line = first[2]
    return line


def devices_of(device: str, layers: int) -> tuple[str, Any]:
    """Return the name of what a model will run on, and llama.cpp's list of devices, None for its choice."""
    there = devices()
    names = [name for name, (_, kind) in there.items() if kind == CPU or kind in GPUS]
    if device == "auto":
        graphics = [name for name, (_, kind) in there.items() if kind in GPUS and layers]
        return (graphics or ["CPU"])[0], None
    if device not in names:
        raise UnknownDevice(device, ["auto", *names])
    pointer, kind = there[device]
    return device, (ctypes.c_void_p * 2)(pointer if kind in GPUS else None, None)


def devices() -> dict[str, tuple[int, int]]:
    """Return the devices that llama.cpp was built for: name -> pointer and ggml_backend_dev_type."""
    from llama_cpp._ggml import libggml

    def call(name: str, result: Any, *kinds: Any) -> Any:
        function = libggml[name]  # an object of our own: the attribute is shared
        function.restype, function.argtypes = result, kinds
        return function

    name_of = call("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)
    kind_of = call("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)
    get = call("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    count = call("ggml_backend_dev_count", ctypes.c_size_t)()
    found = [get(at) for at in range(count)]
    return {name_of(pointer).decode(): (pointer, kind_of(pointer)) for pointer in found}


def cores() -> int:
    """Return how many physical cores this process may use; a second thread on a core slows llama.cpp."""
    logical = os.cpu_count() or 1
    try:
        shared = {siblings(cpu) for cpu in os.sched_getaffinity(0)}
    except (AttributeError, OSError):
        return logical if sys.platform == "darwin" or logical <= 4 else logical // 2  # llama.cpp's own rule
    return len(shared)


def siblings(cpu: int) -> str:
    """Return which logical processors share a core with `cpu`, in Linux's words."""
    return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text("ascii")
