"""The ears of a speech model: its encoder, and what its decoder attends to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from localspec.core.types import Logits, Tokens

Heard = Mapping[str, Any]  # a decoder layer's keys and values by the names of its inputs: openvino.Tensor


class Hearing:
    """The encoder of a speech model, compiled, and what a decoder needs of its hidden states."""

    def __init__(self, core: Any, model: Path, device: str, settings: Mapping[str, str]) -> None:
        from localspec.formats.whisper import graphs as whisper

        self._core, self._graph, self._device = core, model / "openvino_model.xml", device
        self._settings = dict(settings)
        self._encoder = self._compiled(model / f"{whisper.ENCODER}.xml").create_infer_request()
        self._cross = self._compiled(model / f"{whisper.CROSS}.xml")
        self._listener: Any = None

    @classmethod
    def of(
        cls, core: Any, model: Path, device: str, settings: Mapping[str, str], threads: int
    ) -> Hearing | None:
        """Return the ears of the model in a folder, None for a model of text."""
        from localspec.formats.whisper import graphs as whisper

        if not (model / f"{whisper.ENCODER}.xml").is_file():
            return None
        own = {"INFERENCE_NUM_THREADS": str(threads)} if threads else {}
        names = ("PERFORMANCE_HINT", "INFERENCE_PRECISION_HINT", "DYNAMIC_QUANTIZATION_GROUP_SIZE")
        return cls(core, model, device, {name: settings[name] for name in names} | own)

    def _compiled(self, graph: Any) -> Any:
        return self._core.compile_model(graph, self._device, self._settings)

    def encode(self, features: Logits) -> Logits:
        """Return the hidden states [frames, width] of the features [mels, 2 * frames]."""
        self._encoder.infer({"features": np.ascontiguousarray(features[None])})
        states: Logits = self._encoder.get_output_tensor(0).data[0].copy()
        return states

    def heard(self, states: Logits) -> Heard:
        """Return the decoder layers' keys and values of the hidden states [frames, width]."""
        request = self._cross.create_infer_request()
        request.infer({"states": np.ascontiguousarray(states[None])})
        return {port.any_name: request.get_tensor(port) for port in self._cross.outputs}

    def nothing(self) -> Heard:
        """Return keys and values of zeros, for a session that has heard nothing."""
        import openvino as ov

        def zeros(port: Any) -> Any:
            sizes = [size.get_length() if size.is_static else 2 for size in port.partial_shape]
            return ov.Tensor(np.zeros(sizes, np.float32))

        return {port.any_name: zeros(port) for port in self._cross.outputs}

    def listened(self, tokens: Tokens, heads: Sequence[tuple[int, int]], heard: Heard) -> Logits:
        """Return the softmax of queries and keys [heads, tokens, frames] for (layer, head) pairs."""
        from localspec.formats.graph.runner import graph_inputs
        from localspec.formats.whisper import graphs as whisper

        if self._listener is None:
            model = whisper.queries(self._core.read_model(self._graph), len(heard) // 2)
            self._listener = self._compiled(model).create_infer_request()
        names = {port.any_name for port in self._listener.model_inputs}
        self._listener.reset_state()
        self._listener.infer(
            graph_inputs(names, tokens) | {name: heard[name] for name in names & heard.keys()}
        )
        found = []
        for layer, head in heads:
            queries = self._listener.get_tensor(whisper.query_name(layer)).data[0, head]
            keys = heard[whisper.cross_name(layer, "key")].data[0, head]
            scores = queries @ keys
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            found.append(weights / weights.sum(-1, keepdims=True))
        return np.stack(found)
