"""Build the translation between two tokenizers, so that one model can draft for the other."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from localspec.errors import UnsupportedModel
from localspec.formats.tokenizer.opening import vocabulary_of
from localspec.formats.tokenizer.token_bytes import MARK, Translation, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPACE = "\u2581"  # SentencePiece's space

# The names of tokens that end a turn; they are preferred to those that end a whole text.
_TURN = re.compile(r"im_end|eot_id|end_of_turn|end_of_utterance|<\|end\|>|EOT", re.IGNORECASE)
_MARKS = re.compile(b"(%c[^%c]*%c)" % (MARK, MARK, MARK))
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[int, str]:
    """Return byte-level BPE's character code for each byte -> the byte as a character.

    This inverts GPT-2's bytes_to_unicode: printable bytes stand for themselves, the others for 256 and up.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    codes = {byte: byte for byte in printable} | {byte: 256 + at for at, byte in enumerate(others)}
    return {codes[byte]: chr(byte) for byte in range(256)}


_ALPHABET = _byte_alphabet()


@dataclass(frozen=True)
class ModelTokenizer:
    """A model's tokenizer, the tokens that end an answer, and those that begin every text."""

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
        """The token that ends a turn, else one that ends a text, else None."""
        stops = [stop for stop in self.stops if stop in self.texts]
        return next((stop for stop in stops if _TURN.search(self.texts[stop])), stops[0] if stops else None)


def build_translation(target: ModelTokenizer, draft: ModelTokenizer) -> Translation:
    """Build the translation between a target's and its draft's tokens.

    Special tokens match if their texts do, or if both end an answer; the target's other special tokens are
    plain text to the draft. Those that begin every text of either model have no bytes. Raises
    UnsupportedModel for a tokenizer whose tokens are not made of bytes.
    """
    names = _names(target, draft)
    no_bytes = {target.special[text]: b"" for text in _openings(target, draft) & target.special.keys()}
    of_target = {token: special_bytes(names[0][token]) for token in names[0]} | no_bytes
    of_draft = {token: special_bytes(names[1][token]) if token in names[1] else None for token in draft.texts}
    stop_tokens = frozenset(stop for stop in draft.stops if stop in draft.texts)
    return Translation(
        _vocabulary(target, {**_own_texts(target), **of_target}),
        _vocabulary(draft, of_draft),
        tuple(draft.first),
        stop_tokens,
    ).prepared()


def bytes_reader(tokenizer: Tokenizer) -> Callable[[int], bytes]:
    """Return what tells the bytes of a token; a token beyond the vocabulary has none."""
    to_bytes = _byte_level_bytes if "ByteLevel" in _kinds(_state(tokenizer.decoder)) else _sentencepiece_bytes
    added = tokenizer.get_added_tokens_decoder()

    def read(token: int) -> bytes:
        if token in added:
            return str(added[token].content).encode()
        text = tokenizer.id_to_token(token)
        return b"" if text is None else to_bytes(text)

    return read


def special_bytes(name: str) -> bytes:
    """Return the bytes that stand for the special token `name`."""
    return b"%c%s%c" % (MARK, name.encode(), MARK)


def _own_texts(model: ModelTokenizer) -> dict[int, bytes]:
    return {token: text.encode() for token, text in model.texts.items()}


def _names(target: ModelTokenizer, draft: ModelTokenizer) -> tuple[dict[int, str], dict[int, str]]:
    """Return the names of the shared special tokens, by the target's ids and by the draft's."""
    same = (target.special.keys() & draft.special.keys()) - _openings(target, draft)
    of_target, of_draft = ({model.special[text]: text for text in same} for model in (target, draft))
    if target.end is None or draft.end is None:
        return of_target, of_draft
    of_draft.setdefault(draft.end, draft.texts[draft.end])
    of_target |= {stop: of_draft[draft.end] for stop in _ends(target) if stop not in of_target}
    of_draft |= {stop: of_target[target.end] for stop in _ends(draft) if stop not in of_draft}
    return of_target, of_draft


def _openings(*models: ModelTokenizer) -> set[str]:
    """Return the texts of the special tokens that begin every text of a model, and end none."""
    return {
        model.texts[token]
        for model in models
        for token in model.first
        if token in model.texts and token not in model.stops
    }


def _ends(model: ModelTokenizer) -> list[int]:
    return [stop for stop in model.stops if stop in model.texts]


def _vocabulary(model: ModelTokenizer, special: dict[int, bytes | None]) -> Vocabulary:
    """Return the vocabulary of a model, with `special` as the bytes of its special tokens."""
    token_bytes = _bytes_of_tokens(model)
    for token, text in special.items():
        token_bytes[token] = text
    marks = {text: token for token, text in sorted(special.items()) if text and text[0] == MARK}
    marks |= {
        special_bytes(name): token for name, token in model.special.items() if special_bytes(name) in marks
    }
    if model.end is not None and (text := token_bytes[model.end]) and text[0] == MARK:
        marks[text] = model.end
    bare, renumbered = _bare(model)
    return Vocabulary(token_bytes, _Encoder(bare, renumbered, token_bytes, marks).encode)


