"""Windows become segments: attempts, languages, what is read again, the text before."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.errors import BadValue
from localspec.speech import transcriber
from localspec.speech.transcriber import Request, Transcriber
from localspec.speech.types import RATE, Window
from localspec.speech.whisper.decoding import Decoded, WindowDecoder
from localspec.speech.whisper.drafting import Drafting
from localspec.speech.whisper.model import SpeechModel


@pytest.fixture
def to(model: SpeechModel, monkeypatch: pytest.MonkeyPatch) -> Transcriber:
    """A transcriber of noise, in which its windows are 12 and 5 seconds long."""
    noise = np.random.default_rng(0).normal(size=12 * RATE).astype(np.float32) / 10
    found = [Window(0.0, noise), Window(20.0, noise[: 5 * RATE])]
    monkeypatch.setattr(transcriber, "windows", lambda blocks, voices: iter(found))
    return Transcriber(Drafting(model, [], 0.0))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "noise.wav"
    with wave.open(str(path), "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(RATE)
        written.writeframes(bytes(2 * RATE))
    return path


class Script:
    """Answers in place of a decoder's, in turn; keeps the prompts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Decoded) -> None:
        self.prompts: list[list[int]] = []
        waiting = list(answers)

        def decode(own: Any, prompt: Sequence[int], *rest: Any) -> Decoded:
            self.prompts.append(list(prompt))
            return waiting.pop(0)

        monkeypatch.setattr(WindowDecoder, "decode", decode)


def answer(model: SpeechModel, *tokens: float, logprob: float = -0.2, **values: Any) -> Decoded:
    """Return an answer; times are floats, and words whole numbers."""
    first = model.tokens.first_time
    ids = tuple(token if isinstance(token, int) else first + round(token / 0.02) for token in tokens)
    facts = {"finish": "stop", "temperature": 0.0, "no_speech": 0.1, "compression": 1.0} | values
    return Decoded(ids, "", logprob=logprob, **facts)


def test_segments_have_the_times_of_the_file(
    to: Transcriber, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Script(monkeypatch, answer(to.model, 0.0, 65, 2.0), answer(to.model, 0.5, 66, 4.0))
    done: list[float] = []
    found = list(to.transcribe(file, Request("en"), done.append))
    assert [(each.start, each.end) for each in found] == [(0, 2), (20.5, 24)]
    assert done == [12, 25]
    assert (to.stats.windows, to.stats.audio) == (2, 25)


def test_what_was_not_read_to_its_end_is_read_again(
    to: Transcriber, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Script(
        monkeypatch,
        answer(to.model, 0.0, 65, 5.0, 5.0),
        answer(to.model, 0.0, 67, 7.0),
        answer(to.model, 0.0, 66, 4.0),
    )
    found = list(to.transcribe(file, Request("en")))
    assert [(each.start, each.end) for each in found] == [(0, 5), (5, 12), (20, 24)]


def test_a_window_in_which_nobody_talks_has_no_segments(
    to: Transcriber, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = answer(to.model, 0.0, 65, 2.0, logprob=-2.0, no_speech=0.9)
    Script(monkeypatch, silent, answer(to.model, 0.0, 66, 4.0))
    assert [each.start for each in to.transcribe(file, Request("en"))] == [20]


@pytest.mark.parametrize("wanted", [True, False])
def test_the_text_before_is_part_of_the_prompt_if_that_is_wanted(
    to: Transcriber, file: Path, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    script = Script(monkeypatch, answer(to.model, 0.0, 65, 66, 2.0), answer(to.model, 0.0, 66, 4.0))
    list(to.transcribe(file, Request("en", previous_text=wanted)))
    own = to.model.tokens.prompt("en", "transcribe")
    before = [to.model.tokens.previous, 65, 66] if wanted else []
    assert script.prompts == [own, [*before, *own]]


def test_the_language_is_found_once(to: Transcriber, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(monkeypatch, answer(to.model, 0.0, 65, 2.0), answer(to.model, 0.0, 66, 4.0))
    list(to.transcribe(file, Request()))
    assert to.language in to.model.tokens.languages
    assert script.prompts == [to.model.tokens.prompt(to.language, "transcribe")] * 2


def test_an_unknown_language_is_refused_before_the_file_is_read(to: Transcriber) -> None:
    with pytest.raises(BadValue, match="does not know the language `xx`"):
        next(to.transcribe(Path("missing.wav"), Request("xx")))


def test_a_poor_answer_is_tried_at_the_next_temperature(model: SpeechModel) -> None:
    """The random model is unsure of all its tokens, so every temperature is tried."""
    from localspec import plugins

    samples = np.random.default_rng(0).normal(size=2 * RATE).astype(np.float32) / 10
    model.hear(model.encode(Window(0.0, samples)))
    verifier = plugins.parse("verifiers", "exact").make()
    decoder = WindowDecoder(model.cursor, model.tokenizer, model.tokens, verifier)
    drafter = plugins.parse("drafters", "none").make(model.cursor)
    policy = plugins.parse("draft_length", "fixed:tokens=0").make()
    found = decoder.decode(model.tokens.prompt("en", "transcribe"), drafter, policy, 0.0)
    assert found.poor
    assert found.temperature == 1.0
    assert len(found.steps) > 4 * len(found.tokens)  # those of all attempts
