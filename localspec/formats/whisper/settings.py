"""The settings that CTranslate2's and older folders of Whisper leave out, as Hugging Face's have them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localspec.errors import BrokenModel
from localspec.formats.ctranslate2.whisper import Ctranslate2Whisper
from localspec.formats.files import read_json
from localspec.formats.values import MAX_TOKENS

CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer.json"

START, END = "<|startoftranscript|>", "<|endoftext|>"
TASKS = ("transcribe", "translate")
NO_TIMESTAMPS, PREVIOUS = "<|notimestamps|>", "<|startofprev|>"
MULTILINGUAL = 51_865  # tokens; the English models have one less, and no languages

# The mark of a language comes between the start of a transcript and the tasks.
_LANGUAGE = re.compile(r"<\|[a-z]{2,3}\|>")

# The keys of lists in config.json, of CTranslate2 or older folders of Hugging Face -> generation_config.json.
LISTS = {
    "alignment_heads": "alignment_heads",
    "suppress_ids": "suppress_tokens",
    "suppress_tokens": "suppress_tokens",
    "suppress_ids_begin": "begin_suppress_tokens",
    "begin_suppress_tokens": "begin_suppress_tokens",
}


def model_config(weights: Ctranslate2Whisper, marks: Mapping[str, int]) -> dict[str, Any]:
    """Return config.json for a CTranslate2 model; `marks` are the tokens of its tokenizer's marks."""
    end, start = marks[END], marks[START]
    return {
        **weights.shape_config(),
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "decoder_start_token_id": start,
    }


def generation_config(
    folder: Path, marks: Mapping[str, int], vocabulary: int, context: int
) -> dict[str, Any]:
    """Return generation_config.json for the model of `folder`, from its config.json and its tokenizer.

    `vocabulary` and `context` are counts of tokens. Raises BrokenModel for lists that hold no tokens.
    """
    own = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    end, start = marks[END], marks[START]
    multilingual = vocabulary >= MULTILINGUAL
    config: dict[str, Any] = {
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "decoder_start_token_id": start,
        "is_multilingual": multilingual,
        "max_initial_timestamp_index": 50,
        "max_length": context,
        "no_timestamps_token_id": marks[NO_TIMESTAMPS],
        "prev_sot_token_id": marks[PREVIOUS],
        "return_timestamps": False,
    }
    for key, name in LISTS.items():
        if found := own.get(key):
            config[name] = _numbers(folder / CONFIG, key, found)
    if multilingual:
        tasks = {task: marks[f"<|{task}|>"] for task in TASKS}
        config["forced_decoder_ids"] = [[1, None], [2, tasks["transcribe"]]]
        config["task_to_id"] = tasks
        config["lang_to_id"] = {
            mark: token
            for mark, token in marks.items()
            if start < token < min(tasks.values()) and _LANGUAGE.fullmatch(mark)
        }
    else:
        config["forced_decoder_ids"] = [[1, marks[NO_TIMESTAMPS]]]
    return config


def tokenizer_marks(path: Path, tokenizer: Mapping[str, Any]) -> dict[str, int]:
    """Return the tokens of the marks that a tokenizer.json adds, such as `<|transcribe|>`.

    Raises BrokenModel for one without the marks of a Whisper model.
    """
    added = tokenizer.get("added_tokens")
    marks = {
        entry["content"]: entry["id"]
        for entry in (added if isinstance(added, list) else [])
        if isinstance(entry, dict) and isinstance(entry.get("content"), str) and _is_token(entry.get("id"))
    }
    needed = (START, END, NO_TIMESTAMPS, PREVIOUS, *(f"<|{task}|>" for task in TASKS))
    for mark in needed:
        if mark not in marks:
            raise BrokenModel(f"`{path}` has no token `{mark}`, which Whisper needs", "Download it again")
    return marks


def _numbers(path: Path, key: str, found: Any) -> list[Any]:
    """Return a list of tokens, or of pairs of a layer and a head."""
    values = found if isinstance(found, list) else [None]
    flat = [each for value in values for each in (value if isinstance(value, list) else [value])]
    if not all(_is_token(value) for value in flat):
        raise BrokenModel(f"`{key}` of `{path}` is no list of numbers", "Download it again")
    return values


def _is_token(value: Any) -> bool:
    return type(value) is int and 0 <= value < MAX_TOKENS
