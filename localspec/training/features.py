"""A frozen target's hidden states of texts, kept in memory as long as they fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from localspec.drafting.build_step import TargetText
from localspec.errors import UnsupportedModel
from localspec.training.loop import autocast, length

Tensor = Any  # torch.Tensor

ROWS = 4096  # positions whose logits over the whole vocabulary are in memory at a time


class TextFeatures(NamedTuple):
    """The target's features of a text of n tokens, in half precision on a GPU.

    `states` [n, layers * width] are its hidden states after the tapped layers, `last` [n, width] those that
    its head reads, `mass` [n] the logarithm of the sum over the whole vocabulary of the exponentials of its
    logits.
    """

    states: Tensor
    last: Tensor
    mass: Tensor


@dataclass(frozen=True)
class Batch:
    """Texts of the target with its features, padded on the right.

    `answers` [texts, tokens] tells where the next token is one that the target wrote.
    """

    tokens: Tensor
    answers: Tensor
    states: Tensor
    last: Tensor
    mass: Tensor


class Features:
    """The features of texts by a `model`, read after its layers `taps`; at most `room` bytes are kept."""

    def __init__(self, model: Any, taps: Sequence[int], room: int) -> None:
        import torch

        layers = getattr(model.base_model, "layers", None)
        if not isinstance(layers, torch.nn.ModuleList):
            raise UnsupportedModel("The layers of this model cannot be told apart")
        self.model, self._room = model, room
        self._kept: dict[int, TextFeatures] = {}  # by the identity of a text
        self._seen: dict[int, Tensor] = {}
        self._hooks = [layers[tap - 1].register_forward_hook(self._noting(tap)) for tap in taps]

    def close(self) -> None:
        """Leave the model as it was; what is kept is dropped."""
        for hook in self._hooks:
            hook.remove()
        self._kept.clear()

    @property
    def head(self) -> Tensor:
        """The matrix [vocab, width] of the model's head."""
        return self.model.get_output_embeddings().weight

    def batch(self, texts: Sequence[TargetText]) -> Batch:
        """Return texts with their features, read by the model unless they are kept."""
        import torch

        missing = [text for text in texts if id(text) not in self._kept]
        new = {}
        if missing:
            with torch.no_grad(), autocast(self.model.device):
                read = self._read(missing)
            new = {id(text): found for text, found in zip(missing, read, strict=True)}
            self._keep(new)
        found = [self._kept.get(id(text)) or new[id(text)] for text in texts]
        parts = (
            torch.nn.utils.rnn.pad_sequence(list(part), batch_first=True) for part in zip(*found, strict=True)
        )
        return Batch(*tokens_of(texts, self.model.device), *parts)

    def _noting(self, tap: int) -> Any:
        def note(module: Any, given: Any, output: Any) -> None:
            self._seen[tap] = output[0] if isinstance(output, tuple) else output

        return note

    def _read(self, texts: Sequence[TargetText]) -> list[TextFeatures]:
        import torch

        tokens, answers = tokens_of(texts, self.model.device)
        mask = torch.arange(tokens.shape[1], device=tokens.device) < torch.tensor(
            [[length(text)] for text in texts], device=tokens.device
        )
        last = self.model.base_model(
            input_ids=tokens, attention_mask=mask.long(), use_cache=False
        ).last_hidden_state
        states = torch.cat([self._seen[tap] for tap in sorted(self._seen)], -1)
        self._seen.clear()
        mass = torch.zeros(tokens.shape, device=tokens.device)
        rows = last[answers]
        parts = [
            (rows[at : at + ROWS] @ self.head.T).float().logsumexp(-1) for at in range(0, len(rows), ROWS)
        ]
        mass[answers] = torch.cat(parts)
        kind = torch.float32 if tokens.device.type == "cpu" else self.head.dtype
        return [
            TextFeatures(
                states[row, : length(text)].to(kind, copy=True),
                last[row, : length(text)].to(kind, copy=True),
                mass[row, : length(text)].clone(),
            )
            for row, text in enumerate(texts)
        ]

    def _keep(self, new: dict[int, TextFeatures]) -> None:
        for key, found in new.items():
            size = sum(part.numel() * part.element_size() for part in found)
            if size > self._room:
                return
            self._room -= size
            self._kept[key] = found


def tokens_of(texts: Sequence[TargetText], device: Any) -> tuple[Tensor, Tensor]:
    """Return tokens [texts, tokens], padded on the right, and where the next one belongs to an answer."""
    import torch

    width = max(map(length, texts))
    tokens = torch.zeros(len(texts), width, dtype=torch.long)
    answers = torch.zeros(len(texts), width, dtype=torch.bool)
    for row, (prompt, answer) in enumerate(texts):
        end = len(prompt) + len(answer)
        tokens[row, :end] = torch.tensor([*prompt, *answer])
        answers[row, len(prompt) - 1 : end - 1] = True
    return tokens.to(device), answers.to(device)
