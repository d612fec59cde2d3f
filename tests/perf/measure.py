"""Measure what docs/performance.md reports: everything that is compared runs interleaved in one process.

    python tests/perf/measure.py plain MODEL     # against openvino-genai on the same files (install it first)
    python tests/perf/measure.py draft MODEL --draft SPEC [--draft-length SPEC] [--prompts code|edit]
    python tests/perf/measure.py share MODEL     # the loop's own share of decode time
    python tests/perf/measure.py start MODEL     # process start to first token, second run
    python tests/perf/measure.py memory MODEL    # resident memory after an answer
    python tests/perf/measure.py parts           # microseconds of sampler and ngram
    python tests/perf/measure.py curve MODEL     # milliseconds of a pass over 1, 2, 4, 8, 16 tokens
    python tests/perf/measure.py prompt MODEL    # seconds to read prompts, beside llama.cpp
    python tests/perf/measure.py flips MODEL     # likeliest tokens of wider passes against one by one

MODEL is whatever `localspec chat` takes. Ratios are of medians of decode tokens per second; a speed-up is
printed only beside a passed parity check.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from localspec import plugins
from localspec.chat import Chat
from localspec.cli.progress import Terminal
from localspec.core.cursor import Cursor
from localspec.core.decode import make_draft
from localspec.core.sampler import Sampler, Sampling
from localspec.core.types import Guess, Proposal, Step, Verdict
from localspec.library import Library
from localspec.runtime.answer import Answer
from localspec.runtime.choice import Choice
from localspec.runtime.generation import Runtime

FILE = (Path(__file__).parent / "inventory.py").read_text("utf-8")
PROMPTS = {
    "code": [
        "Write a Python function that checks whether a number is prime.",
        "Write a Python class for a bank account with deposit, withdraw and a history of transactions.",
        "Write a Python function that reads a CSV file and returns the mean of each numeric column.",
        "Write a Python function that merges two sorted lists, with type hints and a docstring.",
    ],
    "edit": [
        f"Rewrite this file, renaming the class `{old}` to `{new}`. Reply with the whole file.\n\n{FILE}"
        for old, new in (("Item", "Product"), ("Inventory", "Warehouse"))
    ],
}


def open_runtime(model: str, **choice: str) -> Runtime:
    library = Library()
    with Terminal() as progress:
        return Runtime.load(model, Choice(**{"engine": "openvino"} | choice), library, progress)


def answer_to(runtime: Runtime, prompt: str, tokens: int) -> Answer:
    """Answer `prompt` greedily in a new conversation, nothing of it read before."""
    runtime.forget()
    answer, steps = Chat(runtime, sampling=Sampling(), max_tokens=tokens).ask(prompt)
    for _ in steps:
        pass
    return answer


def draft(options: argparse.Namespace) -> dict[str, Any]:
    """Compare plain decoding with a draft, prompt by prompt, and check that the texts agree."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import parity

    plain = open_runtime(options.model, draft="off")
    guessed = open_runtime(options.model, draft=options.draft, draft_length=options.draft_length)
    guessed.engine, guessed.target.session = plain.engine, plain.engine.session()
    prompts = PROMPTS[options.prompts]
    rates: dict[str, list[list[float]]] = {"plain": [], "draft": []}
    passes, tokens = 0, 0
    for prompt in prompts:
        for runs in rates.values():
            runs.append([])
        for _ in range(options.repeat):
            one = answer_to(plain, prompt, options.tokens)
            two = answer_to(guessed, prompt, options.tokens)
            rates["plain"][-1].append(one.tokens_per_second)
            rates["draft"][-1].append(two.tokens_per_second)
            passes, tokens = passes + two.stats.passes, tokens + two.stats.tokens
        parity.check(  # raises: a speed-up of another text is none
            one.token_ids,
            two.token_ids,
            engine=plain.engine,
            prompt=encoded(plain, prompt),
            tolerance=parity.ROUNDED,
        )
    ratios = [
        statistics.median(after) / statistics.median(before)
        for before, after in zip(rates["plain"], rates["draft"], strict=True)
    ]
    return {
        "parity": "passed",
        "speedup": round(statistics.geometric_mean(ratios), 3),
        "by_prompt": [round(ratio, 3) for ratio in ratios],
        "plain_tokens_per_second": round(statistics.median(sum(rates["plain"], [])), 2),
        "tokens_per_pass": round(tokens / passes, 2),
        "repetitions": options.repeat,
    }


