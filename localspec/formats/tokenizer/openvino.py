"""Export a tokenizer as OpenVINO graphs, for OpenVINO GenAI; localspec itself does not use them."""

from __future__ import annotations

from pathlib import Path

from localspec.formats.tokenizer.opening import tokenizer_errors

NAMES = ("openvino_tokenizer.xml", "openvino_detokenizer.xml")


def write(folder: Path) -> bool:
    """Write the graphs of the folder's tokenizer.json into it; return False if the libraries are missing.

    Raises BrokenModel for a tokenizer that they cannot convert.
    """
    try:
        import openvino as ov
        from openvino_tokenizers import convert_tokenizer
        from transformers import PreTrainedTokenizerFast
    except ImportError:
        return False
    with tokenizer_errors(f"The tokenizer of `{folder}`"):
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        graphs = convert_tokenizer(tokenizer, with_detokenizer=True)
    for name, graph in zip(NAMES, graphs, strict=True):
        ov.save_model(graph, folder / name)
    return True
