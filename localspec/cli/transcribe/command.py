"""`localspec transcribe`: write down what is said in audio files."""

from __future__ import annotations

import sys

from localspec.cli import console, options
from localspec.cli.transcribe.options import PANELS, TranscribeOptions

HELP = """Write down what is said in audio and video files, and who says it.

A Whisper model transcribes; a smaller one drafts where that is faster, and the text stays the same. The
transcript goes to stdout, or with `--out` into one file for each AUDIO: one that is newer than its audio, and
made with the same options, is kept. With `--diarize` each word gets its speaker.

AUDIO may have any common format, rate and length. A file that cannot be read does not stop the others: the
exit code is then 1. Needs the extra `speech`."""
EPILOG = """Examples:

  localspec transcribe meeting.m4a

  localspec transcribe meeting.m4a --diarize --speakers 2-4 --format srt

  localspec transcribe *.mp3 --language dutch --format vtt --out transcripts

  ffmpeg -i film.mkv -f wav - | localspec transcribe - --task translate --stats"""


@options.panels(PANELS)
@options.command
def transcribe(given: TranscribeOptions) -> None:
    """Check the options, load the model once, and transcribe file after file."""
    given.check()
    from localspec.cli.transcribe.files import jobs
    from localspec.cli.transcribe.run import run

    found = jobs(given)
    failed = run(given, found)
    if failed:
        console.say(f"{failed} of {len(found)} files failed")
        sys.exit(1)
