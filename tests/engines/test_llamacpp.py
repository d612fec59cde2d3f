"""llama.cpp on the real SmolLM2 and on tiny models of other kinds: rewinds, growth, threads, one answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import parity
import pytest
import tiny
from passes import read

from localspec import plugins
from localspec.core.contracts import DraftModel, ExportableSession
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampling
from localspec.drafters.draft_model import ModelDraft
from localspec.engines.llamacpp import LlamaCpp, context
from localspec.errors import (
    BadValue,
    BrokenModel,
    ContextFull,
    DriverFailed,
    MissingExtra,
    UnknownDevice,
    UnknownModel,
    UnsupportedModel,
)
from localspec.formats.gguf import libllama
from localspec.installation import install_command

pytestmark = pytest.mark.engines

Make = Callable[..., LlamaCpp]
SAMPLED = Sampling(temperature=0.8, top_k=40, top_p=0.95)
EXACT = {"kv": "f32", "flash": "off"}
WIDTH, INNER, HEAD = 64, 128, 32  # of the tiny models here
LETTERS = [at * at % 94 for at in range(700)]  # a text of theirs


@pytest.fixture(scope="module")
def make(smollm2_gguf: Path) -> Make:
    @cache
    def made(**options: Any) -> LlamaCpp:
        return LlamaCpp(smollm2_gguf, device="CPU", threads=2, **options)

    return made


@pytest.mark.parametrize("options", [{}, EXACT, {"kv": "q8_0"}], ids=["default", "exact", "q8_0"])
@pytest.mark.parametrize("kept", [31, 64])
def test_a_rewind_leaves_no_trace(make: Make, text: list[int], options: dict[str, str], kept: int) -> None:
    used, fresh = make(**options).session(), make(**options).session()
    used.forward(text[:kept], 0)
    fresh.forward(text[:kept], 0)
    rejected = used.forward(text[100:109], 9).copy()
    assert used.rewind(kept) == kept
    used.forward(text[80:140], 0)
    assert used.rewind(kept) == kept
    after, expected = read(used, text[kept : kept + 12], 4, 1), read(fresh, text[kept : kept + 12], 4, 1)
    assert np.abs(after - expected).max() == 0.0
    assert np.abs(rejected - expected[:9]).max() > 1.0  # the guesses were others


@pytest.mark.parametrize("options", [{}, {"kv": "q8_0"}, EXACT])
def test_what_was_read_is_taken_over_bit_for_bit(
    make: Make, text: list[int], options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "FIRST", 64)  # so that a cache grows in between
    one, other = make(**options).session(), make(**options).session()
    assert isinstance(one, ExportableSession)
    assert isinstance(other, ExportableSession)
    one.forward(text[:60], 0)
    one.forward(text[60:100], 0)
    for first, last in ((0, 60), (60, 100)):
        other.import_kv(one.export_kv(first, last), last - first)
    assert np.array_equal(read(one, text[100:120], 4, 1), read(other, text[100:120], 4, 1))
    assert other.rewind(70) == 70
    with pytest.raises(ValueError, match="4 bytes are not the KV cache of 30 tokens"):
        other.import_kv(b"1234", 30)
    other.import_kv(one.export_kv(70, 100), 30)
    read(other, text[100:120], 4, 1)
    assert np.array_equal(read(one, text[120:140], 4, 1), read(other, text[120:140], 4, 1))
    with pytest.raises(ContextFull):
        other.import_kv(one.export_kv(0, 1), make(**options).context)


def test_a_rewind_beyond_the_end_keeps_what_there_is(make: Make, text: list[int]) -> None:
    session = make().session()
    assert session.rewind(3) == 0
    session.forward(text[:10], 0)
    assert session.rewind(99) == 10
    assert session.rewind(0) == 0
    assert np.array_equal(session.forward(text[:5], 5), make().session().forward(text[:5], 5))


@pytest.mark.parametrize("options", [{}, {"kv": "q8_0"}], ids=["default", "q8_0"])
def test_a_cache_that_grows_forgets_nothing(
    make: Make, text: list[int], monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    found = []
    for first in (20, 1024):
        monkeypatch.setattr(context, "FIRST", first)
        session = make(**options).session()
        for size in (20, 7, 60, 80):
            session.forward(text[:size], 0)
        found.append(session.forward(text[:9], 9))
    assert np.array_equal(*found)


def test_only_the_last_rows_are_made(make: Make, text: list[int]) -> None:
    every = make().session().forward(text[:40], 40).copy()
    session = make().session()
    last = session.forward(text[:40], 3)
    assert (last.dtype, last.shape) == (np.float32, (3, make().vocab))
    assert np.array_equal(last, every[-3:])
    assert session.forward(text[40:45], 0).shape == (0, make().vocab)
    assert session.forward([], 0).shape == (0, make().vocab)


def test_rows_outlive_their_session(make: Make, text: list[int]) -> None:
    rows = make().session().forward(text[:6], 6)
    others = [make().session().forward(text[10:16], 6) for _ in range(3)]
    assert np.array_equal(rows, make().session().forward(text[:6], 6))
    assert not np.array_equal(rows, others[0])


def test_sessions_in_two_threads_do_not_disturb_each_other(make: Make, text: list[int]) -> None:
    texts = (text[:40], text[90:130])
    alone = [read(make().session(), tokens, 20, 1, 3) for tokens in texts]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(lambda tokens: read(make().session(), tokens, 20, 1, 3), texts))
    assert all(np.array_equal(left, right) for left, right in zip(alone, together, strict=True))


def test_a_full_context_names_both_numbers_and_harms_nothing(make: Make, text: list[int]) -> None:
    session, other = make().session(), make().session()
    session.forward(text[:10], 0)
    with pytest.raises(ContextFull, match=r"8200 tokens .* holds 8192") as caught:
        session.forward([1] * 8190, 1)
    assert (caught.value.tokens, caught.value.context) == (8200, 8192)
    other.forward(text[:10], 0)
    assert np.array_equal(session.forward(text[10:15], 5), other.forward(text[10:15], 5))


def test_a_text_may_fill_the_context_to_its_last_token(make: Make, text: list[int]) -> None:
    session = make(context=100).session()
    session.forward(text[:99], 0)
    assert session.forward(text[99:100], 1).shape[0] == 1
    with pytest.raises(ContextFull, match=r"101 tokens .* holds 100"):
        session.forward(text[100:101], 1)
    assert session.rewind(1000) == 100


@pytest.mark.parametrize("width", [2, 8])
@pytest.mark.parametrize(("options", "tolerance"), [({}, 0.5), (EXACT, 0.5)], ids=["default", "exact"])
def test_passes_of_any_width_agree_up_to_near_ties(
    make: Make, text: list[int], options: dict[str, str], tolerance: float, width: int
) -> None:
    one, several = (read(make(**options).session(), text[:64], size) for size in (1, width))
    chosen = np.take_along_axis(one, several.argmax(axis=1)[:, None], axis=1)[:, 0]
    assert (one.max(axis=1) - chosen).max() < tolerance


def opened(engine: LlamaCpp, prompt: list[int]) -> Cursor:
    """Return a cursor that has read the prompt as the runtime reads it: up to its last token."""
    cursor = Cursor(engine.session())
    cursor.read(prompt[:-1], rows=0)
    return cursor


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("draft", ["ngram", "itself"])
def test_a_draft_does_not_change_the_text(
    make: Make, ask: Callable[..., Any], prompt: list[int], draft: str, sampling: Sampling
) -> None:
    asked = {"prompt": prompt, "sampling": sampling, "seed": 7, "room": 24}
    plain = ask(opened(make(), prompt), **asked)
    target = opened(make(), prompt)
    if draft == "itself":
        source: Any = ModelDraft(target, DraftModel(make(), make().vocab), name="itself")
    else:
        source = plugins.parse("drafters", draft).make(target)
    drafted = ask(target, source, **asked)
    assert sum(last.accepted for last in drafted.steps) > 0
    options = {"tolerance": parity.ROUNDED, "sampling": sampling, "seed": 7}
    assert parity.check(plain.tokens, drafted.tokens, engine=make(), prompt=prompt, **options) >= 4


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_it_agrees_with_the_formulas_in_float32(tmp_path: Path, family: str) -> None:
    model = tiny.make(family, "F32", interleaved=family == "llama")
    engine = LlamaCpp(tiny.write_gguf(model, tmp_path / "tiny.gguf"), threads=1, **EXACT)
    tokens = [at % tiny.VOCAB for at in range(7, 127)]
    expected = tiny.logits(model, tokens)
    for sizes in ((100, 1), (120,), (40, 9)):  # 120 rows at once are more than a pass has
        assert np.abs(read(engine.session(), tokens, *sizes) - expected).max() < 1e-3
    assert (engine.vocab, engine.context, engine.device) == (tiny.VOCAB, 256, "CPU")


def test_a_long_read_is_cut_into_passes(tmp_path: Path) -> None:
    engine = LlamaCpp(windowed(tmp_path), threads=1, batch=64)
    whole = LlamaCpp(windowed(tmp_path), threads=1, batch=1024)
    for rows in (0, 1, 63, 64, 65, 300, 700):
        found = engine.session().forward(LETTERS, rows)
        assert found.shape == (rows, 96)
        assert np.abs(found - whole.session().forward(LETTERS, rows)).max(initial=0) < 0.05


@pytest.mark.parametrize(
    ("count", "rows", "passes"),
    [
        (5, 2, [(5, 2)]),
        (600, 1, [(512, 0), (88, 1)]),
        (513, 1, [(512, 0), (1, 1)]),
        (512, 64, [(512, 64)]),
        (520, 60, [(460, 0), (60, 60)]),
        (200, 130, [(70, 0), (64, 64), (64, 64), (2, 2)]),
        (600, 0, [(512, 0), (88, 0)]),
    ],
)
def test_the_passes_of_a_read(count: int, rows: int, passes: list[tuple[int, int]]) -> None:
    assert list(context.passes(count, rows, 512)) == passes


def write(path: Path, family: str, metadata: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> Path:
    """Write a random model of an architecture that `tiny` does not know."""
    numbers = tiny.dice(0)
    writer = gguf.GGUFWriter(path, family)
    tiny.add_vocabulary(writer)
    sizes = {"context_length": 2048, "embedding_length": WIDTH, "feed_forward_length": INNER}
    norm = {"attention.layer_norm_rms_epsilon": 1e-5}
    for key, value in (sizes | norm | metadata).items():
        add = {float: writer.add_float32, list: writer.add_array, int: writer.add_uint32}[type(value)]
        add(f"{family}.{key}", value)
    for name, shape in shapes.items():
        values = numbers.normal(1 if "norm" in name else 0, 0.15, shape).astype(np.float32)
        writer.add_tensor(name, -5 * np.abs(values) if name.endswith("ssm_a") else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def recurrent(folder: Path) -> Path:
    """Write a Mamba: its state is one for the whole text."""
    state, rank, kernel = 8, 4, 4
    metadata = {"attention.head_count": 0, "block_count": 2, "feed_forward_length": 0}
    metadata |= {"ssm.conv_kernel": kernel, "ssm.inner_size": INNER}
    metadata |= {"ssm.state_size": state, "ssm.time_step_rank": rank}
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (96, WIDTH), "output_norm.weight": (WIDTH,)}
    for layer in ("blk.0.", "blk.1."):
        shapes |= {f"{layer}attn_norm.weight": (WIDTH,), f"{layer}ssm_in.weight": (2 * INNER, WIDTH)}
        shapes |= {f"{layer}ssm_conv1d.weight": (INNER, kernel), f"{layer}ssm_conv1d.bias": (INNER,)}
        shapes |= {f"{layer}ssm_x.weight": (rank + 2 * state, INNER), f"{layer}ssm_dt.weight": (INNER, rank)}
        shapes |= {f"{layer}ssm_dt.bias": (INNER,), f"{layer}ssm_a": (INNER, state)}
        shapes |= {f"{layer}ssm_d": (INNER,), f"{layer}ssm_out.weight": (WIDTH, INNER)}
    return write(folder / "mamba.gguf", "mamba", metadata, shapes)


def hybrid(folder: Path) -> Path:
    """Write an LFM2: one layer of convolution, one of attention."""
    metadata: dict[str, Any] = {"attention.head_count": 2, "attention.head_count_kv": [0, 1]}
    metadata |= {"block_count": 2, "shortconv.l_cache": 3, "rope.freq_base": 10000.0}
    shapes = {"token_embd.weight": (96, WIDTH), "token_embd_norm.weight": (WIDTH,)}
    for layer in ("blk.0.", "blk.1."):
        shapes |= feed_forward(layer) | {f"{layer}{part}_norm.weight": (WIDTH,) for part in ("attn", "ffn")}
    shapes |= {
        "blk.0.shortconv.conv.weight": (WIDTH, 3),
        "blk.0.shortconv.in_proj.weight": (3 * WIDTH, WIDTH),
    }
    shapes |= {"blk.0.shortconv.out_proj.weight": (WIDTH, WIDTH)} | attention("blk.1.")
    return write(folder / "lfm2.gguf", "lfm2", metadata, shapes)


def windowed(folder: Path) -> Path:
    """Write a Gemma 3 whose layers, but for each sixth, see 16 tokens."""
    metadata: dict[str, Any] = {"attention.head_count": 2, "attention.head_count_kv": 1, "block_count": 6}
    metadata |= {"attention.key_length": HEAD, "attention.value_length": HEAD}
    metadata |= {"attention.sliding_window": 16, "rope.freq_base": 10000.0}
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (96, WIDTH), "output_norm.weight": (WIDTH,)}
    norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    for layer in (f"blk.{at}." for at in range(6)):
        shapes |= feed_forward(layer) | attention(layer)
        shapes |= {f"{layer}{norm}.weight": (WIDTH,) for norm in norms}
    return write(folder / "gemma3.gguf", "gemma3", metadata, shapes)


def feed_forward(layer: str) -> dict[str, tuple[int, ...]]:
    shapes = {f"{layer}ffn_{part}.weight": (INNER, WIDTH) for part in ("gate", "up")}
    return shapes | {f"{layer}ffn_down.weight": (WIDTH, INNER)}


def attention(layer: str) -> dict[str, tuple[int, ...]]:
    shapes = {f"{layer}attn_{part}.weight": (HEAD, WIDTH) for part in "kv"}
    shapes |= {f"{layer}attn_{part}.weight": (WIDTH, WIDTH) for part in ("q", "output")}
    return shapes | {f"{layer}attn_{part}_norm.weight": (HEAD,) for part in "qk"}


@pytest.mark.parametrize("kind", [recurrent, hybrid])
def test_a_recurrent_state_starts_again(
    tmp_path: Path, kind: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = LlamaCpp(kind(tmp_path), threads=1)
    session, fresh = engine.session(), engine.session()
    assert not isinstance(session, ExportableSession)
    session.forward(LETTERS[:40], 0)
    assert session.rewind(40) == 40
    session.forward(LETTERS[50:55], 5)
    assert session.rewind(40) == 0
    for one in (session, fresh):
        one.forward(LETTERS[:40], 0)
    expected = fresh.forward(LETTERS[40:48], 8)
    assert np.array_equal(session.forward(LETTERS[40:48], 8), expected)
    monkeypatch.setattr(context, "FIRST", 40)
    growing = engine.session()
    growing.forward(LETTERS[:40], 0)
    assert np.array_equal(growing.forward(LETTERS[40:48], 8), expected)


@pytest.mark.parametrize("kept", [640, 625, 500, 300, 20, 0])
@pytest.mark.parametrize("full", [True, False], ids=["whole", "pruned"])
def test_a_sliding_window_claims_no_more_than_it_holds(tmp_path: Path, full: bool, kept: int) -> None:
    engine = LlamaCpp(windowed(tmp_path), threads=1, batch=64)
    assert not isinstance(engine.session(), ExportableSession)
    engine.context_params["swa_full"] = full  # False: llama.cpp keeps 256 tokens of these layers
    cursor, fresh = Cursor(engine.session(), chunk=50), Cursor(engine.session(), chunk=50)
    cursor.read(LETTERS[:640])
    cursor.read(LETTERS[:650], 10)
    claimed = cursor.session.rewind(kept)
    cursor.tokens = LETTERS[:claimed]
    assert claimed in ((kept,) if full or kept > 600 else (kept, 0))
    assert claimed == kept or kept < 600
    after = cursor.read([*LETTERS[:kept], *LETTERS[90:100]], 10)
    expected = fresh.read([*LETTERS[:kept], *LETTERS[90:100]], 10)
    assert np.abs(after - expected).max() < 0.05


def test_an_agent_of_a_sliding_window_may_rewind_after_growth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "FIRST", 256)
    engine = LlamaCpp(windowed(tmp_path), threads=1)
    cursor, fresh = Cursor(engine.session()), Cursor(engine.session())
    for end in range(200, 600, 5):  # guesses that are rejected, before and behind two growths
        cursor.read([*LETTERS[:end], *LETTERS[30:38]], 9)
        assert cursor.session.rewind(end) == end
        del cursor.tokens[end:]
    text = [*LETTERS[:300], *LETTERS[90:100]]
    assert np.abs(cursor.read(text, 5) - fresh.read(text, 5)).max() < 0.05


def test_a_failed_pass_is_told_and_harms_nothing(make: Make, text: list[int]) -> None:
    session, other = make().session(), make().session()
    for one in (session, other):
        one.forward(text[:10], 0)
    with pytest.raises(DriverFailed, match=r"cannot read 3 tokens: invalid token\[1\] = 99999999") as caught:
        session.forward([1, 99_999_999, 2], 1)
    assert caught.value.hint
    assert np.array_equal(session.forward(text[10:15], 5), other.forward(text[10:15], 5))


def test_an_interrupt_leaves_a_cursor_that_reads_right(make: Make, text: list[int]) -> None:
    cursor, fresh = Cursor(make().session(), chunk=8), Cursor(make().session(), chunk=8)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    cursor.read(text[:8])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        read_for_ever(cursor, text)
    timer.join()
    assert np.array_equal(cursor.read(text[:16], 4), fresh.read(text[:16], 4))


def read_for_ever(cursor: Cursor, text: list[int]) -> None:
    while True:
        cursor.read([*text[:8], *text[50:150]])
        cursor.read(text[:8])


def test_engines_on_one_file_share_its_weights(tmp_path: Path) -> None:
    path = windowed(tmp_path)
    one, other = LlamaCpp(path, threads=1), LlamaCpp(path, threads=1, kv="f32")
    assert one.weights is other.weights
    assert one.weights is not LlamaCpp(path, repack=False).weights
    session = other.session()
    session.forward([1, 2], 1)
    key = next(key for key, held in libllama.LOADED.items() if held is one.weights)
    del one, other
    assert key in libllama.LOADED
    assert session.forward([3], 1).shape == (1, 96)
    del session
    assert key not in libllama.LOADED


ENDINGS = {
    "plainly": "",
    "in a pass": "import threading, time\n"
    "def work():\n    while True: session.rewind(0); session.forward(list(range(90)) * 5, 1)\n"
    "threading.Thread(target=work, daemon=True).start(); time.sleep(0.3)",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_ends_in_peace(tmp_path: Path, ending: str) -> None:
    script = f"""
