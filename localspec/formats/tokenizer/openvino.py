"""A tokenizer as OpenVINO graphs, which OpenVINO GenAI reads beside a model; localspec itself needs none."""

from __future__ import annotations

from pathlib import Path

NAMES = ("openvino_tokenizer.xml", "openvino_detokenizer.xml")


def write(folder: Path) -> bool:
    """Write the graphs of the folder's tokenizer.json into it; tell whether the libraries are there."""
    try:
        import openvino as ov
        from openvino_tokenizers import convert_tokenizer
        from transformers import PreTrainedTokenizerFast
    except ImportError:
        return False
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    for name, graph in zip(NAMES, convert_tokenizer(tokenizer, with_detokenizer=True), strict=True):
        ov.save_model(graph, folder / name)
    return True
