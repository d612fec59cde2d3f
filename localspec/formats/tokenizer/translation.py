"""What the tokens of two models stand for, so that one may guess for the other."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from localspec.errors import UnsupportedModel
from localspec.formats.tokenizer.token_bytes import MARK, Translation, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPACE = "\u2581"  # what SentencePiece writes for a space

# How the tokens that end a turn are called, ahead of those that end a whole text.
_TURN = re.compile(r"im_end|eot_id|end_of_turn|end_of_utterance|<\|end\|>|EOT", re.IGNORECASE)
_MARKS = re.compile(b"(%c[^%c]*%c)" % (MARK, MARK, MARK))
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_alphabet() -> dict[int, str]:
    """Return the characters by which byte-level BPE writes bytes, each with its byte as a character.

    GPT-2's bytes_to_unicode: printable bytes are themselves, the others follow from 256 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    named = {byte: byte for byte in printable} | {byte: 256 + at for at, byte in enumerate(others)}
    return {named[byte]: chr(byte) for byte in range(256)}


_ALPHABET = _byte_alphabet()


@dataclass(frozen=True)
class Speaker:
    """A model's tokenizer, the tokens that end an answer, and those that stand before every text."""

    name: str
    tokenizer: Tokenizer
    stops: Sequence[int] = ()
    first: Sequence[int] = ()

    @cached_property
    def special(self) -> dict[str, int]:
        """The special tokens by their text."""
        added = self.tokenizer.get_added_tokens_decoder()
        return {token.content: number for number, token in added.items() if token.special}

    @cached_property
    def texts(self) -> dict[int, str]:
        """The texts of the special tokens."""
        return {number: text for text, number in self.special.items()}

    @cached_property
    def end(self) -> int | None:
        """The token that ends a turn, else the one that ends a text, None without either."""
        stops = [stop for stop in self.stops if stop in self.texts]
        return next((stop for stop in stops if _TURN.search(self.texts[stop])), stops[0] if stops else None)


def between(target: Speaker, draft: Speaker) -> Translation:
    """Return what the tokens of a target and its draft have to do with each other.

    Special tokens are the same when their texts are, or when both end an answer; what else the target has of
    them is its text to the draft. Those that stand before all texts of one of them are silent. Raises
    UnsupportedModel for a tokenizer whose tokens are not made of bytes.
    """
    names = _names(target, draft)
    silent = {target.special[text]: b"" for text in _openings(target, draft) & target.special.keys()}
    of_target = {token: mark(names[0][token]) for token in names[0]} | silent
    of_draft = {token: mark(names[1][token]) if token in names[1] else None for token in draft.texts}
    ends = frozenset(stop for stop in draft.stops if stop in draft.texts)
    return Translation(
        _vocabulary(target, {**_own_texts(target), **of_target}),
        _vocabulary(draft, of_draft),
        tuple(draft.first),
        ends,
    ).prepared()


def mark(name: str) -> bytes:
    """Return how a special token of that name is spelled."""
    return b"%c%s%c" % (MARK, name.encode(), MARK)


def _own_texts(speaker: Speaker) -> dict[int, bytes]:
    return {token: text.encode() for token, text in speaker.texts.items()}


def _names(target: Speaker, draft: Speaker) -> tuple[dict[int, str], dict[int, str]]:
    """Return the names of the special tokens that both have, by the target's numbers and by the draft's."""
    same = (target.special.keys() & draft.special.keys()) - _openings(target, draft)
    of_target, of_draft = ({speaker.special[text]: text for text in same} for speaker in (target, draft))
    if target.end is None or draft.end is None:
        return of_target, of_draft
    of_draft.setdefault(draft.end, draft.texts[draft.end])
    of_target |= {stop: of_draft[draft.end] for stop in _ends(target) if stop not in of_target}
    of_draft |= {stop: of_target[target.end] for stop in _ends(draft) if stop not in of_draft}
    return of_target, of_draft


def _openings(*speakers: Speaker) -> set[str]:
    """Return the texts of the special tokens that stand before every text of a speaker, and end none."""
    return {
        speaker.texts[token]
        for speaker in speakers
        for token in speaker.first
        if token in speaker.texts and token not in speaker.stops
    }


def _ends(speaker: Speaker) -> list[int]:
    return [stop for stop in speaker.stops if stop in speaker.texts]


def _vocabulary(speaker: Speaker, special: dict[int, bytes | None]) -> Vocabulary:
    """Return the vocabulary of a model, its special tokens spelled as `special` says."""
    pieces = _pieces(speaker)
    for token, spelled in special.items():
        pieces[token] = spelled
    marks = {piece: token for token, piece in sorted(special.items()) if piece and piece[0] == MARK}
    marks |= {mark(text): token for text, token in speaker.special.items() if mark(text) in marks}
    if speaker.end is not None and (piece := pieces[speaker.end]) and piece[0] == MARK:
        marks[piece] = speaker.end
    bare, renamed = _bare(speaker)
    return Vocabulary(pieces, _Encoder(bare, renamed, pieces, marks).encode)


