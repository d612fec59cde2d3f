"""The next process restores the KV cache of a prompt: the same answer, without its prefill."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny

from localspec.core.contracts import ExportableSession
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampling
from localspec.core.types import Logits, Tokens
from localspec.engines.openvino.engine import OpenVino, OpenVinoCpuSession
from localspec.errors import ContextFull
from localspec.library import Library, Silent
from localspec.runtime.answer import Answer
from localspec.runtime.choice import Choice
from localspec.runtime.generation import Runtime
from localspec.state import prompt_cache
from localspec.state.prompt_cache import PromptCache

PIECE = OpenVinoCpuSession.chunk
Ask = Callable[..., Answer]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder, in which any piece is worth keeping."""
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(prompt_cache, "SLOW", 0.0)
    return tmp_path / "home"


@pytest.fixture
def ask(folder: Path, tmp_path: Path) -> Ask:
    """Answer as a new process would, with an engine that is shared."""
    gguf = tiny.write_gguf(tiny.make("llama", "Q8_0"), tmp_path / "small.gguf", context_length=2048)
    held = Runtime.load(str(gguf), Choice(draft="off"), Library(), Silent()).engines

    def answer(
        prompt: Tokens, room: int = 12, disk: int = 10**9, draft: str = "off", engine: str = "openvino"
    ) -> Answer:
        loaded = held if engine == "openvino" else ()
        found = Runtime.load(str(gguf), Choice(engine, draft), Library(), Silent(), loaded, disk)
        made, steps = found.answer(prompt, sampling=Sampling(), max_tokens=room)
        for _ in steps:
            pass
        return made

    return answer


def text(count: int, seed: int = 1) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(3, 90, count)]


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("compiled/*/prompts/*/*.kv"))


@pytest.mark.parametrize("draft", ["off", "ngram"])
def test_the_next_process_goes_on_where_this_one_was(ask: Ask, folder: Path, draft: str) -> None:
    prompt = text(2 * PIECE + 60)
    plain = ask(prompt, disk=0)
    assert not kept(folder)
    first, second = ask(prompt, draft=draft), ask(prompt, draft=draft)
    assert (first.cached_prompt_tokens, second.cached_prompt_tokens) == (0, 2 * PIECE)
    assert first.token_ids == second.token_ids == plain.token_ids
    assert len(kept(folder)) == 2
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in kept(folder))
    assert not list(folder.glob("compiled/*/prompts/*/.*"))


def test_texts_that_begin_alike_share_their_beginning(ask: Ask, folder: Path) -> None:
    ask(text(2 * PIECE + 60))
    other = text(PIECE + 20) + text(2 * PIECE, seed=2)
    assert ask(other).cached_prompt_tokens == PIECE
    assert len(kept(folder)) == 2 + 2
    assert ask(other).token_ids == ask(other, disk=0).token_ids
    assert ask(text(PIECE)).cached_prompt_tokens == 0  # its last token is always read
    assert ask(text(PIECE + 1)).cached_prompt_tokens == PIECE


def test_what_is_damaged_is_read_and_kept_again(ask: Ask, folder: Path) -> None:
    prompt = text(3 * PIECE + 9)
    expected = ask(prompt).token_ids
    for damage in (lambda file: file.write_bytes(file.read_bytes()[:-1]), lambda file: file.write_bytes(b"")):
        assert ask(prompt).cached_prompt_tokens == 3 * PIECE
        damage(sorted(kept(folder), key=lambda file: file.stat().st_mtime_ns)[1])  # of three the second
        found = ask(prompt)
        assert (found.cached_prompt_tokens, found.token_ids) == (PIECE, expected)
        assert len(kept(folder)) == 3
    assert ask(prompt).cached_prompt_tokens == 3 * PIECE


def test_a_piece_of_another_model_is_no_piece(ask: Ask, folder: Path) -> None:
    prompt = text(PIECE + 40)
    expected = ask(prompt).token_ids
    (file,) = kept(folder)
    file.unlink()
    prompt_cache._write(file, b"of another model")
    assert ask(prompt).token_ids == expected


@pytest.mark.engines
def test_llamacpp_goes_on_too(ask: Ask, folder: Path) -> None:
    prompt = text(700)
    first, second = (ask(prompt, engine="llamacpp") for _ in range(2))
    assert (first.cached_prompt_tokens, second.cached_prompt_tokens) == (0, 512)
    assert first.token_ids == second.token_ids == ask(prompt, disk=0, engine="llamacpp").token_ids
    assert len(kept(folder)) == 2


