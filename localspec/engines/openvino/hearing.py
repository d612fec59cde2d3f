"""The encoder of a speech model, and what its decoder attends to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from localspec.core.types import Logits, Tokens

Heard = Mapping[str, Any]  # a decoder layer's keys and values by the names of its inputs: openvino.Tensor


class Hearing:
    """The encoder of a speech model, compiled, and what a decoder needs of its hidden states."""

    def __init__(
        self, core: Any, model: Path, device: str, settings: Mapping[str, str], encoder: Mapping[str, str]
    ) -> None:
        """Compile the graphs of the model in a folder; `encoder` are settings that differ for that one."""
        from localspec.formats.whisper import graphs

        self._core, self._graph, self._device = core, model / "openvino_model.xml", device
        self._settings = dict(settings)
        self._encoder = self._request(model / f"{graphs.ENCODER}.xml", encoder)
        self._cross = self._request(model / f"{graphs.CROSS}.xml")
        self._names = [port.any_name for port in self._cross.model_outputs]
        self._listener: Any = None

    @classmethod
    def of(
        cls,
        core: Any,
        model: Path,
        device: str,
        settings: Mapping[str, str],
        encoder: Mapping[str, str],
        threads: int,
    ) -> Hearing | None:
        """Return the encoder of the model in a folder, None for a model of text."""
        from localspec.formats.whisper import graphs

        if not (model / f"{graphs.ENCODER}.xml").is_file():
            return None
        own = {"INFERENCE_NUM_THREADS": str(threads)} if threads else {}
        names = ("PERFORMANCE_HINT", "INFERENCE_PRECISION_HINT", "DYNAMIC_QUANTIZATION_GROUP_SIZE")
        return cls(core, model, device, {name: settings[name] for name in names} | own, encoder)

    def _request(self, graph: Any, other: Mapping[str, str] | None = None) -> Any:
        settings = self._settings | dict(other or {})
        return self._core.compile_model(graph, self._device, settings).create_infer_request()

    def encode(self, features: Logits) -> Logits:
        """Return the hidden states [frames, width] of the features [mels, 2 * frames]."""
        self._encoder.infer({"features": np.ascontiguousarray(features[None])})
        states: Logits = self._encoder.get_output_tensor(0).data[0].copy()
        return states

    def heard(self, states: Logits) -> Heard:
        """Return the decoder layers' keys and values of the hidden states, until it is called again."""
        self._cross.infer({"states": np.ascontiguousarray(states[None])})
        return {name: self._cross.get_tensor(name) for name in self._names}

    def nothing(self) -> Heard:
        """Return keys and values of zeros, for a session that has heard nothing."""
        import openvino as ov

        def zeros(port: Any) -> Any:
            sizes = [size.get_length() if size.is_static else 2 for size in port.partial_shape]
            return ov.Tensor(np.zeros(sizes, np.float32))

        return {port.any_name: zeros(port) for port in self._cross.model_outputs}

    def listened(self, tokens: Tokens, heads: Sequence[tuple[int, int]], heard: Heard) -> Logits:
        """Return the weights of the attention [heads, tokens, frames] of (layer, head) pairs."""
        from localspec.formats.graph.runner import graph_inputs
        from localspec.formats.whisper import graphs

        if self._listener is None:
            self._listener = self._request(graphs.attention(self._core.read_model(self._graph)))
        names = {port.any_name for port in self._listener.model_inputs}
        self._listener.reset_state()
        own = {name: heard[name] for name in names & heard.keys()}
        self._listener.infer(graph_inputs(names, tokens) | own)
        layers = {layer: self._listener.get_tensor(graphs.attention_name(layer)) for layer, _ in heads}
        return np.stack([layers[layer].data[0, head] for layer, head in heads])
