"""Compile cache: the paged graph as simplified by OpenVINO's CPU plug-in, the longer half of compiling.

OpenVINO's own model cache writes such a graph but cannot load it (2026.4: it drops the head sizes that paged
attention needs). This module takes apart what it wrote: the graph, the head sizes, and the constants that are
not already in the model's weights file. The result is a normal graph with a fifth of the nodes, and compiles
to the same kernels.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from localspec.disk import atomic, private, records
from localspec.errors import BrokenModel
from localspec.formats.graph.paged import read_paged

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

GRAPH, CONSTANTS, HEADS = "graph.xml", "constants.bin", "heads.json"
DIGESTS = "digests.json"  # of the three, and how many bytes of the constants they cover
ATTENTION = "PagedAttentionExtension"
KEEP_PRECISION = "keep_const_precision_0"  # else the plug-in widens four bits to eight, which changes sums
MAX_GRAPHS = 4  # of one model
LARGE = 4096  # bytes from which a constant is searched for in the weights file
ALIGNED = 64  # bytes

_SHARED = "shared@"  # prefix of constants in the model's weights file; the offset follows

Bytes = NDArray[np.uint8]


def compiled(
    core: Any,
    source: Path,
    settings: dict[str, str],
    threads: dict[str, str],
    folder: Path,
    probe: Callable[[Any], NDArray[np.float32]],
    **extras: Any,
) -> tuple[Any, list[Any]]:
    """Compile the graph `source` for the CPU, from its simplified form in `folder` if possible.

    Otherwise the simplified form is made, and kept if both forms give the same `probe` bit for bit; if they
    do not, it is not tried again. `threads` are settings that do not change the graph. Returns the compiled
    model, which has the `extras` of `read_paged`, and what holds its mapped files.

    Raises BrokenModel and UnsupportedModel for a graph that cannot be read, RuntimeError as compiling does.
    """
    kept = folder / _key(core, source, settings, extras)
    other = folder / f".{kept.name}.other"  # marks a graph whose probe differs
    if kept.is_dir():
        with suppress(BrokenModel, RuntimeError):
            graph, mapped = read_simplified(core, kept, source.with_suffix(".bin"))
            return core.compile_model(graph, "CPU", settings | threads), mapped
        shutil.rmtree(kept, ignore_errors=True)
    model = read_paged(source, trees=True, **extras)
    if other.is_file() or not _room(folder, source.with_suffix(".bin").stat().st_size):
        return core.compile_model(model, "CPU", settings | threads), [model]
    with atomic.scratch(kept) as work:
        new = work / kept.name
        new.mkdir()
        try:
            found, write = compile_and_take_apart(core, model, settings | threads, source, work)
        except RuntimeError:  # writing the graph may have failed, so compile without it
            return core.compile_model(model, "CPU", settings | threads), [model]
        with suppress(BrokenModel, RuntimeError, OSError, ValueError):  # OSError: another process was faster
            size = write(new)
            records.write(new / DIGESTS, {"size": size, "digest": _digest(new, size)})
            graph, mapped = read_simplified(core, new, source.with_suffix(".bin"))
            if np.array_equal(probe(found), probe(core.compile_model(graph, "CPU", settings | threads))):
                _make_room(folder)
                new.rename(kept)
            else:
                atomic.write(other, "")
            del graph, mapped
    return found, [model]


def _key(core: Any, source: Path, settings: dict[str, str], extras: Mapping[str, Any]) -> str:
    """Return a digest of all that a simplified graph depends on."""
    import openvino as ov

    device = [core.get_property("CPU", name) for name in ("FULL_DEVICE_NAME", "OPTIMIZATION_CAPABILITIES")]
    files = [_stamp(path) for path in (source, source.with_suffix(".bin"))]
    known = [ov.get_version(), device, settings, files, "trees", sorted(extras.items())]
    return sha256(repr(known).encode()).hexdigest()[:16]


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        raise BrokenModel(f"`{path}` cannot be read", "Download the model again") from None
    return found.st_size, found.st_mtime_ns


def _room(folder: Path, weights: int) -> bool:
    """Return whether memory suffices to compile `weights` bytes twice, and disk to keep the result."""
    import psutil

    try:
        private.make_folder(folder)
        disk = psutil.disk_usage(str(folder)).free
    except OSError:
        return False
    return bool(disk > 2 * weights and psutil.virtual_memory().available > 4 * weights)


def _make_room(folder: Path) -> None:
    """Delete the oldest graphs of a model: each CPU, version and setting has its own."""
    graphs = [path for path in folder.iterdir() if not path.name.startswith(".")]
    for path in sorted(graphs, key=lambda path: path.stat().st_mtime)[: 1 - MAX_GRAPHS]:
        shutil.rmtree(path, ignore_errors=True)


def compile_and_take_apart(
    core: Any, model: Any, settings: dict[str, Any], source: Path, work: Path
) -> tuple[Any, Callable[[Path], int]]:
    """Compile a paged `model` for the CPU and let OpenVINO write its simplified graph into the folder `work`.

    Returns the compiled model, and a function that writes GRAPH, CONSTANTS and HEADS into a folder and gives
    the bytes of the constants. `source` is the graph's xml file, with its weights beside it. Raises
    RuntimeError as compiling does.
    """
    heads = {node.get_friendly_name(): _sizes(node) for node in _attention(model)}
    texts: list[bytes] = []

    def note(text: bytes) -> bytes:
        texts.append(text)
        return text

    keeping = {"CACHE_DIR": str(work), "CACHE_ENCRYPTION_CALLBACKS": [note, note]}
    compiled = core.compile_model(model, "CPU", {**settings, **keeping})

    def write(folder: Path) -> int:
        (blob,) = work.glob("*.blob")
        (text,) = texts
        constants = _mapped(blob)
        graph = ElementTree.fromstring(text)
        end = len(constants) - len(text)
        start = end - max(_place(layer).stop for layer in _constants(graph))
        size = _share(graph, constants[start:end], source, folder / CONSTANTS)
        (folder / HEADS).write_text(json.dumps(heads), "utf-8")
        ElementTree.ElementTree(graph).write(folder / GRAPH, "utf-8")
        return size

    return compiled, write


def read_simplified(core: Any, folder: Path, weights: Path) -> tuple[Any, list[Bytes]]:
    """Return the openvino.Model kept in `folder`, and the mapped files that its constants view.

    The files must stay mapped as long as the model, or a compiled model made from it, is used. Raises
    BrokenModel for a damaged folder: its digest tells.
    """
    import openvino as ov
    from openvino import opset13 as ops

    core.get_property("CPU", "FULL_DEVICE_NAME")  # loads the plug-in, whose operators the graph uses
    try:
        known = records.read(folder / DIGESTS)
        if known["digest"] != _digest(folder, known["size"]):
            raise ValueError("its digest is wrong")
        heads = json.loads((folder / HEADS).read_text("utf-8"))
        own, content = _mapped(folder / CONSTANTS), _mapped(weights)
        model = core.read_model((folder / GRAPH).read_bytes(), ov.Tensor(own, shared_memory=True))
        for node in model.get_ops():
            name = node.get_friendly_name()
            if name.startswith(_SHARED):
                at, size = int(name.removeprefix(_SHARED)), node.get_byte_size()
                tensor = ov.Tensor(content[at : at + size], node.get_output_shape(0), node.get_element_type())
                node.output(0).replace(ops.constant(tensor, shared_memory=True).output(0))
        for node in _attention(model):
            for key, value in heads[node.get_friendly_name()].items():
                node.get_rt_info()[key] = value
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise BrokenModel(f"`{folder}` is damaged or incomplete: {error}") from None
    for node in model.get_ops():
        if node.get_type_name() == "Constant" and node.get_element_type().bitwidth < 8:
            node.get_rt_info()[KEEP_PRECISION] = True
    for parameter in model.get_parameters():
        if "_cache." in parameter.get_friendly_name():  # the plug-in chooses the layout when it compiles
            parameter.set_element_type(ov.Type.dynamic)
            parameter.set_partial_shape(ov.PartialShape([-1] * 4))
    model.validate_nodes_and_infer_types()
    return model, [own, content]


def _attention(model: Any) -> list[Any]:
    return [node for node in model.get_ops() if node.get_type_name() == ATTENTION]


def _sizes(node: Any) -> dict[str, int]:
    found = node.get_rt_info()
    return {key: found[key].value for key in ("k_head_size", "v_head_size", "num_k_heads", "num_v_heads")}


def _digest(folder: Path, size: int) -> str:
    """Return the digest of a kept graph: its files, and the first `size` bytes of its constants."""
    found = sha256(_mapped(folder / CONSTANTS)[:size].data)
    for name in (GRAPH, HEADS):
        found.update((folder / name).read_bytes())
    return found.hexdigest()


def _share(graph: Element, constants: Bytes, source: Path, rest: Path) -> int:
    """Point constants of `graph` at the weights file if it has their bytes; write the others to `rest`.

    Returns the bytes of the others; zeros follow them, which nothing reads.
    """
    weights = _mapped(source.with_suffix(".bin"))
    places, largest = _places(source), 0
    with rest.open("wb") as file:
        for layer in _constants(graph):
            place = _place(layer)
            content = constants[place]
            found = next((at for at in places.get(len(content), ()) if _same(weights, at, content)), None)
            if found is None:
                file.write(bytes(-file.tell() % ALIGNED))
                _data(layer).set("offset", str(file.tell()))
                file.write(content.tobytes())
            else:
                layer.set("name", f"{_SHARED}{found}")
                _data(layer).set("offset", "0")
                largest = max(largest, len(content))
        size = file.tell()
        file.truncate(max(largest, size))  # the reader requires every constant within this file
    return size


def _same(weights: Bytes, at: int, content: Bytes) -> bool:
    head, whole = slice(at, at + ALIGNED), slice(at, at + len(content))
    return np.array_equal(weights[head], content[:ALIGNED]) and np.array_equal(weights[whole], content)


def _places(source: Path) -> dict[int, list[int]]:
    """Return the offsets of a graph's large constants in its weights file, by size."""
    found: dict[int, list[int]] = {}
    for layer in _constants(ElementTree.parse(source).getroot()):
        place = _place(layer)
        if place.stop - place.start >= LARGE:
            found.setdefault(place.stop - place.start, []).append(place.start)
    return found


def _constants(graph: Element) -> Iterator[Element]:
    return (layer for layer in graph.iter("layer") if layer.get("type") == "Const")


def _data(layer: Element) -> Element:
    data = layer.find("data")
    if data is None:
        raise BrokenModel(f"Constant `{layer.get('name')}` has no data")
    return data


def _place(layer: Element) -> slice:
    data = _data(layer)
    start = int(data.get("offset", 0))
    return slice(start, start + int(data.get("size", 0)))


def _mapped(path: Path) -> Bytes:
    return np.memmap(path, np.uint8, "c") if path.stat().st_size else np.empty(0, np.uint8)
