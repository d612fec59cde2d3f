"""Pictures of a prompt: the tokens that stand for them, and drafters, which see the text alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from localspec.core.contracts import Drafter, ExpectingDrafter, PictureSession, Session
from localspec.core.types import Candidate, Guess, Logits, Prompt, Tokens, Verdict
from localspec.devices import Chosen
from localspec.errors import BadValue, PromptError, UnsupportedModel
from localspec.library.importing import refusals
from localspec.pictures import of_text
from localspec.pictures.messages import of_messages
from localspec.runtime.choice import engine_spec, with_options

ALL, GRAPH = "torch", "openvino"  # the engine of all families and of routing, and that of a text part's graph
EYES = "its eyes run on torch"

if TYPE_CHECKING:
    from localspec.core.sampler import Sampler
    from localspec.library import StoredModel
    from localspec.plugins import Spec
    from localspec.runtime.choice import Choice


def with_pictures(
    session: Session, name: str, tokens: Sequence[int], messages: Sequence[Mapping[str, Any]]
) -> Prompt:
    """Return the prompt of messages whose text is `tokens`, with as many picture tokens as pictures need.

    Raises PromptError for pictures that are none, and for any where the model called `name` has no eyes or
    its template no place for them.
    """
    pictures = of_messages(messages)
    if not pictures:
        return Prompt(tokens)
    if not isinstance(session, PictureSession):
        raise without_eyes(name)
    places = list(tokens).count(session.picture_token)
    if places != len(pictures):
        raise PromptError(
            f"The chat template of `{name}` has places for {places} of {len(pictures)} pictures",
            "Leave out `--raw`, or give fewer pictures",
        )
    left, found = iter(pictures), list[int]()
    for token in tokens:
        found += [token] * (session.tokens_of(next(left)) if token == session.picture_token else 1)
    return Prompt(found, pictures)


def tokens_of(session: Session, name: str, image: str) -> int:
    """Return how many tokens stand for a picture in base64; raises PromptError if it cannot be seen."""
    if not isinstance(session, PictureSession):
        raise without_eyes(name)
    return session.tokens_of(of_text(image))


def without_eyes(name: str) -> PromptError:
    """Return the error for a picture that is given to a model of text."""
    return PromptError(
        f"`{name}` sees no pictures: it is a model of text",
        "Choose a LLaVA-1.5 or Qwen2.5-VL model, as a Hugging Face folder",
    )


def check_choice(choice: Choice, model: StoredModel) -> None:
    """Raise BadValue for `--vision-tokens` beside a model without eyes."""
    if choice.vision_tokens and not model.sees:
        raise BadValue(f"`--vision-tokens` does nothing for `{model.name}`, a model of text", "Leave it out")


def check_engine(engine: Spec, model: StoredModel) -> None:
    """Raise UnsupportedModel for a model with eyes on an engine without."""
    if model.sees and engine.name not in (ALL, GRAPH):
        raise _blind(engine.name, model)


def _blind(engine: str, model: StoredModel) -> UnsupportedModel:
    return UnsupportedModel(
        f"`{engine}` runs no eyes, and `{model.name}` has some",
        f"Type `--engine {GRAPH}` or `--engine {ALL}`, or leave `--engine` and `--device` out",
    )


def engine_for(choice: Choice, chosen: Chosen, model: StoredModel) -> tuple[Spec, str]:
    """Return the engine that suits a model with eyes where `chosen` suits others, and why.

    OpenVINO runs a text part of which there is a graph; all others run on torch, and so does one of whose
    visual tokens some sit out layers. Raises UnsupportedModel for a chosen device that runs no eyes.
    """
    if chosen.engine not in (ALL, GRAPH):
        raise _blind(chosen.engine, model)
    if chosen.engine == GRAPH and not choice.vision_tokens and model.files_in("openvino"):
        device = choice.device or (None if chosen.device == "CPU" else chosen.device)
        return engine_spec(GRAPH, device, choice.threads), f"{chosen.reason}; {EYES}"
    reason = "it is a model with eyes"
    if choice.vision_tokens:
        reason += ", whose visual tokens sit out layers there alone"
    elif chosen.engine == GRAPH and model.manifest.no_graph:
        reason += f"; on OpenVINO it does not run: {refusals.reason(model.manifest)}"
    return engine_spec(ALL, choice.device and choice.device.lower(), choice.threads), reason


def reading(model: StoredModel) -> str:
    """Return where the parts of a model with eyes run."""
    if model.files_in("openvino"):
        return f"the text part runs on {GRAPH} or {ALL}, {EYES}"
    refused = refusals.reason(model.manifest) if model.manifest.no_graph else ""
    return f"it runs on {ALL}" + (f": {refused}" if refused else "")


def suiting(choice: Choice, model: StoredModel | None) -> Choice:
    """Return the choice for one of several models: `vision_tokens` is for those with eyes."""
    return choice if model is None or model.sees else replace(choice, vision_tokens="")


def seeing(engine: Spec, choice: Choice) -> Spec:
    """Return an engine that lets as many visual tokens run as a choice says."""
    return with_options(engine, vision_tokens=choice.vision_tokens or None)


class TextDrafter(Drafter):
    """A drafter beside a model with eyes: its texts have no picture tokens.

    A draft model does not know them, and nothing is to be copied from them.
    """

    def __init__(self, drafter: Drafter, token: int) -> None:
        self.drafter, self._token = drafter, token

    def _text(self, tokens: Tokens) -> list[int]:
        return [token for token in tokens if token != self._token]

    @property
    def note(self) -> str | None:
        """The drafter's own message."""
        return self.drafter.note

    def begin(self, prompt: Tokens) -> None:
        """Start an answer to the prompt's text."""
        self.drafter.begin(self._text(prompt))

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Candidate]:
        """Yield the drafter's guesses after the text."""
        return self.drafter.propose(self._text(tokens), sampler)

    def observe(self, tokens: Tokens, logits: Logits, verdict: Verdict) -> None:
        """Let the drafter learn from a verification."""
        self.drafter.observe(self._text(tokens), logits, verdict)

    def observe_branches(self, tokens: Tokens, branches: Sequence[Guess], logits: Logits) -> None:
        """Let the drafter learn from branches."""
        self.drafter.observe_branches(self._text(tokens), branches, logits)

    def end(self) -> None:
        """End the answer."""
        self.drafter.end()


class ExpectingTextDrafter(TextDrafter, ExpectingDrafter):
    """One that also copies from the text that an answer is expected to be."""

    def expect(self, prompt: Tokens, answer: Tokens) -> None:
        """Take in the expected answer to the prompt's text."""
        assert isinstance(self.drafter, ExpectingDrafter)
        self.drafter.expect(self._text(prompt), answer)


def drafting(drafter: Drafter, session: Session) -> Drafter:
    """Return the drafter as it works beside a session: one that sees shows it the text alone."""
    if not isinstance(session, PictureSession):
        return drafter
    made_by = ExpectingTextDrafter if isinstance(drafter, ExpectingDrafter) else TextDrafter
    return made_by(drafter, session.picture_token)
