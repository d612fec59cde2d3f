"""Time the passes of one decoder in several weight forms, at several numbers of threads, and of llama.cpp.

    python tests/perf/forms.py --threads 2,4,8          # random weights of a 1.5B's shape, no download
    python tests/perf/forms.py --shape 0.5b --engines openvino --json forms.json
    python tests/perf/forms.py --perplexity qwen2.5-coder-1.5b    # a form's perplexity, on real weights

Milliseconds of a pass over 1, 2, 4, 8 and 16 tokens after 40, minima over the repetitions; a form is loaded,
timed and dropped, and all take turns. One token is timed after another one, as in plain decoding.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec import devices, plugins
from localspec.core.contracts import Session
from localspec.formats.gguf.quants import Affine
from localspec.formats.graph import ir, weights
from localspec.formats.graph.architecture import Architecture
from localspec.formats.graph.builder import Graph
from localspec.formats.graph.rope import frequencies

WIDTHS = (1, 2, 4, 8, 16)
READ, PROMPT = 40, 512  # tokens before the passes, and of the prompt that is timed
VOCAB = 151_936
SHAPES = {  # layers, width, heads, key heads, inner width
    "0.5b": (24, 896, 14, 2, 4864),
    "1.5b": (28, 1536, 12, 2, 8960),
    "7b": (28, 3584, 28, 4, 18944),
}
Block = tuple[str, int, int, Mapping[int, float]]  # a GGUF kind: columns and bytes of a block, its float16s
Q4_K: Block = ("Q4_K", 256, 144, {0: 2e-4, 2: 1.5e-3})
Q6_K: Block = ("Q6_K", 256, 210, {208: 1e-5})
Q5_0: Block = ("Q5_0", 32, 22, {0: 1e-3})  # for rows that are no multiple of 256


@dataclass(frozen=True, slots=True)
class Form:
    """Bits of a code, columns that share a scale, and whether offsets are a second product."""

    bits: int
    group: int
    offsets: bool = False


FORMS = {
    "int8 group 256": Form(8, 256),
    "int8 group 128": Form(8, 128),
    "int8 group 32": Form(8, 32),
    "int4 group 128": Form(4, 128),
    "int4 group 64": Form(4, 64),
    "int4 group 32": Form(4, 32),
    "4 bit and offsets, group 32": Form(4, 32, offsets=True),
}


def main() -> None:
    options = _options()
    found = perplexities(options.perplexity, options.forms) if options.perplexity else speeds(options)
    facts = {"processor": devices.processor(), "cores": devices.cpu().cores}
    if options.json:
        options.json.write_text(json.dumps(facts | {"rows": found}, indent=1) + "\n", "utf-8")
    print(f"\n{facts['processor']}, {facts['cores']} cores\n")
    for row in found:
        print("| " + " | ".join(str(value) for value in row.values()) + " |")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--threads", default="0", help="numbers of threads, 0 for the engine's choice")
    parser.add_argument("--shape", default="1.5b", choices=SHAPES)
    parser.add_argument("--forms", default=",".join(FORMS), help="a part of a form's name, or several")
    parser.add_argument("--engines", default="openvino,llamacpp")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--perplexity", metavar="MODEL")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    asked = options.forms.split(",")
    options.forms = {name: form for name, form in FORMS.items() if any(part in name for part in asked)}
    options.engines = options.engines.split(",")
    return options


def speeds(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each form and number of threads."""
    best: dict[tuple[str, int], dict[str, float]] = {}
    sizes: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as place:
        models = dict(_models(options, Path(place)))
        for _ in range(options.rounds):
            for name, path in models.items():
                sizes[name] = sum(file.stat().st_size for file in path.iterdir())
                for threads in map(int, options.threads.split(",")):
                    taken = _timed(path, threads, options.repeat)
                    before = best.setdefault((name, threads), taken)
                    best[name, threads] = {what: min(before[what], taken[what]) for what in taken}
                    print(name, threads, taken, flush=True)
    return [
        {
            "form": name,
            "MB": sizes[name] // 10**6,
            "threads": threads,
            **{width: round(1000 * taken[width], 1) for width in map(str, WIDTHS)},
            "prompt tokens/s": round(PROMPT / taken["prompt"]),
            "8 / 1": round(taken["8"] / taken["1"], 2),
        }
        for (name, threads), taken in sorted(best.items(), key=lambda item: item[0][1])
    ]


