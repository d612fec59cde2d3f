from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from desk import Workspace, rows

from localspec import plugins
from localspec.drafting.build_step import Artifact
from localspec.errors import BadValue, MissingExtra
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
def test_weights_take_fewer_bits_and_stand_for_nearly_the_same(
    source: Artifact, desk: Workspace, into: Path, options: str, types: set[str], size: float
) -> None:
    found = plugins.parse("steps", f"quantize:{options}").make(desk).run(source, into)
    assert kinds(into) == types
    sizes = [(folder / "openvino_model.bin").stat().st_size for folder in (source.folder, into)]
    assert sizes[1] <= size * sizes[0]
    assert found.facts["bits"] == int(options.split("=")[1].split(",")[0])
    whole, rounded = rows(source.folder, TEXT), rows(into, TEXT)
    error = np.abs(rounded - whole).mean() / whole.std()
    assert error < {16: 1e-6, 8: 0.05, 4: 0.35}[found.facts["bits"]]
    assert (into / "tokenizer.json").is_file()


@pytest.mark.parametrize(("cheap", "types"), [(4, {"i4", "u8"}), (8, {"i8"})])
def test_auto_takes_the_bits_that_pay_most(
    source: Artifact,
    desk: Workspace,
    into: Path,
    cheap: int,
    types: set[str],
) -> None:
    desk.measured = [[0.1, 0.1] if bits == cheap else [2.0, 2.0] for bits in (8, 4)]
    found = plugins.parse("steps", "quantize:bits=auto").make(desk).run(source, into)
    assert found.facts["bits"] == cheap
    assert kinds(into) == types
    assert [line[:6] for line in desk.lines if "agree" in line] == ["8 bits", "4 bits"]


@pytest.mark.parametrize(
    ("options", "said"), [("bits=5", "`bits` of `quantize` is 5"), ("bits=8,method=awq", "is for 4 bits")]
)
def test_what_cannot_be_is_refused(desk: Workspace, options: str, said: str) -> None:
    with pytest.raises(BadValue, match=said):
        plugins.parse("steps", f"quantize:{options}").make(desk)


def test_without_nncf_the_command_that_brings_it_is_told(
    source: Artifact, desk: Workspace, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "nncf", None)
    with pytest.raises(MissingExtra) as caught:
        plugins.parse("steps", "quantize").make(desk).run(source, into)
    assert "localspec[quant]" in str(caught.value.hint)
