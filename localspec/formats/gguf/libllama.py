"""llama.cpp as a library: its weights, its devices and its error log."""

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

CPU, GPUS = 0, (1, 2)  # ggml_backend_dev_type: the CPU; GPUs with their own or with shared memory
ERROR, CONTINUED = 4, 5  # ggml_log_level
WRAPPINGS = ("error loading model", "error loading model vocabulary")
SPINS = "1000"  # of an OpenMP thread that waits, before it sleeps
UNKNOWN = (  # what a sound file may hold
    *(
        "unknown model architecture",
        "unknown pre-tokenizer",
        "unknown tokenizer",
        "unsupported",
        "not supported",
    ),
    *("wrong number of tensors", "has wrong shape", "invalid n_rot", "invalid ggml type"),
)

LOG: deque[str] = deque(maxlen=20)  # the last errors that llama.cpp logged
LOADED: weakref.WeakValueDictionary[tuple[Any, ...], LlamaWeights] = weakref.WeakValueDictionary()
LOADING = threading.Lock()


class LlamaWeights:
    """A loaded model, freed when no engine or cache uses it any more."""

    def __init__(self, path: Path, device: str, layers: int, repack: bool) -> None:
        llama = library()
        params = llama.llama_model_default_params()
        self.device, chosen = devices_of(device, layers)
        params.n_gpu_layers = layers
        params.use_extra_bufts = repack
        if chosen is not None:
            params.devices = ctypes.addressof(chosen)
        LOG.clear()
        self.handle = run_uninterrupted(llama.llama_model_load_from_file, os.fsencode(path), params)
        if not self.handle:
            why = logged_reason()
            known = not any(reason in why for reason in UNKNOWN)
            kind = BrokenModel if known else UnsupportedModel
            hint = (
                "Download the model again, or choose another" if known else "Choose another engine or model"
            )
            raise kind(f"llama.cpp cannot load `{path}`: {why}", hint)
        self.contexts: set[int] = set()
        weakref.finalize(self, _free_weights, llama, self.handle, self.contexts)
        if llama.llama_model_has_encoder(self.handle) or llama.llama_model_is_diffusion(self.handle):
            raise UnsupportedModel(f"`{path}` is not a decoder-only model", "Choose another model")
        self.vocab = int(llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.handle)))
        self.context = int(llama.llama_model_n_ctx_train(self.handle))
        self.window = int(llama.llama_model_n_swa(self.handle))
        recurrent = llama.llama_model_is_recurrent(self.handle) or llama.llama_model_is_hybrid(self.handle)
        self.keeps_all_tokens = not self.window and not recurrent  # its KV cache has a cell for every token


def free_context(llama: Any, handle: int, contexts: set[int], busy: threading.Lock) -> None:
    """Free a context unless a thread still computes with it, as it may at exit."""
    if busy.acquire(blocking=False):
        contexts.discard(handle)
        llama.llama_free(handle)


def _free_weights(llama: Any, handle: int, contexts: set[int]) -> None:
    """Free a model that no context uses."""
    if not contexts:
        llama.llama_model_free(handle)


def open_weights(path: Path, device: str, layers: int, repack: bool) -> LlamaWeights:
    """Return the weights of the file `path`, shared by all users of the same file and options."""
    library()
    try:
        file = path.stat()
    except OSError:
        raise UnknownModel(f"No such file: `{path}`", "Download the model again") from None
    key = (file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns, device, layers, repack)
    with LOADING:
        weights = LOADED.get(key)
        if weights is None:
            weights = LOADED[key] = LlamaWeights(path, device, layers, repack)
        return weights


def run_uninterrupted(call: Callable[..., Any], *arguments: Any) -> Any:
    """Make a call that logs in another thread: an interrupt within our log callback would be lost."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call, *arguments).result()


@functools.cache
def library() -> Any:
    """Return llama_cpp with its log redirected to LOG; raises MissingExtra.

    OpenMP threads spin for microseconds while they wait, then sleep: threads that sleep at once take 1.6
    times as long for a pass over one token on a quiet machine, and ones that spin for milliseconds, the
    default, up to twice as long for wider passes while another program uses the cores (docs/performance.md).
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    try:
        import llama_cpp
    except ImportError:
        raise MissingExtra("llama-cpp-python", "gguf") from None
    llama_cpp.llama_log_set(_log_callback(llama_cpp), None)
    llama_cpp.llama_backend_init()
    return llama_cpp


@functools.cache
def _log_callback(llama_cpp: Any) -> Any:
    """Return the callback that records errors; it must live as long as the library."""
    last = 0

    def record(level: int, text: bytes, _: Any) -> None:
        nonlocal last
        last = last if level == CONTINUED else level
        if last == ERROR:
            LOG.append(text.decode("utf-8", "replace").strip())

    return llama_cpp.llama_log_callback(record)


def logged_reason(default: str = "no reason given") -> str:
    """Return the first error in the log, without the names of llama.cpp's functions."""
    line = LOG[0] if LOG else default
    while (first := line.partition(": "))[1] and (first[0].isidentifier() or first[0] in WRAPPINGS):
        line = first[2]
    return line


def devices_of(device: str, layers: int) -> tuple[str, Any]:
    """Return the device a model will run on, and llama.cpp's device list, None to let it choose."""
    available = devices()
    names = [name for name, (_, kind) in available.items() if kind == CPU or kind in GPUS]
    if device == "auto":
        gpus = [name for name, (_, kind) in available.items() if kind in GPUS and layers]
        return (gpus or ["CPU"])[0], None
    if device not in names:
        raise UnknownDevice(device, ["auto", *names])
    pointer, kind = available[device]
    return device, (ctypes.c_void_p * 2)(pointer if kind in GPUS else None, None)


def devices() -> dict[str, tuple[int, int]]:
    """Return the devices of this llama.cpp build: name -> pointer and ggml_backend_dev_type."""
    from llama_cpp._ggml import libggml

    def call(name: str, result: Any, *kinds: Any) -> Any:
        function = libggml[name]  # a private object; the attribute is shared with llama_cpp
        function.restype, function.argtypes = result, kinds
        return function

    name_of = call("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)
    kind_of = call("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)
    get = call("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    count = call("ggml_backend_dev_count", ctypes.c_size_t)()
    pointers = [get(index) for index in range(count)]
    return {name_of(pointer).decode(): (pointer, kind_of(pointer)) for pointer in pointers}


def physical_cores() -> int:
    """Return how many physical cores this process may use; a second thread per core slows llama.cpp."""
    logical = os.cpu_count() or 1
    try:
        cores = {siblings(cpu) for cpu in os.sched_getaffinity(0)}
    except (AttributeError, OSError):
        return logical if sys.platform == "darwin" or logical <= 4 else logical // 2  # llama.cpp's own rule
    return len(cores)


def siblings(cpu: int) -> str:
    """Return the list of logical CPUs that share a core with `cpu`, as Linux formats it."""
    return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text("ascii")