def encoded(runtime: Runtime, prompt: str) -> list[int]:
    template = runtime.model.template()
    assert template is not None
    return runtime.encode(template.render([{"role": "user", "content": prompt}]), raw=False)


def plain(options: argparse.Namespace) -> dict[str, Any]:
    """Compare plain decoding with OpenVINO GenAI's on the same files, as it comes and with our arithmetic."""
    import openvino as ov
    import openvino_genai as genai

    ours = open_runtime(options.model, draft="off")
    same = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f16"}
    folder = str(ours.model.folder)
    theirs = {
        "genai": genai.LLMPipeline(folder, "CPU"),
        "genai, our arithmetic": genai.LLMPipeline(folder, "CPU", **same),
    }
    config = genai.GenerationConfig(max_new_tokens=options.tokens, ignore_eos=True, do_sample=False)
    rates: dict[str, list[float]] = {"localspec": [], **{name: [] for name in theirs}}
    for _ in range(options.repeat):
        for prompt in PROMPTS["code"]:
            ids = encoded(ours, prompt)
            rates["localspec"].append(answer_rate(ours, ids, options.tokens))
            for name, pipeline in theirs.items():
                result = pipeline.generate(ov.Tensor(np.array([ids])), config)
                rates[name].append(1000 / result.perf_metrics.get_tpot().mean)
    found = {name: statistics.median(measured) for name, measured in rates.items()}
    return {
        "tokens_per_second": {name: round(rate, 2) for name, rate in found.items()},
        "ratio": {name: round(found["localspec"] / found[name], 3) for name in theirs},
        "repetitions": options.repeat * len(PROMPTS["code"]),
    }


def answer_rate(runtime: Runtime, ids: list[int], tokens: int) -> float:
    """Return plain decode tokens per second, going on past the end of the turn."""
    stops, runtime.model.__dict__["stop_tokens"] = runtime.model.stop_tokens, list
    runtime.forget()
    answer, steps = runtime.answer(ids, sampling=Sampling(), max_tokens=tokens)
    times = [perf_counter() for _ in steps]
    runtime.model.__dict__["stop_tokens"] = stops
    return (len(answer.token_ids) - 1) / (times[-1] - times[0])


def share(options: argparse.Namespace) -> dict[str, Any]:
    """Return the loop's share: decode time that is neither the target's nor the draft's."""
    found = {}
    for name in ("off", "ngram"):
        runtime = open_runtime(options.model, draft=name)
        shares = []
        for prompt in PROMPTS["code"]:
            answer = answer_to(runtime, prompt, options.tokens)
            decode = answer.seconds - answer.prompt_seconds
            parts = answer.stats.target_seconds + (answer.stats.draft_seconds if name != "ngram" else 0.0)
            shares.append((decode - parts) / decode)
        found[name] = round(statistics.median(shares), 4)
    return {"share": found}


def start(options: argparse.Namespace) -> dict[str, Any]:
    """Return seconds from process start to the first character of an answer."""
    command = [sys.executable, "-m", "localspec", "chat", options.model, "Say hello.", "--max-tokens", "4"]
    seconds = []
    for _ in range(options.repeat):
        started = perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            process.stdout.read(1)
            seconds.append(perf_counter() - started)
            process.stdout.read()
    return {"seconds": [round(second, 2) for second in sorted(seconds)]}


def memory(options: argparse.Namespace) -> dict[str, Any]:
    """Return resident megabytes after an answer, the most there were, and those of weights and cache."""
    runtime = open_runtime(options.model, draft="ngram")
    answer_to(runtime, PROMPTS["edit"][0], options.tokens)
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text("utf-8").splitlines())
    session: Any = runtime.target.session
    cache = sum(tensor.byte_size for tensor in session._reader._tensors.values())
    weights = os.path.getsize(runtime.model.folder / "openvino_model.bin")
    resident = int(lines["VmRSS"].split()[0]) * 1024
    return {
        "most_mb": round(int(lines["VmHWM"].split()[0]) * 1024 / 1e6),
        "resident_mb": round(resident / 1e6),
        "weights_mb": round(weights / 1e6),
        "cache_mb": round(cache / 1e6),
        "over_mb": round((resident - weights - cache) / 1e6),
    }


