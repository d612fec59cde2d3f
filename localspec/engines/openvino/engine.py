"""OpenVINO: an IR with a paged KV cache, which makes a rewind free and bit-exact."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from localspec.core.contracts import (
    Engine,
    ExportableSession,
    HiddenStates,
    LayerStates,
    PictureSession,
    Read,
    Session,
    SharedPasses,
    SpeechSession,
    TreeSession,
)
from localspec.core.sessions import HiddenStateBuffer, SplitSession, Tree
from localspec.core.types import Branch, Logits, Picture, Tokens
from localspec.devices import vector_instructions
from localspec.engines.openvino.device_config import place
from localspec.engines.openvino.head import HeadFiles, OpenVinoHeadSession
from localspec.engines.openvino.hearing import Heard, Hearing
from localspec.engines.openvino.hinted import OpenVinoHintedSession, check_graph
from localspec.engines.openvino.page_release import read_once
from localspec.engines.openvino.paired import OpenVinoPairSession, PairFiles, check_graphs
from localspec.engines.openvino.reader import Part, Reader
from localspec.engines.openvino.seeing import NO_PICTURE, SeenText, eyes_of
from localspec.errors import BadValue, BrokenModel, ContextFull, one_of
from localspec.formats.files import context_length
from localspec.formats.graph import layer_split
from localspec.formats.graph.linear import noted_group
from localspec.formats.heads import layout
from localspec.formats.vision import stored
from localspec.plugins import Option
from localspec.signals import signal_stack_kept

PADS = ("auto", "on", "off")
BESIDE = 8  # texts that a speech session may have beside its own
PAD_HELP = "read single tokens twice: equal logits for all widths; `auto` with int8 activations"
GROUP_HELP = "activations that share an int8 scale, 0 for float32, -1 for as many as weights do"


class OpenVino(Engine):
    """Runs an OpenVINO IR on a CPU or GPU; the weights are compiled once for all sessions.

    Arithmetic on a CPU is float32, with int8 activations in matrix products: for a few tokens that is faster
    than bfloat16. A single token is then read twice, which costs nothing and makes the logits of all widths
    equal to the bit (docs/exactness.md). `group=0` keeps activations in float32.
    The KV cache is float16: eight bits cost 1 to 7 % perplexity on Qwen models, and a cache quantized by
    channel cannot be rewound exactly. With an `exit` the graph is compiled in parts, each weight in one of
    them. A start with `exit` or `hidden` takes longer, because such graphs are not kept for the next start.
    A head runs in a graph of its own, beside a small one that joins its target's states. The eyes of a LLaVA
    run in transformers' modules on torch, and the graph of its text part reads their embeddings.
    """

    @signal_stack_kept()
    def __init__(
        self,
        model: Path,
        cache: Path | None = None,
        *,
        device: Annotated[str, Option("CPU, GPU, GPU.1, AUTO")] = "CPU",
        threads: Annotated[int, Option("threads, 0 for OpenVINO's choice", least=0, most=1024)] = 0,
        precision: Annotated[str, Option("arithmetic", choices=("auto", "f32", "bf16", "f16"))] = "auto",
        kv: Annotated[str, Option("precision of the KV cache", choices=("f16", "f32", "u8"))] = "f16",
        group: Annotated[int, Option(GROUP_HELP, least=-1, most=65536)] = -1,
        pad: Annotated[str, Option(PAD_HELP, choices=PADS)] = "auto",
        exit: Annotated[int, Option("layers that may predict by themselves, 0 for none", least=0)] = 0,
        hidden: Annotated[bool, Option("expose the last hidden states")] = False,
        taps: Annotated[str, Option("layers whose hidden states are exposed, such as 2-14-25")] = "",
        hints: Annotated[str, Option("folder of hints that passes read, such as those of K-Forcing")] = "",
        pairs: Annotated[str, Option("folder of PIPO's weights, which read the text in pairs")] = "",
    ) -> None:
        import openvino as ov

        from localspec.formats.graph.paged import first_line

        extras = {"exit": exit, "hidden": hidden, "taps": taps, "hints": hints, "pairs": pairs}
        _check_extras(model, extras)
        self.eyes = eyes_of(model, extras, threads)
        self._taps = layer_split.taps_of(taps) if taps else ()
        self.is_head = layout.is_head(model)
        core = ov.Core()
        self.place = place(core, device)
        self.device, self._cache = self.place.device, cache
        self._graph = self._folder(model, hints, pairs) / "openvino_model.xml"
        self._whole = model / "openvino_model.xml"
        self._mapped: list[Any] = []  # what holds the mapped weights, whose pages `packing` releases
        self._packed: set[tuple[int, bool]] = set()  # compiled models, and whether for one-token passes
        self.context = context_length(model)
        try:
            columns = noted_group(self._graph)
            settings = self.place.settings(precision, kv, group, self.weighs(model), columns)
            self.pads = _pads(pad, self.device, settings) and not self.is_head
            self.parts = self._compile(core, settings, threads, exit, hidden, pairs)
        except RuntimeError as error:
            raise BrokenModel(f"`{model}` cannot be compiled for {device}: {first_line(error)}") from None
        self.vocab = int(self.parts[-1].output("logits").partial_shape[-1].get_length())
        encoder = self.place.encoder_settings(core) if precision == "auto" else {}
        self.hearing = Hearing.of(core, model, self.device, settings, encoder, threads)
        self._head_files = HeadFiles(core, model, self.device, settings) if self.is_head else None

    def _folder(self, model: Path, hints: str, pairs: str) -> Path:
        """Return the folder of the graph: the model's, or one in which it reads hints or pairs."""
        self._hints = check_graph(Path(hints), self.device) if hints else None
        self._pairs: PairFiles | None = None
        return check_graphs(Path(pairs)) if pairs else self._hints or model

    def _compile(
        self, core: Any, settings: dict[str, str], threads: int, exit: int, hidden: bool, pairs: str
    ) -> list[Any]:
        """Return the compiled graph, in parts if it has an exit."""
        own = {"INFERENCE_NUM_THREADS": str(threads)} if threads else {}
        if pairs:
            self._pairs = PairFiles(core, Path(pairs), self.device, settings | own)
            return [self._pairs.layers]
        if exit or hidden or self.is_head or self._hints:
            self._mapped = list(self._cut(exit))
            return [core.compile_model(part, self.device, settings | own) for part in self._mapped]
        return [self._plain(core, settings, own)]

    @classmethod
    def weighs(cls, path: Path, **options: Any) -> int:
        """Return the bytes of the weights file, as many as packed weights take, and those of eyes.

        Raises BrokenModel.
        """
        weights = path / "openvino_model.bin"
        try:
            return weights.stat().st_size + stored.weighs(path)
        except OSError:
            raise BrokenModel(f"`{weights}` cannot be read", "Download the model again") from None

    def session(self) -> Session:
        """Return a new, empty session with a cache of its own."""
        if self.hearing is not None:
            return OpenVinoSpeechSession(self, self.hearing)
        if self._head_files is not None:
            return OpenVinoHeadSession(self, self.parts[0], self._head_files)
        if self._pairs is not None:
            return OpenVinoPairSession(self, self._pairs, self.vocab)
        if self._hints is not None:
            return OpenVinoHintedSession(self, *self.parts, folder=self._hints)
        if len(self.parts) > 1:
            return OpenVinoSplitSession(self)
        if len(self.parts[0].outputs) > 1 and not self._taps:
            return OpenVinoHiddenSession(self, self.parts[0])
        return self.whole_session()

    def whole_session(self, reader: Reader | None = None) -> OpenVinoSession:
        """Return a session in a whole graph, with a cache of its own or that of a reader."""
        if self.eyes:
            seeing = (OpenVinoSeeingSession, OpenVinoSeeingCpuSession)
            return seeing[not self.place.on_card](self, self.parts[0], reader)
        kinds = (
            (OpenVinoTappedSession, OpenVinoTappedCpuSession)
            if self._taps
            else (
                OpenVinoSession,
                OpenVinoCpuSession,
            )
        )
        return kinds[not self.place.on_card](self, self.parts[0], reader)

    def shared_passes(self, texts: int) -> SharedPasses | None:
        """Return sessions of texts in one KV cache.

        None with `exit`, `hidden`, `hints` or `pairs`, for a head, and for a model with eyes.
        """
        plain = len(self.parts) == 1 and len(self.parts[0].outputs) == 1 + bool(self._taps)
        plain = plain and self.hearing is None and not (self.is_head or self._hints or self.eyes)
        return OpenVinoSharedPasses(self, Reader(self, self.parts[0], texts, steady=2)) if plain else None

    def packing(self, compiled: Any, count: int) -> AbstractContextManager[None]:
        """Return the context for a pass over `count` tokens.

        OpenVINO packs the weights in the first pass over one token, and in the first over several; their
        mapped pages are then released.
        """
        first = (id(compiled), count == 1) not in self._packed
        self._packed.add((id(compiled), count == 1))
        return read_once(self._graph.with_suffix(".bin")) if first and self.device == "CPU" else nullcontext()

    def _cut(self, layer: int) -> Sequence[Any]:
        """Return the graph split after `layer`; for 0 the whole graph with hidden states as an output.

        With hints, return the graph that reads them and the one that does not.
        """
        from localspec.formats.graph.paged import read_all_rows, read_paged
        from localspec.formats.heads.graph import read_head

        if self.is_head:
            return [read_head(self._graph)]
        if self._hints:
            return [read_paged(graph, trees=True) for graph in (self._graph, self._whole)]
        if not layer:
            return [read_paged(self._graph, hidden=True)]
        return layer_split.split(read_all_rows(self._graph), layer)

    def _plain(self, core: Any, settings: dict[str, str], threads: dict[str, str]) -> Any:
        """Compile the model; on a CPU from the graph of an earlier start, or keep it for the next."""
        from localspec.engines.openvino import compile_cache
        from localspec.formats.graph.paged import read_paged

        extras: dict[str, Any] = {"taps": self._taps, "seeing": self.eyes is not None}
        if self.device != "CPU" or self._cache is None:
            self._mapped = [read_paged(self._graph, trees=self.device == "CPU", **extras)]
            return core.compile_model(self._mapped[0], self.device, settings | threads)
        folder = self._cache / "cpu"
        compiled, self._mapped = compile_cache.compiled(
            core, self._graph, settings, threads, folder, self._probe, **extras
        )
        return compiled

    def _probe(self, compiled: Any) -> Logits:
        """Return the logits [8, vocab] of a few tokens, read as a prompt, in a short pass and alone."""
        session = (OpenVinoSeeingSession if self.eyes else OpenVinoSession)(self, compiled)
        passes = [[1, 2, 3, 4, 5], [6, 7], [8]]
        return np.concatenate([session.forward(tokens, len(tokens)).copy() for tokens in passes])


