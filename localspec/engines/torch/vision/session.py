"""Texts with pictures: their embeddings are read among those of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from localspec.core.contracts import PictureSession
from localspec.core.types import Branch, Logits, Picture, Tokens
from localspec.decoder.own import OwnDecoder
from localspec.decoder.rows import ToNumpy
from localspec.engines.torch.decoder.session import OwnSession
from localspec.engines.torch.vision.embedding import EmbeddedText
from localspec.engines.torch.vision.model import SeeingModel
from localspec.errors import ContextFull
from localspec.formats.huggingface.torch_devices import memory_errors, use_threads
from localspec.pictures.schedule import Schedule

WHOLE = 1 << 20  # tokens of a pass: a prompt with pictures is read in one


class OwnSeeingSession(OwnSession, PictureSession):
    """A text whose tokens all run: pictures are read in passes of their own, all else as any text."""

    def __init__(self, model: SeeingModel, own: OwnDecoder) -> None:
        super().__init__(own)
        self.picture_token = model.shape.token
        self._model, self._text, self._numpy = model, EmbeddedText(model), ToNumpy()

    def tokens_of(self, picture: Picture) -> int:
        """Return how many tokens stand for a picture; raises PromptError for one that cannot be seen."""
        return self._model.tokens_of(picture)

    def see(self, pictures: Sequence[Picture], prompt: Tokens) -> int:
        """Let the picture tokens of the text stand for `pictures`; return the number of tokens kept."""
        return self.rewind(self._text.see(pictures))

    def forward_tree(self, tokens: Tokens, rows: int, branches: Sequence[Branch]) -> Logits:
        """Append `tokens` and read `branches` beside them; return logits [rows + branches, vocab]."""
        total = self._length + len(tokens) + len(branches)
        if total > self._own.context:
            raise ContextFull(total, self._own.context)
        visual = self._text.visual(tokens)
        first = visual[-1] + 1 if visual else 0
        before = max(0, rows - (len(tokens) - first)) if visual else 0
        assert not (before and branches), "branches follow text"
        found = [self._see_part(tokens[:first], before)] if visual else []
        if len(tokens) > first or branches or not visual:
            self._passes.gap = self._text.gap
            found.append(super().forward_tree(tokens[first:], rows - before, branches))
            self._text.append(tokens[first:])
        return found[-1] if len(found) == 1 or not before else np.concatenate([np.asarray(f) for f in found])

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens."""
        kept = super().rewind(length)
        self._text.cut(kept)
        return kept

    def _see_part(self, tokens: Tokens, rows: int) -> Logits:
        """Append tokens of which some stand for pictures; return logits [rows, vocab]."""
        total, own = self._length + len(tokens), self._own
        if own.threads:
            use_threads(own.threads)
        with self._torch.inference_mode(), memory_errors(own.place, f"a text of {total} tokens"):
            x, positions = self._text.embedded(tokens), self._text.placed(tokens)
            states = self._passes.embedded(x, positions, self._length)
            logits = self._passes.rows(states[len(tokens) - rows :]) if rows else None
            found: Logits = np.empty((0, own.vocab), np.float32) if logits is None else self._numpy(logits)
        self._length = total
        self._text.append(tokens)
        return found


class Routed(NamedTuple):
    """A stretch of the text in which visual tokens sat out layers, and the rows of each layer before it."""

    begin: int
    end: int
    rows: tuple[int, ...]


class RoutedSession(PictureSession):
    """A text in which visual tokens may sit out layers, on any device.

    A prompt's pictures are read in one pass, and those to run are chosen by the prompt's last token. A rewind
    into such a stretch goes back to its beginning, because other tokens would have been chosen.
    """

    def __init__(self, model: SeeingModel) -> None:
        self.picture_token = model.shape.token
        self.chunk = WHOLE
        self._model, self._text, self._numpy = model, EmbeddedText(model), ToNumpy()
        self._memory = model.reader.memory(model.context + 1)
        self._prompt: Tokens = ()
        self._routed: list[Routed] = []

    def tokens_of(self, picture: Picture) -> int:
        """Return how many tokens stand for a picture; raises PromptError for one that cannot be seen."""
        return self._model.tokens_of(picture)

    def see(self, pictures: Sequence[Picture], prompt: Tokens) -> int:
        """Let the picture tokens of the text stand for `pictures`; return the number of tokens kept."""
        self._prompt = prompt
        return self.rewind(self._text.see(pictures))

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return logits [rows, vocab]."""
        import torch

        model = self._model
        if (total := len(self._text) + len(tokens)) > model.context:
            raise ContextFull(total, model.context)
        if model.engine.threads:
            use_threads(model.engine.threads)
        first = self._prompt_part(tokens)
        with torch.inference_mode(), memory_errors(model.place, f"a text of {total} tokens"):
            states = [self._read(part) for part in (tokens[:first], tokens[first:]) if len(part)]
            if not rows:
                return np.empty((0, model.vocab), np.float32)
            found: Logits = self._numpy(model.reader.decoder.logits(torch.cat(states)[-rows:]))
        return found

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens; a stretch whose visual tokens were chosen stays whole or goes."""
        end = len(self._text)
        length = min(length, end)
        while self._routed and self._routed[-1].end > length:
            begin, _, rows = self._routed.pop()
            self._memory.lengths = [*rows]
            end, length = begin, min(length, begin)
        self._memory.cut(end - length)
        self._text.cut(length)
        return length

    def _prompt_part(self, tokens: Tokens) -> int:
        """Return how many of the next tokens belong to a prompt whose visual tokens are chosen."""
        room = max(0, len(self._prompt) - len(self._text))
        chosen = self._model.wanted and self._text.visual(tokens[:room])
        return min(room, len(tokens)) if chosen else 0

    def _read(self, tokens: Tokens) -> Any:
        """Append tokens; return their last hidden states [tokens, width].

        The last token of a prompt chooses: it is read along if it is not among them, and is never visual.
        """
        text, reader, begin = self._text, self._model.reader, len(self._text)
        chosen = self._model.wanted and begin < len(self._prompt) and bool(text.visual(tokens))
        more = [self._prompt[-1]] if chosen and begin + len(tokens) < len(self._prompt) else []
        read = [*tokens, *more]
        visual = [place for place in text.visual(read) if place < len(read) - 1] if chosen else []
        rows = tuple(self._memory.lengths)
        schedule = self._schedule(len(visual)) if visual else Schedule()
        given = (text.embedded(read)[None], text.placed(read), self._memory, visual, schedule)
        replays = self._model.replays if schedule.decisions and not begin else None
        states = (replays or reader).read(*given)[0]
        self._memory.cut(len(more))
        text.append(tokens)
        if schedule.decisions:
            self._routed.append(Routed(begin, len(text), rows))
        return states[: len(tokens)]

    def _schedule(self, visual: int) -> Schedule:
        model, first = self._model, len(self._text.pictures[0].states)
        assert model.wanted is not None
        return model.wanted.schedule(model.reader.shape.layers, visual, max(1, round(visual / first)))