def _bytes_of_tokens(model: ModelTokenizer) -> list[bytes | None]:
    """Return the bytes of each token."""
    to_bytes = _byte_level_bytes if _is_byte_level(model) else _sentencepiece_bytes
    vocabulary = vocabulary_of(model.tokenizer, f"The vocabulary of `{model.name}`")
    token_bytes: list[bytes | None] = [None] * (max(vocabulary.values(), default=-1) + 1)
    for text, token in vocabulary.items():
        token_bytes[token] = to_bytes(text)
    for token, added in model.tokenizer.get_added_tokens_decoder().items():
        token_bytes[token] = added.content.encode()
    return token_bytes


def _byte_level_bytes(text: str) -> bytes:
    translated = text.translate(_ALPHABET)
    try:
        return translated.encode("latin-1")
    except UnicodeEncodeError:  # not in the alphabet: no text is ever split into this token
        return text.encode()


def _sentencepiece_bytes(text: str) -> bytes:
    if match := _BYTE.fullmatch(text):
        return bytes([int(match[1], 16)])
    return text.replace(SPACE, " ").encode()


def _state(part: Any) -> Any:
    """Return the configuration of a tokenizer component, None if there is none."""
    return None if part is None else json.loads(part.__getstate__())


def _kinds(state: Any) -> set[str]:
    """Return the types of a tokenizer component and of all components within it."""
    if isinstance(state, list):
        return set().union(*map(_kinds, state))
    if not isinstance(state, dict):
        return set()
    return {str(state.get("type"))}.union(*map(_kinds, state.values()))


def _is_byte_level(model: ModelTokenizer) -> bool:
    """Return whether the tokens are bytes in GPT-2's alphabet; else they are SentencePiece's."""
    kinds = _kinds(_state(model.tokenizer.decoder))
    if "ByteLevel" in kinds:
        return True
    if "ByteFallback" in kinds:
        return False
    raise UnsupportedModel(
        f"The tokens of `{model.name}` are not made of bytes, so they cannot be translated",
        "Choose a draft of the same model family, or `--draft ngram`",
    )


def _bare(model: ModelTokenizer) -> tuple[Tokenizer, dict[int, int]]:
    """Return a tokenizer without special tokens that keeps every byte, and its changed ids -> the own ids.

    Normalization, a space before the first word and clean-ups would all change the text.
    """
    from tokenizers import Tokenizer, normalizers

    source = model.tokenizer
    bare = Tokenizer(source.model)
    if _is_byte_level(model):
        bare.pre_tokenizer = _without_prefix(source.pre_tokenizer)
    else:
        bare.normalizer = normalizers.Replace(" ", SPACE)
    added = source.get_added_tokens_decoder()
    plain = {number: token for number, token in added.items() if not token.special}
    bare.add_tokens(list(plain.values()))
    numbers = {number: bare.token_to_id(token.content) for number, token in plain.items()}
    return bare, {new: number for number, new in numbers.items() if new is not None and new != number}


def _without_prefix(part: Any) -> Any:
    """Return a pre-tokenizer that adds no space before the first word."""
    from tokenizers import pre_tokenizers

    state = _state(part)
    if not _adds_space(state):
        return part
    parts = state["pretokenizers"] if state["type"] == "Sequence" else [state]
    level = next(step for step in parts if step["type"] == "ByteLevel")
    others = [part[at] for at, step in enumerate(parts) if step["type"] != "ByteLevel"]
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=level.get("use_regex", True))
    return pre_tokenizers.Sequence([*others, plain])


def _adds_space(state: Any) -> bool:
    if isinstance(state, list):
        return any(map(_adds_space, state))
    if not isinstance(state, dict):
        return False
    own = state.get("type") == "ByteLevel" and bool(state.get("add_prefix_space"))
    return own or any(map(_adds_space, state.values()))


@dataclass(frozen=True)
class _Encoder:
    """Encodes bytes: special tokens by their marks, text by the tokenizer, invalid UTF-8 byte by byte."""

    bare: Tokenizer
    renumbered: dict[int, int]
    token_bytes: Sequence[bytes | None]
    marks: dict[bytes, int]

    def encode(self, text: bytes) -> list[int]:
        """Return the tokens of `text`; their joined bytes are `text`, except bytes that no token has."""
        tokens: list[int] = []
        for part in _MARKS.split(text):
            token = self.marks.get(part)
            tokens += self._mixed(part) if token is None else [token]
        return tokens

    def _mixed(self, text: bytes) -> list[int]:
        tokens: list[int] = []
        while text:
            try:
                return tokens + self._text(text.decode(), text)
            except UnicodeDecodeError as error:
                valid = text[: error.start]
                tokens += self._text(valid.decode(), valid) + self._single(text[error.start : error.end])
                text = text[error.end :]
        return tokens

    def _text(self, text: str, encoded: bytes) -> list[int]:
        """Return the tokens of `text`, in UTF-8 `encoded`; split it in halves if its tokens lose bytes."""
        tokens = [self.renumbered.get(token, token) for token in self.bare.encode(text).ids]
        if b"".join(self.token_bytes[token] or b"" for token in tokens) == encoded:
            return tokens
        if len(text) == 1:
            return self._single(encoded)
        left, right = text[: len(text) // 2], text[len(text) // 2 :]
        return self._text(left, left.encode()) + self._text(right, right.encode())

    def _single(self, text: bytes) -> list[int]:
        replacement = self._bytes.get(b"?", 0)
        return [self._bytes.get(text[at : at + 1], replacement) for at in range(len(text))]

    @cached_property
    def _bytes(self) -> dict[bytes, int]:
        """The tokens of single bytes."""
        return {text: token for token, text in enumerate(self.token_bytes) if text and len(text) == 1}