def _pieces(speaker: Speaker) -> list[bytes | None]:
    """Return the bytes of each token."""
    read = _bytes_of_level if _by_level(speaker) else _bytes_of_sentencepiece
    vocabulary: dict[str, int] = speaker.tokenizer.get_vocab(with_added_tokens=True)
    pieces: list[bytes | None] = [None] * (max(vocabulary.values(), default=-1) + 1)
    for text, token in vocabulary.items():
        pieces[token] = read(text)
    for token, added in speaker.tokenizer.get_added_tokens_decoder().items():
        pieces[token] = added.content.encode()
    return pieces


def _bytes_of_level(text: str) -> bytes:
    written = text.translate(_ALPHABET)
    try:
        return written.encode("latin-1")
    except UnicodeEncodeError:  # not written in the alphabet: no word is ever cut into it
        return text.encode()


def _bytes_of_sentencepiece(text: str) -> bytes:
    if found := _BYTE.fullmatch(text):
        return bytes([int(found[1], 16)])
    return text.replace(SPACE, " ").encode()


def _state(part: Any) -> Any:
    """Return the settings of a part of a tokenizer, None without that part."""
    return None if part is None else json.loads(part.__getstate__())


def _kinds(state: Any) -> set[str]:
    """Return the types of a part of a tokenizer and of all within it."""
    if isinstance(state, list):
        return set().union(*map(_kinds, state))
    if not isinstance(state, dict):
        return set()
    return {str(state.get("type"))}.union(*map(_kinds, state.values()))


def _by_level(speaker: Speaker) -> bool:
    """Tell whether the tokens are bytes in GPT-2's alphabet; else they are SentencePiece's."""
    kinds = _kinds(_state(speaker.tokenizer.decoder))
    if "ByteLevel" in kinds:
        return True
    if "ByteFallback" in kinds:
        return False
    raise UnsupportedModel(
        f"The tokens of `{speaker.name}` are not made of bytes, so they cannot be translated",
        "Take a draft of the same model family, or let `ngram` guess",
    )


def _bare(speaker: Speaker) -> tuple[Tokenizer, dict[int, int]]:
    """Return a tokenizer that keeps every byte and knows no special token, and what its new numbers are.

    Normalization, a space before the first word and clean-ups would all give back another text.
    """
    from tokenizers import Tokenizer, normalizers

    source = speaker.tokenizer
    bare = Tokenizer(source.model)
    if _by_level(speaker):
        bare.pre_tokenizer = _without_prefix(source.pre_tokenizer)
    else:
        bare.normalizer = normalizers.Replace(" ", SPACE)
    added = source.get_added_tokens_decoder()
    plain = {number: token for number, token in added.items() if not token.special}
    bare.add_tokens(list(plain.values()))
    numbers = {number: bare.token_to_id(token.content) for number, token in plain.items()}
    return bare, {new: number for number, new in numbers.items() if new is not None and new != number}


def _without_prefix(part: Any) -> Any:
    """Return a part that cuts words without putting a space before the first."""
    from tokenizers import pre_tokenizers

    state = _state(part)
    if not _prefixes(state):
        return part
    parts = state["pretokenizers"] if state["type"] == "Sequence" else [state]
    level = next(found for found in parts if found["type"] == "ByteLevel")
    others = [part[at] for at, found in enumerate(parts) if found["type"] != "ByteLevel"]
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=level.get("use_regex", True))
    return pre_tokenizers.Sequence([*others, plain])


def _prefixes(state: Any) -> bool:
    if isinstance(state, list):
        return any(map(_prefixes, state))
    if not isinstance(state, dict):
        return False
    own = state.get("type") == "ByteLevel" and bool(state.get("add_prefix_space"))
    return own or any(map(_prefixes, state.values()))


@dataclass(frozen=True)
class _Encoder:
    """Encodes bytes: special tokens as spelled, text by the tokenizer, what is no text byte by byte."""

    bare: Tokenizer
    renamed: dict[int, int]
    pieces: Sequence[bytes | None]
    marks: dict[bytes, int]

    def encode(self, text: bytes) -> list[int]:
        """Return the tokens of `text`; their pieces joined are `text`, but for bytes that no token has."""
        found: list[int] = []
        for part in _MARKS.split(text):
            token = self.marks.get(part)
            found += self._mixed(part) if token is None else [token]
        return found

    def _mixed(self, text: bytes) -> list[int]:
        found: list[int] = []
        while text:
            try:
                return found + self._text(text.decode(), text)
            except UnicodeDecodeError as error:
                good = text[: error.start]
                found += self._text(good.decode(), good) + self._single(text[error.start : error.end])
                text = text[error.end :]
        return found

    def _text(self, text: str, written: bytes) -> list[int]:
        """Return the tokens of `text`, in bytes `written`: those of its halves where they would lose any."""
        tokens = [self.renamed.get(token, token) for token in self.bare.encode(text).ids]
        if b"".join(self.pieces[token] or b"" for token in tokens) == written:
            return tokens
        if len(text) == 1:
            return self._single(written)
        left, right = text[: len(text) // 2], text[len(text) // 2 :]
        return self._text(left, left.encode()) + self._text(right, right.encode())

    def _single(self, text: bytes) -> list[int]:
        stand_in = self._bytes.get(b"?", 0)
        return [self._bytes.get(text[at : at + 1], stand_in) for at in range(len(text))]

    @cached_property
    def _bytes(self) -> dict[bytes, int]:
        """The tokens of single bytes."""
        return {piece: token for token, piece in enumerate(self.pieces) if piece and len(piece) == 1}