def test_what_is_quickly_read_is_not_kept(ask: Ask, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_cache, "SLOW", 60.0)
    ask(text(2 * PIECE + 60))
    assert not kept(folder)


def test_a_full_disk_keeps_nothing_and_says_no_word(
    ask: Ask, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: Path, piece: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prompt_cache, "_write", full)
    assert ask(text(2 * PIECE + 60)).token_ids
    assert not kept(folder)


def test_what_was_used_last_stays(ask: Ask, folder: Path) -> None:
    ask(text(2 * PIECE + 9, seed=1))
    size = kept(folder)[0].stat().st_size
    ask(text(2 * PIECE + 9, seed=2))
    ask(text(PIECE + 9, seed=1))
    ask(text(PIECE + 9, seed=3), disk=3 * size)
    assert len(kept(folder)) == 3
    assert [ask(text(2 * PIECE + 9, seed=seed), disk=10**9).cached_prompt_tokens for seed in (1, 2)] == [
        PIECE,
        PIECE,
    ]


def test_it_goes_with_its_model(ask: Ask, folder: Path) -> None:
    ask(text(2 * PIECE + 60))
    assert kept(folder)
    (model,) = Library().all()
    Library().remove(model.name, Silent())
    assert not kept(folder)


class Pieces(ExportableSession):
    """A session that is its tokens, and gives and takes them by fours."""

    block_size = 4

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        self.tokens += tokens
        return np.zeros((rows, 9), np.float32)

    def rewind(self, length: int) -> int:
        del self.tokens[length:]
        return len(self.tokens)

    def export_kv(self, first: int, last: int) -> bytes:
        return bytes(self.tokens[first:last])

    def import_kv(self, piece: bytes, count: int) -> None:
        self.tokens += piece


def test_only_what_is_read_in_whole_pieces_from_the_beginning_is_one() -> None:
    cursor = Cursor(Pieces(), chunk=8)
    for tokens, pieces in (
        (range(20), 2),
        (range(30), 2),  # what lies behind was not read in one pass
        (range(12), 1),
        (range(40), 1),
        (range(8), 1),
        (range(40), 5),
        ([1], 0),
        (range(7), 0),
        (range(40), 0),
    ):
        cursor.read(list(tokens), rows=0)
        assert cursor.chunks == pieces
    assert not Cursor(Pieces(), chunk=6).exportable


def test_a_text_is_taken_up_behind_what_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_cache, "SLOW", 0.0)
    shelf = PromptCache(tmp_path / "prompts" / "key", tmp_path, 10**9)
    first = Cursor(Pieces(), chunk=8)
    whole = list(range(40))
    first.read(whole, rows=0)
    shelf.keep(first, 1.0)
    for held, taken in (([], 40), (whole[:20], 24), (whole[:39], 8), (whole, 0), ([1, 2], 40)):
        cursor = Cursor(Pieces(), chunk=8)
        cursor.read(held, rows=0)
        assert shelf.restore(cursor, whole) == taken
        assert isinstance(cursor.session, Pieces)
        assert cursor.tokens == cursor.session.tokens == whole
        assert cursor.read([*whole, 3], rows=1).shape == (1, 9)


def test_keys_and_values_are_taken_over_bit_for_bit(folder: Path, tmp_path: Path) -> None:
    gguf = tiny.write_gguf(tiny.make("llama", "Q8_0"), tmp_path / "small.gguf", context_length=2048)
    (_, engine), *_ = Runtime.load(str(gguf), Choice(draft="off"), Library(), Silent()).engines
    assert isinstance(engine, OpenVino)
    one, other = engine.session(), engine.session()
    assert isinstance(one, ExportableSession)
    assert isinstance(other, ExportableSession)
    tokens = text(128)
    one.forward(tokens[:64], 0)
    other.import_kv(one.export_kv(0, 64), 64)
    assert np.array_equal(one.forward(tokens[64:], 9).copy(), other.forward(tokens[64:], 9))
    with pytest.raises(ValueError, match="not the KV cache of 64 tokens"):
        other.import_kv(b"1234", 64)
    assert other.rewind(128) == 128
    with pytest.raises(ContextFull):
        other.import_kv(one.export_kv(0, 64), engine.context)


def test_a_killed_writer_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(source: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        prompt_cache._write(tmp_path / "a.kv", b"1234")
    assert not list(tmp_path.iterdir())
