"""Word times from cross-attention, as OpenAI's `timing.py` and Louradour 2023 (whisper-timestamped)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.speech.types import Word
from localspec.speech.whisper.vocabulary import STEP

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from localspec.speech.whisper.model import SpeechModel

MEDIAN = 7  # frames of the filter over each token's attention
PREPENDED = "\"'“¿([{-"  # punctuation that belongs to the word after it
APPENDED = "\"'.。,，!！?？:：”)]}、"  # and to the word before it
LONGEST_WORDS = 2.0  # times the median length: more is a pause before or after the word
NO_SPACES = ("zh", "ja", "th", "lo", "my", "yue")  # languages whose words are not split at spaces


class Spoken(NamedTuple):
    """A word's text and its tokens, as places among the text tokens of a window."""

    text: str
    first: int
    last: int


def words(
    model: SpeechModel,
    prompt: Sequence[int],
    answer: Sequence[int],
    logprobs: Sequence[float],
    seconds: float,
    language: str | None,
) -> list[tuple[Word, int]]:
    """Return the words of an answer, in seconds from the start of its window, with the place of their end.

    The place is that behind the word's last token in `answer`. `prompt` is that of the answer, without an
    earlier text; `seconds` are those of the window.
    """
    places = [at for at, token in enumerate(answer) if token < model.tokens.end]
    text = [answer[at] for at in places]
    if not text:
        return []
    own = [*prompt, model.tokens.no_timestamps, *text, model.tokens.end]
    frames = max(1, round(seconds / STEP))
    weights = model.session.listened(own, model.tokens.alignment_heads)[:, :, :frames]
    matrix = _sharpened(weights)[len(prompt) : -1]  # from where the first token is predicted to the end's
    starts = _starts(-matrix) * STEP
    spoken = _merged(split(model.tokenizer, text, language))
    found = []
    for word in spoken:
        chance = float(np.exp(np.mean([logprobs[places[at]] for at in range(word.first, word.last)])))
        start, end = float(starts[word.first]), float(starts[word.last])
        found.append((Word(start, end, word.text, chance), places[word.last - 1] + 1))
    return _without_pauses(found)


def _sharpened(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the attention [tokens, frames] of several heads: normalized, smoothed, and their mean."""
    weights = weights / weights.sum(-1, keepdims=True)
    spread = weights.std(axis=1, keepdims=True)
    weights = (weights - weights.mean(axis=1, keepdims=True)) / np.maximum(spread, 1e-10)
    if weights.shape[-1] > MEDIAN // 2:
        padded = np.pad(weights, [(0, 0), (0, 0), (MEDIAN // 2, MEDIAN // 2)], "reflect")
        windows = np.lib.stride_tricks.sliding_window_view(padded, MEDIAN, axis=-1)
        weights = np.sort(windows, axis=-1)[..., MEDIAN // 2]
    mean: NDArray[np.float32] = weights.mean(axis=0)
    return mean


def _starts(costs: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the frame at which each token [tokens, frames] begins on the cheapest monotonic path.

    Dynamic time warping (Sakoe and Chiba 1978), a diagonal at a time.
    """
    rows, columns = costs.shape
    total = np.full((rows + 1, columns + 1), np.inf)
    total[0, 0] = 0.0
    moves = np.zeros(
        (rows + 1, columns + 1), np.int8
    )  # 0: both before, 1: the token before, 2: the frame before
    for diagonal in range(2, rows + columns + 1):
        i = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        j = diagonal - i
        before = np.stack([total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]])
        best = before.argmin(axis=0)
        moves[i, j] = best
        total[i, j] = costs[i - 1, j - 1] + before[best, np.arange(len(i))]
    moves[0, :], moves[:, 0] = 2, 1
    starts = np.zeros(rows, np.int64)
    i, j = rows, columns
    while i > 0:
        starts[i - 1] = max(j - 1, 0)
        move = moves[i, j]
        i, j = i - (move != 2), j - (move != 1)
    return starts


def split(tokenizer: Tokenizer, text: Sequence[int], language: str | None) -> list[Spoken]:
    """Return the words of text tokens: split at spaces and punctuation, in some languages at characters."""
    found: list[Spoken] = []
    first = 0
    for at in range(len(text)):
        piece = str(tokenizer.decode(list(text[first : at + 1]), skip_special_tokens=False))
        if "\N{REPLACEMENT CHARACTER}" in piece and at + 1 < len(text):
            continue  # a character that is not complete
        mark = len(piece.strip()) == 1 and not piece.strip().isalnum()
        if language in NO_SPACES or piece.startswith(" ") or mark or not found:
            found.append(Spoken(piece, first, at + 1))
        else:
            found[-1] = Spoken(found[-1].text + piece, found[-1].first, at + 1)
        first = at + 1
    return found


def _merged(spoken: list[Spoken]) -> list[Spoken]:
    """Return the words with the punctuation beside them."""
    found: list[Spoken] = []
    for word in spoken:
        last = found[-1] if found else None
        opens = last is not None and last.text.startswith(" ") and last.text.strip() in PREPENDED
        if last is not None and (opens or (word.text and word.text in APPENDED)):
            found[-1] = Spoken(last.text + word.text, last.first, word.last)
        else:
            found.append(word)
    return found


def _without_pauses(found: list[tuple[Word, int]]) -> list[tuple[Word, int]]:
    """Shorten words that are far longer than most: attention rests on a word during the pause beside it."""
    lengths = [word.end - word.start for word, _ in found if word.end > word.start]
    if not lengths:
        return found
    most = max(0.2, LONGEST_WORDS * min(0.7, float(np.median(lengths))))
    shorter = []
    for at, (word, place) in enumerate(found):
        start, end = word.start, word.end
        if end - start > most:
            after_sentence = at and found[at - 1][0].text.rstrip()[-1:] in ".。!！?？"
            start, end = (end - most, end) if after_sentence or at == 0 else (start, start + most)
        shorter.append((Word(start, end, word.text, word.probability), place))
    return shorter