def curve(options: argparse.Namespace) -> dict[str, Any]:
    """Return the shortest of repeated passes behind 40 tokens, activations rounded to int8 and not."""
    folder = open_runtime(options.model, draft="off").model.folder
    widths, found = (1, 2, 4, 8, 16), {}
    specs = ("openvino", "openvino:group=0")
    sessions = {spec: plugins.parse("engines", spec).make(folder).session() for spec in specs}
    seconds: dict[tuple[str, int], list[float]] = {}
    for session in sessions.values():
        session.forward(range(1000, 1040), 0)
    for _ in range(options.repeat):
        for width in widths:
            for spec, session in sessions.items():
                for _ in range(3):  # a new width costs OpenVINO 3 ms
                    started = perf_counter()
                    session.forward(range(2000, 2000 + width), width)
                    seconds.setdefault((spec, width), []).append(perf_counter() - started)
                    session.rewind(40)
    for spec in specs:
        found[spec] = {width: round(1000 * min(seconds[spec, width]), 1) for width in widths}
    return {"milliseconds": found, "repetitions": options.repeat}


def prompt(options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds from prompts of 1,000 and 4,000 tokens to their logits, in turns with llama.cpp."""
    folder = open_runtime(options.model, draft="off").model.folder
    paths = {"openvino": folder, "llamacpp": next(folder.glob("*.gguf"))}
    cursors = {
        name: Cursor(plugins.parse("engines", name).make(path).session()) for name, path in paths.items()
    }
    found: dict[str, dict[str, float]] = {}
    for length in (1000, 4000):
        text = [1000 + at % 5000 for at in range(length)]
        seconds: dict[str, list[float]] = {}
        for _ in range(options.repeat):
            for name, cursor in cursors.items():
                cursor.read([], rows=0)
                started = perf_counter()
                cursor.read(text, rows=1)
                seconds.setdefault(name, []).append(perf_counter() - started)
        best = {name: round(min(taken), 2) for name, taken in seconds.items()}
        found[str(length)] = best | {"ratio": round(best["llamacpp"] / best["openvino"], 2)}
    return {"seconds": found, "repetitions": options.repeat}


def flips(options: argparse.Namespace) -> dict[str, Any]:
    """Count where passes over 2, 4 and 8 tokens have another likeliest token than one by one."""
    runtime = open_runtime(options.model, draft="off")
    path = Path(__file__).parents[1] / "data" / "perplexity.txt"
    text = runtime.encode(path.read_text("utf-8"), raw=True)[: 100 + options.tokens]
    found = {}
    for spec in ("openvino", "openvino:pad=off", "openvino:group=0", "openvino:group=0,kv=f32"):
        session = plugins.parse("engines", spec).make(runtime.model.folder).session()
        single = read_by(session, text, 1)
        gaps, difference = [], 0.0
        for width in (2, 4, 8):
            wide = read_by(session, text, width)
            difference = max(difference, float(np.abs(wide - single).max()))
            other = wide.argmax(axis=1)
            at = np.flatnonzero(other != single.argmax(axis=1))
            gaps += (single[at].max(axis=1) - single[at, other[at]]).tolist()
        found[spec] = {
            "positions": 3 * len(single),
            "flips": len(gaps),
            "largest_gap": round(max(gaps, default=0), 4),
            "largest_difference": difference,
        }
    return found


def read_by(session: Any, text: list[int], width: int) -> Any:
    """Return the logits after token 100 and on, read `width` tokens at a time."""
    session.rewind(0)
    session.forward(text[:100], 0)
    pieces = [text[at : at + width] for at in range(100, len(text), width)]
    return np.concatenate([session.forward(piece, len(piece)).copy() for piece in pieces])


def parts(options: argparse.Namespace) -> dict[str, Any]:
    """Return microseconds of what runs between passes: 151,936 logits a row, 8,000 tokens of text."""
    row = np.random.default_rng(0).normal(scale=3, size=151_936).astype(np.float32)
    text = np.random.default_rng(1).integers(0, 5000, 8000).tolist()
    found = {}
    for name, sampling in {
        "greedy": Sampling(),
        "top-k 20, top-p 0.8": Sampling(temperature=0.7, top_k=20, top_p=0.8),
        "top-p 0.9": Sampling(temperature=0.7, top_p=0.9),
        "top-k 20, repetition penalty": Sampling(temperature=0.7, top_k=20, repetition_penalty=1.1),
        "temperature alone": Sampling(temperature=1.0),
    }.items():
        sampler = Sampler(sampling)
        found[name] = microseconds(lambda sampler=sampler: sampler.choose(row, text))  # type: ignore[misc]
    found |= drafter_microseconds(text) | step_microseconds(text)
    return {"microseconds": found | {f"adaptive, {count} guesses": deciding(count) for count in (16, 0)}}


def deciding(count: int) -> float:
    """Return the median microseconds that the policy takes for a step with so many guesses."""
    policy, seconds = plugins.parse("draft_length", "adaptive").make(), []
    policy.begin([])
    confidence = 0.99 if count else 0.001
    for _ in range(400):
        started = perf_counter()
        draft: list[Guess] = []
        guess = Guess(5, None, confidence, "suffix")
        while policy.wants_more(draft, guess):
            draft.append(guess)
        drafted, accepted = len(draft), len(draft) if count else 0
        tokens, costs, cost = (1,) * (accepted + 1), (1e-5,) * drafted, 0.05 + 0.001 * drafted
        proposals = (Proposal("suffix", 0, True),) * drafted + (Proposal("suffix", 0, False),)
        policy.learn(Step(tokens, drafted, accepted, 0.0, cost, "", None, tuple(draft), costs, proposals))
        if drafted == count:
            seconds.append(perf_counter() - started)
    return round(statistics.median(seconds) * 1e6, 1)


def drafter_microseconds(text: list[int]) -> dict[str, float]:
    ngram, sampler = plugins.parse("drafters", "ngram").make(None), Sampler(Sampling())
    list(ngram.propose(text, sampler))
    grown = list(text)

    def step() -> None:
        grown.append(grown[len(grown) - 500])
        next(ngram.propose(grown, sampler), None)

    return {"ngram, a token and a guess": microseconds(step)}


def step_microseconds(text: list[int]) -> dict[str, float]:
    """Time all of a step but the passes, with `hybrid` and `adaptive`: copies accepted, and rejected."""
    found = {}
    rows = np.random.default_rng(2).normal(size=(17, 151_936)).astype(np.float32)
    for name, stand in (("accepted copies", True), ("rejected guesses", False)):
        drafter = plugins.parse("drafters", "hybrid").make(None)
        policy, sampler = plugins.parse("draft_length", "adaptive").make(), Sampler(Sampling())
        drafter.begin(text)
        policy.begin(text)
        told, depths, seconds = list(text), [], []
        for _ in range(300):
            started = perf_counter()
            draft, costs, proposals = make_draft(told, drafter, policy, sampler, 1000)
            whole = told + [guess.token for guess in draft]
            accepted = len(draft) if stand else 0
            token = whole[-500] if stand else whole[-500] + 1
            drafter.observe(whole, rows[: len(draft) + 1], Verdict(accepted, token))
            tokens = (*whole[len(told) : len(told) + accepted], token)
            cost = 0.1 + 0.003 * len(draft)
            made = (tuple(draft), tuple(costs), tuple(proposals))
            policy.learn(Step(tokens, len(draft), accepted, 0.0, cost, "", None, *made))
            seconds.append(perf_counter() - started)
            told += tokens
            depths.append(len(draft))
        found[f"hybrid and adaptive, a step of {name}"] = round(statistics.median(seconds[50:]) * 1e6, 1)
        found[f"its guesses, {name}"] = statistics.mean(depths[50:])
    return found


def microseconds(call: Callable[[], object], times: int = 200) -> float:
    call()
    seconds = []
    for _ in range(times):
        started = perf_counter()
        call()
        seconds.append(perf_counter() - started)
    return round(statistics.median(seconds) * 1e6, 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what",
        choices=["plain", "draft", "share", "start", "memory", "parts", "curve", "prompt", "flips"],
    )
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--draft", default="ngram")
    parser.add_argument("--draft-length", default="adaptive")
    parser.add_argument("--prompts", default="code", choices=list(PROMPTS))
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    print(json.dumps(globals()[options.what](options), indent=2))


if __name__ == "__main__":
    main()
