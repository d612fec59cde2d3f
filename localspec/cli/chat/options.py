"""The options of `localspec chat`, and the checks that need no model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli import completion, options
from localspec.cli.prompt import is_prompt
from localspec.errors import BadValue, EmptyPrompt, PromptError

if TYPE_CHECKING:
    from localspec.runtime.choice import Choice

DEFAULT_MODEL = "smollm2-135m"
SAMPLING = (
    *("temperature", "top_k", "top_p", "min_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
)


PANELS = {
    options.MODEL: ("system", "raw", "think"),
    options.ANSWER: (
        *(
            "max_tokens",
            "no_loop_guard",
            *SAMPLING,
            "seed",
            "stop",
            "json_schema",
            "grammar",
            "vision_tokens",
        ),
    ),
    options.DRAFT: ("draft", "draft_length", "verifier", "decoding", "sampler"),
    options.MACHINE: ("engine", "device", "threads", "prompt_cache"),
    "Conversation": ("file", "image", "continue_latest", "session", "list_sessions"),
    options.OUTPUT: ("stats", "as_json"),
}


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Arguments and options of `localspec chat`, in the order of its help."""

    model: Annotated[
        str | None,
        typer.Argument(
            help="Model that answers.",
            autocompletion=completion.models,
            show_default=DEFAULT_MODEL,
            metavar="MODEL",
        ),
    ] = None
    prompt: Annotated[
        str | None, typer.Argument(help="Prompt to answer.", show_default=False, metavar="PROMPT")
    ] = None
    default_model: options.DefaultModel = DEFAULT_MODEL
    system: Annotated[
        str | None,
        typer.Option(help="System prompt.", metavar="TEXT", show_default=False, callback=options.text),
    ] = None
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt itself, without a chat template.")
    ] = False
    think: Annotated[
        bool | None,
        typer.Option(
            "--think/--no-think", help="Turn the model's thinking on or off.", show_default="the model's"
        ),
    ] = None
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Maximum tokens of an answer.",
            show_default="4096 for one answer",
        ),
    ] = None
    no_loop_guard: Annotated[
        bool, typer.Option("--no-loop-guard", help="Let an answer repeat without end.")
    ] = False
    temperature: options.Temperature = None
    top_k: Annotated[
        int | None,
        typer.Option(help="Sample from the N most likely tokens.", metavar="N", show_default="the model's"),
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(help="Sample from the top P of probability.", metavar="P", show_default="the model's"),
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option(help="Minimum share of the top probability.", metavar="P", show_default="the model's"),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        typer.Option(help="Above 1: fewer repeated tokens.", metavar="X", show_default="the model's"),
    ] = None
    presence_penalty: Annotated[
        float | None,
        typer.Option(help="Logits off each token that occurred.", metavar="X", show_default="the model's"),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        typer.Option(help="Logits off a token per occurrence.", metavar="X", show_default="the model's"),
    ] = None
    seed: options.Seed = None
    stop: Annotated[
        list[str] | None,
        typer.Option(
            help="Stop before this text; may be repeated.",
            metavar="TEXT",
            show_default=False,
            callback=options.text,
        ),
    ] = None
    json_schema: Annotated[
        Path | None,
        typer.Option(help="Constrain to JSON of this schema.", show_default=False, metavar="FILE"),
    ] = None
    grammar: Annotated[
        Path | None,
        typer.Option(help="Constrain to this grammar, Lark or GBNF.", show_default=False, metavar="FILE"),
    ] = None
    vision_tokens: options.VisionTokens = ""
    draft: options.Draft = "auto"
    draft_length: options.DraftLengthPolicy = "adaptive"
    verifier: options.Verifier = "exact"
    decoding: Annotated[
        str,
        typer.Option(help="contrastive, k_forcing, pipo: other texts.", metavar="SPEC"),
    ] = "standard"
    sampler: options.Sampler = None
    engine: options.Engine = "auto"
    device: options.Device = None
    threads: options.Threads = None
    prompt_cache: options.PromptCache = 2.0
    file: Annotated[
        list[Path] | None,
        typer.Option(
            "--file", "-f", help="Attach a text file; may be repeated.", metavar="FILE", show_default=False
        ),
    ] = None
    image: Annotated[
        list[Path] | None,
        typer.Option(
            "--image",
            "-i",
            help="Show the model a picture; may be repeated.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None
    continue_latest: Annotated[
        bool, typer.Option("--continue", "-c", help="Continue the latest conversation.")
    ] = False
    session: Annotated[
        str | None,
        typer.Option(
            help="Continue this conversation, or start it.",
            autocompletion=completion.sessions,
            show_default=False,
            metavar="NAME",
        ),
    ] = None
    list_sessions: Annotated[bool, typer.Option("--list", help="List the saved conversations.")] = False
    stats: Annotated[bool, typer.Option("--stats", help="Print statistics after each answer, on stderr.")] = (
        False
    )
    as_json: options.AsJson = False

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling settings that were given."""
        values = {name: getattr(self, name) for name in SAMPLING}
        return {name: value for name, value in values.items() if value is not None}

    def with_prompt_first(self) -> ChatOptions:
        """Return options in which a lone argument is the prompt, if it reads as one."""
        if self.prompt is None and is_prompt(self.model):
            return replace(self, model=None, prompt=self.model)
        return self

    def check_listing(self) -> None:
        """Raise BadValue for an option that does nothing beside `--list`."""
        others = {
            "MODEL": self.model,
            "PROMPT": self.prompt,
            "--file": self.file,
            "--image": self.image,
            "--session": self.session,
            "--continue": self.continue_latest,
        }
        for shown, value in others.items():
            if value:
                raise BadValue(f"`--list` stands alone, without `{shown}`", f"Leave `{shown}` out")

    def check(self, text: str | None) -> None:
        """Raise PromptError or BadValue for a prompt `text` or options that exclude each other."""
        if text is not None and not text.strip():
            raise EmptyPrompt
        if text is None and self.as_json:
            raise PromptError(
                "`--json` needs a prompt",
                f'Type one: localspec chat {self.model or self.default_model} "..." --json',
            )
        if self.continue_latest and self.session is not None:
            raise BadValue("`--continue` and `--session` exclude each other", "Leave one of them out")
        if self.raw:
            self._check_raw()

    def _check_raw(self) -> None:
        """Raise PromptError for an option that needs a chat template."""
        if self.system:
            raise PromptError(
                "`--raw` has no place for `--system`", "Write it into the prompt, or leave `--raw` out"
            )
        if self.think is not None:
            shown = "--think" if self.think else "--no-think"
            raise PromptError(f"`--raw` has no place for `{shown}`", f"Leave `{shown}` out, or `--raw`")

    def constraint(self) -> str | None:
        """Return the grammar that constrains the answers; raises BadValue for a file that holds none."""
        if self.json_schema and self.grammar:
            raise BadValue("`--json-schema` and `--grammar` exclude each other", "Leave one of them out")
        if self.json_schema:
            from localspec.output.grammar import read_schema

            return read_schema(self.json_schema)
        if self.grammar:
            from localspec.output.grammar import read_grammar

            return read_grammar(self.grammar)
        return None

    def parts(self, constraint: str | None) -> Choice:
        """Return the chosen parts; raises UnknownName or BadValue for a wrong part or sampling setting."""
        from localspec.runtime.choice import STANDARD, Choice, sampling_of

        sampling_of({}, self.sampling | {"temperature": self.sampling.get("temperature", 1.0)})
        choice = Choice(
            self.engine,
            self.draft,
            self.draft_length,
            self.verifier,
            self.device,
            self.threads,
            self.decoding,
            sampler=self.sampler,
            vision_tokens=self.vision_tokens,
        )
        choice.check()
        if choice.decoding != STANDARD:
            self._check_decoding(constraint)
        return choice

    def _check_decoding(self, constraint: str | None) -> None:
        """Raise BadValue for an option that does nothing beside a decoding that draws no tokens."""
        idle = [*self.sampling, *(["seed"] if self.seed is not None else [])]
        if idle:
            shown = f"--{idle[0].replace('_', '-')}"
            raise BadValue(
                f"`{shown}` does nothing beside `--decoding {self.decoding}`, which does not sample",
                f"Leave `{shown}` out",
            )
        if constraint:
            raise BadValue(
                f"`--decoding {self.decoding}` follows no schema or grammar", "Leave one of them out"
            )
