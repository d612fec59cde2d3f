"""Other programs on the same weights, each in its own process.

`python -m localspec.bench.baselines ROW JSON` writes `{}` when it is ready, then reads requests and writes
replies as JSON lines. An error is a reply too: `{"error": ..., "hint": ...}`.
"""

from __future__ import annotations

import atexit
import json
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

from localspec import devices
from localspec.children import replies_on_stdout
from localspec.disk import atomic
from localspec.errors import (
    BadValue,
    LocalspecError,
    MissingExtra,
    TooLittleMemory,
    UnsupportedModel,
    suggestion,
)
from localspec.formats.gguf.file import GgufFile
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.formats.tokenizer import openvino

_until_exit = ExitStack()
atexit.register(_until_exit.close)

Reply = dict[str, Any]
Answer = Callable[[str, list[int], int, bool], Reply]  # row, prompt, tokens, whether nothing of it is cached

DRAFT_LENGTH = 5  # for programs that need a number and have no default
LOOKUP_LENGTH = 10
CONTEXT = 8192

BASELINES: dict[str, tuple[str, ...]] = {  # a name for `--against` -> its rows in the report
    "genai": ("genai", "genai-draft", "genai-lookup"),
    "llamacpp": ("llamacpp", "llamacpp-lookup"),
    "transformers": ("transformers", "transformers-assisted", "transformers-lookup"),
}
SHARED_WEIGHTS = {  # a row -> the row whose process, and weights, it shares
    "transformers-assisted": "transformers",
    "transformers-lookup": "transformers",
}
WITH_DRAFT = ("genai-draft", "transformers-assisted")


def rows(name: str) -> tuple[str, ...]:
    """Return the rows of a baseline; raises BadValue for an unknown one."""
    if name not in BASELINES:
        raise BadValue(f"Unknown baseline `{name}`", suggestion(name, ["plain", *BASELINES]))
    return BASELINES[name]


def genai(name: str, settings: Reply) -> Answer:
    """Drive OpenVINO GenAI."""
    try:
        import openvino as ov
        import openvino_genai as genai
    except ImportError:
        raise LocalspecError(
            "`openvino-genai` is not installed", "Type `pip install openvino-genai`"
        ) from None
    import numpy as np

    options: dict[str, Any] = {}
    model = _files(settings["model"], "openvino")
    if name == "genai-draft":
        model = _with_tokenizer(model)
        draft = _with_tokenizer(_files(settings["draft"], "openvino"))
        options["draft_model"] = genai.draft_model(draft, settings["device"])
    if name == "genai-lookup":
        options["prompt_lookup"] = True
    pipeline = genai.LLMPipeline(model, settings["device"], **options)
    config = genai.GenerationConfig(do_sample=False, stop_token_ids=set(settings["stop_tokens"]))
    if name == "genai-draft":
        config.num_assistant_tokens = DRAFT_LENGTH
    if name == "genai-lookup":
        config.num_assistant_tokens, config.max_ngram_size = DRAFT_LENGTH, 3

    def answer(row: str, prompt: list[int], tokens: int, fresh: bool) -> Reply:
        config.max_new_tokens = tokens
        started = perf_counter()
        result = pipeline.generate(ov.Tensor(np.array([prompt], np.int64)), config)
        seconds = perf_counter() - started
        first = result.perf_metrics.get_ttft().mean / 1000
        return _reply(list(result.tokens[0]), len(prompt), first, seconds - first)

    return answer


def _with_tokenizer(folder: str) -> str:
    """Return a folder with the model and its tokenizer's graphs, which GenAI needs for a draft model."""
    if (Path(folder) / openvino.NAMES[0]).is_file():
        return folder
    linked = _until_exit.enter_context(atomic.scratch(Path(tempfile.gettempdir()) / "localspec-genai"))
    for file in Path(folder).iterdir():
        if file.is_file():
            (linked / file.name).symlink_to(file.resolve())
    if not openvino.write(linked):
        raise MissingExtra("optimum-intel", "export")
    return str(linked)


