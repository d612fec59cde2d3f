"""Tokenizers of a few hundred tokens, and texts to encode with them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

MARKS = ["<|end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"]
MERGES = ["n a", "na m", "nam e", "a r", "Ġ t", "Ġt o", '{ "', '" :']


LINES = ["the cat sat on the mat 🐈 doesn't", "日本語のテキスト", "naïve café über", "<s> a </s> <|im_end|>"]
SPACE = "\u2581"  # SentencePiece's
KINDS_OF_TEXT = [
    "the cat sat ",
    "0123456789 ",
    "\n\r\t  \u3000\xa0",
    "\x00\x01\x07\x1b\x7f\x85",
    "日本語",
    "हिन्दी",
    "العربية",
    "ไทย",
    "👩\u200d👩\u200d👧🐈🇫🇷",
    "e\u0301\u0308ñ",
    f"{SPACE}ĠĊ",
    ".,!?'\"’-_=",
]


def texts(marks: Sequence[str], count: int = 2000) -> list[str]:
    """Draw texts of all scripts, with blanks, control characters, long runs and `marks` among them."""
    dice = random.Random(0)
    runs = [letter * size for letter in " -=0a\n日🐈" for size in (2, 3, 7, 20, 63, 300)]
    found = ["", *marks, *(f"a {mark} b{mark}\n" for mark in marks), *runs]
    while len(found) < count:
        parts = []
        for _ in range(dice.randrange(1, 8)):
            any_letter = chr(dice.choice([dice.randrange(0x20, 0xD800), dice.randrange(0xE000, 0x110000)]))
            word = "".join(dice.choices(dice.choice(KINDS_OF_TEXT), k=dice.randrange(1, 6)))
            parts.append(dice.choices([dice.choice(marks), any_letter, word], [0.2, 0.1, 0.7])[0])
        found.append("".join(parts))
    return found


def byte_level(prefix: bool = False) -> Tokenizer:
    """Return byte-level BPE with `<|endoftext|>`; `prefix` puts a space before each text."""
    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    found.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    found.train_from_iterator(
        LINES, trainers.BpeTrainer(vocab_size=300, initial_alphabet=letters, show_progress=False)
    )
    found.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    return found


PIECES = [SPACE, *"thecas-", "th", f"{SPACE}t", "ca", f"{SPACE}ca", "the", f"{SPACE}the", "--", 2 * SPACE]


def sentencepiece(space: str = "normalizer") -> Tokenizer:
    """Return BPE with byte tokens, as of Llama 2; a `normalizer` or `words` put a space before each text."""
    own = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    splits = [(piece[:at], piece[at:]) for piece in PIECES for at in range(1, len(piece))]
    merges = [split for split in splits if split[0] in own and split[1] in own]
    vocabulary = {piece: token for token, piece in enumerate(own)}
    found = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    replaced = normalizers.Replace(" ", SPACE)
    if space == "words":
        found.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "first", split=False)
    else:
        before = [normalizers.Prepend(SPACE)] if space == "normalizer" else []
        found.normalizer = normalizers.Sequence([*before, replaced])
    steps = [
        decoders.Replace(SPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    found.decoder = decoders.Sequence(steps if space else steps[:3])
    found.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in own[:3]])
    return found


def tokenizer() -> Tokenizer:
    """Return a byte-level tokenizer with marks for tool calls and thoughts; `<|end|>` ends an answer."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    words = letters + ["".join(merge) for merge in merges]
    found = Tokenizer(models.BPE({word: at for at, word in enumerate(words)}, merges))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    return found


def saved(folder: Path) -> Path:
    """Write the tokenizer into a folder and return the file."""
    path = folder / "tokenizer.json"
    tokenizer().save(str(path))
    return path
