from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE

from localspec.formats.tokenizer.infill import SPELLINGS, InfillMarks


def tokenizer(*special: str, plain: str = "") -> Tokenizer:
    made = Tokenizer(BPE({letter: at for at, letter in enumerate("abc")}, []))
    made.add_tokens([AddedToken(text, special=True) for text in special])
    made.add_tokens([AddedToken(plain, special=False)] * bool(plain))
    return made


@pytest.mark.parametrize("marks", SPELLINGS)
def test_each_spelling_is_found(marks: InfillMarks) -> None:
    made = tokenizer(*marks[:3], "<|endoftext|>", "<|other|>")
    found = InfillMarks.of(made)
    assert found is not None
    assert found[:3] == marks[:3]
    ends = {made.token_to_id(text) for text in (*marks[:3], "<|endoftext|>")}
    assert set(found.ends) == ends


def test_a_tokenizer_without_all_three_fills_in_nothing() -> None:
    assert InfillMarks.of(tokenizer("<fim_prefix>", "<fim_suffix>")) is None
    assert InfillMarks.of(tokenizer("<fim_prefix>", "<fim_suffix>", plain="<fim_middle>")) is None
