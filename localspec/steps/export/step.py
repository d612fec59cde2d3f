"""Write a model as files for other engines and programs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from localspec.drafting.build_step import Artifact, BuildContext, BuildStep
from localspec.errors import BadValue, UnsupportedModel
from localspec.formats.files import copy_configs
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph.compress import WHOLE_ROW, compress
from localspec.formats.graph.ir import import_plain, save
from localspec.formats.graph.paged import read_stateful
from localspec.formats.huggingface import healed, loading, torch_devices
from localspec.formats.tokenizer import openvino
from localspec.installation import install_command
from localspec.library.model import GRAPH
from localspec.plugins import Option
from localspec.steps.export import gguf_writer, huggingface_writer

OPENVINO, GGUF, TORCH = "openvino", "gguf", "torch"
FILE = "model.gguf"


class Export(BuildStep):
    """Writes a model as an OpenVINO folder, a GGUF file or a Hugging Face folder, with its tokenizer.

    A pruned draft is written without the removed layers, a healed one with its trained weights. Only an
    OpenVINO graph can hold a trimmed head.
    """

    def __init__(
        self,
        context: BuildContext,
        *,
        to: Annotated[str, Option("the format", choices=(OPENVINO, GGUF, TORCH))],
        bits: Annotated[int, Option("bits per weight: 16, 8, 4, or 0 to keep them", least=0, most=16)] = 0,
        type: Annotated[str, Option("GGUF type such as Q4_K_M; it overrides bits")] = "",
        npu: Annotated[bool, Option("an OpenVINO graph for NPUs: one scale per row")] = False,
    ) -> None:
        if bits not in (0, 4, 8, 16):
            raise BadValue(f"`bits` of `export` is {bits}", "It takes 16, 8, 4, or 0 to keep them")
        if to != OPENVINO and npu:
            raise BadValue(
                "`npu` of `export` is only for OpenVINO graphs", "Leave it out, or use `to=openvino`"
            )
        if to != GGUF and type:
            raise BadValue("`type` of `export` is only for GGUF files", "Give `bits`")
        if to == TORCH and bits not in (0, 16):
            raise BadValue(f"`bits` of `export` is {bits}", "A Hugging Face folder has 16 bits")
        self._context, self._to, self._bits, self._npu = context, to, bits, npu
        self._type = gguf_writer.parse_type(type) if type else gguf_writer.BY_BITS.get(bits, "")

    def run(self, source: Artifact, into: Path) -> Artifact:
        """Write the files; raises UnsupportedModel if the format cannot hold the model, and MissingExtra."""
        if self._to == OPENVINO:
            return Artifact(into, source.facts | self._openvino(source, into))
        if "tokens" in source.facts and source.facts["tokens"] < source.facts["of_tokens"]:
            raise UnsupportedModel(
                f"The head was trimmed, which a {self._to} file cannot hold", "Build it with `--vocab all`"
            )
        if self._to == GGUF:
            return Artifact(into, source.facts | self._gguf(source, into))
        with self._context.step("Writing the Hugging Face folder"):
            model, file = self._torch_model(source)
            huggingface_writer.save(model, file, source.folder, into)
        return Artifact(into, source.facts | {"precision": "FP16", "weights": "."})

    def _openvino(self, source: Artifact, into: Path) -> dict[str, Any]:
        bits = self._bits or (4 if self._npu else 0)
        precision = source.facts.get("precision", "")
        copy_configs(source.folder, into)
        if bits and not (precision == "FP16" and (source.folder / GRAPH).is_file()):
            self._check_unpruned(source, "bits")
            model = self._plain_graph(into)
        else:
            model = read_stateful(source.folder / GRAPH)
        if bits in (4, 8):
            with self._context.step(f"Quantizing weights to {bits} bits"):
                model = compress(model, bits, group=WHOLE_ROW if self._npu else 64)
        if bits:
            precision = f"INT{bits}" if bits < 16 else "FP16"
        save(model, into)
        with self._context.step("Writing the tokenizer"):
            written = openvino.write(into)
        if not written:
            name = openvino.NAMES[0]
            command = install_command("export")
            self._context.say(f"Not written: {name} for OpenVINO GenAI; it requires `{command}`")
        return {"precision": precision}

    def _plain_graph(self, into: Path) -> Any:
        """Return the graph of the source's weights in float16."""
        import_plain(self._context.weights("source"), into, self._context)
        model = read_stateful(into / GRAPH).clone()
        for file in (into / GRAPH, (into / GRAPH).with_suffix(".bin")):
            file.unlink()
        return model

    def _gguf(self, source: Artifact, into: Path) -> dict[str, Any]:
        with self._context.step("Writing the GGUF file"):
            self._write_gguf(source, into)
        return {"precision": GgufFile.open(into / FILE).precision, "weights": FILE}

    def _write_gguf(self, source: Artifact, into: Path) -> None:
        file, trained = self._context.weights("source"), source.folder / healed.FILE
        kept = source.facts.get("layers")
        copy_configs(source.folder, into)
        if file.is_file() and not trained.is_file():
            dropped = sorted(set(range(source.facts["of_layers"])) - set(kept)) if kept else []
            bits = gguf_writer.BY_BITS.get(source.facts.get("bits", 0), "")
            kind = self._type or bits or gguf_writer.KEPT_TYPE
            if kind == gguf_writer.KEPT_TYPE and not dropped:
                shutil.copyfile(file, into / FILE)
            else:
                gguf_writer.quantize(file, into / FILE, kind, dropped)
        else:
            self._write_torch(source, into)

    def _write_torch(self, source: Artifact, into: Path) -> None:
        """Write torch weights as GGUF in float16, then quantize them to the requested type."""
        model, path = self._torch_model(source)
        state = {name: _array(value) for name, value in model.state_dict().items()}
        plain = into / f"plain-{FILE}"
        gguf_writer.write(path, source.folder, state, model.config.num_hidden_layers, plain)
        if self._type in ("", "F16"):
            plain.replace(into / FILE)
        else:
            gguf_writer.quantize(plain, into / FILE, self._type)
            plain.unlink()

    def _torch_model(self, source: Artifact) -> tuple[Any, Path]:
        """Return the torch model on the CPU, with kept layers and healed weights, and its source file."""
        loading.check_extra()
        path = self._context.weights("source")
        layers = source.facts.get("layers")
        model = loading.load_trainable(path, torch_devices.find_device("cpu")[1], layers)
        if (source.folder / healed.FILE).is_file():
            healed.load(model, layers, source.folder / healed.FILE)
        return model, path

    def _check_unpruned(self, source: Artifact, what: str) -> None:
        if "layers" in source.facts or "healed" in source.facts:
            raise UnsupportedModel(
                f"`{what}` of `export` quantizes the original weights, and this model was pruned or healed",
                "Build it with these bits instead",
            )


def _array(value: Any) -> NDArray[np.float32]:
    array: NDArray[np.float32] = value.float().cpu().numpy()
    return array
