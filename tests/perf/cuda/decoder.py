"""The torch engine's own decoder on a card, against its memory, transformers, and torch.compile.

python tests/perf/cuda/decoder.py [--only card,exact,passes,...] [--size 1.5B --size 8B] [--device cuda]

Prints a JSON object a line; what fails prints its error and the rest goes on. It needs no model: weights are
random. `--device cpu --size tiny` tries the script itself.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from parts import attentions, products, tried
from shapes import CONTEXT, FORMS, SIZES, bytes_of, decoder_of
from timing import copy_bandwidth, synchronize, wall

from localspec.core.sessions import Tree
from localspec.decoder.card import decoder_of as best_of
from localspec.decoder.forward import Decoder
from localspec.decoder.own import OwnDecoder
from localspec.decoder.passes import WIDTHS, Passes
from localspec.engines.torch.decoder.session import OwnSession
from localspec.engines.torch.engine import Torch

WIDE = (1, 2, 4, 8, 16)
TEXT = [int(token) for token in np.random.default_rng(0).integers(0, 500, 8192)]
Rows = Iterator[dict[str, Any]]


def card(options: argparse.Namespace) -> Rows:
    """What the card is, and how fast its memory is."""
    place = options.place
    row: dict[str, Any] = {"torch": torch.__version__, "copy GB/s": copy_bandwidth(place) / 1e9}
    if place.type == "cuda":
        asked = "name,driver_version,memory.total,clocks.max.sm,clocks.max.mem"
        command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]
        row["card"] = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    yield row


def exact(options: argparse.Namespace) -> Rows:
    """Recorded against plain passes to the bit, and the card against a CPU in float32."""
    place, kind = options.place, torch.float32
    torch.manual_seed(0)
    weights = decoder_of(SIZES["tiny"], "bf16", torch.device("cpu"), kind)
    text, sessions = TEXT[:300], []
    for device in (torch.device("cpu"), place):
        own = OwnDecoder(best_of(moved(weights, device)), CONTEXT)
        sessions.append(OwnSession(own))
    expected = sessions[0].forward(text, 300).copy()
    for widths in ((300,), (200, 1), (100, 3, 5, 16), (17, 40, 8)):
        sessions[1].rewind(0)
        found, at, turn = [], 0, 0
        while at < 300:
            width = min(widths[min(turn, len(widths) - 1)], 300 - at)
            found.append(sessions[1].forward(text[at : at + width], width).copy())
            at, turn = at + width, turn + 1
        gap = np.abs(np.concatenate(found) - expected).max() / expected.std()
        same = bool((np.concatenate(found).argmax(1) == expected.argmax(1)).all())
        yield {
            "exact": "float32 against a CPU",
            "widths": widths,
            "of spread": float(gap),
            "same choice": same,
        }
    yield from to_the_bit(options)


def to_the_bit(options: argparse.Namespace) -> Rows:
    """Compare each recorded pass with the same pass as it is, in bfloat16."""
    for form in FORMS:
        with torch.inference_mode():
            own = OwnDecoder(best_of(decoder_of(SIZES["tiny"], form, options.place, torch.bfloat16)), CONTEXT)
            passes, equal = Passes(own.decoder, CONTEXT, own.recorder), []
            passes.long(TEXT[:100], Tree(0, 100, []), 0)
            for width in WIDTHS:
                passes.short(TEXT[100 : 100 + width], Tree(100, width, []), 100)
                recorded = passes.logits[:width].clone()
                passes._pass(width, passes._decoder.first_end)
                equal.append(torch.equal(recorded, passes.logits[:width]))
        yield {"exact": "recorded against plain", "form": form, "equal": equal}


def moved(value: Any, place: torch.device) -> Any:
    """Return a record of weights on another device."""
    if isinstance(value, torch.Tensor):
        return value.to(place)
    if isinstance(value, tuple):
        return tuple(moved(each, place) for each in value)
    if type(value).__name__ in ("Weights", "Layer", "Plain"):
        return type(value)(*(moved(getattr(value, name), place) for name in value.__slots__))
    return value


def passes(options: argparse.Namespace) -> Rows:
    """Passes over a few tokens behind 512 and behind 4,000, by the form of the weights; prompts; decoding."""
    place, bandwidth = options.place, copy_bandwidth(options.place)
    for size in options.size:
        for form in options.form:
            with torch.inference_mode():
                weights = decoder_of(SIZES[size], form, place, torch.bfloat16)
            own, total = OwnDecoder(best_of(weights), CONTEXT), bytes_of(weights)
            session = OwnSession(own)
            row: dict[str, Any] = {"size": size, "form": form, "GB": total / 1e9}
            row |= {f"prompt of {n}": tried(prompt, session, n) for n in (1024, 4096)}
            for at in (512, 4000):
                row[f"seconds to record, behind {at}"] = recorded(session, at)
                row[f"ms behind {at}"] = {n: tried(device_pass, session, n, at, times=1e3) for n in WIDE}
            for what in ("choices", "logits"):  # of which a card keeps the logits
                row[f"ms with {what}"] = {n: tried(whole_pass, session, n, what, times=1e3) for n in WIDE}
            one = row["ms behind 512"][1]
            if isinstance(one, float):
                row["of copy bandwidth"] = total / (one / 1e3) / bandwidth
            row["tokens/s"] = tried(decoded, session)
            yield row
            del session, own, weights
            if place.type == "cuda":
                torch.cuda.empty_cache()


def prompt(session: OwnSession, count: int) -> float:
    """Return the seconds of reading a prompt."""

    def read() -> None:
        session.rewind(0)
        session.forward(TEXT[:count], 1)

    return wall(read, session._own.place, 3, 1)


def ready(session: OwnSession, at: int) -> None:
    """Let the text have `at` tokens."""
    if session.rewind(at) < at:
        session.rewind(0)
        session.forward(TEXT[:at], 0)


def recorded(session: OwnSession, at: int) -> float:
    """Return the seconds of the first pass of each width, which records it."""
    ready(session, at)
    started = perf_counter()
    for width in WIDTHS:
        session.rewind(at)
        session.forward(TEXT[at : at + width], width)
    return perf_counter() - started


def device_pass(session: OwnSession, count: int, at: int) -> float:
    """Return the seconds of a replayed pass, without its inputs and results."""
    ready(session, at)
    session.forward(TEXT[at : at + count], count)
    width = next(width for width in WIDTHS if width >= count)
    found = [run for (tokens, _), run in session._passes._recorded.items() if tokens == width]
    with torch.inference_mode():
        return wall(found[-1], session._own.place, 30)


def whole_pass(session: OwnSession, count: int, what: str) -> float:
    """Return the seconds of a pass behind 512 as the loop makes it, with choices or with all logits."""

    def read() -> None:
        session.rewind(512)
        rows = session.forward(TEXT[512 : 512 + count], count)
        _ = rows.argmax(1) if what == "choices" else np.asarray(rows)

    ready(session, 512)
    return wall(read, session._own.place, 30)


def decoded(session: OwnSession, tokens: int = 128) -> float:
    """Return greedy tokens per second behind 512."""
    ready(session, 512)
    token = 1
    started = perf_counter()
    for _ in range(tokens):
        token = int(session.forward([token], 1)[0].argmax())
    return tokens / (perf_counter() - started)


class Compiled:
    """A decoder whose layers torch compiles, shape by shape."""

    def __init__(self, decoder: Decoder) -> None:
        self.weights, self.shape, self.logits = decoder.weights, decoder.shape, decoder.logits
        self.states = torch.compile(decoder.states, dynamic=False)


def compiled(options: argparse.Namespace) -> Rows:
    """The same decoder through torch.compile, recorded likewise, and the seconds that it takes to compile."""
    for size in options.size[:1]:
        for turn in ("first", "with its cache"):
            torch._dynamo.reset()
            with torch.inference_mode():
                decoder: Any = Compiled(
                    Decoder(decoder_of(SIZES[size], "bf16", options.place, torch.bfloat16))
                )
            session = OwnSession(OwnDecoder(decoder, CONTEXT))
            ready(session, 512)
            row: dict[str, Any] = {"compiled": size, "turn": turn}
            for count in (1, 4, 8):
                started = perf_counter()
                session.forward(TEXT[512 : 512 + count], count)
                synchronize(options.place)
                row[f"seconds for {count}"] = perf_counter() - started
                row[f"ms for {count}"] = tried(device_pass, session, count, 512, times=1e3)
            yield row


def theirs(options: argparse.Namespace) -> Rows:
    """transformers' modules as they are, and both decoders from loading a folder to the first token."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    size = SIZES[options.size[0]]
    config = Qwen2Config(
        vocab_size=size.vocab, hidden_size=size.width, intermediate_size=size.inner,
        num_hidden_layers=size.layers, num_attention_heads=size.heads, num_key_value_heads=size.key_heads,
        head_dim=size.width // size.heads, max_position_embeddings=CONTEXT, tie_word_embeddings=size.tied,
        use_sliding_window=False,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        torch.set_default_dtype(torch.bfloat16)
        with options.place:
            model = Qwen2ForCausalLM(config)
        torch.set_default_dtype(torch.float32)
        model.save_pretrained(folder)
        del model
        for decoder, form in (("transformers", "plain"), ("own", "plain"), ("auto", "int8")):
            yield tried(loaded, Path(folder), decoder, form, options)


def loaded(folder: Path, decoder: str, form: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds from loading to the first token of a prompt of 64, and the ms of passes."""
    started = perf_counter()
    engine = Torch(folder, device=options.device, precision="bf16", decoder=decoder, weights=form)
    session = engine.session()
    session.forward(TEXT[:64], 1)
    synchronize(options.place)
    row: dict[str, Any] = {"loaded": decoder, "form": form, "first token s": perf_counter() - started}
    session.forward(TEXT[64:512], 0)
    for count in WIDE:

        def read(count: int = count) -> None:
            session.rewind(512)
            session.forward(TEXT[512 : 512 + count], count)

        row[f"ms for {count}"] = 1e3 * wall(read, options.place, 10)
    return row


def micro(options: argparse.Namespace) -> Rows:
    """Attention and products by themselves."""
    for size in options.size:
        yield from attentions(size, options.place, torch.bfloat16)
        yield from products(size, options.place, torch.bfloat16)


SECTIONS = {
    "card": card,
    "exact": exact,
    "passes": passes,
    "theirs": theirs,
    "compiled": compiled,
    "micro": micro,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", action="append", choices=SIZES)
    parser.add_argument("--form", action="append", choices=FORMS)
    parser.add_argument("--only", default=",".join(SECTIONS))
    options = parser.parse_args()
    options.form = options.form or FORMS
    options.size, options.place = options.size or ["1.5B", "8B"], torch.device(options.device)
    for name in options.only.split(","):
        started = perf_counter()
        try:
            for row in SECTIONS[name](options):
                print(json.dumps(row, default=str), flush=True)
        except Exception as error:  # the other sections are worth their time on the card
            print(json.dumps({name: f"{type(error).__name__}: {error}"[:500]}), flush=True)
        print(json.dumps({"section": name, "seconds": round(perf_counter() - started, 1)}), flush=True)


if __name__ == "__main__":
    main()