def _check_extras(model: Path, extras: dict[str, Any]) -> None:
    """Raise BadValue for options that exclude each other, and for an exit that the model cannot have."""
    one_of(**extras)
    if extras["exit"]:
        layer_split.check(model, extras["exit"])


def _pads(pad: str, device: str, settings: dict[str, str]) -> bool:
    """Return whether single tokens are read twice; raises BadValue for a device that does not pad."""
    if pad == "on" and device != "CPU":
        raise BadValue(f"`pad` of `openvino` is for the CPU, not for {device}", "Leave `pad` out")
    rounds = settings["DYNAMIC_QUANTIZATION_GROUP_SIZE"] != "0" and "VNNI" in vector_instructions()
    quick = rounds and settings["INFERENCE_PRECISION_HINT"] == "f32"
    return pad == "on" or (pad == "auto" and device == "CPU" and quick)


class OpenVinoSession(Session):
    """One text in a whole graph, in a KV cache of its own or in the one that a `reader` holds for several."""

    exact = True  # its logits are those of any other pass

    def __init__(self, engine: OpenVino, compiled: Any, reader: Reader | None = None) -> None:
        self._context = engine.context
        self._vocab = int(compiled.output("logits").partial_shape[-1].get_length())
        self._reader = reader or Reader(engine, compiled)
        self._blocks: list[int] = []
        self._length = 0
        weakref.finalize(self, self._reader.free, self._blocks, 0).atexit = False

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return a view [rows, vocab] on the request's output."""
        return self.together([Read(self, tokens, rows)])[0]

    def together(self, reads: Sequence[Read]) -> list[Logits]:
        """Append the tokens of sessions with this one's reader; return views on the request's output."""
        parts: list[Part] = []
        wanted: list[int] = []
        ids: list[int] = []
        more: list[dict[str, Any]] = []
        for session, tokens, rows, branches in reads:
            assert isinstance(session, OpenVinoSession)
            size = len(tokens) + len(branches)
            if (total := session._length + size) > self._context:
                raise ContextFull(total, self._context)
            tree = Tree.of(session._length, tokens, rows, branches)
            parts.append(Part(session._blocks, session._length, size, session.exact, tree.parents))
            ids += [*tokens, *(branch.token for branch in branches)]
            wanted += range(len(ids) - rows - len(branches), len(ids))
            more.append(session._inputs(tokens, len(branches)))
        if not ids:
            return [np.empty((0, self._vocab), np.float32) for _ in reads]
        inputs = {name: np.concatenate([own[name] for own in more]) for name in more[0]}
        logits: Logits = self._reader.read(parts, wanted, input_ids=np.array(ids, np.int64), **inputs)
        logits, first = logits.reshape(-1, self._vocab), 0
        for read in reads:
            assert isinstance(read.session, OpenVinoSession)
            read.session._length += len(read.tokens)
            read.session._after_pass(first, read.tokens)
            first += len(read.tokens) + len(read.branches)
        counts = [read.rows + len(read.branches) for read in reads]
        ends = accumulate(counts)
        return [logits[end - count : end] for count, end in zip(counts, ends, strict=True)]

    def _inputs(self, tokens: Tokens, branches: int) -> dict[str, Any]:
        """Return what else a pass reads of the next tokens and of so many branches, a value for each."""
        return {}

    def _after_pass(self, first: int, tokens: Tokens) -> None:
        """Take what else the pass computed of this text: of its `tokens`, from the pass's `first` on."""

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens; the next pass overwrites the rest."""
        self._length = min(length, self._length)
        self._reader.free(self._blocks, self._length)
        return self._length


class OpenVinoCpuSession(OpenVinoSession, ExportableSession, TreeSession):
    """One text whose KV cache lies in main memory."""

    chunk = 128  # as fast as 256, and texts with a common prefix share more chunks

    def forward_tree(self, tokens: Tokens, rows: int, branches: Sequence[Branch]) -> Logits:
        """Append `tokens` and read `branches` beside them; return a view [rows + branches, vocab]."""
        return self.together([Read(self, tokens, rows, branches)])[0]

    @property
    def block_size(self) -> int:
        """Tokens of a block of the KV cache."""
        return self._reader.block

    def export_kv(self, first: int, last: int) -> bytes:
        """Return the keys and values of these tokens."""
        return self._reader.export_kv(self._blocks, first, last)

    def import_kv(self, piece: bytes, count: int) -> None:
        """Append tokens by their keys and values."""
        total = self._length + count
        if total > self._context:
            raise ContextFull(total, self._context)
        self._reader.import_kv(self._blocks, piece, self._length, count)
        self._length = total


class OpenVinoSeeingSession(OpenVinoSession, PictureSession):
    """One text among whose tokens are pictures: their embeddings are read in the place of tokens' own."""

    def __init__(self, engine: OpenVino, compiled: Any, reader: Reader | None = None) -> None:
        super().__init__(engine, compiled, reader)
        assert engine.eyes
        self._seen = SeenText(engine.eyes, compiled)
        self.picture_token = engine.eyes.shape.token

    def tokens_of(self, picture: Picture) -> int:
        """Return how many tokens stand for a picture."""
        return self._seen.eyes.tokens_of(picture)

    def see(self, pictures: Sequence[Picture], prompt: Tokens) -> int:
        """Let the picture tokens of the text stand for `pictures`; return the number of tokens kept."""
        return self.rewind(self._seen.see(pictures))

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens."""
        kept = super().rewind(length)
        self._seen.cut(kept)
        return kept

    def _inputs(self, tokens: Tokens, branches: int) -> dict[str, Any]:
        return self._seen.inputs(tokens, branches)

    def _after_pass(self, first: int, tokens: Tokens) -> None:
        self._seen.append(tokens)


class OpenVinoSeeingCpuSession(OpenVinoSeeingSession, OpenVinoCpuSession):
    """One text with pictures whose KV cache lies in main memory."""

    def import_kv(self, piece: bytes, count: int) -> None:
        """Append tokens by their keys and values: none of them stands for a picture."""
        super().import_kv(piece, count)
        self._seen.append([NO_PICTURE] * count)


class OpenVinoSpeechSession(OpenVinoSession, SpeechSession):
    """One text about the audio that the encoder read."""

    def __init__(self, engine: OpenVino, hearing: Hearing) -> None:
        super().__init__(engine, engine.parts[0], Reader(engine, engine.parts[0], 1 + BESIDE, steady=1))
        self._engine, self._hearing = engine, hearing
        self._heard: Heard = hearing.nothing()
        self._reader.keep(self._heard)

    def encode(self, features: Logits) -> Logits:
        """Return the encoder's hidden states [frames, width]."""
        return self._hearing.encode(features)

    def hear(self, states: Logits) -> None:
        """Empty the text, and let it be about `states`."""
        self.rewind(0)
        self._heard = self._hearing.heard(states)
        self._reader.keep(self._heard)

    def beside(self, texts: int) -> SharedPasses:
        """Return common passes of this text and of others about what was heard."""
        assert texts <= BESIDE
        return OpenVinoSharedPasses(self._engine, self._reader, exact=False)

    def listened(self, tokens: Tokens, heads: Sequence[tuple[int, int]]) -> Logits:
        """Return where each token looked, [heads, tokens, frames]."""
        return self._hearing.listened(tokens, heads, self._heard)


