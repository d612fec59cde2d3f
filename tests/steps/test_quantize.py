from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from build_context import FakeContext, logits_of
from random_models import saved

from localspec import plugins
from localspec.drafting.build_step import Artifact
from localspec.errors import BadValue, MissingExtra, UnsupportedModel
from localspec.formats.graph.ir import import_weights
from localspec.formats.graph.paged import read_stateful
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.installation import install_command
from localspec.library import Silent

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


@pytest.mark.parametrize(("width", "bits", "error"), [(72, 8, 0.1), (320, 4, 0.9)])
def test_rows_that_groups_do_not_divide(
    context: FakeContext, tmp_path: Path, width: int, bits: int, error: float
) -> None:
    """They get fewer columns in a group, or eight bits, which is then said."""
    folder, plain, into = (tmp_path / name for name in ("folder", "plain", "into"))
    saved("llama", folder, hidden_size=width, intermediate_size=100 if bits == 8 else 800, head_dim=18)
    for path in (plain, into):
        path.mkdir()
    import_weights(SafetensorsFolder.open(folder), plain, Silent(), plain=True)
    found = plugins.parse("steps", "quantize:bits=4").make(context).run(Artifact(plain, {}), into)
    assert (found.facts["bits"], found.facts["precision"]) == (bits, f"INT{bits}")
    whole = logits_of(plain, TEXT)
    assert np.abs(logits_of(into, TEXT) - whole).mean() < error * whole.std()


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
    assert caught.value.hint == f"Type `{install_command('quant')}`"
