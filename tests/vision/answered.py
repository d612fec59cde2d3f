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
    turns = decoder.turns(positions, seen.dtype)
    x = torch.cat([seen, decoder.embedded(questions)], 1)
    memory = reader.memory(length + ANSWER)
    first = (turns[0][:length], turns[1][:length])
    states = reader.read(x, first, memory, positions[:patches], schedule)[:, -1:]
    found = [decoder.logits(states).argmax(-1)]
    for at in range(length, length + ANSWER - 1):
        here = (turns[0][at : at + 1], turns[1][at : at + 1])
        found.append(decoder.logits(reader.read(decoder.embedded(found[-1]), here, memory)).argmax(-1))
    return torch.cat(found, 1)
