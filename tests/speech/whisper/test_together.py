"""The parts of a window, written beside the answer in the same passes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from localspec import plugins
from localspec.core.types import UNKNOWN, Logits
from localspec.speech.types import RATE, Window
from localspec.speech.whisper.decoding import WindowDecoder
from localspec.speech.whisper.drafting import Drafting, DraftSource
from localspec.speech.whisper.drafts import Heard, ListeningDraft, SelfDraft, SharedEncoderDraft, draft_of
from localspec.speech.whisper.model import SpeechModel
from localspec.speech.whisper.together import MET, MOST_PARTS, Part, cuts, joined
from localspec.speech.whisper.vocabulary import SpeechTokens

TOKENS = SpeechTokens(
    start=51,
    end=50,
    no_timestamps=60,
    languages={"en": 52},
    tasks={"translate": 54, "transcribe": 55},
    suppressed=(),
    alignment_heads=(),
)
VOCAB = TOKENS.first_time + 1501
NOISE = np.random.default_rng(0).normal(size=20 * RATE).astype(np.float32) / 10


def at(seconds: float) -> int:
    return TOKENS.first_time + round(seconds / 0.02)


def test_a_window_is_cut_where_it_is_quiet() -> None:
    samples = NOISE.copy()
    for second in (4.6, 10.5, 15.2):
        samples[round(second * RATE) : round((second + 0.4) * RATE)] = 0
    found = cuts(samples, most=4)
    assert found[0] == 0
    assert [round(start, 1) for start in found[1:]] == pytest.approx([4.8, 10.7, 15.4], abs=0.11)


@pytest.mark.parametrize(
    ("seconds", "most", "count"), [(3, 6, 1), (5.9, 6, 1), (6.1, 6, 2), (20, 6, 5), (30, 6, 6), (30, 4, 4)]
)
def test_longer_windows_have_more_parts(seconds: float, most: int, count: int) -> None:
    found = cuts(np.resize(NOISE, round(seconds * RATE)), most)
    assert len(found) == count
    assert all(0 <= start < seconds for start in found)
    assert found == sorted(found)


def row(token: int) -> Any:
    found = np.zeros(VOCAB, np.float32)
    found[token] = 50
    return found


def said(*tokens: int, start: float = 4.0, end: float = 8.0, following: tuple[int, ...] = ()) -> Part:
    """Return a part that has said tokens after its first time."""
    part = Part(TOKENS, TOKENS.prompt("en", "transcribe"), start, end)
    for token in tokens:
        assert not part.done
        part.take(row(token), following)
    return part


def test_a_part_ends_at_the_end_or_at_a_time_near_the_next_parts_beginning() -> None:
    assert not said(1, 2, at(6)).done
    assert said(1, 2, at(7.8)).done
    assert said(1, TOKENS.end).done
    assert said(1, 2, at(7.8)).answer == [at(4), 1, 2, at(7.8)]


def test_a_part_ends_where_it_says_what_the_next_one_has_said_or_says_too_much() -> None:
    following = tuple(range(10, 10 + MET))
    part = said(1, *following, following=following)
    assert part.done
    assert part.over(8.0) == MET
    assert said(*[7] * 33).done


@dataclass
class Said:
    """A part at some state."""

    answer: list[int]
    done: bool = True
    reach: int = 0
    words: list[int] = field(default_factory=list)

    def over(self, start: float) -> int:
        return self.reach


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([Said([at(0), 1, 2, at(4)]), Said([at(4), 3, at(8)])], [at(0), 1, 2, at(4), at(4), 3, at(8), 50]),
        # both say 2 3 4
        (
            [Said([at(0), 1, 2, 3, 4], reach=6), Said([at(4), 2, 3, 4, 5, at(8)])],
            [at(0), 1, 2, 3, 4, 5, at(8), 50],
        ),
        # the first has run on with something else
        ([Said([at(0), 1, 2, 3, 9], reach=6), Said([at(4), 2, 3, 5])], [at(0), 1, 2, 3, 5, 50]),
        # the same words far apart, said at different times
        ([Said([at(0), 2, 3, 4]), Said([at(4), 2, 3, 4])], [at(0), 2, 3, 4, at(4), 2, 3, 4, 50]),
        # one is not at its end
        ([Said([at(0), 1], done=False), Said([at(4), 3])], [at(0), 1, UNKNOWN, at(4), 3, 50]),
        ([Said([at(0), 1]), Said([at(4), 3], done=False)], [at(0), 1, at(4), 3, UNKNOWN]),
        ([], []),
    ],
)
def test_parts_are_joined_where_they_say_the_same(parts: Any, expected: list[int]) -> None:
    assert joined(TOKENS, parts) == expected


def heard(model: SpeechModel, seconds: float = 20.0) -> Heard:
    """Let a model hear noise; return what its draft needs."""
    window = Window(0.0, NOISE[: round(seconds * RATE)])
    states = model.encode(window)
    model.hear(states)
    prompt = model.tokens.prompt("en", "transcribe")
    return Heard(window, cuts(window.samples), states, prompt, "en", "transcribe")


def decoder(model: SpeechModel) -> WindowDecoder:
    verifier = plugins.parse("verifiers", "exact").make()
    return WindowDecoder(model.cursor, model.tokenizer, model.tokens, verifier)


@pytest.mark.parametrize("policy", ["fixed:tokens=0", "fixed:tokens=3", "fixed:tokens=15", "adaptive"])
def test_a_model_that_drafts_for_itself_writes_the_same(model: SpeechModel, policy: str) -> None:
    own = heard(model)
    none, off = plugins.parse("drafters", "none"), plugins.parse("draft_length", "fixed:tokens=0")
    plain = decoder(model).attempt(own.prompt, none.make(model.cursor), off.make())
    model.hear(own.states)
    drafter, _ = SelfDraft(model, model).drafter(own)
    found = decoder(model).attempt(own.prompt, drafter, plugins.parse("draft_length", policy).make())
    assert found.tokens == plain.tokens
    assert found.logprobs == plain.logprobs
    assert found.steps[0].company.drafts == len(own.cuts) - 1
    assert found.steps[-1].company.drafts == 0


def test_other_models_with_their_ears_or_the_targets_write_the_same(model: SpeechModel, folder: Any) -> None:
    from localspec.engines.openvino.engine import OpenVino

    other = SpeechModel(OpenVino(folder), folder, model.tokenizer)
    own = heard(model, 9.0)
    none, off = plugins.parse("drafters", "none"), plugins.parse("draft_length", "fixed:tokens=0")
    plain = decoder(model).attempt(own.prompt, none.make(model.cursor), off.make())
    policy = plugins.parse("draft_length", "fixed:tokens=4").make()
    for draft in (ListeningDraft(other, model), SharedEncoderDraft(other, model)):
        model.hear(own.states)
        drafter, _ = draft.drafter(own)
        found = decoder(model).attempt(own.prompt, drafter, policy)
        assert found.tokens == plain.tokens
        if isinstance(draft, SharedEncoderDraft):  # and the same weights: most guesses are right
            assert len(found.steps) < len(plain.steps) / 2


def test_a_draft_has_the_targets_ears_if_its_encoder_is_the_same(model: SpeechModel, folder: Any) -> None:
    from localspec.engines.openvino.engine import OpenVino

    other = SpeechModel(OpenVino(folder), folder, model.tokenizer)
    assert isinstance(draft_of(model, model), SelfDraft)
    assert isinstance(draft_of(other, model), SharedEncoderDraft)
    other.encoder_digest = "another"
    assert isinstance(draft_of(other, model), ListeningDraft)


def test_the_draft_that_saves_most_is_taken_and_a_slow_one_is_not_loaded(model: SpeechModel) -> None:
    loaded = []

    def source(name: str, encoder: float, decoder_: float) -> DraftSource:
        return DraftSource(name, model.tokens, encoder, decoder_, lambda: loaded.append(name) or model)

    own = heard(model)
    model.listen("en")
    model.pass_seconds, model.last_encoder_seconds = 0.1, 0.5
    slow, quick = source("slow", 0.9, 0.9), source("quick", 0.1, 0.1)
    drafting = Drafting(model, [slow, quick], load_seconds=1.0)
    assert drafting.drafter(own, remaining=20.0) is not None
    assert loaded == ["quick"]
    short = Drafting(model, [slow], load_seconds=100.0)
    assert short.drafter(own, remaining=20.0) is None
    assert loaded == ["quick"]


def test_a_draft_that_does_not_know_the_language_is_named(model: SpeechModel) -> None:
    english = SpeechTokens(51, 50, 60, {}, {}, (), ())
    drafting = Drafting(model, [DraftSource("en", english, 0.1, 0.1, lambda: model)], load_seconds=0.0)
    own = heard(model)
    german = Heard(own.window, own.cuts, own.states, own.prompt, "de", "transcribe")
    assert drafting.drafter(german, 1000.0) is None
    assert drafting.notes == ["no draft knows the language `de`, or how to transcribe it"]


def test_more_parts_than_there_is_room_for_are_never_made(model: SpeechModel) -> None:
    own = heard(model)
    assert own.parts <= MOST_PARTS
    passes = model.session.beside(MOST_PARTS)
    texts: list[Logits] = [passes.session().forward([1], 1) for _ in range(MOST_PARTS)]
    assert len(texts) == MOST_PARTS
