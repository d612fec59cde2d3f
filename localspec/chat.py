"""A conversation: turns, template, one cache for all of them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from localspec.core.sampler import Sampling
from localspec.errors import BadValue, EmptyPrompt, PromptError
from localspec.runtime import Answer, Runtime

if TYPE_CHECKING:
    from localspec.core.contracts import Round


class Chat:
    """Turns with one model. What the turns share is read once: the runtime's cursor sees to that."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        sampling: Sampling,
        system: str | None = None,
        raw: bool = False,
        seed: int | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> None:
        self.runtime = runtime
        self.messages: list[dict[str, Any]] = []
        if system:
            self.messages.append({"role": "system", "content": system})
        self._template = None if raw else runtime.model.template()
        if not raw and self._template is None:
            raise PromptError(
                f"`{runtime.model.name}` has no chat template", "Type `--raw` to let it go on with your text"
            )
        self._answer = partial(runtime.answer, sampling=sampling, seed=seed, max_tokens=max_tokens, stop=stop)

    def ask(self, text: str) -> tuple[Answer, Generator[Round, None, None]]:
        """Return the answer to `text` and the rounds that fill it; the turn is kept however far it got."""
        if not text.strip():
            raise EmptyPrompt
        self.messages.append({"role": "user", "content": text})
        try:
            answer, rounds = self._answer(self._prompt(text))
        except BaseException:
            self.messages.pop()
            raise
        return answer, self._kept(answer, rounds)

    def _prompt(self, text: str) -> list[int]:
        if self._template is None:
            return self.runtime.encode(text, raw=True)
        return self.runtime.encode(self._template.render(self.messages), raw=False)

    def _kept(self, answer: Answer, rounds: Generator[Round, None, None]) -> Generator[Round, None, None]:
        try:
            yield from rounds
        finally:
            self.messages.append({"role": "assistant", "content": answer.text})


def sampling_of(defaults: dict[str, Any], asked: dict[str, Any]) -> Sampling:
    """Return the sampling that a user asked for, the rest as the model's makers do.

    `defaults` is a model's generation config, `asked` what the command line set. Temperature 0 is greedy and
    leaves the makers' other settings out, but for the repetition penalty.
    """
    chosen = dict(defaults)
    sampled = chosen.pop("do_sample", False)
    if not sampled:
        chosen = {name: chosen[name] for name in chosen if name == "repetition_penalty"}
    elif "temperature" not in chosen:
        chosen["temperature"] = 1.0
    chosen |= asked
    if not chosen.get("temperature"):
        _refuse_idle(asked)
        chosen = {name: chosen[name] for name in chosen if name not in ("top_k", "top_p", "min_p")}
    return Sampling(**chosen)


def _refuse_idle(asked: dict[str, Any]) -> None:
    for name in ("top_k", "top_p", "min_p"):
        if name in asked:
            shown = name.replace("_", "-")
            raise BadValue(
                f"`--{shown}` does nothing at temperature 0, where the likeliest token is taken",
                f"Type `--temperature 0.7` beside it, or leave `--{shown}` out",
            )