class OpenVinoSharedPasses(SharedPasses):
    """Texts in one KV cache: a pass reads tokens of several, to the bit what passes of their own would."""

    def __init__(self, engine: OpenVino, reader: Reader, *, exact: bool = True) -> None:
        self._engine, self._reader, self._exact = engine, reader, exact

    def session(self) -> OpenVinoSession:
        """Return a new, empty session."""
        session = self._engine.whole_session(self._reader)
        session.exact = self._exact
        return session

    def forward(self, reads: Sequence[Read]) -> list[Logits]:
        """Read tokens of several texts in one pass; return views on the request's output."""
        first = reads[0].session
        assert isinstance(first, OpenVinoSession)
        return first.together(reads)


class OpenVinoStatesSession(OpenVinoSession):
    """One text in a graph that has hidden states as a second output; `_halved` ones are kept in float16."""

    _halved = False

    def __init__(self, engine: OpenVino, compiled: Any, reader: Reader | None = None) -> None:
        super().__init__(engine, compiled, reader)
        self._states = HiddenStateBuffer(halved=self._halved)

    def _after_pass(self, first: int, tokens: Tokens) -> None:
        count = len(tokens)
        states = self._reader.output(1)[self._reader.places[first : first + count]]
        self._states.put(self._length - count, states.reshape(count, -1))