def llamacpp(name: str, settings: Reply) -> Answer:
    """Drive llama-cpp-python, with or without its prompt lookup."""
    try:
        import llama_cpp
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
    except ImportError:
        raise MissingExtra("llama-cpp-python", "gguf") from None
    lookup = LlamaPromptLookupDecoding(num_pred_tokens=LOOKUP_LENGTH) if name == "llamacpp-lookup" else None
    model = llama_cpp.Llama(
        model_path=_files(settings["model"], "gguf"),
        n_ctx=CONTEXT,
        n_threads=settings["threads"] or None,
        n_threads_batch=settings["threads"] or None,
        logits_all=lookup is not None,
        draft_model=lookup,
        verbose=False,
    )
    stops = set(settings["stop_tokens"])

    def answer(row: str, prompt: list[int], tokens: int, fresh: bool) -> Reply:
        if fresh:
            model.reset()  # else it keeps what the prompt shares with the last text
        answered: list[int] = []
        started = first = perf_counter()
        for token in model.generate(prompt, temp=0.0, top_k=1, repeat_penalty=1.0):
            if not answered:
                first = perf_counter()
            answered.append(int(token))
            if token in stops or len(answered) >= tokens:
                break
        return _reply(answered, len(prompt), first - started, perf_counter() - first)

    return answer


def transformers(name: str, settings: Reply) -> Answer:
    """Drive transformers' `generate` on the CPU; all its rows share one model."""
    try:
        import torch
    except ImportError:
        raise MissingExtra("torch", "export") from None
    from localspec.formats.huggingface.loading import load

    if settings["threads"]:
        torch.set_num_threads(settings["threads"])
    place = torch.device("cpu")
    files = [
        Path(_files(settings[kind], "safetensors", "gguf")) for kind in ("model", "draft") if settings[kind]
    ]
    _check_memory(files)
    model = load(files[0], place, torch.float32)
    options: dict[str, Any] = {"do_sample": False, "eos_token_id": settings["stop_tokens"], "pad_token_id": 0}
    own: dict[str, dict[str, Any]] = {"transformers-lookup": {"prompt_lookup_num_tokens": LOOKUP_LENGTH}}
    if len(files) > 1:
        own["transformers-assisted"] = {"assistant_model": load(files[1], place, torch.float32)}

    def answer(row: str, prompt: list[int], tokens: int, fresh: bool) -> Reply:
        times: list[float] = []
        input_ids = torch.tensor([prompt])
        hook = model.register_forward_hook(lambda *_: times.append(perf_counter()))
        started = perf_counter()
        with torch.inference_mode():
            output = model.generate(
                input_ids,
                attention_mask=torch.ones_like(input_ids),
                max_new_tokens=tokens,
                **options,
                **own.get(row, {}),
            )
        hook.remove()
        first = times[0]  # the end of the target's prefill, which may come after the first draft
        ids = output[0, len(prompt) :].tolist()
        reply = _reply(ids, len(prompt), first - started, perf_counter() - first)
        return reply | {"token_ids": ids[:tokens]}  # a draft may run past the limit

    return answer


def _check_memory(files: Sequence[Path]) -> None:
    """Raise TooLittleMemory if the weights of `files` do not fit in float32."""
    needed = sum(4 * count_weights(file) for file in files) + devices.ENGINE_OVERHEAD
    if needed > (free := devices.free_memory()):
        raise TooLittleMemory("transformers in float32", needed, free)


def count_weights(path: Path) -> int:
    """Return the number of weights in a GGUF file or a Hugging Face folder."""
    weights = GgufFile.open(path) if path.is_file() else SafetensorsFolder.open(path)
    return sum(math.prod(info.shape) for info in weights.tensors.values())


def _reply(tokens: list[int], prompt: int, first: float, rest: float) -> Reply:
    """Return a reply; the first token comes from prefill, the others from decoding."""
    return {
        "token_ids": tokens,
        "prompt_tokens": prompt,
        "prefill_seconds": first,
        "decode_seconds": max(rest, 0.0),
        "decode_tokens": max(len(tokens) - 1, 0),
    }


def _files(paths: dict[str, str | None], *formats: str) -> str:
    """Return the model's files in the first available of `formats`."""
    for name in formats:
        if path := paths.get(name):
            return path
    raise UnsupportedModel(f"It reads {' or '.join(formats)}, which this model does not have")


def main() -> None:
    """Serve one baseline over stdin and stdout."""
    name, settings = sys.argv[1], json.loads(sys.argv[2])
    program = {"genai": genai, "llamacpp": llamacpp, "transformers": transformers}[name.partition("-")[0]]
    with replies_on_stdout() as reply:
        try:
            answer = program(name, settings)
            reply({})
            for line in sys.stdin:
                request = json.loads(line)
                reply(answer(request["row"], request["prompt"], request["tokens"], request["fresh"]))
        except LocalspecError as error:
            reply({"error": error.message, "hint": error.hint})
        except Exception as error:  # another program may raise anything
            reply({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
