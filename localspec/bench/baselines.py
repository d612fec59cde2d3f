"""Other programs on the same weights, each in a process of its own.

`python -m localspec.bench.peers NAME JSON` says `{}` when it is ready, then reads a request a line and writes
a reply a line. What went wrong is a reply too: `{"error": ..., "hint": ...}`.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from localspec import devices
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

Reply = dict[str, Any]
Answer = Callable[[str, list[int], int], Reply]  # row, prompt, tokens

DRAFTED = 5  # guesses a round where the program wants a number and has no default of its own
LOOKED_UP = 10
CONTEXT = 8192

PEERS: dict[str, tuple[str, ...]] = {  # what `--against` takes -> the rows that it makes
    "genai": ("genai", "genai-draft", "genai-lookup"),
    "llamacpp": ("llamacpp", "llamacpp-lookup"),
    "transformers": ("transformers", "transformers-assisted", "transformers-lookup"),
}
SHARING = {  # rows that run the same weights -> the row whose process they share: torch packs nothing
    "transformers-assisted": "transformers",
    "transformers-lookup": "transformers",
}
WITH_DRAFT = ("genai-draft", "transformers-assisted")


def rows(name: str, draft: bool) -> list[str]:
    """Return the rows of a peer; those with a draft model only where there is one. Raises BadValue."""
    if name not in PEERS:
        raise BadValue(f"There is no peer called `{name}`", suggestion(name, ["plain", *PEERS]))
    return [row for row in PEERS[name] if draft or row not in WITH_DRAFT]


def genai(name: str, given: Reply) -> Answer:
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
    model = _form(given["model"], "openvino")
    if name == "genai-draft":
        model = _with_tokenizer(model)
        draft = _with_tokenizer(_form(given["draft"], "openvino"))
        options["draft_model"] = genai.draft_model(draft, given["device"])
    if name == "genai-lookup":
        options["prompt_lookup"] = True
    pipeline = genai.LLMPipeline(model, given["device"], **options)
    config = genai.GenerationConfig(do_sample=False, stop_token_ids=set(given["stop_tokens"]))
    if name == "genai-draft":
        config.num_assistant_tokens = DRAFTED
    if name == "genai-lookup":
        config.num_assistant_tokens, config.max_ngram_size = DRAFTED, 3

    def answer(row: str, prompt: list[int], tokens: int) -> Reply:
        config.max_new_tokens = tokens
        started = perf_counter()
        result = pipeline.generate(ov.Tensor(np.array([prompt], np.int64)), config)
        seconds = perf_counter() - started
        first = result.perf_metrics.get_ttft().mean / 1000
        return _reply(list(result.tokens[0]), len(prompt), first, seconds - first)

    return answer


def _with_tokenizer(folder: str) -> str:
    """Return a folder with the same model and the tokenizer's graphs, which GenAI wants beside a draft."""
    if (Path(folder) / openvino.NAMES[0]).is_file():
        return folder
    linked = Path(tempfile.mkdtemp(prefix="localspec-"))
    atexit.register(shutil.rmtree, linked, ignore_errors=True)
    for file in Path(folder).iterdir():
        if file.is_file():
            (linked / file.name).symlink_to(file.resolve())
    if not openvino.write(linked):
        raise MissingExtra("optimum-intel", "export")
    return str(linked)


def llamacpp(name: str, given: Reply) -> Answer:
    """Drive llama-cpp-python; its own drafts are looked up in the prompt."""
    try:
        import llama_cpp
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
    except ImportError:
        raise MissingExtra("llama-cpp-python", "gguf") from None
    lookup = LlamaPromptLookupDecoding(num_pred_tokens=LOOKED_UP) if name == "llamacpp-lookup" else None
    model = llama_cpp.Llama(
        model_path=_form(given["model"], "gguf"),
        n_ctx=CONTEXT,
        n_threads=given["threads"] or None,
        n_threads_batch=given["threads"] or None,
        logits_all=lookup is not None,
        draft_model=lookup,
        verbose=False,
    )
    stops = set(given["stop_tokens"])

    def answer(row: str, prompt: list[int], tokens: int) -> Reply:
        found: list[int] = []
        started = first = perf_counter()
        for token in model.generate(prompt, temp=0.0, top_k=1, repeat_penalty=1.0):
            if not found:
                first = perf_counter()
            found.append(int(token))
            if token in stops or len(found) >= tokens:
                break
        return _reply(found, len(prompt), first - started, perf_counter() - first)

    return answer


