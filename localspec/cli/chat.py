"""`localspec chat`: one answer, or a conversation."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli import console, options
from localspec.cli.answers import after, as_values, tell
from localspec.errors import BadValue, EmptyPrompt, PromptError

if TYPE_CHECKING:
    from localspec.chat import Chat
    from localspec.cli.talk.attach import Attached
    from localspec.library import Library
    from localspec.runtime.resolution import Choice
    from localspec.state.conversations import Kept, Sessions

DEFAULT_MODEL = "smollm2-135m"
HELP = """Answer a prompt, or talk.

MODEL is a name of the catalogue, a GGUF file, an OpenVINO or Hugging Face folder, or hf:OWNER/NAME; it is
fetched when it is missing. With a PROMPT, or with text on stdin, it answers once; else it is a conversation:
Ctrl-C stops an answer, Ctrl-D leaves, /help lists what else there is."""
EPILOG = """Examples:

  localspec chat smollm2-135m "What is the capital of France?"

  cat app.py | localspec chat qwen2.5-coder-1.5b "Explain this" --stats

  localspec chat ./model.gguf "..." --draft ngram:longest=4 --draft-length fixed:tokens=3 --json"""


def chat(
    model: Annotated[
        str | None, typer.Argument(help="Which model answers.", show_default=DEFAULT_MODEL)
    ] = None,
    prompt: Annotated[str | None, typer.Argument(help="What to answer.", show_default=False)] = None,
    draft: options.Draft = "auto",
    draft_length: options.DraftLengthPolicy = "adaptive",
    verifier: Annotated[str, typer.Option(help="How guesses are checked: exact or rejection.")] = "exact",
    decoding: Annotated[
        str, typer.Option(help="How to write: standard, or another text: contrastive:alpha=0.6,k=4.")
    ] = "standard",
    engine: options.Engine = "auto",
    device: options.Device = None,
    threads: options.Threads = None,
    prompt_cache: options.PromptCache = 2.0,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of an answer.", show_default="the context")
    ] = None,
    temperature: options.Temperature = None,
    top_k: Annotated[
        int | None, typer.Option(help="Draw from the k likeliest.", show_default="the model's")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the likeliest of this sum.", show_default="the model's")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Least share of the likeliest.", show_default="the model's")
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 1: say less again.", show_default="the model's")
    ] = None,
    seed: options.Seed = None,
    system: Annotated[
        str | None, typer.Option(help="What the model is told first.", show_default=False)
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this text; may be repeated.", show_default=False)
    ] = None,
    json_schema: Annotated[
        Path | None,
        typer.Option(help="Answer in JSON that fits this schema.", show_default=False, metavar="FILE"),
    ] = None,
    grammar: Annotated[
        Path | None,
        typer.Option(help="Answer in this grammar, Lark or GBNF.", show_default=False, metavar="FILE"),
    ] = None,
    think: Annotated[
        bool | None,
        typer.Option("--think/--no-think", help="Let the model think first.", show_default="the model's"),
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option("--file", "-f", help="Ask about this file; may be repeated.", show_default=False),
    ] = None,
    goes_on: Annotated[
        bool, typer.Option("--continue", "-c", help="Go on with the latest conversation.")
    ] = False,
    session: Annotated[
        str | None,
        typer.Option(help="Go on with this conversation, or begin it.", show_default=False, metavar="NAME"),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the conversations that are kept.")] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Go on with the prompt itself, without a chat template.")
    ] = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="Print numbers after each answer, on stderr.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Put a conversation together from the options and run it."""
    if listed:
        alone("--list", model=model, prompt=prompt, file=file, session=session, goes_on=goes_on)
        show_sessions(as_json)
        return
    if (goes_on or session) and prompt is None and is_question(model):
        model, prompt = None, model
    text = asked(prompt)
    if text is not None and not text.strip():
        raise EmptyPrompt
    if text is None and as_json:
        raise PromptError(
            "`--json` needs a prompt", f'Type one: localspec chat {model or DEFAULT_MODEL} "..." --json'
        )
    if goes_on and session is not None:
        raise BadValue("`--continue` and `--session` exclude each other", "Leave one of them out")
    if raw:
        refuse_beside_raw(system, think)
    from localspec.chat import Chat, sampling_of
    from localspec.cli.talk import attach
    from localspec.library import Library, Terminal
    from localspec.runtime.generation import Runtime
    from localspec.runtime.resolution import Choice
    from localspec.state.conversations import Sessions

    form = form_of(json_schema, grammar)
    given = given_sampling(temperature, top_k, top_p, min_p, repetition_penalty)
    choice = Choice(engine, draft, draft_length, verifier, device, threads, decoding)
    choice = checked(choice, given, seed, form)
    files = list(map(attach.read, file or ()))
    library = Library()
    sessions = Sessions(library.home / "sessions.db")
    name, kept, held = sessions.found(session, latest=goes_on)
    model = model or kept or DEFAULT_MODEL
    with Terminal() as progress:
        runtime = Runtime(model, choice, library, progress, prompts=int(1e9 * prompt_cache))
    for attached in files:
        tell(attached, runtime)
    talk = Chat(
        runtime,
        sampling=sampling_of(runtime.model.generation(), given),
        system=system,
        raw=raw,
        seed=seed,
        max_tokens=max_tokens,
        stop=stop or (),
        grammar=form,
        thinking=think,
    )
    if talk.note:
        console.say(talk.note)
    if held:
        talk.messages = held
        talk.system = system or talk.system
    if text is None:
        converse(talk, model, choice, library, sessions, name, stats, files)
        return
    try:
        once(talk, attach.together(text, files), stats=stats, as_json=as_json)
    finally:
        if name and talk.turns:
            keep(sessions, name, model, talk)


