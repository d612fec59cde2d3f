"""Greedy answers of a batch of questions about pictures, each with its own choice of visual tokens."""

from __future__ import annotations

from typing import Any

import torch
from scenes import ANSWER

from localspec.engines.torch.vision.reader import Reader
from localspec.pictures.schedule import Schedule


def answered(reader: Reader, seen: Any, questions: Any, schedule: Schedule) -> Any:
    """Return answers [n, ANSWER] to questions [n, tokens] about what was seen [n, patches, width]."""
    decoder, patches = reader.decoder, seen.shape[1]
    length = patches + questions.shape[1]
    positions = torch.arange(length + ANSWER, device=seen.device)
    x = torch.cat([seen, decoder.embedded(questions)], 1)
    memory = reader.memory(length + ANSWER, len(x))
    states = reader.read(x, positions[:length], memory, range(patches), schedule)[:, -1:]
    found = [decoder.logits(states).argmax(-1)]
    for at in range(length, length + ANSWER - 1):
        here = reader.read(decoder.embedded(found[-1]), positions[at : at + 1], memory)
        found.append(decoder.logits(here).argmax(-1))
    return torch.cat(found, 1)
