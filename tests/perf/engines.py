"""Plain decoding on an engine against its own library's loop, on the same weights, turn by turn.

python tests/perf/engines.py llamacpp MODEL       a loop of llama-cpp-python's low-level calls
python tests/perf/engines.py torch MODEL          transformers' `generate`, greedy
python tests/perf/engines.py weights MODEL        what one engine, and two of them, take in memory
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import psutil

from localspec import plugins
from localspec.cli.progress import Terminal
from localspec.core.cursor import Cursor
from localspec.core.types import shared_prefix
from localspec.library import Library, StoredModel
from localspec.runtime.loading import LoadSpec

PROMPTS = (
    "Write a Python function that checks whether a number is prime.",
    "Explain in a few sentences how a hash table works.",
)


def opened(name: str, form: str) -> StoredModel:
    with Terminal() as progress:
        return Library().resolve(name, progress, (form,))


def prompts(model: StoredModel) -> list[list[int]]:
    template = model.template()
    assert template is not None
    texts = [template.render([{"role": "user", "content": prompt}]) for prompt in PROMPTS]
    return [model.tokenizer().encode(text, add_special_tokens=False).ids for text in texts]


def ours(engine: Any, prompt: list[int], tokens: int) -> tuple[list[int], float]:
    """Return greedy tokens and the seconds a token takes after the first; the loop's own calls."""
    cursor, text, times = Cursor(engine.session()), list(prompt), []
    cursor.read(text[:-1], rows=0)
    for _ in range(tokens):
        text.append(int(cursor.read(text)[0].argmax()))
        times.append(perf_counter())
    return text[len(prompt) :], (times[-1] - times[0]) / (tokens - 1)


def llamacpp(options: argparse.Namespace) -> dict[str, Any]:
    """Compare with the shortest loop that llama-cpp-python's low-level calls allow."""
    import llama_cpp as llama

    model = opened(options.model, "gguf")
    engine: Any = LoadSpec(plugins.parse("engines", f"llamacpp:threads={options.threads}"), model).load()
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = 1024, 512, 512
    params.n_threads = params.n_threads_batch = options.threads
    weights = engine.weights.handle
    vocab = engine.vocab

    def theirs(prompt: list[int], tokens: int) -> tuple[list[int], float]:
        context = llama.llama_init_from_model(weights, params)
        found, times = [], []
        read = (ctypes.c_int32 * len(prompt))(*prompt)
        llama.llama_decode(context, llama.llama_batch_get_one(read, len(prompt)))
        one = (ctypes.c_int32 * 1)()
        for _ in range(tokens):
            row = np.ctypeslib.as_array(llama.llama_get_logits(context), (vocab,))
            one[0] = int(row.argmax())
            found.append(one[0])
            times.append(perf_counter())
            llama.llama_decode(context, llama.llama_batch_get_one(one, 1))
        llama.llama_free(context)
        return found, (times[-1] - times[0]) / (tokens - 1)

    return compared(options, engine, prompts(model), theirs)


def torch(options: argparse.Namespace) -> dict[str, Any]:
    """Compare with `generate` on the very same module."""
    import torch as library

    model = opened(options.model, options.form)
    spec = f"torch:device={options.device},precision={options.precision}"
    engine: Any = LoadSpec(plugins.parse("engines", spec), model).load()

    def theirs(prompt: list[int], tokens: int) -> tuple[list[int], float]:
        clock = Clock()
        ids = library.tensor([prompt], device=engine.place)
        given = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
        with library.inference_mode():
            found = engine.model.generate(ids, attention_mask=library.ones_like(ids), streamer=clock, **given)
        return found[0, len(prompt) :].tolist(), clock.seconds

    return compared(options, engine, prompts(model), theirs)


class Clock:
    """A streamer that notes when tokens come."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        self.times.append(perf_counter())

    def end(self) -> None:
        pass

    @property
    def seconds(self) -> float:
        """Seconds a token after the first; what came first is the prompt."""
        return (self.times[-1] - self.times[1]) / (len(self.times) - 2)


def compared(
    options: argparse.Namespace,
    engine: Any,
    asked: list[list[int]],
    theirs: Callable[[list[int], int], tuple[list[int], float]],
) -> dict[str, Any]:
    """Answer each prompt by turns; return the medians and their ratio, and how far the texts agree."""
    spent: dict[str, list[float]] = {"localspec": [], "theirs": []}
    agree = []
    ours(engine, asked[0], 4)
    theirs(asked[0], 4)
    argument_constraints = {"localspec": lambda *asked: ours(engine, *asked), "theirs": theirs}
    for turn in range(options.repeat):
        for prompt in asked:
            told = {}
            for name in list(argument_constraints)[:: -1 if turn % 2 else 1]:
                told[name], seconds = argument_constraints[name](prompt, options.tokens)
                spent[name].append(seconds)
            agree.append(shared_prefix(told["localspec"], told["theirs"]))
    median = {name: statistics.median(seconds) for name, seconds in spent.items()}
    return {
        "device": engine.device,
        "tokens_per_second": {name: round(1 / seconds, 2) for name, seconds in median.items()},
        "ratio": round(median["theirs"] / median["localspec"], 3),
        "ratio_of_minima": round(min(spent["theirs"]) / min(spent["localspec"]), 3),
        "same_tokens": agree,
        "tokens": options.tokens,
        "repetitions": options.repeat * len(asked),
    }


def weights(options: argparse.Namespace) -> dict[str, Any]:
    """Return resident megabytes with one engine on a file, and with a second one on the same file."""
    process, found = psutil.Process(), {}
    form = {"openvino": "openvino", "llamacpp": "gguf", "torch": options.form}[options.engine]
    model, spec = opened(options.model, form), plugins.parse("engines", options.engine)
    making = LoadSpec(spec, model)
    engines: list[Any] = []
    before = process.memory_info().rss
    for count in (1, 2):
        engines.append(making.load())
        session = engines[-1].session()
        session.forward(list(range(1, 30)), 1)
        session.forward([5], 1)
        gc.collect()
        found[f"{count} engines"] = round((process.memory_info().rss - before) / 1e6)
    return {"resident_mb": found, "weights_mb": round(making.memory / 1e6), "engine": str(spec)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["llamacpp", "torch", "weights"])
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--engine", default="openvino")
    parser.add_argument("--form", default="gguf", help="what torch reads: gguf or safetensors")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="f32")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    print(json.dumps(globals()[options.what](options), indent=2))


if __name__ == "__main__":
    main()