def transformers(name: str, given: Reply) -> Answer:
    """Drive transformers' `generate` on the CPU: all its rows with one model in memory."""
    try:
        import torch
    except ImportError:
        raise MissingExtra("torch", "export") from None
    from localspec.formats.huggingface.transformers import load

    if given["threads"]:
        torch.set_num_threads(given["threads"])
    place = torch.device("cpu")
    files = [Path(_form(given[kind], "safetensors", "gguf")) for kind in ("model", "draft") if given[kind]]
    _check_memory(files)
    model = load(files[0], place, torch.float32)
    options: dict[str, Any] = {"do_sample": False, "eos_token_id": given["stop_tokens"], "pad_token_id": 0}
    own: dict[str, dict[str, Any]] = {"transformers-lookup": {"prompt_lookup_num_tokens": LOOKED_UP}}
    if len(files) > 1:
        own["transformers-assisted"] = {"assistant_model": load(files[1], place, torch.float32)}

    def answer(row: str, prompt: list[int], tokens: int) -> Reply:
        times: list[float] = []
        ids = torch.tensor([prompt])
        read = model.register_forward_hook(lambda *_: times.append(perf_counter()))
        started = perf_counter()
        with torch.inference_mode():
            found = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                **options,
                **own.get(row, {}),
            )
        read.remove()
        first = times[0]  # the model has read the prompt; an assistant writes a draft before
        made = found[0, len(prompt) :].tolist()
        reply = _reply(made, len(prompt), first - started, perf_counter() - first)
        return reply | {"token_ids": made[:tokens]}  # a draft may run past the last one that was asked for

    return answer


def _check_memory(files: Sequence[Path]) -> None:
    """Raise TooLittleMemory where the weights of `files` do not fit in float32."""
    needed = sum(4 * elements(file) for file in files) + devices.SPARE
    if needed > (free := devices.free_memory()):
        raise TooLittleMemory("transformers in float32", needed, free)


def elements(path: Path) -> int:
    """Return how many weights a GGUF file or a Hugging Face folder has."""
    opened = GgufFile.open(path) if path.is_file() else SafetensorsFolder.open(path)
    return sum(math.prod(info.shape) for info in opened.tensors.values())


def _reply(tokens: list[int], prompt: int, first: float, rest: float) -> Reply:
    """Return a reply: the first token came with the prompt's reading, so decoding made the others."""
    return {
        "token_ids": tokens,
        "prompt_tokens": prompt,
        "prefill_seconds": first,
        "decode_seconds": max(rest, 0.0),
        "decode_tokens": max(len(tokens) - 1, 0),
    }


def _form(paths: dict[str, str | None], *forms: str) -> str:
    """Return the model's files in the first of `forms` that is there."""
    for form in forms:
        if path := paths.get(form):
            return path
    raise UnsupportedModel(f"It reads {' or '.join(forms)}, which this model does not have")


def main() -> None:
    """Serve one peer over standard input and output."""
    name, given = sys.argv[1], json.loads(sys.argv[2])
    program = {"genai": genai, "llamacpp": llamacpp, "transformers": transformers}[name.partition("-")[0]]
    with _own_output() as say:
        try:
            answer = program(name, given)
            say({})
            for line in sys.stdin:
                request = json.loads(line)
                say(answer(request["row"], request["prompt"], request["tokens"]))
        except LocalspecError as error:
            say({"error": error.message, "hint": error.hint})
        except Exception as error:  # whatever another program raises is its row's business
            say({"error": f"{type(error).__name__}: {error}"})


@contextmanager
def _own_output() -> Iterator[Callable[[Reply], None]]:
    """Keep stdout for replies; what the program prints there goes to stderr."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(values: Reply) -> None:
        replies.write(json.dumps(values) + "\n")
        replies.flush()

    with replies:
        yield say


if __name__ == "__main__":
    main()
