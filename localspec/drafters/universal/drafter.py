"""Guesses of a smaller model with another vocabulary."""

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

PASSES = 8  # of the draft model for one guess at most
OPEN = 0.05  # highest probability that a guessed token becomes a longer one of the target's
HEAL = 0.2  # probability that the draft's last tokens become a longer one, above which it writes them again
LAST = 3  # such tokens at most
SURE = 0.5  # probability above which the draft's most likely token is guessed in a sampled text, too


class UniversalDraft(Drafter):
    """Guesses with a draft model of another family, whose text is translated into the target's tokens.

    A greedy draft writes its own tokens, and their text is tokenized as the target does it (Universal
    Assisted Generation, here by bytes). A sampled draft does the same where it is confident; elsewhere it
    samples from the tokens that both models have, with probabilities (token-level intersection; Timor et al.
    2025, "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous
    Vocabularies"). Both keep the target's distribution: a token that was not sampled is a point mass.
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
        # a tokenizer may have more tokens than the logits
        there = (of_target < self._vocab) & (of_draft < engine.vocab)
        self._shared = of_target[there], of_draft[there]

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Guess | LazyGuess]:
        """Yield the draft's continuation in the target's tokens, up to its own context length.

        If a pass writes more than one of the target's tokens, the others follow as free guesses.
        """
        self._alignment.follow(tokens)
        return self._steps(list(tokens), sampler)

    @property
    def _fits(self) -> bool:
        return 0 < len(self._alignment.draft.tokens) <= self._engine.context

    def _row(self) -> Row:
        """Return the draft's logits [vocab] after its text."""
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
        """Return whether a token of probability `sure` is written rather than sampled."""
        return sampler.sampling.greedy or sure >= SURE or not len(self._shared[0])

    def _heal(self, writing: _Writing, sampler: Sampler) -> None:
        """Replace the draft's last tokens by a longer one if the draft would have written that.

        The target may end a token where the draft's continues, as a line's end before the blanks of the next
        line. A model that never saw the two apart infers from the shorter token that no blank follows.
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
        """Return how many of the last tokens the draft would probably write as a longer one."""
        bytes_of, open_ = self._translation.draft.bytes_of, self._translation.open_in_draft.openness
        counts = range(1, min(LAST, len(tokens) - 1) + 1)
        found = {count: open_(tokens[-count:]) for count in counts if all(map(bytes_of, tokens[-count:]))}
        count = max(found, key=lambda count: found[count], default=0)
        return count if count and found[count] > HEAL else 0

    def _likeliest(self, row: Row, text: Tokens, sampler: Sampler) -> tuple[int, float]:
        """Return the draft's most likely token after `text`, with its probability, from logits `row`."""
        settings = sampler.sampling
        if settings.penalized or settings.logit_bias:
            of_target, of_draft = self._shared
            row = row.copy()
            row[of_draft] = sampler.adjusted(self._in_target(row), text)[of_target]
        return likeliest(row, sampler)

    def _drawn(self, row: Row, text: Tokens, sampler: Sampler) -> tuple[int, Guess]:
        """Sample a token that both models have; return it in the draft's and in the target's vocabulary."""
        guess = sampler.guess(self._in_target(row), text)
        of_target, of_draft = self._shared
        return int(of_draft[np.searchsorted(of_target, guess.token)]), guess

    def _in_target(self, row: Row) -> Row:
        """Return the draft's logits for the target's tokens [vocab], -inf for those it does not have."""
        of_target, of_draft = self._shared
        found = np.full(self._vocab, -np.inf, np.float32)
        found[of_target] = row[of_draft]
        return found


def likeliest(row: Row, sampler: Sampler) -> tuple[int, float]:
    """Return the token of the highest logit in `row`, and its probability at the answer's temperature."""
    best, settings = int(row.argmax()), sampler.sampling
    warmth = np.float32(1.0 if settings.greedy else settings.temperature)
    return best, 1.0 / float(np.exp((row - row[best]) / warmth).sum())


class _Writing:
    """The text that a draft writes in one step, and the guesses ready from it."""

    def __init__(self, alignment: Alignment, translation: Translation) -> None:
        self._alignment = alignment
        self._translation = translation
        self._continuation = Continuation(alignment, translation)
        self._sure: deque[tuple[int, float]] = deque()  # where a drafted token begins, and its probability
        self.ready: deque[Guess] = deque()
        self.count = 0
        self.ended = False

    def write(self, token: int, sure: float, instead: int = 0) -> None:
        """Append a token of the draft with probability `sure`; the tokens that it completes are ready.

        It replaces the last `instead` tokens of the text.
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
            self._release(OPEN)

    def take(self, token: int, guess: Guess) -> None:
        """Append a token of the draft that the target has, too, as `guess`; it is ready."""
        self.count += 1
        self._alignment.extend(token)
        self._continuation.take(guess.token, alone=True)
        self.ready.append(guess)
        self.ended = token in self._translation.stop_tokens

    @property
    def pending(self) -> bool:
        """Return whether text is written and not yet guessed."""
        return self._alignment.draft.end > self._continuation.at

    def close(self) -> None:
        """End the draft: all of its whole characters are ready, however likely their tokens are to grow."""
        self._release(1.0)
        self.ended = True

    def _release(self, limit: float) -> None:
        """Make the tokens ready that become longer ones with a probability of at most `limit`."""
        tokens = self._continuation.tokens()
        if tokens is None:
            self.ended = True
            return
        if limit < 1 and self._continuation.unfinished:
            tokens = []
        for at, token in enumerate(tokens):
            open_ = self._continuation.openness(tokens[at:])
            if open_ > limit:
                break
            self.ready.append(Guess(token, None, self._confidence(token) * (1 - open_)))

    def _confidence(self, token: int) -> float:
        """Take `token` as guessed; return the joint probability of the drafted tokens that begin in it."""
        end = self._continuation.take(token)
        product = 1.0
        while self._sure and self._sure[0][0] < end:
            product *= self._sure.popleft()[1]
        return product
