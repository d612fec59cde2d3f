"""PyTorch: any transformers causal model on a CPU, a CUDA or Apple GPU, or Intel Gaudi."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from localspec.core.contracts import Engine, Session, SharedPasses
from localspec.decoder import loading
from localspec.decoder.own import OwnDecoder
from localspec.devices import has_nvidia_driver
from localspec.engines.torch.decoder.session import OwnHiddenSession, OwnSession, OwnTappedSession
from localspec.engines.torch.decoder.shared import OwnSharedPasses
from localspec.engines.torch.decoder.split import OwnSplitSession
from localspec.engines.torch.head import HeadModel, TorchHeadSession
from localspec.engines.torch.hinted import TorchHintedSession, hints_for
from localspec.engines.torch.model import PLAIN, TABLE, TorchModel
from localspec.engines.torch.paired import TorchPairSession, pairs_for
from localspec.engines.torch.reduced import TorchReducibleSession
from localspec.engines.torch.sessions import (
    GrowingSession,
    RecurrentSession,
    StaticSession,
    TorchHiddenSession,
    TorchSplitSession,
    TorchTappedSession,
    TorchTreeSession,
)
from localspec.engines.torch.shared import TorchSharedPasses
from localspec.engines.torch.vision.model import SeeingModel
from localspec.engines.torch.vision.session import OwnSeeingSession, RoutedSession
from localspec.errors import BadValue, UnsupportedModel, one_of
from localspec.formats.files import read_json
from localspec.formats.graph import layer_split
from localspec.formats.heads import layout
from localspec.formats.huggingface import early_exit
from localspec.formats.huggingface.loading import check_extra
from localspec.formats.model_file import count_parameters
from localspec.formats.vision.config import sees
from localspec.pictures import schedule
from localspec.pictures.schedule import VisionTokens
from localspec.plugins import Option

TRANSFORMERS_ONLY = ("skip", "hints", "pairs")  # what the decoder of our own does not read
DECODERS = ("auto", "own", "transformers")


class Torch(TorchModel, Engine):
    """Runs a transformers causal model with PyTorch; engines on one file share its weights.

    A GGUF file runs with the values that its tensors stand for, without their compression. `auto` takes CUDA,
    else Gaudi, else Apple's GPU, else the CPU, and computes in float32 on a CPU, in bfloat16 or float16
    elsewhere. On CUDA, with compressed weights and with `decoder=own` the families that become OpenVINO
    graphs run in a decoder of our own, whose passes over a few tokens a card records. A model with eyes
    (LLaVA, Qwen2.5-VL) reads pictures. Gaudi has passes of a few fixed shapes, not run on hardware.
    """

    forms = ("safetensors", "gguf")

    def __init__(
        self,
        model: Path,
        cache: Path | None = None,
        *,
        device: Annotated[str, Option("auto, cpu, cuda, cuda:1, hpu or mps")] = "auto",
        precision: Annotated[str, Option("arithmetic", choices=("auto", "f32", "bf16", "f16"))] = "auto",
        threads: Annotated[int, Option("CPU threads, 0 for PyTorch's choice", least=0, most=1024)] = 0,
        exit: Annotated[int, Option("layers that may predict by themselves, 0 for none", least=0)] = 0,
        hidden: Annotated[bool, Option("expose the last hidden states")] = False,
        skip: Annotated[bool, Option("let smaller passes leave out sub-blocks")] = False,
        taps: Annotated[str, Option("layers whose hidden states are exposed, such as 2-14-25")] = "",
        hints: Annotated[str, Option("folder of hints that passes read, such as those of K-Forcing")] = "",
        pairs: Annotated[str, Option("folder of PIPO's weights, which read the text in pairs")] = "",
        target: Annotated[str, Option("the files of a head's target, whose embedding it reads")] = "",
        decoder: Annotated[str, Option("code that runs the layers", choices=DECODERS)] = "auto",
        weights: Annotated[str, Option("form of the matrices", choices=(PLAIN, "int8", "int4"))] = PLAIN,
        vision_tokens: Annotated[str, Option("visual tokens that run, such as keep=64: another text")] = "",
    ) -> None:
        del cache
        changed = {"skip": skip, "hints": hints, "pairs": pairs}  # what our own decoder does not read
        extras = {"exit": exit, "hidden": hidden, "taps": taps, **changed}
        wanted, seeing = schedule.parse(vision_tokens), _has_eyes(model)
        _check_together(model, extras, changed, decoder, weights)
        _check_eyes(model, seeing, wanted, extras, decoder, weights)
        check_extra()
        self.head: HeadModel | None = None
        self.seeing: SeeingModel | None = None
        self.taps = layer_split.taps_of(taps) if taps else ()
        head = layout.is_head(model)
        form = TABLE if head and weights != PLAIN else weights
        super().__init__(self._read_first(model, target), device, precision, threads, form)
        if head:
            self.head = HeadModel(model, self)
            self.vocab, self.context = len(self.head.tokens), self.head.torch.shape.context
            return
        if not self.decoder:
            self._check()
        self.seeing = SeeingModel(self, wanted) if seeing else None
        self.own = None if seeing or any(changed.values()) else self._own(decoder)
        self.parts = self._in_parts(exit) if exit and not self.own else None
        self.exit, self.hidden, self.skip = exit, hidden, skip
        self.hints, self.pairs = hints_for(self, hints), pairs_for(self, pairs)
        if hidden or skip or taps:
            self._check_growing("has no smaller passes" if skip else "exposes no hidden states")

    @classmethod
    def reads(cls, **options: Any) -> tuple[str, ...]:
        """Return the forms that it reads: compressed weights may also be those of an OpenVINO graph."""
        return cls.forms if options.get("weights", PLAIN) == PLAIN else (*cls.forms, "openvino")

    @classmethod
    def weighs(cls, path: Path, **options: Any) -> int:
        """Return the bytes of all weights in the form and at the precision that they will have."""
        if (form := options.get("weights", PLAIN)) != PLAIN:
            return loading.compressed_bytes(path, form)
        halved = not str(options.get("device", "auto")).startswith(("cpu", "auto"))
        precision = options.get("precision", "auto")
        half = precision in ("bf16", "f16") or (precision == "auto" and halved)
        return count_parameters(path) * (2 if half else 4)

    @classmethod
    def warning(cls, **options: Any) -> str | None:
        """Say that passes on a card are slower with what only transformers' modules read."""
        device = str(options.get("device", "auto")).lower()
        slow = [name for name in TRANSFORMERS_ONLY if options.get(name)]
        if not slow or not device.startswith(("cuda", "auto")) or not has_nvidia_driver():
            return None
        return (
            f"`{slow[0]}` makes the torch engine run transformers' modules on the card, whose passes take "
            "several times as long as plain decoding without it"
        )

    def session(self) -> Session:
        """Return a new, empty session with a cache of its own."""
        if self.seeing:
            own = self.seeing.own
            return OwnSeeingSession(self.seeing, own) if own else RoutedSession(self.seeing)
        if self.head:
            return TorchHeadSession(self.head)
        if self.own and self.exit:
            return OwnSplitSession(self.own, self.exit)
        if self.own:
            sessions = (OwnTappedSession, self.taps), (OwnHiddenSession, self.hidden), (OwnSession, True)
            return next(made for made, wanted in sessions if wanted)(self.own)
        if self.parts:
            return TorchSplitSession(self, self.parts)
        if self.taps:
            return TorchTappedSession(self, self.taps)
        if self.hints:
            return TorchHintedSession(self, self.hints)
        if self.pairs:
            return TorchPairSession(self, self.pairs)
        if self.hidden:
            return TorchHiddenSession(self)
        if self.skip:
            return TorchReducibleSession(self)
        if self.recurrent:
            return RecurrentSession(self)
        if self.static:
            return StaticSession(self)
        return TorchTreeSession(self) if self.masked else GrowingSession(self)

    def shared_passes(self, texts: int) -> SharedPasses | None:
        """Return sessions of texts in one batch, None where passes read one text.

        That is so with `exit`, `hidden`, `hints`, `pairs`, `skip` or `taps`, for a head, with fixed shapes,
        and in families that do not keep all keys.
        """
        extra = self.seeing or self.head or self.parts or self.taps or self.hidden or self.skip
        alone = extra or self.exit or self.hints or self.pairs or self.recurrent or self.static
        if self.own and not alone:
            return OwnSharedPasses(self, self.own, texts)
        return TorchSharedPasses(self, texts) if not alone and self.masked else None

    def _read_first(self, model: Path, target: str) -> Path:
        """Return the transformers model to load: that of the target for a head, whose weights are shared."""
        if not layout.is_head(model):
            return model
        if not target:
            raise UnsupportedModel(f"`{model}` is a head, which drafts for its target", "See `--draft head`")
        return Path(target)

    def _own(self, decoder: str) -> OwnDecoder | None:
        """Return a decoder of our own, None to run transformers' modules.

        Raises UnsupportedModel if ours is asked for and knows no such device or model.
        """
        found = self.decoder
        if decoder == "own" and self.place.type not in ("cpu", "cuda"):
            raise UnsupportedModel(
                f"The torch engine has no decoder of its own on {self.device}", "Leave `decoder` out"
            )
        if not found and (decoder == "own" or (decoder == "auto" and self.place.type == "cuda")):
            with suppress(*[] if decoder == "own" else [UnsupportedModel]):
                found = loading.of_model(self.model, self.path, self.context)
        return OwnDecoder(found, self.context, self.taps, self.threads) if found else None

    def _check(self) -> None:
        chunked = "chunked_attention" in (getattr(self.config, "layer_types", None) or ())
        if not self.cache_name or (self.static and (self.recurrent or chunked)):
            raise self.unreachable()
        if self.recurrent:
            self.continues = _continues(self)

    def _check_growing(self, lacks: str) -> None:
        """Raise UnsupportedModel, which says what the model `lacks`, unless its text grows token by token."""
        if self.recurrent or self.static:
            raise UnsupportedModel(
                f"`{self.path}` {lacks} with the torch engine on {self.device}",
                "Run it with another engine: `localspec parts engines`",
            )

    def _in_parts(self, layer: int) -> layer_split.Parts:
        """Return the model split after `layer`, sharing its weights; tried on a few tokens."""
        if not (self.recurrent or self.static) and (parts := early_exit.split(self.model, layer)):
            text = [(7 * place + 1) % self.vocab for place in range(19)]
            found = [
                session.forward(text, 19)
                for session in (GrowingSession(self), TorchSplitSession(self, parts))
            ]
            if np.abs(found[0] - found[1]).max() < _rounding(self) * found[0].std():
                return parts
        raise UnsupportedModel(
            f"`{self.path}` has no early exit with the torch engine on {self.device}",
            "Run it without an exit, or with another engine: `localspec parts engines`",
        )