from pathlib import Path
from localspec.engines.llamacpp import LlamaCpp
engine = LlamaCpp(Path({str(windowed(tmp_path))!r}), threads=1)
session = engine.session()
rows = session.forward([1, 2, 3], 3)
{ENDINGS[ending]}
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


def test_an_unknown_device_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UnknownDevice, match="Unknown device `TPU9`") as caught:
        LlamaCpp(windowed(tmp_path), device="TPU9")
    assert "`CPU`" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "failed to read magic"),
        (b"hello world" * 100, "invalid magic characters: 'hell', expected 'GGUF'"),
        (b"GGUF\x03\0\0\0", "failed to read"),
    ],
)
def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(BrokenModel, match="cannot load") as caught:
        LlamaCpp(path)
    assert said in caught.value.message
    assert caught.value.hint


def test_a_file_that_was_cut_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = windowed(tmp_path)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(BrokenModel, match="not within the file bounds"):
        LlamaCpp(path)
    assert capfd.readouterr() == ("", "")


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    path = tiny.write_gguf(tiny.make("llama"), tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes().replace(b"llama", b"lhama"))
    with pytest.raises(UnsupportedModel, match="unknown model architecture: 'lhama'"):
        LlamaCpp(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match=r"No such file: `.*none.gguf`"):
        LlamaCpp(tmp_path / "none.gguf")


def test_options_that_cannot_be_together_are_refused(tmp_path: Path) -> None:
    path = windowed(tmp_path)
    with pytest.raises(BadValue, match="`kv` of `llamacpp` is `q8_0` and `flash` is `off`"):
        LlamaCpp(path, kv="q8_0", flash="off")
    with pytest.raises(BadValue, match=r"`context` of `llamacpp` is `4096` .* trained on 2048"):
        LlamaCpp(path, context=4096)


def test_a_missing_library_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libllama.library.cache_clear()
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(MissingExtra, match="`llama-cpp-python` is not installed") as caught:
        LlamaCpp(tmp_path / "some.gguf")
    assert caught.value.hint == f"Type `{install_command('gguf')}`"


def test_a_core_with_two_threads_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libllama, "siblings", lambda cpu: f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 7}, raising=False)
    assert libllama.physical_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert libllama.physical_cores() == 4
