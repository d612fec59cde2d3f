"""The OpenVINO graphs of a head: one that guesses, and one that joins the target's states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.errors import UnsupportedModel
from localspec.formats.gguf.quants import Affine
from localspec.formats.graph.architecture import Architecture
from localspec.formats.graph.builder import Graph
from localspec.formats.graph.ir import save
from localspec.formats.graph.linear import Linear, Node
from localspec.formats.graph.paged import ROWS, read_all_rows, read_stateful
from localspec.formats.graph.surgery import copied
from localspec.formats.graph.weights import eight_bits, sixteen_bits
from localspec.formats.heads.layout import LAYER, Head

STATES, OWN, FUSED = "states", "own", "fused"  # inputs and outputs [tokens, 1, width]
GRAPH, FUSE = "openvino_model", "openvino_fuse"  # names of the files

# The names of a decoder's layer, as the builder reads them.
NAMES = {
    "blk.0.attn_q.weight": f"{LAYER}self_attn.q_proj.weight",
    "blk.0.attn_k.weight": f"{LAYER}self_attn.k_proj.weight",
    "blk.0.attn_v.weight": f"{LAYER}self_attn.v_proj.weight",
    "blk.0.attn_output.weight": f"{LAYER}self_attn.o_proj.weight",
    "blk.0.ffn_gate.weight": f"{LAYER}mlp.gate_proj.weight",
    "blk.0.ffn_up.weight": f"{LAYER}mlp.up_proj.weight",
    "blk.0.ffn_down.weight": f"{LAYER}mlp.down_proj.weight",
    "blk.0.attn_norm.weight": f"{LAYER}input_layernorm.weight",
    "blk.0.state_norm.weight": f"{LAYER}hidden_norm.weight",
    "blk.0.ffn_norm.weight": f"{LAYER}post_attention_layernorm.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
    "fc.weight": "fc.weight",
}


class HeadWeights:
    """The tensors of a head as the builder reads them: matrices in 8 bits, or with `plain` in float16."""

    def __init__(self, head: Head, *, plain: bool = False) -> None:
        self._head, self._converted = head, sixteen_bits if plain else eight_bits

    def has(self, name: str) -> bool:
        """Return whether there is a tensor of that name."""
        return name in NAMES

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a norm."""
        return self._head.tensors[NAMES[name]]

    def matrix(self, name: str) -> Affine:
        """Return a matrix."""
        return self.converted(self._head.tensors[NAMES[f"{name}.weight"]])

    table = matrix

    def converted(self, values: NDArray[np.float32]) -> Affine:
        """Return a matrix [rows, columns] as the graph stores it."""
        return self._converted(lambda rows: values[rows], len(values))


class HeadGraph(Graph):
    """Builds the stateful graph of a head, which has the inputs of a decoder and STATES.

    Each token is read with the state before it: u = [norm(embedding); norm(state)] goes to attention, which
    is added to the state, and an MLP follows (EAGLE-3, Li et al. 2025, section 3.1). The outputs are logits
    over the tokens that the head can guess, and OWN, the states that may stand for the target's next ones.
    """

    def __init__(self, head: Head, embedding: Node, *, plain: bool = False) -> None:
        shape = head.shape
        own = HeadWeights(head, plain=plain)
        super().__init__(
            Architecture(
                family="llama",
                layers=1,
                width=shape.width,
                heads=shape.heads,
                key_heads=shape.key_heads,
                head_width=shape.head_width,
                context=shape.context,
                epsilon=shape.epsilon,
                frequencies=shape.frequencies,
                rope_scale=shape.rope_scale,
            ),
            own,
        )
        self._norms_residual = shape.norms_residual
        table = None if head.embedding is None else own.converted(head.embedding)
        self._embedding = embedding if table is None else self.linear.table(table)
        self.inputs[STATES] = self._input(STATES, "f32", 3)

    def model(self, on_layer: Any = None) -> Any:
        """Return the openvino.Model."""
        import openvino as ov

        ops, name = self.ops, "blk.0."
        embedded = ops.gather(self._embedding, self.inputs["input_ids"], ops.constant(np.int32(0)))
        states = self._read(embedded)
        self._add_shared()
        normed = self._norm(states, f"{name}state_norm.weight")
        pair = ops.concat([self._norm(embedded, f"{name}attn_norm.weight"), normed], -1)
        x = ops.add(normed if self._norms_residual else states, self._attention(pair, name))
        own = ops.add(x, self._feed_forward(self._norm(x, f"{name}ffn_norm.weight"), name))
        logits = self.linear.product(self._norm(own, "output_norm.weight"), self.weights.matrix("output"))
        results = []
        for node, called in ((logits, "logits"), (own, OWN)):
            node.output(0).get_tensor().set_names({called})
            results.append(ops.result(node))
        model = ov.Model(results, self.sinks, list(self.inputs.values()), "head")
        self.linear.note(model)
        return model

    def _read(self, embedded: Node) -> Node:
        """Return the states [batch, tokens, width] that are read beside the tokens."""
        return self.inputs[STATES]


def write(head: Head, target: Path, into: Path, *, plain: bool = False) -> None:
    """Write both graphs of a head into the folder `into`; the embedding is that of the graph of `target`.

    Raises BrokenModel and UnsupportedModel for a target's graph whose embedding cannot be found.
    """
    model = read_stateful(target)
    save(HeadGraph(head, _embedding(model, target), plain=plain).model(), into, GRAPH)
    save(_fusing(head, plain), into, FUSE)


def read_head(graph: Path) -> Any:
    """Return the graph that guesses over a paged KV cache, with both outputs for the tokens in ROWS."""
    import openvino as ov
    from openvino import opset13 as ops

    model = read_all_rows(graph)
    rows = ops.parameter(ov.PartialShape([-1]), ov.Type.i32, name=ROWS)
    rows.output(0).get_tensor().set_names({ROWS})
    own = model.output(OWN).get_node().input_value(0)
    readers = own.get_target_inputs()
    chosen = ops.gather(own, rows, ops.constant(np.int32(0)))
    for reader in readers:
        reader.replace_source_output(chosen.output(0))
    model.add_parameters([rows])
    model.validate_nodes_and_infer_types()
    return model


def _fusing(head: Head, plain: bool) -> Any:
    """Return the graph of g = fc(f): the target's states [tokens, layers * width] -> [tokens, width]."""
    import openvino as ov
    from openvino import opset13 as ops

    linear, weights = Linear(), HeadWeights(head, plain=plain)
    width = len(head.shape.taps) * head.shape.tapped_width
    states = ops.parameter(ov.PartialShape([-1, width]), ov.Type.f32, name=STATES)
    states.output(0).get_tensor().set_names({STATES})
    fused = linear.product(states, weights.matrix("fc"))
    fused.output(0).get_tensor().set_names({FUSED})
    model = ov.Model([ops.result(fused)], [states], "fuse")
    linear.note(model)
    return model


def _embedding(model: Any, path: Path) -> Node:
    """Return the node of a target's embedding [vocab, width], with its own compression."""
    waiting, seen = [model.input("input_ids").get_node().output(0)], 0
    while waiting and (seen := seen + 1) < 64:
        for reader in waiting.pop(0).get_target_inputs():
            node = reader.get_node()
            if node.get_type_name() == "Gather" and reader.get_index() == 1:
                return copied(node.input_value(0), lambda constant: constant)
            waiting += node.outputs()
    raise UnsupportedModel(f"`{path}` has no embedding that can be told apart")