class OpenVinoHiddenSession(OpenVinoStatesSession, HiddenStates):
    """One text with its last hidden states."""

    def hidden(self) -> Logits:
        """Return a view on the hidden states [tokens, width] of the text."""
        return self._states.first(self._length)


class OpenVinoTappedSession(OpenVinoStatesSession, LayerStates):
    """One text with the hidden states after some of its layers, in float16: they take as much as keys do."""

    chunk = OpenVinoCpuSession.chunk
    _halved = True

    def states(self) -> Logits:
        """Return a view on the hidden states [tokens, layers * width] of the text."""
        return self._states.first(self._length)


class OpenVinoTappedCpuSession(OpenVinoTappedSession, TreeSession):
    """One text with hidden states, beside which branches are read."""

    def forward_tree(self, tokens: Tokens, rows: int, branches: Sequence[Branch]) -> Logits:
        """Append `tokens` and read `branches` beside them; return a view [rows + branches, vocab]."""
        return self.together([Read(self, tokens, rows, branches)])[0]


class OpenVinoSplitSession(SplitSession):
    """One text in a graph of three parts: the first may read ahead, and the last makes logits of either."""

    def __init__(self, engine: OpenVino) -> None:
        super().__init__(engine.context, engine.vocab)
        self._parts = layer_split.Parts(*(Reader(engine, part) for part in engine.parts))
        self._blocks: dict[Reader, list[int]] = {reader: [] for reader in self._parts}

    def _first(self, tokens: Tokens, at: int) -> Sequence[Any]:
        ids = np.array(tokens, np.int64)
        return list(self._read(self._parts.first, at, len(tokens), input_ids=ids).copy())

    def _rest(self, hidden: Sequence[Any], at: int, rows: int) -> Logits:
        ids = np.zeros(len(hidden), np.int64)  # some graphs need their number
        last = self._read(self._parts.rest, at, len(hidden), hidden=np.stack(hidden), input_ids=ids)
        return self._leave(last[len(hidden) - rows :])

    def _leave(self, hidden: Sequence[Any]) -> Logits:
        if not len(hidden):
            return np.empty((0, self._vocab), np.float32)
        logits: Logits = self._read(self._parts.head, 0, len(hidden), hidden=np.stack(hidden))
        return logits.reshape(-1, self._vocab)

    def _read(self, reader: Reader, at: int, count: int, **inputs: Any) -> Any:
        return reader.read([Part(self._blocks[reader], at, count)], **inputs)
