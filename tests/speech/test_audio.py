"""Files of any format become mono samples at 16 kHz; what is none, or damaged, is an error."""

from __future__ import annotations

import io
import random
import struct
import tracemalloc
import wave
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from speech.conftest import encode, tone

from localspec.errors import BadValue
from localspec.speech import audio
from localspec.speech.types import RATE


def read(path: Path) -> NDArray[np.float32]:
    return np.concatenate(list(audio.blocks(path, 1.0)))


def pitch(samples: NDArray[np.float32]) -> float:
    return float(np.abs(np.fft.rfft(samples)).argmax()) * RATE / len(samples)


def write_wav(path: Path, samples: NDArray[np.float32], rate: int = RATE, channels: int = 1) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.repeat(samples, channels) * 32767).astype("<i2").tobytes())
    return path


@pytest.mark.parametrize(
    ("name", "codec", "rate", "layout"),
    [
        ("a.wav", "pcm_s16le", 16_000, "mono"),
        ("b.wav", "pcm_s16le", 44_100, "stereo"),
        ("c.wav", "pcm_s24le", 96_000, "stereo"),
        ("d.wav", "pcm_mulaw", 8_000, "mono"),
        ("e.wav", "pcm_f32le", 48_000, "5.1"),
        ("a.mp3", "libmp3lame", 44_100, "stereo"),
        ("a.m4a", "aac", 48_000, "stereo"),
        ("a.flac", "flac", 48_000, "mono"),
        ("a.ogg", "libopus", 48_000, "mono"),
        ("a.webm", "libopus", 48_000, "stereo"),
        ("a.mka", "pcm_s16le", 22_050, "mono"),
    ],
)
def test_a_format_is_read(tmp_path: Path, name: str, codec: str, rate: int, layout: str) -> None:
    path = encode(tmp_path / name, codec, rate, layout)
    samples = read(path)
    assert samples.dtype == np.float32
    assert len(samples) / RATE == pytest.approx(3.0, abs=0.08)
    assert pitch(samples) == pytest.approx(440, abs=1)
    assert np.abs(samples[RATE : 2 * RATE]).max() == pytest.approx(0.5, abs=0.04)
    assert audio.duration(path) == pytest.approx(3.0, abs=0.08)


def test_channels_are_mixed_down(tmp_path: Path) -> None:
    samples = read(encode(tmp_path / "a.wav", "pcm_s16le", 48_000, "stereo", mute=(1,)))
    assert np.abs(samples[RATE : 2 * RATE]).max() == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("channels", [3, 12])
def test_channels_without_a_place_are_mixed_too(tmp_path: Path, channels: int) -> None:
    samples = read(write_wav(tmp_path / "a.wav", tone(1.0), channels=channels))
    assert np.abs(samples).max() == pytest.approx(0.5, abs=0.02)


def test_the_audio_of_a_video_is_read(tmp_path: Path) -> None:
    samples = read(video(tmp_path / "a.mp4", sound=True))
    assert pitch(samples[: RATE // 2]) == pytest.approx(440, abs=3)


def video(path: Path, *, sound: bool) -> Path:
    with av.open(str(path), "w") as container:
        pictures = container.add_stream("mpeg4", rate=10)
        pictures.width = pictures.height = 64
        pictures.pix_fmt = "yuv420p"
        sounds = container.add_stream("aac", rate=48_000, layout="mono") if sound else None
        for at in range(10):
            picture = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 20 * at, np.uint8), format="rgb24")
            container.mux(pictures.encode(picture))
        container.mux(pictures.encode(None))
        for first in range(0, 48_000 - 1024, 1024) if sounds else ():
            piece = tone(1.0, 48_000)[None, first : first + 1024]
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(piece), format="fltp", layout="mono")
            frame.sample_rate, frame.pts = 48_000, first
            container.mux(sounds.encode(frame))  # type: ignore[union-attr]
        if sounds:
            container.mux(sounds.encode(None))
    return path


