from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import words
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

from localspec.core.contracts import DraftModel, Engine, Session
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler, Sampling
from localspec.core.types import Guess, LazyGuess, Logits, Tokens
from localspec.draft_length.fixed import Fixed
from localspec.drafters.universal.drafter import UniversalDraft
from localspec.engines.toy import Toy
from localspec.formats.tokenizer.token_bytes import Translation, Vocabulary
from localspec.verifiers.exact import Exact
from localspec.verifiers.rejection import Rejection

GREEDY = Sampler(Sampling())
LETTERS = words.translation()
Ask = Callable[..., Any]


class Recites(Engine):
    """Knows one text by heart and goes on with it, in tokens of its own, `width` rows wide."""

    def __init__(self, vocabulary: Vocabulary, text: bytes, width: int | None = None) -> None:
        self.vocab = width or len(vocabulary.token_bytes)
        self.context = 4096
        self.text = text
        self.vocabulary = vocabulary

    def session(self) -> Session:
        return Reciting(self)


class Reciting(Session):
    def __init__(self, engine: Recites) -> None:
        self.engine = engine
        self.tokens: list[int] = []

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        self.tokens += tokens
        counts = range(len(self.tokens) - rows + 1, len(self.tokens) + 1)
        found = np.full((rows, self.engine.vocab), -4, np.float32)
        for row, count in zip(found, counts, strict=True):
            row[self.next(self.tokens[:count])] = 4
        return found

    def next(self, tokens: Tokens) -> int:
        said = b"".join(map(self.engine.vocabulary.bytes_of, tokens))
        rest = self.engine.text[len(said) :] if self.engine.text.startswith(said) else b""
        return self.engine.vocabulary.encode(rest)[0] if rest else 0

    def rewind(self, length: int) -> int:
        del self.tokens[length:]
        return len(self.tokens)


def drafter(translation: Translation, draft: Engine, vocab: int | None = None) -> UniversalDraft:
    return UniversalDraft(Cursor(Toy().session()), DraftModel(draft, vocab, translation), name="toy")


def guesses(source: UniversalDraft, text: Tokens, count: int = 5, sampler: Sampler = GREEDY) -> list[Guess]:
    found: list[Guess] = []
    for step in source.propose(text, sampler):
        guess = step.draw() if isinstance(step, LazyGuess) else step
        found += [guess] if guess else []
        if len(found) >= count:
            break
    return found


def told(source: UniversalDraft, text: Tokens, count: int = 5) -> list[int]:
    return [guess.token for guess in guesses(source, text, count)]


@pytest.mark.parametrize("block_size", [1, 8, 0])
def test_it_guesses_what_its_model_writes_after_any_edit(block_size: int) -> None:
    source = drafter(LETTERS, Toy(vocab_size=6, seed=3, block_size=block_size))
    for text in ([0, 1, 2], [0, 1, 2, 5], [0, 1], [5], [0, 1, 2, 5, 5, 5], [0, 1, 2]):
        fresh = drafter(LETTERS, Toy(vocab_size=6, seed=3))
        assert told(source, text, 4) == told(fresh, text, 4) != []


@pytest.mark.parametrize("text", [b"abcabcaabbccabcbcbabcab" * 3, b"cabcabbcabca" * 5, b"a" * 40])
@pytest.mark.parametrize("verifier", [Exact, Rejection])
def test_guesses_of_a_draft_that_knows_the_text_all_stand(ask: Ask, text: bytes, verifier: Any) -> None:
    target = Recites(LETTERS.target, text)
    prompt = LETTERS.target.encode(text)[:2]
    room = len(LETTERS.target.encode(text)) - 3
    source = drafter(LETTERS, Recites(LETTERS.draft, text))
    cursor = Cursor(target.session())
    found = ask(cursor, source, Fixed(tokens=4), verifier(), prompt=prompt, room=room)
    assert found.tokens == LETTERS.target.encode(text)[2 : 2 + room]
    drafted = sum(last.drafted for last in found.steps)
    assert drafted == sum(last.accepted for last in found.steps)
    assert len(found.steps) <= room / 5 + 2


def test_a_token_that_may_become_a_longer_one_waits_for_the_next() -> None:
    source = drafter(LETTERS, Recites(LETTERS.draft, b"abbcaab"))
    steps = source.propose([3], GREEDY)  # ab
    offer = next(steps)
    assert isinstance(offer, LazyGuess)
    guess = offer.draw()  # b may be the beginning of bc, and is
    assert guess is not None
    assert guess.token == 4