def alone(option: str, **others: Any) -> None:
    """Raise BadValue for what was given beside an option that stands alone."""
    words = {"goes_on": "--continue", "model": "MODEL", "prompt": "PROMPT"}
    for name, value in others.items():
        if value:
            shown = words.get(name, f"--{name}")
            raise BadValue(f"`{option}` stands alone, without `{shown}`", f"Leave `{shown}` out")


def is_question(word: str | None) -> bool:
    """Tell whether what stands for a model is a question: a conversation that goes on has its model."""
    return word is not None and len(word.split()) > 1 and not Path(word).exists()


def refuse_beside_raw(system: str | None, think: bool | None) -> None:
    """Raise PromptError for what only a chat template has a place for."""
    if system:
        raise PromptError(
            "`--raw` has no place for `--system`", "Write it into the prompt, or leave `--raw` out"
        )
    if think is not None:
        shown = "--think" if think else "--no-think"
        raise PromptError(f"`--raw` has no place for `{shown}`", f"Leave `{shown}` out, or `--raw`")


def given_sampling(
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    repetition_penalty: float | None,
) -> dict[str, Any]:
    """Return the settings of the sampler that were given; raises BadValue, before anything is fetched."""
    from localspec.chat import sampling_of

    settings = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    sampling_of({}, given | {"temperature": given.get("temperature", 1.0)})
    return given


def checked(choice: Choice, given: dict[str, Any], seed: int | None, form: str | None) -> Choice:
    """Return a choice, tuned where nothing was asked for; raises what a wrong one raises."""
    from localspec.runtime.resolution import STANDARD, Choice

    choice = replace(choice, tuned=choice == Choice())  # what was asked for is not second-guessed
    choice.check()
    if choice.decoding != STANDARD:
        refuse_idle(choice.decoding, given | ({} if seed is None else {"seed": seed}))
        if form:
            raise BadValue(
                f"`--decoding {choice.decoding}` keeps to no schema or grammar", "Leave one of them out"
            )
    return choice


def converse(
    talk: Chat,
    model: str,
    choice: Choice,
    library: Library,
    sessions: Sessions,
    name: str | None,
    stats: bool,
    files: list[Attached],
) -> None:
    """Talk on a terminal; an answer that is held to a form is shown as it is, without Markdown."""
    from localspec.cli.talk import loop

    markdown = sys.stdout.isatty() and console.coloured() and talk.grammar is None
    loop.begin(
        loop.Talk(
            talk,
            model,
            choice,
            library,
            sessions,
            name,
            stats=stats,
            markdown=markdown,
            files=files,
        )
    )


def keep(sessions: Sessions, name: str, model: str, talk: Chat) -> None:
    """Write one answer's conversation; say so where it had to be kept under another name."""
    kept = sessions.write(name, model, talk.messages)
    if kept != name:
        console.say(f"`{name}` went on elsewhere: this is kept as `{kept}`")


def show_sessions(as_json: bool) -> None:
    """Print the conversations that are kept, the latest first."""
    from localspec.cli.talk.screen import printable
    from localspec.library import Library
    from localspec.state.conversations import Sessions

    found = Sessions(Library().home / "sessions.db").all()
    if as_json:
        print(json.dumps([described(one) for one in found], ensure_ascii=False))
        return
    if not found:
        console.say("No conversations yet")
    for one in found:
        print(printable(f"{one.name:<20} {one.updated}  {one.model:<20} {one.first}"))


def described(kept: Kept) -> dict[str, Any]:
    """Return a conversation of the list as plain values."""
    values = {name: value for name, value in asdict(kept).items() if name != "question"}
    return values | {"first": kept.first}


def form_of(json_schema: Path | None, grammar: Path | None) -> str | None:
    """Return the grammar that an answer is held to; raises BadValue for files that are none."""
    from localspec.output.grammar import read_grammar, read_schema

    if json_schema and grammar:
        raise BadValue("`--json-schema` and `--grammar` exclude each other", "Leave one of them out")
    if json_schema:
        return read_schema(json_schema)
    return read_grammar(grammar) if grammar else None


def refuse_idle(decoding: str, given: dict[str, Any]) -> None:
    """Raise BadValue for a sampling setting beside a decoding that draws nothing."""
    for name in given:
        shown = f"--{name.replace('_', '-')}"
        raise BadValue(
            f"`{shown}` does nothing beside `--decoding {decoding}`, which draws nothing",
            f"Leave `{shown}` out",
        )


def asked(prompt: str | None) -> str | None:
    """Return the prompt with what stands on stdin after it, or None when there is neither.

    Raises PromptError for what is not UTF-8.
    """
    piped = None if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()
    text = None if prompt is piped is None else "\n\n".join(filter(None, (prompt, piped)))
    if text and any("\ud800" <= one <= "\udfff" for one in text):  # bytes that are no text, to Python
        raise PromptError("What was asked is not UTF-8 text", "Check where it is from, and convert it")
    return text


def once(talk: Chat, text: str, *, stats: bool, as_json: bool) -> None:
    """Print one answer."""
    from localspec.cli.talk.screen import stream, writer

    answer, steps = talk.ask(text)
    if as_json:
        with closing(steps):
            for _ in steps:
                pass
        values, said = as_values(answer, talk.runtime), talk.messages[-1]
        if thought := said.get("reasoning_content"):
            values |= {"text": said["content"], "reasoning": thought}
        print(json.dumps(values, ensure_ascii=False))
    else:
        out = writer(sys.stdout, markdown=False, thoughts=True)
        for _ in stream(steps, out, thinking=talk.splitter()):
            pass
    after(answer, talk, stats)
