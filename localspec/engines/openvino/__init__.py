"""OpenVINO: an IR over a paged KV cache, so that a rewind is free and bit-exact."""

from localspec.engines.openvino.engine import OpenVino

__all__ = ["OpenVino"]