def test_what_was_written_is_guessed_when_another_pass_is_refused() -> None:
    translation = words.translation((b"a", b"b", b"c", b"bc", b"ad"), (b"a", b"b", b"c", b"ab", b"d"))
    source = drafter(translation, Recites(translation.draft, b"cabc"))
    steps = source.propose([2], GREEDY)
    first = next(steps)
    assert isinstance(first, LazyGuess)
    guess = first.draw()
    assert guess is not None
    assert guess.token == 0  # a|b: the draft wrote both in one pass, and b may become bc
    offer = next(steps)
    assert isinstance(offer, LazyGuess)
    rest = list(steps)
    assert [each.token for each in rest if isinstance(each, Guess)] == [1]
    assert isinstance(rest[0], Guess)
    assert 0 < rest[0].confidence < 0.8 < guess.confidence <= 1


def test_one_pass_may_say_several_tokens() -> None:
    translation = words.translation((b"a", b"b", b"c"), (b"a", b"b", b"c", b"abc"))
    source = drafter(translation, Recites(translation.draft, b"cabcabc"))
    kinds = []
    for step in source.propose([2], GREEDY):
        kinds.append(type(step))
        guess = step.draw() if isinstance(step, LazyGuess) else step
        assert guess is not None
        if len(kinds) == 4:
            break
    assert kinds == [LazyGuess, Guess, Guess, LazyGuess]


def test_several_passes_may_say_one_token() -> None:
    byte = words.vocabulary([bytes([value]) for value in range(256)])
    target = words.vocabulary([*(bytes([value]) for value in range(256)), "😀".encode(), "é".encode()])
    translation = Translation(target, byte)
    text = "a😀é😀".encode()
    assert told(drafter(translation, Recites(byte, text)), [97], 3) == [256, 257, 256]


def test_a_longer_token_may_take_the_place_of_the_draft_s_last() -> None:
    of_target = (b"a", b"\n", b" ", b"b")
    of_draft = (b"\n ", b"a", b"\n", b" ", b"b")
    translation = words.translation(of_target, of_draft)
    draft = Recites(translation.draft, b"a\n b")
    draft.session().forward([1], 1)
    found = guesses(drafter(translation, draft), [0, 1], 2)  # after the line's end its next token is a blank
    assert [guess.token for guess in found] == [2, 3]


def test_the_end_of_a_turn_is_the_last_guess() -> None:
    of_target, of_draft = (b"a", b"b", b"\xffend\xff"), (b"\xffend\xff", b"b", b"a")
    plain = words.translation(of_target, of_draft)
    translation = Translation(plain.target, plain.draft, stop_tokens=frozenset({0}))
    text = b"ab\xffend\xff"
    assert told(drafter(translation, Recites(plain.draft, text)), [0], 9) == [1, 2]


@pytest.mark.parametrize("beyond", [None, 5])
def test_a_token_that_the_target_has_not_ends_the_draft(beyond: int | None) -> None:
    translation = words.translation((b"a", b"b"), (None, b"b", b"a"))

    class Strays(Reciting):
        def next(self, tokens: Tokens) -> int:
            return (beyond or 0) if len(tokens) > 2 else super().next(tokens)

    draft = Recites(translation.draft, b"abab", width=9)
    draft.session = lambda: Strays(draft)  # type: ignore[method-assign]
    assert told(drafter(translation, draft), [0], 9) == [1, 0]


def test_it_guesses_as_far_as_its_own_context_goes() -> None:
    for length, expected in ((8, 3), (10, 1), (11, 0)):
        source = drafter(words.translation((b"a",), (b"a",)), Toy(vocab_size=2, context=10))
        found = told(source, [0] * length, 99)
        assert len(found) <= expected
    assert guesses(drafter(LETTERS, Toy(vocab_size=6)), [], 3) == []


def test_penalties_and_biases_are_those_of_the_targets_tokens() -> None:
    translation = words.translation((b"a", b"b"), (b"b", b"a"))
    draft = Recites(translation.draft, b"ababab")
    banned = Sampler(Sampling(logit_bias={1: -100.0}))
    assert [guess.token for guess in guesses(drafter(translation, draft), [0], 1, banned)] == [0]


