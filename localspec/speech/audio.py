"""Read the audio of a file of any common format as mono samples at 16 kHz, block by block."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from localspec.disk import atomic
from localspec.errors import BadValue, MissingExtra, StorageError
from localspec.speech.types import RATE

if TYPE_CHECKING:
    from av.audio.frame import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from numpy.typing import NDArray

BLOCK = 10.0  # seconds
# Formats that hold their audio themselves: a playlist would make FFmpeg open other files and addresses.
FORMATS = (
    "3dostr,aac,ac3,aiff,amr,amrnb,amrwb,ape,asf,au,avi,caf,dts,eac3,flac,flv,gsm,latm,loas,matroska,webm,"
    "mlv,mov,mp4,m4a,3gp,3g2,mj2,mp3,mpc,mpc8,mpeg,mpegts,mxf,ogg,oma,opus,rm,shn,sln,tak,tta,voc,w64,"
    "wav,wv,xwma"
)
ESTIMATES = {"mp3", "aac"}  # formats whose length is a guess from their bit rate
ODD_PACKETS = 3  # undecodable ones at the start or end of a file that is whole
UNKNOWN_BYTES = 0x7FFF_0000  # programs that write a WAV file to a pipe claim this many bytes, or more
SUPPORTED = "Give a file with sound: WAV, MP3, M4A, FLAC, Ogg, Opus, WebM or a video"

MEND = "Get the file again, or convert what is left: ffmpeg -i FILE out.wav"


def blocks(path: Path, seconds: float = BLOCK) -> Iterator[NDArray[np.float32]]:
    """Yield the first audio stream of a file, mixed down to mono at 16 kHz: float32 samples from -1 to 1.

    Each block but the last has `seconds`, the last at most as many. Memory does not grow with the file.
    Raises BadValue for a file that is missing, has no audio, or is damaged: then at the second where it is,
    after what comes before has been yielded. Raises MissingExtra without PyAV.
    """
    size = max(1, round(seconds * RATE))
    kept: list[NDArray[np.float32]] = []
    count = 0
    for samples in _samples(path):
        kept.append(samples)
        count += len(samples)
        if count >= size:
            whole = np.concatenate(kept)
            ends = range(size, count + 1, size)
            yield from (whole[end - size : end] for end in ends)
            kept, count = [whole[ends[-1] :]], count - ends[-1]
    if count:
        yield np.concatenate(kept)


def duration(path: Path) -> float | None:
    """Return the seconds that a file says it lasts, None if it does not say; raises as `blocks` does."""
    with _opened(path) as (container, stream):
        if stream.duration is not None and stream.time_base is not None:
            return float(stream.duration * stream.time_base)
        return container.duration / 1e6 if container.duration else None


@contextmanager
def spooled(stream: BinaryIO) -> Iterator[Path]:
    """Yield a file with the bytes of `stream`, since many formats cannot be read from a pipe.

    It lies in the system's folder for temporary files, readable by its user alone, until the block ends.
    Raises StorageError.
    """
    try:
        with atomic.scratch(Path(gettempdir()) / "localspec-audio") as folder:
            path = folder / "stdin"
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                shutil.copyfileobj(stream, out, 1 << 20)
            yield path
    except OSError as error:
        raise StorageError(
            f"The audio of stdin cannot be kept in `{gettempdir()}`: {error.strerror}",
            "Give the name of a file, or set TMPDIR to a folder with more room",
        ) from None


@contextmanager
def _opened(path: Path) -> Iterator[tuple[InputContainer, AudioStream]]:
    """Yield a file as PyAV sees it, and its first audio stream."""
    av = _pyav()
    _check_file(path)
    options = {"format_whitelist": FORMATS, "protocol_whitelist": "file"}
    try:
        # With "file:" a name such as `http:x` is a file too.
        container = av.open(f"file:{path.absolute()}", options=options, metadata_errors="ignore")
    except (av.FFmpegError, OSError, ValueError):
        raise BadValue(f"`{path}` holds no audio that can be read", SUPPORTED) from None
    with container:
        streams = [stream for stream in container.streams.audio if stream.codec_context is not None]
        if not streams:
            raise BadValue(f"`{path}` has no audio", SUPPORTED)
        yield container, streams[0]


def _pyav() -> Any:
    try:
        import av
    except ModuleNotFoundError:
        raise MissingExtra("av", "speech") from None
    return av


def _check_file(path: Path) -> None:
    try:
        with path.open("rb") as file:
            empty = not file.read(1)
    except FileNotFoundError:
        raise BadValue(f"No such file: `{path}`", "Check the path") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadValue(f"`{path}` cannot be read: {reason}", "Check the path") from None
    if empty:
        raise BadValue(f"`{path}` is empty", SUPPORTED)


def _samples(path: Path) -> Iterator[NDArray[np.float32]]:
    """Yield mono samples at 16 kHz in pieces of any length."""
    with _opened(path) as (container, stream):
        promised = _promised(container, stream)
        mixer, count = Mixer(), 0
        for frame in _frames(path, container, stream):
            for samples in mixer.mixed(frame):
                count += len(samples)
                yield samples
        for samples in mixer.rest():
            count += len(samples)
            yield samples
    if not count:
        raise BadValue(f"`{path}` has no audio", SUPPORTED)
    if promised is not None and count / RATE < promised - max(1.0, promised / 50):
        raise BadValue(
            f"`{path}` is cut off or damaged: {count / RATE:.1f} of its {promised:.1f} seconds can be read",
            MEND,
        )


def _frames(path: Path, container: InputContainer, stream: AudioStream) -> Iterator[AudioFrame]:
    """Yield the decoded frames of a stream; raises BadValue where some cannot be decoded.

    A few packets at the very start and end may be undecodable: recordings are cut in the middle of a packet,
    and other programs append their notes to a file.
    """
    av = _pyav()
    seconds, bad = 0.0, 0
    try:
        for packet in container.demux(stream):
            try:
                frames = packet.decode()
            except av.InvalidDataError:
                bad += 1
                if bad > ODD_PACKETS:
                    raise
                continue
            if frames and bad and seconds:
                raise _damaged(path, seconds, "some of it cannot be decoded")
            bad = 0 if frames else bad
            for frame in frames:
                yield frame
                seconds += frame.samples / frame.sample_rate
    except (av.FFmpegError, OSError) as error:
        raise _damaged(path, seconds, getattr(error, "strerror", None) or "unreadable") from None


def _promised(container: InputContainer, stream: AudioStream) -> float | None:
    """Return the seconds that a header promises, None where it only guesses or says nothing."""
    if container.format.name in ESTIMATES:
        return None
    if stream.duration is None or stream.time_base is None:
        alone = len(container.streams) == 1 and container.duration
        return container.duration / 1e6 if alone and container.duration else None
    seconds = float(stream.duration * stream.time_base)
    if container.format.name in ("wav", "w64") and seconds * (stream.bit_rate or 0) / 8 >= UNKNOWN_BYTES:
        return None
    return seconds


def _damaged(path: Path, seconds: float, reason: str) -> BadValue:
    return BadValue(f"`{path}` is damaged after {seconds:.1f} seconds: {reason}", MEND)


@dataclass
class Mixer:
    """Mixes frames of one rate, format and layout after another down to mono at 16 kHz."""

    graph: Any = None
    kind: tuple[str, str, int] | None = None

    def mixed(self, frame: AudioFrame) -> Iterator[NDArray[np.float32]]:
        """Yield what a frame adds, and before it what an earlier kind of frame has left."""
        kind = (frame.format.name, frame.layout.name, frame.sample_rate)
        if kind != self.kind:
            yield from self.rest()
            self.graph, self.kind = _mixing(frame), kind
        assert self.graph is not None
        frame.pts = None
        self.graph.push(frame)
        yield from self._pulled()

    def rest(self) -> Iterator[NDArray[np.float32]]:
        """Yield the samples that the filter still holds."""
        if self.graph is not None:
            self.graph.push(None)
            yield from self._pulled()
            self.graph = None

    def _pulled(self) -> Iterator[NDArray[np.float32]]:
        av = _pyav()
        assert self.graph is not None
        while True:
            try:
                frame = self.graph.pull()
            except (av.BlockingIOError, av.EOFError):
                return
            samples = frame.to_ndarray().reshape(frame.samples, -1)
            mono = samples[:, 0] if samples.shape[1] == 1 else samples.mean(axis=1, dtype=np.float32)
            yield np.nan_to_num(mono, copy=False, nan=0.0, posinf=0.0, neginf=0.0)


def _mixing(frame: AudioFrame) -> Any:
    """Return the filter that resamples and mixes frames like this one.

    A `rematrix_maxval` of 1 keeps the sum of all channels below full scale. Channels without a known place
    stay apart, since FFmpeg cannot mix them. Samples are packed: PyAV reads past the end of nine planes.
    """
    av = _pyav()
    graph = av.filter.Graph()
    placed = "channels" not in frame.layout.name
    mix = ":out_chlayout=mono:rematrix_maxval=1.0" if placed else ""
    source = graph.add_abuffer(
        sample_rate=frame.sample_rate,
        format=frame.format.name,
        layout=frame.layout.name,
        time_base=frame.time_base,
    )
    resample = graph.add("aresample", f"out_sample_rate={RATE}:out_sample_fmt=flt{mix}")
    sink = graph.add("abuffersink")
    source.link_to(resample)
    resample.link_to(sink)
    graph.configure()
    return graph