def _models(options: argparse.Namespace, place: Path) -> Iterator[tuple[str, Path]]:
    """Write the models with random weights; yield each one's name and folder."""
    shape = SHAPES[options.shape]
    if "openvino" in options.engines:
        for name, form in options.forms.items():
            folder = place / name
            folder.mkdir()
            architecture = _architecture(*shape)
            ir.save(Graph(architecture, RandomWeights(shape, form)).model(), folder)
            (folder / "config.json").write_text(json.dumps(ir.config(architecture, VOCAB)))
            yield name, folder
    if "llamacpp" in options.engines:
        folder = place / "llamacpp"
        folder.mkdir()
        write_gguf(folder / "random.gguf", shape)
        yield "llama.cpp Q4_K_M", folder


def _timed(folder: Path, threads: int, repeat: int) -> dict[str, float]:
    """Return the seconds of passes by their width, and of a prompt: the least of `repeat`."""
    gguf = next(folder.glob("*.gguf"), None)
    name = "llamacpp" if gguf else "openvino"
    engine = plugins.parse("engines", f"{name}:threads={threads}").make(gguf or folder)
    session: Session = engine.session()
    times: dict[str, list[float]] = {}
    for number in range(repeat + 1):
        for what, seconds in _round(session).items():
            if number:
                times.setdefault(what, []).append(seconds)
    return {what: min(taken) for what, taken in times.items()}


def _round(session: Session) -> dict[str, float]:
    session.rewind(0)
    found = {"prompt": _seconds(session, PROMPT, rows=1)}
    for width in WIDTHS:
        session.rewind(READ)
        if width == 1:
            _seconds(session, 1)
            session.rewind(READ)
        found[str(width)] = _seconds(session, width)
    return found


def _seconds(session: Session, count: int, rows: int | None = None) -> float:
    started = perf_counter()
    session.forward(range(1000, 1000 + count), count if rows is None else rows)
    return perf_counter() - started


def _architecture(layers: int, width: int, heads: int, key_heads: int, inner: int) -> Architecture:
    del inner
    head = width // heads
    rates = frequencies(1e6, head).astype(np.float32)
    return Architecture("qwen2", layers, width, heads, key_heads, head, 4096, 1e-6, rates)


def _rows_and_columns(shape: tuple[int, ...]) -> dict[str, tuple[int, int]]:
    _, width, heads, key_heads, inner = shape
    shared = width // heads * key_heads
    return {
        "attn_q": (width, width),
        "attn_k": (shared, width),
        "attn_v": (shared, width),
        "attn_output": (width, width),
        "ffn_gate": (inner, width),
        "ffn_up": (inner, width),
        "ffn_down": (width, inner),
        "token_embd": (VOCAB, width),
    }


