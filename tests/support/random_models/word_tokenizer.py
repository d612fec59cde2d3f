"""A tokenizer of whole words, each with the blank before it, as the files of a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers


def write(into: Path, words: Sequence[str], special: Sequence[str], template: str) -> None:
    """Write a tokenizer, in which `words` have the numbers of their places, with a chat template."""
    vocabulary = {word if word in special else f"▁{word}": at for at, word in enumerate(words)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence(
        [normalizers.Lowercase(), normalizers.Replace(Regex(r"\s*\?"), " ?"), normalizers.Strip()]
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    made.decoder = decoders.Metaspace(prepend_scheme="always")
    made.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in special])
    made.save(str(into / "tokenizer.json"))
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        **({"pad_token": "<pad>"} if "<pad>" in special else {}),
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "chat_template": template,
    }
    (into / "tokenizer_config.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
