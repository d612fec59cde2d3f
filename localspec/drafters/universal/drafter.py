"""Guesses of a smaller model that has another vocabulary."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Annotated

import numpy as np

from localspec.core.contracts import Drafter, DraftModel
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler
from localspec.core.types import Guess, LazyGuess, Row, Tokens, shared_prefix
from localspec.drafters.universal.alignment import Alignment, Continuation
from localspec.formats.tokenizer.token_bytes import Translation
from localspec.plugins import Option

PASSES = 8  # of the draft for one guess at most
OPEN = 0.05  # how likely a token may become a longer one of the target's and is guessed all the same
HEAL = 0.2  # how likely the draft's own last tokens must become a longer one to be asked for again
LAST = 3  # such tokens at most
SURE = 0.5  # of its likeliest token, and it is guessed in a sampled text too


class UniversalDraft(Drafter):
    """Guesses with a draft model of another family: its text is translated into the target's tokens.

    A greedy draft writes its own tokens, and what they say is cut as the target cuts it (Universal Assisted
    Generation, here by bytes). So does one that is sampled, where it is sure of its token; elsewhere it draws
    from the tokens that both models have, and its probabilities are kept (token-level intersection; Timor et
    al. 2025, "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous
    Vocabularies"). Both keep the target's distribution: a token that was not drawn is a point mass.
    """

    translates = "always"

    def __init__(
        self,
        target: Cursor,
        draft_model: DraftModel,
        *,
        name: Annotated[str, Option("the draft: an alias, a file or a folder")],
        device: Annotated[str, Option("its device, the target's when empty")] = "",
        threads: Annotated[int, Option("its threads, 0 for as many as the target", least=0, most=1024)] = 0,
        runs: Annotated[str, Option("the engine that runs it, the target's when empty")] = "",
    ) -> None:
        del target, name, device, threads, runs  # the engine was made from them
        translation = draft_model.translation
        assert isinstance(translation, Translation)
        self._engine = engine = draft_model.engine
        self._vocab = draft_model.vocab or len(translation.target.token_bytes)
        self._translation = translation
        self._alignment = Alignment(translation)
        self._cursor = Cursor(engine.session())
        of_target, of_draft = translation.shared
        there = (of_target < self._vocab) & (of_draft < engine.vocab)  # a tokenizer may have more than rows
        self._shared = of_target[there], of_draft[there]

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Guess | LazyGuess]:
        """Offer the draft's continuation in the target's tokens, as far as its own context goes.

        What a pass says beyond one of the target's tokens are free guesses after it.
        """
        self._alignment.follow(tokens)
        return self._steps(list(tokens), sampler)

    @property
    def _fits(self) -> bool:
        return 0 < len(self._alignment.draft.tokens) <= self._engine.context

    def _row(self) -> Row:
        """Return the draft's logits [vocab] after what is written."""
        row: Row = self._cursor.read(self._alignment.draft.tokens)[0]
        return row

    def _steps(self, text: list[int], sampler: Sampler) -> Iterator[Guess | LazyGuess]:
        writing = _Writing(self._alignment, self._translation)

        def draw() -> Guess | None:
            most = writing.count + PASSES
            if writing.count == 0 and self._alignment.anew:
                self._heal(writing, sampler)
            while not writing.ready and not writing.ended and writing.count < most and self._fits:
                row = self._row()
                token, sure = self._likeliest(row, text, sampler)
                if writing.pending or self._writes(sure, sampler):
                    writing.write(token, sure)
                else:
                    writing.take(*self._drawn(row, text, sampler))
            return next(taken, None)

        def ready() -> Iterator[Guess]:
            while writing.ready:
                guess = writing.ready.popleft()
                text.append(guess.token)
                yield guess

        own = self._alignment.draft.tokens
        behind = max(len(own) - shared_prefix(self._cursor.tokens, own), 1)
        while not writing.ended and self._fits:
            taken, written = ready(), writing.count
            yield LazyGuess(draw, behind=behind)
            if writing.count == written:
                writing.close()
            behind = 1
            yield from ready()

    def _writes(self, sure: float, sampler: Sampler) -> bool:
        """Tell whether a token that the draft is `sure` of is guessed for certain, not drawn."""
        return sampler.sampling.greedy or sure >= SURE or not len(self._shared[0])

    def _heal(self, writing: _Writing, sampler: Sampler) -> None:
        """Let the draft write a longer token in place of its last ones, where it would have.

        The target may end a token where the draft would go on, as in a line's end before the blanks of the
        next line. A model reads there that no blank follows, if it never saw the two apart.
        """
        tokens = self._alignment.draft.tokens
        if (count := self._open_end(tokens)) == 0:
            return
        last = tokens[-count:]
        text = b"".join(map(self._translation.draft.bytes_of, last))
        choices = [last[0], *self._translation.open_in_draft.tokens_after(text)]
        row = self._cursor.read(tokens[:-count])[0][choices]
        best, sure = likeliest(row, sampler)
        if best and self._writes(sure, sampler):
            writing.write(choices[best], sure, count)

    def _open_end(self, tokens: Tokens) -> int:
        """Return how many of the last tokens the draft may rather write as a longer one."""
        bytes_of, open_ = self._translation.draft.bytes_of, self._translation.open_in_draft.openness
        counts = range(1, min(LAST, len(tokens) - 1) + 1)
        found = {count: open_(tokens[-count:]) for count in counts if all(map(bytes_of, tokens[-count:]))}
        count = max(found, key=lambda count: found[count], default=0)
        return count if count and found[count] > HEAL else 0

    def _likeliest(self, row: Row, text: Tokens, sampler: Sampler) -> tuple[int, float]:
        """Return the draft's likeliest token after `text`, and its probability, from logits `row` [vocab]."""
        settings = sampler.sampling
        if settings.penalized or settings.logit_bias:
            of_target, of_draft = self._shared
            row = row.copy()
            row[of_draft] = sampler.adjusted(self._in_target(row), text)[of_target]
        return likeliest(row, sampler)

    def _drawn(self, row: Row, text: Tokens, sampler: Sampler) -> tuple[int, Guess]:
        """Draw one of the tokens that both models have; return it in the draft's and in the target's."""
        guess = sampler.guess(self._in_target(row), text)
        of_target, of_draft = self._shared
        return int(of_draft[np.searchsorted(of_target, guess.token)]), guess

    def _in_target(self, row: Row) -> Row:
        """Return the draft's logits for the target's tokens [vocab]; what it does not have is never drawn."""
        of_target, of_draft = self._shared
        found = np.full(self._vocab, -np.inf, np.float32)
        found[of_target] = row[of_draft]
        return found


def likeliest(row: Row, sampler: Sampler) -> tuple[int, float]:
    """Return the place of the highest of logits `row`, and its probability at the answer's temperature."""
    best, settings = int(row.argmax()), sampler.sampling
    warmth = np.float32(1.0 if settings.greedy else settings.temperature)
    return best, 1.0 / float(np.exp((row - row[best]) / warmth).sum())


class _Writing:
    """What a greedy draft writes in one round, and the guesses that are ready."""

    def __init__(self, alignment: Alignment, translation: Translation) -> None:
        self._alignment = alignment
        self._translation = translation
        self._continuation = Continuation(alignment, translation)
        self._sure: deque[tuple[int, float]] = deque()  # where a drafted token begins, how sure it is
        self.ready: deque[Guess] = deque()
        self.count = 0
        self.ended = False

    def write(self, token: int, sure: float, instead: int = 0) -> None:
        """Go on with a token of the draft, which is `sure` of it; what it completes is ready.

        It takes the place of the last `instead` tokens of the text.
        """
        self.count += 1
        if not self._translation.draft.is_expressible(token):
            self.close()
            return
        self._sure.append((self._alignment.draft.end, sure))
        self._alignment.extend(token, instead)
        if token in self._translation.stop_tokens:
            self.close()
        else:
            self._settle(OPEN)

    def take(self, token: int, guess: Guess) -> None:
        """Go on with a token of the draft that is, as `guess`, one of the target's; it is ready."""
        self.count += 1
        self._alignment.extend(token)
        self._continuation.take(guess.token, alone=True)
        self.ready.append(guess)
        self.ended = token in self._translation.stop_tokens

    @property
    def pending(self) -> bool:
        """Tell whether something is written and not yet guessed."""
        return self._alignment.draft.end > self._continuation.at

    def close(self) -> None:
        """End the draft: all that it says in whole characters is ready, however likely it is to go on."""
        self._settle(1.0)
        self.ended = True

    def _settle(self, most: float) -> None:
        """Make ready the tokens that become longer ones with a probability of at most `most`."""
        tokens = self._continuation.tokens()
        if tokens is None:
            self.ended = True
            return
        if most < 1 and self._continuation.unfinished:
            tokens = []
        for at, token in enumerate(tokens):
            open_ = self._continuation.openness(tokens[at:])
            if open_ > most:
                break
            self.ready.append(Guess(token, None, self._confidence(token) * (1 - open_)))

    def _confidence(self, token: int) -> float:
        """Take `token` as guessed; return how sure the draft was of all that begins in it."""
        end = self._continuation.take(token)
        product = 1.0
        while self._sure and self._sure[0][0] < end:
            product *= self._sure.popleft()[1]
        return product
