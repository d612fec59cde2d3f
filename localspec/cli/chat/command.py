"""`localspec chat`: answer a prompt, or hold a conversation."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from localspec.cli import console, options
from localspec.cli.answers import ONE_ANSWER, answer_values, describe_file, report
from localspec.cli.chat.options import PANELS, ChatOptions
from localspec.cli.chat.sessions import print_sessions, save
from localspec.cli.prompt import read_prompt, say_model
from localspec.cli.talk.terminal.keyboard import Keyboard

if TYPE_CHECKING:
    from localspec.chat import Chat
    from localspec.cli.talk.attach import File
    from localspec.runtime.generation import Runtime

ALLOCATIONS = 100_000  # of objects until Python looks for garbage: most are imports, which leave none
FOR_TALK = ("localspec.cli.talk.attach", "localspec.cli.talk.screen")  # imported while engines compile
HELP = """Answer a prompt, or hold a conversation.

MODEL is a name in the catalogue, a GGUF file, an OpenVINO or Hugging Face folder, or hf:OWNER/NAME; it is
downloaded when missing. With a PROMPT, or with text on stdin, the command answers once; otherwise it starts a
conversation: Ctrl-C stops an answer, Ctrl-D leaves, /help lists the commands.

A lone argument is the PROMPT if it has a blank or ends in `?`, `.` or `!`, unless it is a path. The default
model, which `localspec config set model NAME` changes, then answers."""
EPILOG = """Examples:

  localspec chat "What is the capital of France?"

  localspec chat smollm2-135m "What is the capital of France?"

  cat app.py | localspec chat qwen2.5-coder-1.5b "Explain this" --stats

  localspec chat ./model.gguf "..." --draft ngram:longest=4 --json

  localspec chat ./llava-1.5-7b-hf "What is in this picture?" --image scene.png"""


@options.panels(PANELS)
@options.command
def chat(given: ChatOptions) -> None:
    """Check the options, then answer, converse, or list the saved conversations."""
    if given.list_sessions:
        given.check_listing()
        print_sessions(given.as_json)
        return
    given = given.with_prompt_first()
    text = read_prompt(given.prompt)
    given.check(text)
    if text is not None:
        gc.set_threshold(ALLOCATIONS)
    with Keyboard(wanted=text is None) as keyboard:
        run(given, text, keyboard)


def run(given: ChatOptions, text: str | None, keyboard: Keyboard) -> None:
    """Load the model, then answer `text`, or hold a conversation when it is None."""
    from localspec.api import load_choice
    from localspec.cli.progress import Terminal
    from localspec.library import Library
    from localspec.state.conversations import Sessions

    constraint = given.constraint()
    choice = given.parts(constraint)
    files = read_files(given)
    library = Library()
    sessions = Sessions(library.home / "sessions.db")
    name, saved_model, messages = sessions.found(given.session, latest=given.continue_latest)
    model = given.model or saved_model or given.default_model
    if text is not None and not given.model:
        say_model(model, "the model of the conversation" if saved_model else "the default model")
    with Terminal() as progress:
        cache = int(1e9 * given.prompt_cache)
        runtime = load_choice(model, choice, library, progress, cache, FOR_TALK).runtime
    for file in files:
        describe_file(file, runtime)
    conversation = make_chat(runtime, given, constraint)
    if messages:
        conversation.messages = messages
        conversation.system = given.system or conversation.system
    if text is None:
        from localspec.cli.talk import loop
        from localspec.cli.talk.state import Talk

        markdown = sys.stdout.isatty() and console.coloured() and constraint is None
        talk = Talk(conversation, model, choice, library, sessions, name, keyboard, given.stats)
        talk.markdown, talk.files = markdown, files
        loop.begin(talk)
        return
    conversation.max_tokens = given.max_tokens or ONE_ANSWER
    atexit.register(id, conversation)  # holds the model to the end, where the system frees it (process.End)
    try:
        answer_once(conversation, text, files, stats=given.stats, as_json=given.as_json)
    finally:
        if name and conversation.turns:
            save(sessions, name, model, conversation)


def read_files(given: ChatOptions) -> list[File]:
    """Return the files and pictures that go with the question; raises PromptError for one that cannot."""
    if not (given.file or given.image):
        return []
    from localspec.cli.talk import attach

    return [*map(attach.read_any, given.file or ()), *map(attach.read_picture, given.image or ())]


def make_chat(runtime: Runtime, given: ChatOptions, constraint: str | None) -> Chat:
    """Return the conversation that the options describe, without turns."""
    from localspec.chat import Chat
    from localspec.runtime.choice import sampling_of

    conversation = Chat(
        runtime,
        sampling=sampling_of(runtime.model.sampling_defaults(), given.sampling),
        system=given.system,
        raw=given.raw,
        seed=given.seed,
        max_tokens=given.max_tokens,
        stop=given.stop or (),
        grammar=constraint,
        thinking=given.think,
        loop_guard=not given.no_loop_guard,
    )
    if conversation.note:
        console.say(conversation.note)
    return conversation


def answer_once(conversation: Chat, text: str, files: Sequence[File], *, stats: bool, as_json: bool) -> None:
    """Print one answer to a text and its files."""
    from localspec.cli.talk import attach
    from localspec.cli.talk.screen import prompt_progress, stream, writer

    answer, steps = conversation.ask(attach.together(text, files), attach.images(files))
    if as_json:
        with closing(steps):
            for _ in steps:
                pass
        values, message = answer_values(answer, conversation.runtime), conversation.messages[-1]
        if reasoning := message.get("reasoning_content"):
            values |= {"text": message["content"], "reasoning": reasoning}
        console.print_json(values)
    else:
        out = writer(sys.stdout, markdown=False, thoughts=True)
        reading = prompt_progress(conversation.runtime, answer)
        for _ in stream(steps, out, thinking=conversation.splitter(), reading=reading):
            pass
    report(answer, conversation, stats)
