"""Names from a hub, from its cache and from the user that would lead out of a folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import loopback
import pytest

from localspec.errors import LocalspecError, NetworkError, UnsupportedModel, UsageError
from localspec.library.download import cache
from localspec.library.download import hub as hub_module
from localspec.library.download.names import BlobName, Commit, FileName, RepoFile, SafeName, Sha256
from localspec.library.sources import Source

DATA = bytes(4000)
DIGEST = hashlib.sha256(DATA).hexdigest()
TO_VICTIM = "../../../../victim.txt"
EVIL = [
    *("", ".", "..", "../x", "a/../../x", "/etc/passwd", "a//b", "a/", "a\0b", "a\nb", "\x1b[2J"),
    *("\u202efugg.exe", "a\\..\\b", "C:\\x", "c:x", "a:b", "\ud800", "x" * 256, "ä" * 128, "nul"),
    *("/".join("x" * 600), "COM1.gguf", "aux .txt", "name.", "name ", "a|b", "a*b"),
]


def fetch(text: str, said: Any) -> Any:
    return hub_module.fetch(Source.parse(text), said)


def listing(**changes: Any) -> bytes:
    """Return a listing of one GGUF file, with `changes` to its entry."""
    entry = {"rfilename": "m.gguf", "size": len(DATA), "blobId": "ab" * 20}
    entry |= {"lfs": {"sha256": DIGEST, "size": len(DATA), "pointerSize": 130}}
    return json.dumps({"sha": loopback.COMMIT, "siblings": [entry | changes]}).encode()


@pytest.mark.parametrize("text", EVIL)
@pytest.mark.parametrize("kind", [BlobName, Sha256, Commit, FileName, RepoFile])
def test_no_unsafe_text_becomes_a_name(kind: type[SafeName], text: str) -> None:
    with pytest.raises(NetworkError, match="that can be saved") as caught:
        kind(text)
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 800


def test_usual_names_are_safe() -> None:
    for name in (
        "a",
        ".gitattributes",
        "model-00001-of-00002.safetensors",
        "Q4/m.gguf",
        "モデル.gguf",
        "x" * 255,
    ):
        assert RepoFile(name) == name
    assert FileName("console.txt") == "console.txt"
    assert Sha256(DIGEST) == BlobName(DIGEST) == DIGEST
    assert Commit(loopback.COMMIT) == loopback.COMMIT


@pytest.mark.parametrize("digest", [TO_VICTIM, "/victim.txt", "ab", "", DIGEST + "\n"])
def test_a_digest_that_is_a_path_deletes_nothing(hub: Any, said: Any, tmp_path: Path, digest: str) -> None:
    """A second listing calls the digest of a cached file a path."""
    victim = tmp_path / "victim.txt"
    victim.write_text("precious")
    hub.repositories["o/m"] = {"m.gguf": DATA}
    found = fetch("hf:o/m", said)
    hub.listings["o/m"] = listing(lfs={"sha256": digest})
    assert fetch("hf:o/m", said).path == found.path  # from the cache
    assert "lists the files of `o/m` wrongly" in said.lines[-1]
    with pytest.raises(LocalspecError):
        hub_module.fetch(Source.parse("hf:o/m"), said, digest="0" * 64)
    assert victim.read_text() == "precious"


def test_a_hub_that_confuses_two_files_deletes_none_but_the_one_asked_for(hub: Any, said: Any) -> None:
    other = bytes(range(250)) * 16
    hub.repositories["o/m"] = {"m.gguf": DATA, "other.gguf": other}
    kept = fetch("hf:o/m:other.gguf", said).path
    fetch("hf:o/m:m.gguf", said)
    hub.listings["o/m"] = listing(lfs={"sha256": hashlib.sha256(other).hexdigest()})
    with pytest.raises(LocalspecError, match="not the expected file"):
        fetch("hf:o/m:m.gguf", said)
    assert kept.read_bytes() == other


@pytest.mark.parametrize("blob", [TO_VICTIM, "..", "a/b", "nul"])
def test_a_blob_id_that_is_a_path_is_an_error(hub: Any, said: Any, tmp_path: Path, blob: str) -> None:
    (tmp_path / "victim.txt").write_text("precious")
    hub.repositories["o/m"] = {"m.gguf": DATA}
    hub.listings["o/m"] = listing(lfs=None, blobId=blob)
    with pytest.raises(NetworkError, match="is not a digest that can be saved"):
        fetch("hf:o/m", said)
    assert (tmp_path / "victim.txt").read_text() == "precious"


@pytest.mark.parametrize("commit", [TO_VICTIM, "..", "", "a/b", "x" * 300, "\0"])
def test_a_commit_that_is_a_path_is_an_error(hub: Any, said: Any, commit: str) -> None:
    hub.repositories["o/m"] = {"m.gguf": DATA}
    hub.listings["o/m"] = json.dumps({"sha": commit, "siblings": []}).encode()
    with pytest.raises(NetworkError, match="is not a commit that can be saved"):
        fetch("hf:o/m", said)


def test_an_etag_that_is_a_path_is_an_error(hub: Any, said: Any, tmp_path: Path) -> None:
    (tmp_path / "victim.txt").write_text("precious")
    hub.repositories["o/m"] = {"m.gguf": DATA}
    hub.silent = True
    hub.digests["m.gguf"] = TO_VICTIM
    with pytest.raises(NetworkError, match="gives no size or digest for `m.gguf`"):
        fetch("hf:o/m", said)
    assert (tmp_path / "victim.txt").read_text() == "precious"


@pytest.mark.parametrize("name", [text + ".gguf" for text in EVIL if not RepoFile.is_safe(f"{text}.gguf")])
def test_a_file_with_an_unsafe_name_is_left_out(hub: Any, said: Any, tmp_path: Path, name: str) -> None:
    hub.repositories["o/m"] = {"m.gguf": DATA}
    hub.listings["o/m"] = listing(rfilename=name)
    before = set(tmp_path.rglob("*"))
    with pytest.raises((UnsupportedModel, NetworkError)):
        fetch("hf:o/m", said)
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("content", [TO_VICTIM, "../..", "x" * 100_000, "\0", ""])
def test_a_ref_in_the_cache_that_is_a_path_is_not_followed(
    hub: Any, said: Any, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    hub.repositories["o/m"] = {"m.gguf": DATA}
    found = fetch("hf:o/m", said)
    source = Source.parse("hf:o/m")
    ref = cache.repository(source) / "refs" / "main"
    ref.write_text(content)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert cache.cached_revision(source) is None
    with pytest.raises(NetworkError, match="is not in the cache"):
        fetch("hf:o/m", said)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert fetch("hf:o/m", said).path == found.path
    assert ref.read_text() == loopback.COMMIT


def test_a_link_out_of_the_cache_is_deleted_but_not_its_target(hub: Any, said: Any, tmp_path: Path) -> None:
    victim = tmp_path / "victim.gguf"
    victim.write_bytes(DATA)
    hub.repositories["o/m"] = {"m.gguf": DATA}
    file = fetch("hf:o/m", said).path
    file.unlink()
    file.symlink_to(victim)
    with pytest.raises(LocalspecError, match="not the expected file"):
        hub_module.fetch(Source.parse("hf:o/m"), said, digest="0" * 64)
    assert victim.read_bytes() == DATA
    assert not file.is_symlink()


@pytest.mark.parametrize(
    "text",
    [
        *("hf:o/m@..", "hf:o/m@a/../../x", "hf:o/m@a//b", "hf:o/m@a/", "hf:o/m@a/./b", "hf:o/m@" + "x" * 300),
        *("hf:o/m:../x", "hf:o/m:/x", "hf:o/m:a\\b", "hf:o/m:\0", "hf:o/m:\ud800", "hf:o/m:" + "x" * 300),
        *("hf:../m", "hf:o/..", "hf:a--b/c", "hf:o/m.", "hf:" + "o" * 97 + "/m", "hf:o/m@v/nul"),
        *("pypi:-rfile==1.0", "pypi:--pre==1.0", "pypi:a{1..99999999}==1", "pypi:a{3..1}==1"),
    ],
)
def test_sources_that_cannot_be_paths_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a source of models") as caught:
        Source.parse(text)
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    "text", ["hf:o/m@refs/pr/1", "hf:o/m@v1.0:Q4_K_M", "hf:o/m:a/b c.gguf", "pypi:a{1..6}==1.0+x"]
)
def test_usual_sources_are_read(text: str) -> None:
    assert str(Source.parse(text)) == text
