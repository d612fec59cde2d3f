"""The graph of pyannote's segmentation-3.0: which of up to three speakers talk in each frame of ten seconds.

A SincNet (Ravanelli and Bengio 2018) of learned band-pass filters, four bidirectional LSTM layers and two
linear layers, as `pyannote.audio.models.segmentation.PyanNet` has them (Plaquet and Bredin 2023).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.speech.diarization.nodes import Layers
from localspec.speech.types import RATE

SAMPLES = 10 * RATE  # of a chunk
STRIDE, WIDTH, POOL = 10, 251, 3  # of the filters; the pooling after each convolution
FRAMES = 589  # of a chunk
STEP = STRIDE * POOL**3  # samples from one frame to the next
SEEN = 991  # samples that a frame sees
SPEAKERS = ((), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2))  # that talk, in each class
LSTM_LAYERS, LINEAR_LAYERS = 4, 2
LOWEST, NARROWEST = 50.0, 50.0  # Hz: of the filters


def segmentation_graph(weights: Mapping[str, NDArray[Any]], path: Path) -> Any:
    """Return the openvino.Model: samples [batch, 160000] -> log-probabilities of the classes [batch, 589, 7].

    Raises BrokenModel if a tensor is missing; `path` is the file to name then.
    """
    import openvino as ov

    layers = Layers(weights, path)
    ops = layers.ops
    samples = ops.parameter(ov.PartialShape([-1, SAMPLES]), ov.Type.f32, name="samples")
    samples.output(0).get_tensor().set_names({"samples"})
    zero = ops.constant(np.array([0], np.int64))
    batch = ops.gather(ops.shape_of(samples), zero, ops.constant(np.int64(0)))
    x = ops.unsqueeze(samples, ops.constant(np.array([1], np.int64)))
    x = layers.instance_norm(x, "sincnet.wav_norm1d")
    x = ops.abs(layers.filtered(x, _band_filters(layers), stride=STRIDE))
    for at in range(3):
        if at:
            x = layers.convolution(x, f"sincnet.conv1d.{at}")
        x = layers.leaky(layers.instance_norm(layers.pooled(x, POOL), f"sincnet.norm1d.{at}"))
    x = ops.transpose(x, ops.constant(np.array([0, 2, 1], np.int64)))
    for at in range(LSTM_LAYERS):
        x = layers.lstm(x, "lstm", at, batch, FRAMES)
    for at in range(LINEAR_LAYERS):
        x = layers.leaky(layers.product(x, f"linear.{at}"))
    classes = ops.log_softmax(layers.product(x, "classifier"), -1)
    classes.output(0).get_tensor().set_names({"classes"})
    return ov.Model([ops.result(classes)], [samples], "segmentation")


def _band_filters(layers: Layers) -> NDArray[np.float32]:
    """Return the band-pass filters [80, 1, 251], even and odd ones, from their edges in Hz.

    As asteroid-filterbanks' `ParamSincFB` makes them: differences of two sinc functions, windowed.
    """
    name = "sincnet.conv1d.0.filterbank"
    lows, bands = (np.abs(layers.weight(f"{name}.{part}_hz_", 40, 1)) for part in ("low", "band"))
    window, times = (layers.weight(f"{name}.{part}").reshape(1, -1) for part in ("window_", "n_"))
    lows = lows + np.float32(LOWEST)
    highs = np.clip(lows + np.float32(NARROWEST) + bands, LOWEST, RATE / 2)
    bands = highs - lows
    even = (np.sin(highs @ times) - np.sin(lows @ times)) / (times / 2) * window
    odd = (np.cos(lows @ times) - np.cos(highs @ times)) / (times / 2) * window
    evens = np.concatenate([even, 2 * bands, even[:, ::-1]], axis=1)
    odds = np.concatenate([odd, 0 * bands, -odd[:, ::-1]], axis=1)
    filters = np.concatenate([evens / (2 * bands), odds / (2 * bands)])
    return np.ascontiguousarray(filters[:, None], np.float32)
