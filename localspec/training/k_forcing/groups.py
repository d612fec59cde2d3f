"""Groups of rows beside a text that a frozen model has read once: what may follow several of its tokens."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

from localspec.formats.k_forcing.torch_hints import TorchHints, drawn, law

Tensor = Any  # torch.Tensor


class Text(NamedTuple):
    """Texts that were read: their last `states` [texts, tokens, width], and keys and values by layer."""

    states: Tensor
    memory: list[tuple[Tensor, Tensor]]


class GroupReader:
    """Reads groups of rows with the frozen `model` and with `hints`, if there are any.

    A group follows one token of a text, its anchor, and sees the text up to it. Its rows are tokens, then
    hints; each sees those before it in the group (the staircase mask of K-Forcing, 2606.10820).
    """

    def __init__(self, model: Any, hints: TorchHints | None) -> None:
        self._model, self._hints = model, hints

    def text(self, tokens: Tensor) -> Text:
        """Read texts [texts, tokens], padded on the right."""
        import torch

        with torch.no_grad():
            found = self._model.base_model(input_ids=tokens, use_cache=True)
        return Text(
            found.last_hidden_state, [(layer.keys, layer.values) for layer in found.past_key_values.layers]
        )

    def after(self, text: Text, anchors: Tensor) -> Tensor:
        """Return the model's own logits [texts, groups, vocab] after each anchor."""
        width = text.states.shape[-1]
        return self._logits(text.states.gather(1, anchors[..., None].expand(*anchors.shape, width)))

    def hinted(self, text: Text, anchors: Tensor, noise: Tensor, temperature: Tensor) -> Tensor:
        """Return the logits [texts, groups, hints, vocab] of hints with `noise` [texts, groups, hints]."""
        return self._logits(self._read(text, anchors, None, noise, temperature))

    def continued(
        self, text: Text, anchors: Tensor, tokens: Tensor, noise: Tensor, temperature: Tensor
    ) -> Tensor:
        """Return the logits [texts, groups, 1 + hints, vocab] of the last token, and of hints after it."""
        states = self._read(text, anchors, tokens, noise, temperature)
        return self._logits(states[..., tokens.shape[-1] - 1 :, :])

    def likelihoods(self, text: Text, anchors: Tensor, tokens: Tensor) -> Tensor:
        """Return the model's own log-probabilities [texts, groups, tokens] of `tokens` after each anchor."""
        import torch

        none = anchors[..., None][..., :0].double()
        states = self._read(text, anchors, tokens, none, anchors.double())[..., :-1, :]
        rows = torch.cat([self.after(text, anchors)[..., None, :], self._logits(states)], -2)
        return rows.float().log_softmax(-1).gather(-1, tokens[..., None])[..., 0]

    def laws(self, text: Text, setting: Any, count: int) -> Tensor:
        """Return the distributions [texts, groups, count, vocab] of the next tokens for the noise."""
        import torch

        anchors, noise, temperature = setting
        rows = self.after(text, anchors)[..., None, :]
        if count > 1:
            hinted = self.hinted(text, anchors, noise[..., : count - 1], temperature)
            rows = torch.cat([rows, hinted], -2)
        return law(rows, temperature[..., None].expand(rows.shape[:-1]))

    def tokens(self, text: Text, setting: Any) -> Tensor:
        """Return the next tokens [texts, groups, tokens], one for each number of the noise."""
        return drawn(self.laws(text, setting, setting.noise.shape[-1]), setting.noise)

    def _logits(self, states: Tensor) -> Tensor:
        return self._model.get_output_embeddings()(states)

    def _read(
        self, text: Text, anchors: Tensor, tokens: Tensor | None, noise: Tensor, temperature: Tensor
    ) -> Tensor:
        """Return the last states [texts, groups, rows, width] of tokens and hints."""
        import torch
        from transformers.cache_utils import DynamicCache

        count, hints = 0 if tokens is None else tokens.shape[-1], noise.shape[-1]
        parts = [] if tokens is None else [self._model.get_input_embeddings()(tokens)]
        if hints:
            assert self._hints is not None
            parts.append(self._hints.embed(noise, temperature).to(text.states.dtype))
        order = torch.arange(count + hints, device=anchors.device)
        # all tokens come before all hints, so that the adapters' rows are the last ones of a pass
        group = torch.arange(anchors.shape[1], device=anchors.device)
        halves = order[:count], order[count:]
        groups = torch.cat([group.repeat_interleave(len(half)) for half in halves])
        places = torch.cat([half.repeat(len(group)) for half in halves])
        seen = (groups[:, None] == groups) & (places <= places[:, None])
        known = torch.arange(text.states.shape[1], device=anchors.device) <= anchors[:, groups, None]
        mask = torch.cat([known, seen.expand(len(anchors), -1, -1)], -1)[:, None]
        cache = DynamicCache()
        for layer, (keys, values) in enumerate(text.memory):
            cache.update(keys, values, layer)
        given = {"attention_mask": mask, "position_ids": anchors[:, groups] + 1 + places, "use_cache": True}
        inputs = torch.cat([part.flatten(1, 2) for part in parts], 1)
        first = count * len(group)
        with self._hints.reading(first) if self._hints and hints else nullcontext():
            found = self._model.base_model(inputs_embeds=inputs, past_key_values=cache, **given)
        split = found.last_hidden_state.split([first, hints * len(group)], 1)
        return torch.cat([part.unflatten(1, (len(group), -1)) for part in split if part.shape[1]], 2)