def test_blocks_have_their_length(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", tone(3.3))
    lengths = [len(block) for block in audio.blocks(path, 0.5)]
    assert lengths == [RATE // 2] * 6 + [round(0.3 * RATE)]
    np.testing.assert_array_equal(np.concatenate(list(audio.blocks(path, 0.5))), read(path))


def test_ten_minutes_take_no_more_memory_than_one(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", np.zeros(600 * 8000, np.float32), rate=8000)
    tracemalloc.start()
    seconds = sum(len(block) for block in audio.blocks(path)) / RATE
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds == pytest.approx(600, abs=0.1)
    assert peak < 8e6


NO_AUDIO = {
    "empty.wav": b"",
    "text.txt": b"Good morning.\n" * 100,
    "page.pdf": b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n" + bytes(2000),
    "noise.bin": random.Random(0).randbytes(5000),
    "header.wav": b"RIFF\x24\0\0\0WAVEfmt ",
    "list.m3u8": b"#EXTM3U\n#EXTINF:3,\nhttp://127.0.0.1:9/a.wav\n#EXT-X-ENDLIST\n",
    "list.ffconcat": b"ffconcat version 1.0\nfile other.wav\n",
}


@pytest.mark.parametrize("name", NO_AUDIO)
@pytest.mark.parametrize("ask", [read, audio.duration])
def test_what_is_no_audio_is_refused(tmp_path: Path, name: str, ask: object) -> None:
    write_wav(tmp_path / "other.wav", tone(1.0))
    path = tmp_path / name
    path.write_bytes(NO_AUDIO[name])
    with pytest.raises(BadValue, match="no audio|is empty"):
        ask(path)  # type: ignore[operator]


def test_a_picture_and_a_silent_video_have_no_audio(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "a.png"), "w", format="image2") as container:
        stream = container.add_stream("png", rate=1)
        stream.width = stream.height = 16
        stream.pix_fmt = "rgb24"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8))))
    for path in (tmp_path / "a.png", video(tmp_path / "a.mp4", sound=False)):
        with pytest.raises(BadValue, match="no audio"):
            read(path)


def test_a_wav_file_without_samples_has_no_audio(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="has no audio"):
        read(write_wav(tmp_path / "a.wav", tone(0.0)))


def test_a_path_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="No such file"):
        read(tmp_path / "a.wav")
    with pytest.raises(BadValue, match="cannot be read"):
        read(tmp_path)
    with pytest.raises(BadValue, match="No such file"):
        read(Path("http://127.0.0.1:9/a.wav"))


@pytest.mark.parametrize(
    ("name", "codec"), [("a.mp3", "libmp3lame"), ("a.m4a", "aac"), ("a.webm", "libopus"), ("a.flac", "flac")]
)
def test_damage_in_the_middle_is_an_error_after_what_comes_before(
    tmp_path: Path, name: str, codec: str
) -> None:
    content = bytearray(encode(tmp_path / name, codec, seconds=20.0).read_bytes())
    middle = len(content) // 2
    content[middle : middle + len(content) // 5] = random.Random(1).randbytes(len(content) // 5)
    path = tmp_path / f"damaged{name}"
    path.write_bytes(content)
    seconds = 0.0
    with pytest.raises(BadValue, match="is damaged after|can be read"):  # noqa: PT012
        for block in audio.blocks(path, 0.5):
            seconds += len(block) / RATE
    assert 5 <= seconds <= 17


@pytest.mark.parametrize(("name", "codec"), [("a.flac", "flac"), ("a.webm", "libopus")])
def test_a_file_that_is_cut_off_is_an_error(tmp_path: Path, name: str, codec: str) -> None:
    content = encode(tmp_path / name, codec, seconds=10.0).read_bytes()
    path = tmp_path / f"half{name}"
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(BadValue, match="of its 10.0 seconds can be read|damaged after"):
        read(path)


@pytest.mark.parametrize("after", [b"TAG" + bytes(125), random.Random(2).randbytes(3000)])
def test_notes_at_the_end_of_a_file_do_no_harm(tmp_path: Path, after: bytes) -> None:
    path = encode(tmp_path / "a.mp3", "libmp3lame")
    path.write_bytes(path.read_bytes() + after)
    assert len(read(path)) / RATE == pytest.approx(3.0, abs=0.1)


@pytest.mark.parametrize("size", [0, 0x7FFF_F000, 0xFFFF_FFFF])
def test_a_wav_file_from_a_pipe_does_not_know_its_length(tmp_path: Path, size: int) -> None:
    path = write_wav(tmp_path / "a.wav", tone(2.0))
    content = path.read_bytes()
    at = content.index(b"data") + 4
    path.write_bytes(content[:at] + struct.pack("<I", size) + content[at + 4 :])
    assert len(read(path)) == 2 * RATE


def test_stdin_is_kept_in_a_private_file_as_long_as_it_is_needed(tmp_path: Path) -> None:
    content = write_wav(tmp_path / "a.wav", tone(2.0)).read_bytes()
    with audio.spooled(io.BytesIO(content)) as path:
        assert path.stat().st_mode & 0o077 == 0
        assert len(read(path)) == 2 * RATE
    assert not path.parent.exists()
