"""Export a tokenizer as OpenVINO graphs, for OpenVINO GenAI; localspec itself does not use them."""

from __future__ import annotations

from pathlib import Path

NAMES = ("openvino_tokenizer.xml", "openvino_detokenizer.xml")


def write(folder: Path) -> bool:
    """Write the graphs of the folder's tokenizer.json into it; return False if the libraries are missing."""
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
