"""Measure PIPO beside its target: time to first token, tokens a second, agreement.

    PYTHONPATH=. python tests/perf/training/pipo_speed.py SMOLLM2.gguf PIPO_FOLDER --texts DIR/held-out.jsonl

With `--engine openvino` both are folders of the library.

Prints a table with a line for each threshold `least`. Agreement is the share of the tokens written that
the target would have written after the same text. Both models read a prompt of 1,000 tokens by turns.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from time import perf_counter

from localspec import plugins
from localspec.core.contracts import Engine
from localspec.core.cursor import Cursor

LEVELS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("target", type=Path)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--texts", type=Path, required=True, help="JSON lines of prompt and answer tokens")
    parser.add_argument("--count", type=int, default=8, help="prompts that are answered")
    parser.add_argument("--tokens", type=int, default=96, help="of an answer")
    parser.add_argument("--prompt", type=int, default=1000, help="tokens of the prompt whose time is taken")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--engine", default="torch", help="and its options, such as torch:threads=2")
    return parser.parse_args()


def first_token(engine: Engine, prompt: list[int]) -> float:
    """Return the seconds until the first token after a prompt is known."""
    cursor = Cursor(engine.session())
    started = perf_counter()
    int(cursor.read(prompt)[0].argmax())
    return perf_counter() - started


def answer(cursor: Cursor, prompt: list[int], count: int, least: float | None) -> tuple[list[int], float]:
    """Return the tokens of an answer and the seconds after the first one; `least` is None for plain text."""
    text = list(prompt)
    decoding = None if least is None else plugins.parse("decodings", f"pipo:least={least}").make(cursor)
    started = perf_counter()
    for at in range(count):
        text.append(decoding.choose(text) if decoding else int(cursor.read(text)[0].argmax()))
        started = started if at else perf_counter()
    return text[len(prompt) :], perf_counter() - started


def main() -> None:
    asked = parsed()
    spec = plugins.parse("engines", asked.engine)
    both = plugins.Spec(spec.part, spec.options | {"pairs": str(asked.pairs)})
    plain, paired = spec.make(asked.target, None), both.make(asked.target, None)
    texts = [json.loads(line) for line in asked.texts.read_text("utf-8").splitlines()]
    tokens = [token for prompt, answered in texts for token in [*prompt, *answered]]
    prompt = (tokens * (asked.prompt // len(tokens) + 1))[: asked.prompt]
    times: list[list[float]] = [[], []]
    for _ in range(asked.repeats + 1):
        for found, engine in zip(times, (plain, paired), strict=True):
            found.append(first_token(engine, prompt))
    before, after = (median(found[1:]) for found in times)
    shown = f"{1e3 * before:.0f} ms plain, {1e3 * after:.0f} ms in pairs, {before / after:.2f} times as fast"
    print(f"time to first token after {asked.prompt:,} tokens on {asked.engine}, {plain.device}: {shown}")
    print("| least | tokens/s | times plain | tokens a pass | agreement |\n| --- | --- | --- | --- | --- |")
    target, prompts = Cursor(plain.session()), [text[0] for text in texts[: asked.count]]
    seconds = sum(answer(target, each, asked.tokens, None)[1] for each in prompts)
    speed = asked.count * (asked.tokens - 1) / seconds
    print(f"| plain | {speed:.1f} | 1.00 | 1.00 | 100 % |")
    for least in LEVELS:
        spent, right, passes = 0.0, 0, 0
        for each in prompts:
            cursor = Cursor(paired.session())
            cursor.read(each, rows=0)
            before = len(cursor.session._ends)  # type: ignore[attr-defined]
            written, taken = answer(cursor, each, asked.tokens, least)
            spent += taken
            passes += len(cursor.session._ends) - before  # type: ignore[attr-defined]
            rows = Cursor(plain.session()).read([*each, *written[:-1]], rows=asked.tokens)
            right += int((rows.argmax(-1) == written).sum())
        total, own = len(prompts) * asked.tokens, len(prompts) * (asked.tokens - 1) / spent
        shares = f"{total / passes:.2f} | {right / total:.1%}"
        print(f"| {least:g} | {own:.1f} | {own / speed:.2f} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
