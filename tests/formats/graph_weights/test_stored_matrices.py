"""Matrices of OpenVINO graphs: the numbers that OpenVINO itself computes from their constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import opset13 as ops

from localspec.errors import BrokenModel, UnsupportedModel
from localspec.formats.graph.linear import four_bits
from localspec.formats.graph_weights.stored import Stored, stored_of

ROWS, GROUPS, WIDTH = 6, 3, 32
KINDS = ["i4", "u4", "i8", "u8"]


def constant(values: NDArray[Any], kind: str) -> Any:
    """Return a constant of whole numbers in a type, of 4 bits or 8."""
    if kind.endswith("4"):
        return four_bits(values, kind)
    return ops.constant(values.astype(np.int8 if kind == "i8" else np.uint8))


def drawn(kind: str, shape: tuple[int, ...], seed: int = 0) -> NDArray[Any]:
    half = 1 << (int(kind[1]) - 1)
    low = -half if kind[0] == "i" else 0
    return np.random.default_rng(seed).integers(low, low + 2 * half, shape).astype(np.int64).astype(np.uint8)


def matrix(kind: str, *, groups: int = GROUPS, zero: NDArray[Any] | None = None, flat: bool = False) -> Any:
    """Return the node of a matrix as NNCF writes it; `flat` ones have no axis of groups."""
    codes = (ROWS, WIDTH) if flat else (ROWS, groups, WIDTH)
    sizes = (ROWS, 1) if flat else (ROWS, groups, 1)
    scale = np.random.default_rng(1).uniform(0.01, 0.02, sizes).astype(np.float16)
    steps = ops.convert(constant(drawn(kind, codes), kind), "f16")
    if zero is not None:
        steps = ops.subtract(steps, ops.convert(constant(zero, kind), "f16"))
    weights = ops.multiply(steps, ops.constant(scale))
    if not flat:
        weights = ops.reshape(weights, ops.constant(np.array([ROWS, groups * WIDTH], np.int64)), False)
    return ops.convert(weights, "f32")


def computed(node: Any) -> NDArray[np.float32]:
    """Return what OpenVINO computes for constants alone."""
    model = ov.Model([ops.result(node)], [], "matrix")
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    return np.array(ov.Core().compile_model(model, "CPU", options)([])[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["plain", "zeros", "one zero", "flat", "flat zeros"])
def test_a_matrix_has_the_numbers_that_openvino_computes(kind: str, form: str) -> None:
    flat = form.startswith("flat")
    zero = {
        "zeros": drawn(kind, (ROWS, GROUPS, 1), 2),  # three zero points a row: rows begin within a byte
        "one zero": drawn(kind, (1, 1, 1), 2),
        "flat zeros": drawn(kind, (ROWS, 1), 2),
    }.get(form)
    node = matrix(kind, zero=zero, flat=flat)
    expected = computed(node)
    stored = stored_of(node.output(0))
    assert stored.bits == int(kind[1])
    assert (stored.sizes[0], stored.columns) == expected.shape
    found = stored.affine()
    assert np.abs(found.values() - expected).max() < 2e-3 * np.abs(expected).max()  # it rounds to float16
    assert found.bits == stored.bits
    assert int(found.codes.max()) < 1 << stored.bits
    some = stored.affine(2, 3)
    assert np.array_equal(some.values(), found.values()[2:5])


@pytest.mark.parametrize(("kind", "half"), [("u4", 8), ("u8", 128)])
def test_codes_around_the_middle_have_no_offsets(kind: str, half: int) -> None:
    node = matrix(kind, zero=np.full((1, 1, 1), half, np.uint8))
    found = stored_of(node.output(0)).affine()
    assert found.offset is None
    assert found.codes.dtype == np.int8
    assert np.abs(found.values() - computed(node)).max() < 1e-3


def test_floats_get_eight_bits_and_equal_matrices_are_told() -> None:
    values = np.random.default_rng(0).normal(size=(ROWS, 64)).astype(np.float16)
    found = stored_of(ops.convert(ops.constant(values), "f32").output(0))
    assert (found.bits, found.affine().bits) == (16, 8)
    assert np.abs(found.affine().values() - values).max() < np.abs(values).max() / 250
    one, same, other = (stored_of(matrix(kind).output(0)) for kind in ("i4", "i4", "u4"))
    assert one.equals(same)
    assert not one.equals(other)
    with_zero = stored_of(matrix("i4", zero=drawn("i4", (1, 1, 1), 2)).output(0))
    assert not one.equals(with_zero)


def named(node: Any) -> Any:
    node.set_friendly_name("layer.weight")
    return node


def test_other_forms_are_refused_by_name() -> None:
    codes = constant(drawn("i8", (ROWS, WIDTH)), "i8")
    columns = ops.constant(np.ones((1, WIDTH), np.float16))
    by_columns = ops.multiply(ops.convert(codes, "f16"), named(columns))
    with pytest.raises(UnsupportedModel, match="`layer.weight` holds 1 x 32 in `f16`"):
        stored_of(by_columns.output(0))
    words = named(ops.constant(np.zeros((ROWS, WIDTH), np.int32)))
    scaled = ops.multiply(ops.convert(words, "f16"), ops.constant(np.ones((ROWS, 1), np.float16)))
    with pytest.raises(UnsupportedModel, match="`layer.weight` holds 6 x 32 in `i32`"):
        stored_of(scaled.output(0))
    computed_one = named(ops.add(ops.constant(np.ones((2, 2), np.float32)), np.float32(1)))
    with pytest.raises(UnsupportedModel, match=r"computed by `Add` \(`layer.weight`\)"):
        stored_of(computed_one.output(0))


def test_scales_that_are_not_finite_are_damage() -> None:
    codes = constant(drawn("i8", (ROWS, WIDTH)), "i8").output(0).get_node()
    scale = ops.constant(np.full((ROWS, 1), np.nan, np.float16))
    with pytest.raises(BrokenModel, match="not finite"):
        Stored(codes, (ROWS, 1, WIDTH), scale).affine()
