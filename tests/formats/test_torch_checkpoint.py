"""A PyTorch checkpoint is read without PyTorch, and nothing in it is run."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz import torch_pickle as made
from fuzz.torch_pickle import SMALL

from localspec.errors import BrokenModel, UnsupportedModel
from localspec.formats import torch_checkpoint


def written(folder: Path, content: bytes) -> Path:
    path = folder / "model.pt"
    path.write_bytes(content)
    return path


def test_tensors_are_read_by_name(tmp_path: Path) -> None:
    found = torch_checkpoint.state(written(tmp_path, made.checkpoint(SMALL)))
    assert list(found) == list(SMALL)
    for name, value in SMALL.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.engines
@pytest.mark.parametrize("nested", [False, True])
def test_what_torch_saves_is_read(tmp_path: Path, nested: bool) -> None:
    import torch

    module = torch.nn.Sequential(torch.nn.Conv1d(2, 3, 5), torch.nn.BatchNorm1d(3), torch.nn.LSTM(3, 4))
    saved: Any = module.state_dict()
    torch.save(
        {"state_dict": saved, "epoch": 3, "rate": 0.5, "no": None} if nested else saved, tmp_path / "a.pt"
    )
    found = torch_checkpoint.state(tmp_path / "a.pt")
    assert found.keys() == saved.keys()
    for name, value in saved.items():
        np.testing.assert_array_equal(found[name], value.numpy())


class Attack:
    """Removes a file when it is unpickled."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[Any, ...]:
        return os.remove, (str(self.victim),)


def attacks(victim: Path) -> dict[str, bytes]:
    """Return pickles that call something, make objects, or take all memory or time."""
    nested = b"]q\x00" + b"".join(b"h\x00h\x00\x86q\x00" for _ in range(60))
    return {
        "os.remove": pickle.dumps(Attack(victim), 2),
        "os.remove, protocol 4": pickle.dumps(Attack(victim), 4),
        "builtins": b"\x80\x02cbuiltins\neval\n" + made.text("1 + 1") + b"\x85R.",
        "another object": b"\x80\x02cpathlib\nPath\n)\x81.",
        "old instance": b"(ios\nsystem\n.",
        "persistent text": b"\x80\x02Pstorage\n.",
        "attributes": b"\x80\x02" + made.REBUILD + b"}b.",
        "extension": b"\x80\x02\x82\x01.",
        "a key of 2^60 parts": b"\x80\x02}q\x01h\x01" + nested + b"h\x00N\x73.",
        "a storage of 2^60 parts": b"\x80\x02"
        + nested
        + b"("
        + made.text("storage")
        + b"h\x00"
        + made.text("0")
        + made.text("cpu")
        + made.number(1)
        + b"tQ.",
        "a call of 2^60 parts": b"\x80\x02" + nested + b"h\x00)R.",
    }


@pytest.mark.parametrize("name", attacks(Path("x")))
def test_an_attack_is_refused(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("here", "utf-8")
    path = written(tmp_path, made.archive(attacks(victim)[name], {"0": b"\0" * 4}))
    with pytest.raises((UnsupportedModel, BrokenModel)):
        torch_checkpoint.read(path)
    assert victim.exists()


def test_a_memo_far_away_takes_no_memory(tmp_path: Path) -> None:
    far = b"\x80\x02Nr\xff\xff\xff\xff."
    assert torch_checkpoint.read(written(tmp_path, made.archive(far, {}))) is None


def of_storage(shape: bytes, count: int = 4, kind: str = "FloatStorage") -> bytes:
    return b"\x80\x02" + made.REBUILD + b"(" + made.storage("0", kind, count) + shape + b"tR."


@pytest.mark.parametrize(
    ("pickled", "error"),
    [
        (of_storage(made.number(0) + made.numbers((5,)) + made.numbers((1,))), BrokenModel),
        (of_storage(made.number(3) + made.numbers((2,)) + made.numbers((1,))), BrokenModel),
        (of_storage(made.number(-1) + made.numbers((2,)) + made.numbers((1,))), BrokenModel),
        (of_storage(made.number(0) + made.numbers((2, 2)) + made.numbers((1,))), BrokenModel),
        (of_storage(made.number(0) + made.numbers((2, 2)) + made.numbers((1, 2))), UnsupportedModel),
        (of_storage(made.number(0) + made.numbers((9, 4)) + made.numbers((0, 1))), UnsupportedModel),
        (of_storage(made.number(0) + made.numbers((4,)) + made.numbers((1,)), count=8), BrokenModel),
        (of_storage(made.number(0) + made.numbers((4,)) + made.numbers((1,)), kind="Odd"), UnsupportedModel),
        (b"\x80\x02}", BrokenModel),
        (b"\x80\x02R.", BrokenModel),
        (b"", BrokenModel),
        (b"\x80\x02\x58" + struct.pack("<I", 1 << 31) + b"a.", BrokenModel),
    ],
)
def test_a_wrong_pickle_is_refused(tmp_path: Path, pickled: bytes, error: type[Exception]) -> None:
    path = written(tmp_path, made.archive(pickled, {"0": b"\0" * 16}))
    with pytest.raises(error):
        torch_checkpoint.read(path)


def bomb() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", made.program(SMALL))
        archive.writestr("archive/data/0", bytes(1 << 24))
    return file.getvalue()


@pytest.mark.parametrize("content", [b"", b"PK", b"\x80\x02.", bomb(), made.checkpoint(SMALL)[:-30]])
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(BrokenModel, match="no PyTorch checkpoint"):
        torch_checkpoint.read(written(tmp_path, content))


def test_a_checkpoint_without_tensors_has_no_state(tmp_path: Path) -> None:
    with pytest.raises(BrokenModel, match="no tensors by name"):
        torch_checkpoint.state(written(tmp_path, made.archive(b"\x80\x02}X\x01\0\0\0aK\x01s.", {})))
