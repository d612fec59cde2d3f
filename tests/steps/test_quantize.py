from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from build_context import FakeContext, logits_of

from localspec import plugins
from localspec.drafting.build_step import Artifact
from localspec.errors import BadValue, MissingExtra, UnsupportedModel
from localspec.formats.graph.paged import read_stateful

TEXT = [3, 1, 4, 1, 5]


def kinds(folder: Path) -> set[str]:
    """Return the types of a graph's large constants."""
    model = read_stateful(folder / "openvino_model.xml")
    constants = [node for node in model.get_ops() if node.get_type_name() == "Constant"]
    return {
        node.get_output_element_type(0).get_type_name()
        for node in constants
        if np.prod(node.get_output_shape(0)) >= 96 * 256
    }


@pytest.mark.parametrize(
    ("options", "types", "size"),
    [
        ("bits=16", {"f16"}, 1.0),
        ("bits=8", {"i8"}, 0.55),
        ("bits=8,zero=on", {"u8"}, 0.55),
        ("bits=4", {"i4", "u8"}, 0.4),
        ("bits=4,group=32,zero=on", {"u4", "u8"}, 0.4),
        ("bits=4,method=awq", {"i4", "u8"}, 0.4),
        ("bits=4,method=scale", {"i4", "u8"}, 0.4),
        ("bits=4,method=gptq", {"i4", "u8"}, 0.4),
    ],
)
def test_quantized_weights_are_smaller_and_close(
    source: Artifact, context: FakeContext, into: Path, options: str, types: set[str], size: float
) -> None:
    found = plugins.parse("steps", f"quantize:{options}").make(context).run(source, into)
    assert kinds(into) == types
    sizes = [(folder / "openvino_model.bin").stat().st_size for folder in (source.folder, into)]
    assert sizes[1] <= size * sizes[0]
    assert found.facts["bits"] == int(options.split("=")[1].split(",")[0])
    whole, rounded = logits_of(source.folder, TEXT), logits_of(into, TEXT)
    error = np.abs(rounded - whole).mean() / whole.std()
    assert error < {16: 1e-6, 8: 0.05, 4: 0.35}[found.facts["bits"]]
    assert (into / "tokenizer.json").is_file()


def test_what_is_compressed_already_is_not_said_to_be_quantized(
    source: Artifact, context: FakeContext, into: Path, tmp_path: Path
) -> None:
    (small := tmp_path / "small").mkdir()
    eight = plugins.parse("steps", "quantize:bits=8").make(context).run(source, small)
    for bits in ("4", "8", "16"):
        with pytest.raises(
            UnsupportedModel, match=f"compressed already, and cannot be quantized to {bits} bits"
        ):
            plugins.parse("steps", f"quantize:bits={bits}").make(context).run(eight, into)
    kept = plugins.parse("steps", "quantize:bits=auto").make(context).run(eight, into)
    assert kept.facts["precision"] == "INT8"
    assert np.array_equal(logits_of(into, TEXT), logits_of(small, TEXT))


@pytest.mark.parametrize(("cheap", "types"), [(4, {"i4", "u8"}), (8, {"i8"})])
def test_auto_takes_the_faster_bits(
    source: Artifact,
    context: FakeContext,
    into: Path,
    cheap: int,
    types: set[str],
) -> None:
    context.measured = [[0.1, 0.1] if bits == cheap else [2.0, 2.0] for bits in (8, 4)]
    found = plugins.parse("steps", "quantize:bits=auto").make(context).run(source, into)
    assert found.facts["bits"] == cheap
    assert kinds(into) == types
    assert [line[:6] for line in context.lines if "agree" in line] == ["8 bits", "4 bits"]


@pytest.mark.parametrize(
    ("options", "said"), [("bits=5", "`bits` of `quantize` is 5"), ("bits=8,method=awq", "requires 4 bits")]
)
def test_invalid_options_are_rejected(context: FakeContext, options: str, said: str) -> None:
    with pytest.raises(BadValue, match=said):
        plugins.parse("steps", f"quantize:{options}").make(context)


def test_without_nncf_the_extra_is_named(
    source: Artifact, context: FakeContext, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nncf", None)
    with pytest.raises(MissingExtra) as caught:
        plugins.parse("steps", "quantize").make(context).run(source, into)
    assert "localspec[quant]" in str(caught.value.hint)
