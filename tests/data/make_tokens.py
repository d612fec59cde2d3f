"""Write llama.cpp's token ids for many strings, as the truth the tokenizer tests compare with.

Run it by hand with llama-cpp-python installed, in the repository's root:

    python tests/data/make_tokens.py SmolLM2.gguf qwen2.5-coder-0.5b.gguf
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

FIXED = [
    "",
    " ",
    "  ",
    "\n",
    "\n\n\n",
    " \n \n",
    "\t\ttabs\tand  spaces   here    \n     end  ",
    "\r\nwindows\r\nlines\r\n",
    "no\u00a0break\u2003em\u3000ideographic space",
    "I'm, you're, he's, we'll, they'd, I've, can't; I'M YOU'RE HE'S WE'LL THEY'D I'VE CAN'T",
    "'s't're've'm'll'd 'S'T'RE'VE'M'LL'D ''''' `'`",
    "1 12 123 1234 12345 1234567890 3.14159 1e-9 0xFF 1,000,000 ٣٤٥ १२३ ½ ² Ⅷ ①",
    "2026-11-27T23:18:00Z 192.168.0.1 +49 30 1234567",
    "def f(x):\n    return {k: v for k, v in x.items() if v is not None}\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 2.5f; }\t// done\n",
    "SELECT * FROM t WHERE a >= 10 AND b LIKE '%x_y%';",
    '<html><body class="a">&amp;&lt;p&gt;</body></html>',
    '{"a": [1, 2.0, null, true], "b": "\\u00e9\\n"}',
    "#!/bin/sh\nset -eu\nfor f in *.txt; do echo \"$f\" | sed 's/a/b/g'; done\n",
    "$x = \\frac{1}{2}\\sum_{i=0}^{n} \\alpha_i$ ≤ ∞ ∀x∈ℝ",
    "人工智能正在改变世界。你好，世界！",
    "日本語のテキスト、カタカナとひらがな。ﾊﾝｶｸ",
    "한국어 텍스트입니다. 안녕하세요?",
    "中文English混排123数字。",
    "👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇩🇪🇯🇵 ❤️ ☺︎ 🧑🏿‍🚀",
    "e\u0301 n\u0303 a\u030a o\u0308 (decomposed) é ñ å ö (composed)",
    "Z͑ͫ̓a̴l͙g̢o̡ ̡text",
    "\u200bzero\u200dwidth\u200c\ufeffmarks\u2060",
    "\u202eright to left\u202c and \u0007 control \x1b[31mred\x1b[0m",
    "שלום עולם مرحبا بالعالم नमस्ते दुनिया สวัสดีชาวโลก",
    "Ελληνικά Русский Հայերեն ქართული አማርኛ தமிழ் ᠮᠣᠩᠭᠣᠯ",
    "𝕳𝖊𝖑𝖑𝖔 𝒲ℴ𝓇𝓁𝒹 𐍈 𠜎 𓀀",
    "... !!! ??? --- *** === ___ ~~~ \\\\\\ ///",
    "ab" * 60,
    "=" * 70,
    " " * 40 + "x",
    "\n" * 9 + "y" + "\n " * 5,
    "camelCaseAndPascalCase snake_case_name kebab-case-name SCREAMING_CASE",
    "https://example.org/a/b?c=d&e=%20f#g me@example.org",
    "don’t use ’curly’ “quotes” – or—dashes…",
    "ﬁ ﬂ ǅ ß ẞ İ ı K Å",
    "\U0010ffff\ue000\ufffd",
]

BLOCKS = {
    "latin": (0x20, 0x17F),
    "ipa": (0x250, 0x2AF),
    "marks": (0x300, 0x36F),
    "greek": (0x370, 0x3FF),
    "cyrillic": (0x400, 0x4FF),
    "hebrew": (0x5D0, 0x5EA),
    "arabic": (0x600, 0x6FF),
    "devanagari": (0x900, 0x97F),
    "thai": (0xE00, 0xE5B),
    "punctuation": (0x2000, 0x206F),
    "symbols": (0x2190, 0x23FF),
    "kana": (0x3040, 0x30FF),
    "cjk": (0x4E00, 0x9FFF),
    "emoji": (0x1F300, 0x1F64F),
}

SPECIAL = {
    "smollm2": ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<file_sep>", "<jupyter_code>"],
    "qwen2": ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|fim_prefix|>", "<tool_call>", "</tool_call>"],
}

# Rules of cutting words besides the two models' own, tried on SmolLM2's vocabulary.
OTHER_RULES = ["gpt-2", "starcoder", "qwen35", "llama-bpe", "smaug-bpe", "qwen2"]


def corpus(special: list[str]) -> list[str]:
    """Make about 300 strings, the same at every run."""
    dice = random.Random(20261127)
    texts = list(FIXED)
    for first, last in BLOCKS.values():
        texts += ["".join(chr(dice.randint(first, last)) for _ in range(24)) for _ in range(4)]
        texts += [" ".join(chr(dice.randint(first, last)) * 2 for _ in range(8)) for _ in range(2)]
    texts += [mixed(dice, texts) for _ in range(90)]
    texts += [with_special(dice, special) for _ in range(84)]
    return texts


def mixed(dice: random.Random, texts: list[str]) -> str:
    """Join slices of other strings with whitespace runs and numbers."""
    parts = []
    for _ in range(dice.randint(2, 4)):
        text = dice.choice(texts)
        start = dice.randrange(len(text) + 1)
        parts.append(text[start : start + dice.randint(1, 20)])
        parts.append(dice.choice(["", " ", "  ", "\n", "\n\n ", "\t", "   \n", str(dice.randrange(10**6))]))
    return "".join(parts)


def with_special(dice: random.Random, special: list[str]) -> str:
    """Put special tokens, whole and broken, between words."""
    words = ["user", " hi", "\n", "  ", "you're", "42", "é", "日本", "🙂", ".", "<|im", "end|>", "<", "|>"]
    return "".join(dice.choice(special) if dice.random() < 0.35 else dice.choice(words) for _ in range(8))


def llama_tokenizer(path: Path) -> Callable[[str], list[int]]:
    """Return llama.cpp's own `text -> ids`: special texts are parsed, nothing is added."""
    import llama_cpp

    parameters = llama_cpp.llama_model_default_params()
    parameters.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
    if not model:
        raise SystemExit(f"llama.cpp cannot load {path}")
    vocabulary = llama_cpp.llama_model_get_vocab(model)

    def encode(text: str) -> list[int]:
        data = text.encode()
        room = (ctypes.c_int32 * (len(data) + 8))()
        count = llama_cpp.llama_tokenize(vocabulary, data, len(data), room, len(room), False, True)
        return list(room[:count])

    return encode