def _check_together(
    path: Path, extras: dict[str, Any], changed: dict[str, Any], decoder: str, weights: str
) -> None:
    """Raise BadValue for options that exclude each other, and for an exit that the model cannot have."""
    one_of(**extras)
    one_of(decoder=decoder == "own", **changed)
    one_of(weights=weights != PLAIN, decoder=decoder == "transformers", **changed)
    if extras["exit"]:
        layer_split.check(path, extras["exit"])


def _has_eyes(path: Path) -> bool:
    """Return whether a folder is that of a model which sees."""
    file = path / "config.json"
    return file.is_file() and sees(str(read_json(file).get("model_type", "")))


def _check_eyes(
    path: Path,
    seeing: bool,
    wanted: VisionTokens | None,
    extras: dict[str, Any],
    decoder: str,
    weights: str,
) -> None:
    """Raise BadValue for options that a model with eyes, or one without, does not have."""
    if wanted and not seeing:
        raise BadValue(f"`vision_tokens` does nothing for `{path.name}`, a model of text", "Leave it out")
    others = {**extras, "decoder": decoder == "transformers", "weights": weights != PLAIN}
    given = [name for name, value in others.items() if value]
    if seeing and given:
        raise BadValue(f"`{given[0]}` does nothing for `{path.name}`, a model with eyes", "Leave it out")


def _continues(engine: Torch) -> bool:
    """Return whether a pass over several tokens continues a recurrent state as single passes do.

    Several families silently drop their state then, in one release of transformers and not in the next.
    """
    text = [(7 * place + 1) % engine.vocab for place in range(19)]
    rows = []
    for engine.continues in (True, False):
        session = RecurrentSession(engine)
        session.forward(text[:16], 1)
        try:
            rows.append(session.forward(text[16:], 3))
        except (RuntimeError, ValueError, IndexError):
            return False
    several, single = rows
    return bool(np.abs(several - single).max() < _rounding(engine) * single.std())


def _rounding(engine: Torch) -> float:
    import torch

    return 1e-3 if engine.dtype == torch.float32 else 0.1
