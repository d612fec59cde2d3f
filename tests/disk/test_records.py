"""Records, seals and samples tell a damaged file from a sound one."""

from __future__ import annotations

import random
from pathlib import Path

from localspec.disk import records, samples, seal


def flipped(content: bytes, draw: random.Random, bits: int = 10) -> bytes:
    damaged = bytearray(content)
    for _ in range(bits):
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
    return bytes(damaged)


def test_a_record_is_read_as_it_was_or_not_at_all(tmp_path: Path) -> None:
    file, values = (
        tmp_path / "new" / "a.json",
        {"rewind": None, "costs": {"1": 2.5, "8": [1, 2]}, "ü": "\ud800"},
    )
    records.write(file, values)
    content, draw = file.read_bytes(), random.Random(0)
    assert records.read(file) == values
    for _ in range(2000):
        file.write_bytes(flipped(content, draw))
        assert records.read(file) in ({}, values)
    for other in (b"", b"[]", b"{", b"3", b'{"digest": "x"}', b"[" * 100_000, b"\xff"):
        file.write_bytes(other)
        assert records.read(file) == {}
    assert records.read(tmp_path / "none") == {}


def test_a_sealed_folder_loses_what_is_damaged_or_added(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(bytes(1000))
    seal.seal(tmp_path)
    seal.drop_unsealed(tmp_path)
    assert (tmp_path / "a").exists()
    (tmp_path / "a").write_bytes(flipped(bytes(1000), random.Random(0), 1))
    (tmp_path / "c").write_bytes(b"")
    seal.drop_unsealed(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"b", seal.FILE}
    (tmp_path / seal.FILE).unlink()
    seal.drop_unsealed(tmp_path)
    assert list(tmp_path.iterdir()) == []
    seal.drop_unsealed(tmp_path / "none")


def test_samples_of_large_files_and_all_of_small_ones(tmp_path: Path) -> None:
    def digest(name: str, content: bytes) -> str:
        (tmp_path / name).write_bytes(content)
        samples._sampled_digest.cache_clear()  # two writes may be too close for a file's time to tell
        return samples.sampled_digest(tmp_path / name)

    small = bytes(1000)
    assert digest("small", small) != digest("small", small[:500] + b"\1" + small[501:])
    large = bytes(samples.SMALL + 1)
    found = {digest("large", each) for each in (large, b"\1" + large[1:], large[:-1] + b"\1", large + b"\0")}
    assert len(found) == 4
