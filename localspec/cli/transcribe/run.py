"""Transcribe file after file: one model, the progress in seconds of audio, and a transcript for each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.cli import console
from localspec.cli.progress import AUDIO, Terminal
from localspec.cli.transcribe.files import Job
from localspec.cli.transcribe.options import DEFAULT_MODEL, TranscribeOptions, parse_speakers
from localspec.cli.transcribe.report import stats_line, stats_values
from localspec.disk import atomic
from localspec.errors import LocalspecError
from localspec.library import Library, storage
from localspec.speech.languages import code_of
from localspec.speech.output.formats import writer
from localspec.speech.output.json import values
from localspec.speech.output.transcript import Transcript

if TYPE_CHECKING:
    from localspec.cli.transcribe.speakers import Speakers
    from localspec.speech.output.transcript import Writer
    from localspec.speech.transcriber import Request, Transcriber
    from localspec.speech.types import Segment


@dataclass(slots=True)
class Session:
    """The model and the options of all files; `failed` counts the files whose transcription failed."""

    given: TranscribeOptions
    transcriber: Transcriber
    request: Request
    model: str
    progress: Terminal
    speakers: Speakers | None = None  # gives each word its speaker
    several: bool = False
    later: float = 0.0  # seconds of audio in the files after this one
    failed: int = 0
    printed: list[str] = field(default_factory=list)  # the files whose transcript is on stdout


def run(given: TranscribeOptions, jobs: Sequence[Job]) -> int:
    """Transcribe the files, and return how many of several failed; the error of a single one is raised."""
    from localspec.speech.transcriber import Request

    language = code_of(given.language)
    library = Library()
    model = given.model or default_model(library, language, given.task)
    options = given.fingerprint(model, language)
    wanted = [job for job in jobs if given.force or not job.is_done(options)]
    for job in jobs:
        if job not in wanted:
            console.say(f"{job.target} is there already; `--force` makes it again")
    if not wanted:
        return 0
    lengths = [job.seconds(strict=len(jobs) == 1) for job in wanted]
    with Terminal() as progress:
        request = Request(language, given.task, given.words, given.previous_text)
        speakers = load_speakers(given, library, progress) if given.diarize else None
        transcriber = load(given, model, request, library, progress)
        session = Session(given, transcriber, request, model, progress, speakers, len(jobs) > 1)
        for at, job in enumerate(wanted):
            session.later = sum(lengths[at + 1 :])
            with failures(session, job), opened(job) as audio:
                transcribe(session, job, audio)
                job.remember(options)
    return session.failed


def default_model(library: Library, language: str | None, task: str) -> str:
    """Return the largest speech model of the library that knows the language and task, else DEFAULT_MODEL.

    The choice is printed.
    """
    from localspec.speech.whisper.vocabulary import SpeechTokens

    def fits(folder: Path) -> bool:
        with suppress(LocalspecError):
            own = SpeechTokens.of(folder)
            return own.knows(language or "en", task)
        return False

    found = [model for model in library.all("speech") if fits(model.folder)]
    best = max(found, key=lambda model: sum(model.manifest.sizes.values()), default=None)
    name = best.name if best else DEFAULT_MODEL
    console.say(f"Transcribing with {name}; `--model` chooses another", console.DIM)
    return name


def load(
    given: TranscribeOptions, model: str, request: Request, library: Library, progress: Terminal
) -> Transcriber:
    """Load the model; raises BadValue, before any file is read, for a language or task it does not know."""
    from localspec.speech import loading

    transcriber = loading.load(model, given.draft, library, progress, given.threads)
    tokens = transcriber.model.tokens
    if request.language is not None or not tokens.multilingual:
        tokens.prompt(request.language, request.task)
    return transcriber


def load_speakers(given: TranscribeOptions, library: Library, progress: Terminal) -> Speakers:
    """Load what tells speakers apart."""
    from localspec.cli.transcribe.speakers import loaded

    return loaded(given.diarization, parse_speakers(given.speakers), given.threads, library, progress)


@contextmanager
def failures(session: Session, job: Job) -> Iterator[None]:
    """Report the error of one of several files, and go on; that of a single file is raised."""
    try:
        yield
    except LocalspecError as error:
        if not session.several:
            raise
        session.failed += 1
        with session.progress.aside():
            console.show_traceback()
            if job.shown not in error.message:
                error.message = f"{job.shown}: {error.message}"
            console.show(error)


@contextmanager
def opened(job: Job) -> Iterator[Path]:
    """Yield the audio file of a job; stdin becomes one until the block ends."""
    from localspec.speech.audio import spooled

    if job.audio is not None:
        yield job.audio
        return
    with spooled(sys.stdin.buffer) as path:
        yield path


def transcribe(session: Session, job: Job, audio: Path) -> None:
    """Transcribe one file to stdout or into its own file, which appears whole or not at all."""
    from localspec.speech.audio import duration

    seconds = duration(audio)
    found = heard(session, job, audio, seconds)
    if job.target is None:
        written = print_transcript(session, job, found, seconds)
    else:
        own = writer(session.given.written_format)
        with storage.storage_errors(job.target), atomic.file(job.target) as file:
            written = write(own, session, job, found, seconds, lambda text: file.write(text.encode()))
        with session.progress.aside():
            console.print_text(str(job.target))
    report(session, job, written)


def heard(session: Session, job: Job, audio: Path, seconds: float | None) -> Iterator[Segment]:
    """Yield the segments of a file, with the progress on stderr; with speakers, after all of it was heard."""
    title = f"Transcribing {job.shown}"
    with session.progress.step(title, round(seconds) if seconds else None, AUDIO):
        count = counter(session.progress)
        segments = session.transcriber.transcribe(audio, session.request, count, session.later)
        if session.speakers is None:
            yield from segments
            return
        found = list(segments)
    with session.progress.step(f"Telling speakers apart in {job.shown}", round(seconds or 0) or None, AUDIO):
        yield from session.speakers(audio, found, counter(session.progress))


def counter(progress: Terminal) -> Callable[[float], None]:
    """Return a function that is told how many seconds of a file are done."""
    done = 0

    def count(seconds: float) -> None:
        nonlocal done
        progress.advance(round(seconds) - done)
        done = round(seconds)

    return count


def write(
    own: Writer,
    session: Session,
    job: Job,
    found: Iterable[Segment],
    seconds: float | None,
    out: Callable[[str], object],
) -> Transcript:
    """Write segments as they come, and return the whole transcript."""
    segments = []
    head = own.begin()
    for segment in found:
        segments.append(segment)
        if piece := head + own.segment(segment):
            out(piece)
        head = ""
    whole = transcript(session, job, segments, seconds)
    if piece := head + own.end(whole):
        out(piece)
    return whole


def print_transcript(
    session: Session, job: Job, found: Iterable[Segment], seconds: float | None
) -> Transcript:
    """Print a transcript on stdout: as JSON in one line, else under its name if there are several."""
    if session.given.as_json:
        whole = transcript(session, job, list(found), seconds)
        with session.progress.aside():
            console.print_json(values(whole))
        return whole

    def out(text: str) -> None:
        with session.progress.aside():
            console.print_data(text)

    if session.several and session.given.written_format == "text":
        out("\n" * bool(session.printed) + f"==> {job.shown} <==\n")
    session.printed.append(job.shown)
    return write(writer(session.given.written_format), session, job, found, seconds, out)


def transcript(session: Session, job: Job, segments: Sequence[Segment], seconds: float | None) -> Transcript:
    """Return the transcript of the file that was heard last."""
    transcriber = session.transcriber
    sources = transcriber.stats.sources
    return Transcript(
        segments,
        audio=job.shown,
        language=transcriber.language,
        task=session.request.task,
        model=session.model,
        draft=max(sources, key=lambda name: sources[name].accepted, default=None),
        duration=seconds,
        stats=stats_values(transcriber.stats),
    )


def report(session: Session, job: Job, written: Transcript) -> None:
    """Say what a file took, why no draft was used, and that nobody talks in it."""
    stats = session.transcriber.stats
    with session.progress.aside():
        for note in stats.notes:
            console.say(f"{job.shown}: {note}")
        if not written.text:
            console.say(f"{job.shown}: nobody talks in it")
        if session.given.stats:
            line = stats_line(stats, written.language, session.model)
            console.say(f"{job.shown}: {line}", console.DIM)