def test_sampled_guesses_are_held_to_what_both_have() -> None:
    sampler = Sampler(Sampling(temperature=9.0), coupled=False)  # the draft is never sure
    draft = Toy(vocab_size=6, seed=3)
    found = [
        guess
        for last in range(6)
        for guess in guesses(drafter(LETTERS, draft, 6), [0, 1, last], 3, sampler)
        if guess.probs is not None  # else it put a longer token in place of its last
    ]
    assert len(found) > 9
    assert {guess.token for guess in found} <= {0, 1, 2, 3}
    row = draft.session().forward(LETTERS.draft.encode(b"ab"), 1)[0]
    (guess,) = guesses(drafter(LETTERS, draft, 6), [3], 1, sampler)
    weights = np.exp(row[[2, 0, 1, 4]].astype(np.float64) / 9)
    assert guess.probs is not None
    assert [guess.probs.of(token) for token in range(6)] == pytest.approx([*weights / weights.sum(), 0, 0])
    assert guess.confidence == pytest.approx(guess.probs.of(guess.token))


def test_a_sure_draft_is_written_and_translated_when_the_text_is_sampled() -> None:
    sampler = Sampler(Sampling(temperature=0.8))
    text = b"abbcaab"
    (first, second) = guesses(drafter(LETTERS, Recites(LETTERS.draft, text), 6), [3], 2, sampler)
    assert (first.token, first.probs, second.token) == (4, None, 0)


def test_without_a_token_in_common_all_is_written() -> None:
    pairs = Vocabulary((b"aa", b"aaaa"), lambda text: [1] * (len(text) // 4) + [0] * (len(text) // 2 % 2))
    apart = Translation(pairs, words.vocabulary((b"a",)))
    sampler = Sampler(Sampling(temperature=99.0))
    (guess,) = guesses(drafter(apart, Recites(apart.draft, b"a" * 20, 9), 2), [1], 1, sampler)
    assert guess.probs is None


WIDTH = 5
FIVE = words.translation((b"a", b"b", b"c", b"ab", b"bc"), (b"b", b"ab", b"a", b"c", b"ca"))
TARGET = Toy(vocab_size=WIDTH)
PROMPT = [3, 1, 4]
ANSWERS = 800


def joint(sampling: Sampling) -> NDArray[np.float64]:
    """Return the target's own probabilities [first, second] of the two tokens after PROMPT."""
    sampler = Sampler(sampling, answer_from=len(PROMPT))
    probs = np.zeros((WIDTH, WIDTH))
    first = sampler.distribution(TARGET.session().forward(PROMPT, 1)[0], PROMPT)
    for token, share in zip(first.tokens.tolist(), first.probs, strict=True):
        text = [*PROMPT, token]
        second = sampler.distribution(TARGET.session().forward(text, 1)[0], text)
        probs[token, second.tokens] = share * second.probs
    return probs


@pytest.mark.parametrize("verifier", [Exact, Rejection])
@pytest.mark.parametrize("draft", [Toy(vocab_size=WIDTH, noise=0.5), Toy(vocab_size=WIDTH, seed=5)])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=3.0),
        Sampling(temperature=4.0, top_p=0.8),
        Sampling(temperature=3.0, top_k=3),
        Sampling(temperature=3.0, min_p=0.2, presence_penalty=1.0, repetition_penalty=1.3),
    ],
    ids=["whole", "top-p", "top-k", "penalties"],
)
def test_sampled_text_keeps_the_distribution_of_the_target(
    ask: Ask, verifier: Any, draft: Toy, sampling: Sampling
) -> None:
    target = Cursor(TARGET.session())
    source = UniversalDraft(target, DraftModel(draft, WIDTH, FIVE), name="toy")
    counts, stood = np.zeros((WIDTH, WIDTH)), 0
    for seed in range(ANSWERS):
        found = ask(
            target, source, Fixed(tokens=2), verifier(), prompt=PROMPT, sampling=sampling, seed=seed, room=3
        )
        counts[found.tokens[0], found.tokens[1]] += 1
        stood += found.steps[0].accepted
    expected = joint(sampling) * ANSWERS
    assert counts[expected == 0].sum() == 0
    often = expected >= 5
    seen, due = [*counts[often], counts[~often].sum()], [*expected[often], expected[~often].sum()]
    kept = slice(None) if due[-1] else slice(-1)
    assert float(stats.chisquare(seen[kept], due[kept]).pvalue) > 1e-4
    assert 0 < stood < 2 * ANSWERS


def steps_of(source: UniversalDraft, text: Tokens) -> Iterator[Guess | LazyGuess]:
    return source.propose(text, GREEDY)


def test_a_refused_first_pass_says_nothing() -> None:
    source = drafter(LETTERS, Toy(vocab_size=6, seed=3))
    steps = steps_of(source, [0, 1])
    assert isinstance(next(steps), LazyGuess)
    assert list(steps) == []
    sampled = source.propose([0, 1], Sampler(Sampling(temperature=1.0)))
    assert isinstance(next(sampled), LazyGuess)
    assert list(sampled) == []
