"""A decoder stored as an OpenVINO graph: its hyperparameters, and its tensors under uniform names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.errors import BrokenModel, UnsupportedModel, printable
from localspec.formats.files import read_json
from localspec.formats.gguf.quants import Affine
from localspec.formats.graph.architecture import FROM_FOLDERS, Architecture, of_folder
from localspec.formats.graph.paged import read_stateful
from localspec.formats.graph.weights import JOINED, hf_name
from localspec.formats.graph_weights.descent import Descent
from localspec.formats.graph_weights.ports import OTHER
from localspec.formats.graph_weights.products import Norm
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.formats.hyperparameters.families import DEFAULTS, Family
from localspec.formats.tensors import TensorInfo

GRAPH = "openvino_model.xml"
BIASED = {"attention_bias": "attn_output", "mlp_bias": "ffn_down"}  # key of a config: a matrix that has one


def is_graph(path: Path) -> bool:
    """Return whether a folder has an OpenVINO graph and no safetensors, whose numbers would be better."""
    return (path / GRAPH).is_file() and next(path.glob("*.safetensors"), None) is None


class GraphFolder(SafetensorsFolder):
    """A folder with a graph: its matrices look like float16 tensors of a folder of safetensors.

    `products` are those with its matrices by llama.cpp's names, `vectors` [n] its norms and biases, and
    `packed` the names in `tensors`, without `.weight`, of matrices in 4 bits.
    """

    def __init__(self, path: Path) -> None:
        """Raise UnsupportedModel for a graph that computes anything else than a decoder, BrokenModel."""
        super().__init__(path, read_json(path / "config.json"), {})
        if self.architecture not in FROM_FOLDERS:
            raise UnsupportedModel(
                f"`{path}` is a `{printable(self.architecture)}` model, which the torch engine does not read "
                "from an OpenVINO graph",
                OTHER,
            )
        family = DEFAULTS[self.architecture]
        self._found = Descent(path, read_stateful(path / GRAPH)).found()
        self.table, self._layers = self._found.table, self._found.layers
        head = self._found.head
        whole = head.bias is None and head.rows == self.table.sizes[0]
        self._tied = whole and head.matrix.equals(self.table)
        self.products = {} if self._tied else {"output": head}
        for at, layer in enumerate(self._layers):
            self.products |= {f"blk.{at}.{name}": product for name, product in layer.products.items()}
        self.vectors = self._norms() | self._biases(family)
        self.config = self._completed()
        self.packed: set[str] = set()
        self.tensors = self._tensors(family)

    @property
    def shape(self) -> Architecture:
        """The hyperparameters: those of config.json, with the numbers that the graph computes with.

        Raises UnsupportedModel for values that localspec does not compute, and BrokenModel.
        """
        shape = of_folder(self)
        heads = {(layer.attention.heads, layer.attention.head_width) for layer in self._layers}
        if heads != {(shape.heads, shape.head_width)}:
            raise BrokenModel(
                f"The graph of `{self.path}` has other heads than its config.json", "Download it again"
            )
        turns = [layer.attention.turns for layer in self._layers]
        turned = [each for each in turns if each]
        if not turned:
            raise UnsupportedModel(f"The graph of `{self.path}` has no rotary positions", OTHER)
        scale = self._one({layer.attention.scale for layer in self._layers}, "scale of attention")
        rates = self._one({tuple(each.rates.tolist()) for each in turned}, "rotation")
        norms = [self._found.norm, *(norm for layer in self._layers for norm in layer.norms.values())]
        return replace(
            shape,
            epsilon=self._one({norm.epsilon for norm in norms}, "epsilon of norms"),
            frequencies=np.array(rates, np.float32),
            rope_scale=self._one({each.scale for each in turned}, "scale of rotations"),
            unrotated=frozenset(at for at, each in enumerate(turns) if each is None),
            attention_scale=None if abs(scale * shape.head_width**0.5 - 1) < 1e-6 else scale,
            embedding_scale=self._found.embedding_scale,
            residual_scale=self._one({each for layer in self._layers for each in layer.scales}, "factor"),
            logit_scale=self._found.logit_scale,
        )

    def _one(self, values: set[Any], what: str) -> Any:
        """Return what all layers have; raises UnsupportedModel if they differ."""
        if len(values) != 1:
            raise UnsupportedModel(f"The layers of `{self.path}` have more than one {what}", OTHER)
        return values.pop()

    def _norms(self) -> dict[str, NDArray[np.float32]]:
        """Return the weights of all norms; one of 1 is left out of graphs."""
        found = {"output_norm.weight": _weight(self._found.norm, self.table.columns)}
        for at, layer in enumerate(self._layers):
            for name, norm in layer.norms.items():
                width = layer.attention.head_width if name.startswith("attn_") and name != "attn_norm" else 0
                found[f"blk.{at}.{name}.weight"] = _weight(norm, width or self.table.columns)
        return found

    def _biases(self, family: Family) -> dict[str, NDArray[np.float32]]:
        """Return all biases; those of a family that always has them are left out of graphs if they are 0."""
        found = {}
        for name, product in self.products.items():
            if (biases := product.biases()) is not None:
                found[f"{name}.bias"] = biases
            elif family.qkv_bias and name.endswith(("attn_q", "attn_k", "attn_v")):
                found[f"{name}.bias"] = np.zeros(product.rows, np.float32)
        return found

    def _completed(self) -> dict[str, Any]:
        """Return the config with what the graph says: how the source was packed is no matter any more."""
        config = {key: value for key, value in self.config.items() if key != "quantization_config"}
        for key, part in BIASED.items():
            if f"blk.0.{part}.bias" in self.vectors:
                config.setdefault(key, True)
        return config | {"tie_word_embeddings": self._tied}

    def _tensors(self, family: Family) -> dict[str, TensorInfo]:
        """Return the tensors that a folder of safetensors would have, and note which are in 4 bits."""
        sizes: dict[str, tuple[int, ...]] = {"token_embd": (self.table.sizes[0], self.table.columns)}
        for name, product in self.products.items():
            layer, _, part = name.rpartition(".")
            whole = f"{layer}.{JOINED[part][0]}" if family.joined and part in JOINED else name
            before = sizes.get(whole, (0,))[0]
            sizes[whole] = (before + product.rows, product.matrix.columns)
            if product.matrix.bits == 4:
                self.packed.add(hf_name(f"{whole}.weight").removesuffix(".weight"))
        shapes = {f"{name}.weight": size for name, size in sizes.items()}
        shapes |= {name: (len(values),) for name, values in self.vectors.items()}
        names = {hf_name(name): shape for name, shape in shapes.items()}
        return {name: TensorInfo(name, shape, "F16", 0, 0) for name, shape in names.items()}


class GraphWeights:
    """Tensors of a graph: matrices with the codes that it has, in 8 bits if it has floats."""

    def __init__(self, folder: GraphFolder) -> None:
        self._folder = folder

    def has(self, name: str) -> bool:
        """Return whether there is a tensor of that name."""
        return name in self._folder.vectors or name.removesuffix(".weight") in self._folder.products

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a norm or a bias; raises BrokenModel for numbers that are not finite."""
        values = self._folder.vectors[name]
        if not np.isfinite(values).all():
            raise BrokenModel(
                f"`{name}` of `{self._folder.path}` holds numbers that are not finite", "Download it again"
            )
        return values

    def matrix(self, name: str) -> Affine:
        """Return a matrix as it is stored."""
        return self._folder.products[name].affine()

    def table(self, name: str) -> Affine:
        """Return the embedding as it is stored, the only table."""
        assert name == "token_embd"
        return self._folder.table.affine()


def _weight(norm: Norm, width: int) -> NDArray[np.float32]:
    return np.ones(width, np.float32) if norm.weight is None else norm.weight
