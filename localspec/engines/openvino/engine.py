"""OpenVINO: an IR over a paged KV cache, so that a rewind is free and bit-exact."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from localspec.core.contracts import Engine, ExportableSession, HiddenStates, Session
from localspec.core.sessions import SplitSession, States
from localspec.core.types import Logits, Tokens
from localspec.engines.openvino.device_config import place
from localspec.engines.openvino.page_release import read_once
from localspec.errors import BrokenModel, ContextFull, not_together
from localspec.formats.files import context_of
from localspec.formats.graph import layer_split
from localspec.library import compiled_folder
from localspec.plugins import Option
from localspec.signals import signal_stack_kept

FIRST_BLOCKS = 8  # blocks of a new session's cache; it doubles when they are full


class OpenVino(Engine):
    """Runs an OpenVINO IR on a CPU or GPU; the weights are compiled once for all sessions.

    Arithmetic on a CPU is float32, with int8 activations where a pass of a model of 400 MB or more has
    several tokens: for a few tokens that is quicker than bfloat16. `group=0` keeps activations in float32,
    and any width of a pass then gives the same text; smaller models, which rounding disturbs more, have it
    anyway. The cache is float16: eight bits cost 1 to 7 % perplexity on Qwen models, and a cache quantized
    by channel cannot be rewound exactly. With an `exit` the graph is compiled in parts, each weight
    in one of them. With that or with `hidden` a start takes longer: what is kept of compiled graphs for the
    next one is kept of plain ones.
    """

    @signal_stack_kept()
    def __init__(
        self,
        model: Path,
        *,
        device: Annotated[str, Option("CPU, GPU, GPU.1, AUTO")] = "CPU",
        threads: Annotated[int, Option("threads, 0 for OpenVINO's choice", least=0, most=1024)] = 0,
        precision: Annotated[str, Option("arithmetic", choices=("auto", "f32", "bf16", "f16"))] = "auto",
        kv: Annotated[str, Option("precision of the KV cache", choices=("f16", "f32", "u8"))] = "f16",
        group: Annotated[
            int,
            Option(
                "activations that share an int8 scale, 0 for none, -1 for the model's", least=-1, most=65536
            ),
        ] = -1,
        exit: Annotated[int, Option("the layer that a draft may leave at, 0 for none", least=0)] = 0,
        hidden: Annotated[bool, Option("show the last hidden states")] = False,
    ) -> None:
        import openvino as ov

        from localspec.formats.graph.paged import first_line

        if exit and hidden:
            raise not_together("exit", "hidden")
        if exit:
            layer_split.check(model, exit)
        core = ov.Core()
        self.place = place(core, device)
        self.device = self.place.device
        self._graph = model / "openvino_model.xml"
        self._mapped: list[Any] = []
        self._packed: set[tuple[int, bool]] = set()  # compiled models, and whether for passes over one token
        self.context = context_of(model)
        own = {"INFERENCE_NUM_THREADS": str(threads)} if threads else {}
        try:
            settings = self.place.settings(precision, kv, group, self.weighs(model))
            if exit or hidden:
                self.parts = [
                    core.compile_model(part, self.device, settings | own) for part in self._cut(exit)
                ]
            else:
                self.parts = [self._plain(core, settings, own)]
        except RuntimeError as error:
            raise BrokenModel(f"`{model}` cannot be compiled for {device}: {first_line(error)}") from None
        self.vocab = int(self.parts[-1].output("logits").partial_shape[-1].get_length())

    @classmethod
    def weighs(cls, path: Path, **options: Any) -> int:
        """Return the bytes of the weights file; what is packed takes as many as what it was packed from.

        Raises BrokenModel without that file.
        """
        weights = path / "openvino_model.bin"
        try:
            return weights.stat().st_size
        except OSError:
            raise BrokenModel(f"`{weights}` cannot be read", "Fetch the model again") from None

    def session(self) -> Session:
        """Return a new, empty session with a cache of its own."""
        if len(self.parts) > 1:
            return OpenVinoSplitSession(self)
        whole = self.parts[0]
        if len(whole.outputs) > 1:
            return OpenVinoHiddenSession(self, whole)
        return (OpenVinoSession if self.place.on_card else OpenVinoPortableSession)(self, whole)

    def packing(self, compiled: Any, count: int) -> AbstractContextManager[None]:
        """Return what is around a pass over `count` tokens: the first over one, and over several, packs."""
        first = (id(compiled), count == 1) not in self._packed
        self._packed.add((id(compiled), count == 1))
        return read_once(self._graph.with_suffix(".bin")) if first and self.device == "CPU" else nullcontext()

    def _cut(self, layer: int) -> Sequence[Any]:
        """Return the graph cut after `layer`, or for 0 whole, with its last hidden states as an output."""
        from localspec.formats.graph.paged import read_all_rows, read_paged

        if not layer:
            return [read_paged(self._graph, hidden=True)]
        return layer_split.split(read_all_rows(self._graph), layer)

    def _plain(self, core: Any, settings: dict[str, str], threads: dict[str, str]) -> Any:
        """Compile the model; on a CPU from what an earlier start kept, or keep it for the next one."""
        from localspec.engines.openvino import compile_cache
        from localspec.formats.graph.paged import read_paged

        if self.device != "CPU":
            return core.compile_model(read_paged(self._graph), self.device, settings | threads)
        kept = compiled_folder(self._graph.parent) / "cpu"
        found, self._mapped = compile_cache.compiled(core, self._graph, settings, threads, kept, self._probe)
        return found

    def _probe(self, compiled: Any) -> Logits:
        """Return the rows [8, vocab] of a few tokens, read as a prompt, in a short pass and alone."""
        session = OpenVinoSession(self, compiled)
        passes = [[1, 2, 3, 4, 5], [6, 7], [8]]
        return np.concatenate([session.forward(tokens, len(tokens)).copy() for tokens in passes])


class Reader:
    """A compiled graph or a part of one, and one text's blocks of keys and values in its layers."""

    def __init__(self, engine: OpenVino, compiled: Any) -> None:
        import openvino as ov

        self._ov = ov
        self._engine = engine
        self._compiled = compiled
        self._request = compiled.create_infer_request()
        caches = [port for port in compiled.inputs if "_cache." in port.any_name]
        self._caches = {port.any_name: port for port in caches}
        self.block = next(
            (int(port.partial_shape[2].get_length()) for port in caches if "value" in port.any_name), 1
        )
        self._inputs = {port.any_name for port in compiled.inputs} - self._caches.keys()
        self._tensors: dict[str, Any] = {}
        self._blocks = 0

    def read(self, at: int, count: int, **inputs: Any) -> Any:
        """Read `count` tokens from position `at` on, behind those that the cache holds.

        Returns the first output, a view that holds until the next call.
        """
        total = at + count
        blocks = -(-total // self.block)
        if blocks > self._blocks:
            self._grow(blocks, kept=-(-at // self.block))
        self._set(
            position_ids=np.arange(at, total, dtype=np.int64),
            past_lens=np.array([at], np.int32),
            subsequence_begins=np.array([0, count], np.int32),
            block_indices_begins=np.array([0, blocks], np.int32),
            block_indices=np.arange(blocks, dtype=np.int32),
            max_context_len=np.array(total, np.int32),
            **inputs,
        )
        with self._engine.packing(self._compiled, count):
            self._request.infer()
        return self.output(0)

    def output(self, number: int) -> Any:
        """Return an output of the last pass, a view that holds until the next one."""
        return self._request.get_output_tensor(number).data

    def saved(self, first: int, last: int) -> bytes:
        """Return the keys and values of the tokens from `first` on and before `last`: whole blocks."""
        blocks = slice(first // self.block, last // self.block)
        return b"".join(self._tensors[name].data[blocks].tobytes() for name in self._caches)

    def load(self, piece: bytes, at: int, count: int) -> None:
        """Hold `count` tokens from position `at` on that `saved` returned; raises ValueError for others."""
        first, last = at // self.block, (at + count) // self.block
        if last > self._blocks:
            self._grow(last, kept=first)
        parts = [self._tensors[name].data[first:last] for name in self._caches]
        if sum(part.nbytes for part in parts) != len(piece):
            raise ValueError(f"{len(piece)} bytes are no piece of {count} tokens")
        start = 0
        for part in parts:
            part[:] = np.frombuffer(piece, part.dtype, part.size, start).reshape(part.shape)
            start += part.nbytes

    def _set(self, **arrays: Any) -> None:
        for name, array in arrays.items():
            if name in self._inputs:
                self._request.set_tensor(name, self._ov.Tensor(array))

    def _grow(self, needed: int, kept: int) -> None:
        """Make room for `needed` blocks or twice the present ones, at most the context; `kept` are in use."""
        most = -(-self._engine.context // self.block)
        blocks = min(max(needed, 2 * self._blocks, FIRST_BLOCKS), most)
        for name, port in self._caches.items():
            shape = [blocks, *(int(port.partial_shape[axis].get_length()) for axis in (1, 2, 3))]
            old = self._tensors.get(name)
            tensor = self._engine.place.cache(self._compiled, port.element_type, shape, old, kept)
            self._request.set_tensor(name, tensor)
            self._tensors[name] = tensor
        self._blocks = blocks


class OpenVinoSession(Session):
    """One text in a graph as a whole."""

    def __init__(self, engine: OpenVino, compiled: Any) -> None:
        self._context = engine.context
        self._vocab = int(compiled.output("logits").partial_shape[-1].get_length())
        self._reader = Reader(engine, compiled)
        self._length = 0

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return a view [rows, vocab] on the request's output."""
        count, total = len(tokens), self._length + len(tokens)
        if total > self._context:
            raise ContextFull(total, self._context)
        if not count:
            return np.empty((0, self._vocab), np.float32)
        logits: Logits = self._reader.read(
            self._length,
            count,
            input_ids=np.array(tokens, np.int64),
            logit_rows=np.arange(count - max(rows, 1), count, dtype=np.int32),
        )
        self._length = total
        return logits.reshape(-1, self._vocab)[:rows]

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens; the rows behind them are written over by the next pass."""
        self._length = min(length, self._length)
        return self._length


class OpenVinoPortableSession(OpenVinoSession, ExportableSession):
    """One text whose cache lies in the computer's own memory."""

    chunk = 128  # read as fast as 256, and more of two texts that begin alike is the same

    @property
    def grain(self) -> int:
        """Tokens of a block of the cache."""
        return self._reader.block

    def saved(self, first: int, last: int) -> bytes:
        """Return the keys and values of these tokens."""
        return self._reader.saved(first, last)

    def load(self, piece: bytes, count: int) -> None:
        """Append tokens by their keys and values."""
        total = self._length + count
        if total > self._context:
            raise ContextFull(total, self._context)
        self._reader.load(piece, self._length, count)
        self._length = total


class OpenVinoHiddenSession(OpenVinoSession, HiddenStates):
    """One text in a graph that has its last hidden states as a second output."""

    def __init__(self, engine: OpenVino, compiled: Any) -> None:
        super().__init__(engine, compiled)
        self._states = States()

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return a view [rows, vocab] on the request's output."""
        found = super().forward(tokens, rows)
        if tokens:
            self._states.put(self._length - len(tokens), self._reader.output(1).reshape(len(tokens), -1))
        return found

    def hidden(self) -> Logits:
        """Return a view on the hidden states [tokens, width] of the text."""
        return self._states.first(self._length)


class OpenVinoSplitSession(SplitSession):
    """One text in a graph of three parts, of which the first may read ahead and be left for the last."""

    def __init__(self, engine: OpenVino) -> None:
        super().__init__(engine.context, engine.vocab)
        self._parts = layer_split.Parts(*(Reader(engine, part) for part in engine.parts))

    def _first(self, tokens: Tokens, at: int) -> Sequence[Any]:
        return list(self._parts.first.read(at, len(tokens), input_ids=np.array(tokens, np.int64)).copy())

    def _rest(self, hidden: Sequence[Any], at: int, rows: int) -> Logits:
        ids = np.zeros(len(hidden), np.int64)  # some graphs ask their number
        last = self._parts.rest.read(at, len(hidden), hidden=np.stack(hidden), input_ids=ids)
        return self._leave(last[len(hidden) - rows :])

    def _leave(self, hidden: Sequence[Any]) -> Logits:
        if not len(hidden):
            return np.empty((0, self._vocab), np.float32)
        logits: Logits = self._parts.head.read(0, len(hidden), hidden=np.stack(hidden))
        return logits.reshape(-1, self._vocab)
