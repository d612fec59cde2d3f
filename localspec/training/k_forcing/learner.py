"""Teach hints by self-forcing: those of 2k tokens a pass learn from two passes of those of k."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from localspec.drafting.build_step import TargetText
from localspec.formats.k_forcing.torch_hints import TorchHints, drawn, law
from localspec.training.features import tokens_of
from localspec.training.k_forcing.groups import GroupReader, Text
from localspec.training.loop import autocast

Tensor = Any  # torch.Tensor

GROUPS = 8  # places in a text after which tokens are learned at a time, unless said otherwise
GREEDY = 0.4  # share of groups that are learned at temperature 0
COOLEST = 0.3  # least temperature of the others
EVAL_BATCH = 8  # texts


class Setting(NamedTuple):
    """Where tokens are drawn, and how: `anchors` [texts, groups] are the last tokens that are known.

    `noise` [texts, groups, tokens] is float64, `temperature` [texts, groups].
    """

    anchors: Tensor
    noise: Tensor
    temperature: Tensor


class KForcingLearner:
    """Hints that learn to give `k` tokens a pass from a `teacher` of k / 2, None for the target itself.

    The teacher reads what it has drawn and draws as many tokens again (K-Forcing, 2606.10820, progressive
    self-forcing). The loss is the cross-entropy of each hint with the distribution that the teacher drew
    from, whose expectation is that of the drawn tokens.
    """

    def __init__(
        self,
        hints: TorchHints,
        teacher: TorchHints | None,
        held_out: Sequence[TargetText],
        *,
        k: int,
        seed: int = 0,
        groups: int = GROUPS,
    ) -> None:
        self._hints, self._held_out, self._k, self._seed = hints, held_out, k, seed
        self._student = GroupReader(hints.model, hints)
        self._teacher = GroupReader(hints.model, teacher)
        self._groups = groups
        self._generator = _generator(seed)
        self.rates: tuple[float, ...] = ()

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The weights of the hints."""
        return dict(self._hints.weights)

    def loss(self, texts: Sequence[TargetText], progress: float) -> Tensor:
        """Return the mean cross-entropy of the hints in some texts, in nats a token."""
        del progress
        device = self._hints.model.device
        tokens, answers = tokens_of(texts, device)
        with autocast(device):
            text = self._student.text(tokens)
            setting = self._setting(answers, self._generator)
            wanted = self._wanted(text, setting)
            found = self._student.hinted(text, setting.anchors, setting.noise[..., :-1], setting.temperature)
            warm = setting.temperature[..., None, None]
            scaled = found.float() / warm.where(warm > 0, 1.0)
            return -(wanted * scaled.log_softmax(-1)).sum(-1).mean()

    def score(self) -> float:
        """Return the mean number of tokens a pass that are the target's own, on held-out texts."""
        rates = self.agreement(self._held_out)
        self.rates = tuple(rates)
        return sum(rates)

    def found(self, score: float, before: float) -> str:
        """Return what an evaluation found, in words."""
        shown = " ".join(f"{rate:.1%}" for rate in self.rates)
        return f"{score:.2f} of {self._k} tokens a pass are right, by place {shown}; {before:.2f} before"

    def agreement(self, texts: Sequence[TargetText], temperature: float | None = None) -> list[float]:
        """Return how often the first j tokens of a pass are the target's own for the same noise, j = 1..k.

        Some groups are greedy, unless a `temperature` is given; the others are drawn at 1.
        """
        import torch

        found = [
            (self._student.tokens(text, setting) == self._own(text, setting)).cumprod(-1).double()
            for text, setting in self._settings(texts, temperature)
        ]
        return [float(rate) for rate in torch.cat(found).mean((0, 1))]

    def perplexity(self, texts: Sequence[TargetText]) -> tuple[float, float]:
        """Return the target's perplexity of its own tokens, drawn at temperature 1, and of a pass's."""
        import torch

        found: list[list[Tensor]] = [[], []]
        for text, setting in self._settings(texts, 1.0):
            drawn_by = self._own(text, setting), self._student.tokens(text, setting)
            for values, tokens in zip(found, drawn_by, strict=True):
                values.append(self._teacher.likelihoods(text, setting.anchors, tokens))
        own, hinted = (float((-torch.cat(values).mean()).exp()) for values in found)
        return own, hinted

    def _settings(
        self, texts: Sequence[TargetText], temperature: float | None
    ) -> Iterator[tuple[Text, Setting]]:
        """Yield texts as they were read, and places in them, the same each time."""
        import torch

        device, generator = self._hints.model.device, _generator(self._seed + 1)
        with torch.no_grad(), autocast(device):
            for at in range(0, len(texts), EVAL_BATCH):
                tokens, answers = tokens_of(texts[at : at + EVAL_BATCH], device)
                setting = self._setting(answers, generator)
                warm = (setting.temperature > 0).double() if temperature is None else temperature
                setting = setting._replace(temperature=setting.temperature * 0 + warm)
                yield self._student.text(tokens), setting

    def _wanted(self, text: Text, setting: Setting) -> Tensor:
        """Return the distributions [texts, groups, k - 1, vocab] of the teacher's tokens after the first."""
        import torch

        half = self._k // 2
        anchors, noise, temperature = setting
        with torch.no_grad():
            first = self._teacher.laws(text, setting, half)
            drawn_first = drawn(first, noise[..., :half])
            rows = self._teacher.continued(text, anchors, drawn_first, noise[..., half:-1], temperature)
            second = law(rows, temperature[..., None].expand(rows.shape[:-1]))
            return torch.cat([first[..., 1:, :], second], -2)

    def _own(self, text: Text, setting: Setting) -> Tensor:
        """Return the target's own tokens [texts, groups, k] for the noise, a pass each."""
        import torch

        anchors, noise, temperature = setting
        known = drawn(law(self._teacher.after(text, anchors), temperature), noise[..., 0])[..., None]
        for place in range(1, self._k):
            row = self._teacher.continued(text, anchors, known, noise[..., :0], temperature)[..., -1, :]
            known = torch.cat([known, drawn(law(row, temperature), noise[..., place])[..., None]], -1)
        return known

    def _setting(self, answers: Tensor, generator: Any) -> Setting:
        """Draw where and how tokens are learned; `answers` [texts, tokens] tells before which they may be."""
        import torch

        texts = len(answers)
        shape = (texts, self._groups)
        anchors = torch.multinomial(
            answers.float().cpu(), self._groups, replacement=True, generator=generator
        )
        noise = torch.rand(*shape, self._k, generator=generator, dtype=torch.float64)
        warm = COOLEST + (1 - COOLEST) * torch.rand(shape, generator=generator)
        greedy = torch.rand(shape, generator=generator) < GREEDY
        return Setting(*(part.to(answers.device) for part in (anchors, noise, warm.where(~greedy, 0.0))))


def _generator(seed: int) -> Any:
    import torch

    return torch.Generator().manual_seed(seed)