class RandomWeights:
    """Implements Weights with random codes in a form; head and embedding are one matrix in eight bits."""

    def __init__(self, shape: tuple[int, ...], form: Form) -> None:
        self._width, self._sizes, self._form = shape[1], _rows_and_columns(shape), form
        self._dice = np.random.default_rng(0)

    def has(self, name: str) -> bool:
        return name.endswith("norm.weight") and "attn_q_norm" not in name and "attn_k_norm" not in name

    def vector(self, name: str) -> NDArray[np.float32]:
        return np.ones(self._width, np.float32)

    def matrix(self, name: str) -> Affine:
        return self._drawn(self._sizes[name.rsplit(".", 1)[-1]], self._form)

    def table(self, name: str) -> Affine:
        return self._drawn(self._sizes[name], Form(8, self._form.group))

    def _drawn(self, size: tuple[int, int], form: Form) -> Affine:
        rows, columns = size
        group = math.gcd(form.group, columns)
        half = 2 ** (form.bits - 1)
        shape = (rows, columns // group, group)
        if form.offsets:
            codes: Any = self._dice.integers(0, 16, shape, dtype=np.uint8)
            offset = np.full(shape[:2], 0.021, np.float32)
            return Affine(4, codes, np.full(shape[:2], 0.0025, np.float32), offset)
        codes = self._dice.integers(-half + 1, half, shape, dtype=np.int8)
        return Affine(form.bits, codes, np.full(shape[:2], 0.02 / half, np.float32), None)


def write_gguf(path: Path, shape: tuple[int, ...]) -> None:
    """Write a random decoder as llama.cpp's Q4_K_M mixes it: half of `attn_v` and `ffn_down` in Q6_K."""
    import gguf

    layers, width, heads, key_heads, inner = shape
    sizes, dice = _rows_and_columns(shape), np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_block_count(layers)
    writer.add_context_length(4096)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(key_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("no_vocab")

    def put(name: str, size: tuple[int, int], block: Block) -> None:
        kind, columns, length, halves = Q5_0 if size[1] % 256 else block
        raw = dice.integers(0, 256, (size[0] * size[1] // columns, length), dtype=np.uint8)
        for at, value in halves.items():
            raw[:, at : at + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)
        writer.add_tensor(name, raw.reshape(size[0], -1), raw_dtype=gguf.GGMLQuantizationType[kind])

    put("token_embd.weight", sizes["token_embd"], Q6_K)
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for layer in range(layers):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(width, np.float32))
        for name, size in sizes.items():
            if name != "token_embd":
                better = layer % 2 and name in ("attn_v", "ffn_down")
                put(f"blk.{layer}.{name}.weight", size, Q6_K if better else Q4_K)
        for name in ("attn_q", "attn_k", "attn_v"):
            writer.add_tensor(f"blk.{layer}.{name}.bias", np.zeros(sizes[name][0], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def perplexities(name: str, forms: Mapping[str, Form]) -> list[dict[str, Any]]:
    """Return a row for each form of an installed GGUF model: its perplexity, and over llama.cpp's."""
    from localspec.formats.gguf.file import GgufFile
    from localspec.library import Library, Silent

    model = Library().resolve(name, Silent(), ("gguf",))
    path = model.files_in("gguf")
    assert path is not None
    data = Path(__file__).parents[1] / "data"
    tokens = model.tokenizer().encode((data / "perplexity.txt").read_text("utf-8")).ids
    llamacpp = plugins.parse("engines", "llamacpp").make(path)
    theirs = _perplexity(llamacpp.session(), tokens)
    rows = [{"form": "llama.cpp", "MB": path.stat().st_size // 10**6, "perplexity": theirs, "ratio": 1.0}]
    for title, form in forms.items():
        if form.bits == 4 and not form.offsets:
            continue  # random weights only: rounding four bits to other four bits costs 5 % and more
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            weights.GROUPS = (form.group, *(group for group in (256, 128, 64, 32) if group < form.group))
            ir.import_weights(GgufFile.open(path), folder, Silent(), offsets=form.offsets)
            session = plugins.parse("engines", "openvino").make(folder).session()
            ours = _perplexity(session, tokens)
            size = (folder / "openvino_model.bin").stat().st_size // 10**6
        rows.append({"form": title, "MB": size, "perplexity": ours, "ratio": round(ours / theirs, 4)})
        print(rows[-1], flush=True)
    return rows


def _perplexity(session: Session, tokens: list[int]) -> float:
    """Return exp of the mean loss of all tokens but the first."""
    losses = []
    for at in range(0, len(tokens) - 1, 64):
        piece, after = tokens[at : at + 64], tokens[at + 1 : at + 65]
        logits = session.forward(piece, len(piece))[: len(after)].astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        losses.append(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(after)), after])
    return round(float(np.exp(np.concatenate(losses).mean())), 4)


if __name__ == "__main__":
    main()