def with_rule(path: Path, rule: str, into: Path) -> Path:
    """Copy a GGUF file's header with another `tokenizer.ggml.pre` and no tensors."""
    data = path.open("rb").read(16 << 20)
    key = b"tokenizer.ggml.pre" + (8).to_bytes(4, "little")
    at = data.index(key) + len(key)
    end = at + 8 + int.from_bytes(data[at : at + 8], "little")
    value = len(rule).to_bytes(8, "little") + rule.encode()
    into.write_bytes(data[:8] + bytes(8) + data[16:at] + value + data[end:])
    return into


def write(name: str, found: Any) -> None:
    (HERE / name).write_text(json.dumps(found, ensure_ascii=True, separators=(",", ":")) + "\n", "utf-8")


def main() -> None:
    smollm2, qwen2 = Path(sys.argv[1]), Path(sys.argv[2])
    for name, path in (("smollm2", smollm2), ("qwen2", qwen2)):
        encode = llama_tokenizer(path)
        write(f"tokens_{name}.json", [[text, encode(text)] for text in corpus(SPECIAL[name])])
    with tempfile.TemporaryDirectory() as folder:
        texts = corpus(SPECIAL["smollm2"])[:200:2]
        rules = {
            rule: llama_tokenizer(with_rule(smollm2, rule, Path(folder) / f"{rule}.gguf"))
            for rule in OTHER_RULES
        }
        write("tokens_rules.json", {rule: [[text, f(text)] for text in texts] for rule, f in rules.items()})


if __name__ == "__main__":
    main()
