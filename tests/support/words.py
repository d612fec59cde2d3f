"""Two small vocabularies of the same letters, for toys that guess for each other."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.formats.tokenizer.token_bytes import Translation, Vocabulary

OF_TARGET = (b"a", b"b", b"c", b"ab", b"bc", b"cab")
OF_DRAFT = (b"b", b"c", b"a", b"ca", b"ab", b"abc")


def vocabulary(pieces: Sequence[bytes | None]) -> Vocabulary:
    """Return a vocabulary that cuts a text into the longest pieces, from left to right."""
    found = {piece: token for token, piece in enumerate(pieces) if piece}

    def encode(text: bytes) -> list[int]:
        tokens = []
        while text:
            size = next(size for size in range(len(text), 0, -1) if text[:size] in found)
            tokens.append(found[text[:size]])
            text = text[size:]
        return tokens

    return Vocabulary(pieces, encode)


def translation(
    of_target: Sequence[bytes | None] = OF_TARGET, of_draft: Sequence[bytes | None] = OF_DRAFT
) -> Translation:
    return Translation(vocabulary(of_target), vocabulary(of_draft))
