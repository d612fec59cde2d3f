"""Drafts that are translated, on real weights: the same text, and guesses that stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import parity
import pytest

import models
from localspec.core.contracts import DraftModel
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler, Sampling
from localspec.draft_length.fixed import Fixed
from localspec.drafters.draft_model import ModelDraft
from localspec.drafters.universal.alignment import Alignment
from localspec.drafters.universal.drafter import UniversalDraft
from localspec.engines.openvino.engine import OpenVino
from localspec.formats.tokenizer.translation import ModelTokenizer, build_translation
from localspec.library import StoredModel
from localspec.verifiers.exact import Exact
from localspec.verifiers.rejection import Rejection

ASKED = (
    "<|im_start|>user\nWrite a Python function that merges two sorted lists<|im_end|>\n"
    "<|im_start|>assistant\n"
)
Ask = Callable[..., Any]


def speaker(model: StoredModel) -> ModelTokenizer:
    return ModelTokenizer(model.name, model.tokenizer(), model.stop_tokens(), model.first_tokens())


def accepted(found: Any) -> int:
    return sum(last.accepted for last in found.steps)


def test_a_draft_of_the_same_vocabulary_guesses_what_it_would_untranslated(
    ask: Ask, engine: Callable[..., OpenVino], smollm2: StoredModel, prompt: list[int]
) -> None:
    own = engine(group=0, kv="f32")
    target, same = Cursor(own.session()), build_translation(speaker(smollm2), speaker(smollm2))
    found = ask(
        target,
        UniversalDraft(target, DraftModel(own, own.vocab, same), name="own"),
        Fixed(tokens=4),
        prompt=prompt,
        room=60,
    )
    expected = ask(
        target, ModelDraft(target, DraftModel(own), name="own"), Fixed(tokens=4), prompt=prompt, room=60
    )
    assert found.tokens == expected.tokens
    assert accepted(found) >= accepted(expected) - 2 > 40  # but where it does not write as it would read


def test_sampled_guesses_of_the_same_vocabulary_are_those_of_the_model(
    engine: Callable[..., OpenVino], smollm2: StoredModel, prompt: list[int]
) -> None:
    own, same = engine(), build_translation(speaker(smollm2), speaker(smollm2))
    target = Cursor(own.session())
    drafts = (
        UniversalDraft(target, DraftModel(own, own.vocab, same), name="own"),
        ModelDraft(target, DraftModel(own, own.vocab), name="own"),
    )
    guesses = []
    for draft in drafts:
        offer = next(iter(draft.propose(prompt, Sampler(Sampling(temperature=9.0, top_k=40), seed=3))))
        guesses.append(offer.draw())  # type: ignore[union-attr]
    assert guesses[0].token == guesses[1].token
    assert guesses[0].confidence == pytest.approx(guesses[1].confidence)


@pytest.mark.large
@pytest.mark.parametrize(("verifier", "temperature"), [(Exact, 0.0), (Exact, 0.8), (Rejection, 0.8)])
def test_smollm2_guesses_for_qwen(
    ask: Ask, engine: Callable[..., OpenVino], smollm2: StoredModel, verifier: Any, temperature: float
) -> None:
    model = models.large("qwen2.5-coder-0.5b")
    large = OpenVino(model.folder, threads=2, group=0, kv="f32")
    tokens = model.tokenizer().encode(ASKED).ids
    sampling = Sampling(temperature=temperature)
    target = Cursor(large.session())
    source = UniversalDraft(
        target,
        DraftModel(engine(), large.vocab, build_translation(speaker(model), speaker(smollm2))),
        name="smollm2",
    )
    options = {"prompt": tokens, "room": 48, "sampling": sampling, "stop_tokens": model.stop_tokens()}
    found = ask(target, source, Fixed(tokens=3), verifier(), **options)
    assert accepted(found) > 10
    if verifier is Exact:
        plain = ask(target, **options).tokens
        parity.check(
            plain, found.tokens, engine=large, prompt=tokens, tolerance=parity.UNROUNDED, sampling=sampling
        )


@pytest.mark.large
def test_a_chat_in_qwens_tokens_is_read_in_smollm2s_as_smollm2_would(smollm2: StoredModel) -> None:
    model = models.large("qwen2.5-coder-0.5b")
    found = Alignment(build_translation(speaker(model), speaker(smollm2)))
    text = ASKED + "Sure, 😀:\n\n```python\ndef merge(a, b):\n\treturn 语 + a[1:]\n```<|im_end|>\n"
    for end in range(len(text)):
        found.follow(model.tokenizer().encode(text[:end]).ids)
    found.follow(model.tokenizer().encode(text).ids)
    assert found.draft.tokens == smollm2.tokenizer().encode(text, add_special_tokens=False).ids
