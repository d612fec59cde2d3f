"""Loading a model on an engine: its files, its memory, and whether its session rewinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from localspec import devices
from localspec.core.parity import ROUNDED
from localspec.core.rewind_check import rewind_fault, width_fault
from localspec.errors import TooLittleMemory, UnsupportedModel
from localspec.library import StoredModel, compiled_folder
from localspec.plugins import Spec
from localspec.runtime.choice import AUTO
from localspec.state import probes

if TYPE_CHECKING:
    from localspec.core.contracts import Engine, Session

TORCH, GRAPH = "torch", "openvino"  # an engine, and a form of models


@dataclass(frozen=True, slots=True, eq=False)
class LoadSpec:
    """An engine to load and the model it reads; equal if both the spec and the files are."""

    spec: Spec
    model: StoredModel

    def __hash__(self) -> int:
        return hash((str(self.spec), self.model.folder))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LoadSpec):
            return NotImplemented
        return (str(self.spec), self.model.folder) == (str(other.spec), other.model.folder)

    @property
    def path(self) -> Path:
        """The files that the engine reads."""
        forms = forms_of(self.spec)
        if self.spec.name == TORCH and GRAPH not in forms and only_graph(self.model):
            raise UnsupportedModel(
                f"`{self.model.name}` is only an OpenVINO graph, which torch reads with compressed weights",
                f"Type `--engine {TORCH}:weights=int4`, or `weights=int8` for a graph in 8 bits",
            )
        return self.model.path_for(self.spec.name, forms)

    @property
    def memory(self) -> int:
        """Bytes of memory that the weights take, estimated."""
        return int(self.spec.part.made_by.weighs(self.path, **self.spec.options))

    @property
    def in_main_memory(self) -> bool:
        """Return whether the weights take main memory rather than a card's."""
        setting = self.spec.part.settings.get("device")
        device = str(self.spec.options.get("device", setting.default if setting else "cpu")).lower()
        return device == "cpu" or (device == AUTO and not devices.has_nvidia_driver())

    def load(self) -> Engine:
        """Return the engine with the model loaded."""
        engine: Engine = self.spec.make(self.path, compiled_folder(self.model.folder))
        return engine

    @property
    def key(self) -> str:
        """The name of probe results for this model on this engine."""
        library = devices.LIBRARIES.get(self.spec.name)
        return probes.key(str(self.spec), library and library.version, probes.stamp(self.path))

    def fault(self, engine: Engine, session: Session) -> str | None:
        """Return why guesses cannot be rewound, None if they can; probed once per model and engine."""
        known = probes.read(self.key)
        if "rewind" not in known:
            known = {"rewind": rewind_fault(session, engine.vocab)}
            probes.add(self.key, **known)
        fault: str | None = known["rewind"]
        return fault

    def width_fault(self, engine: Engine) -> str | None:
        """Return how logits depend on the pass width, None if they do not; probed once, like `fault`."""
        known = probes.read(self.key)
        if "widths" not in known:
            known = {"widths": width_fault(engine.session(), engine.vocab)}
            probes.add(self.key, **known)
        fault: str | None = known["widths"]
        return fault

    def tolerance(self, engine: Engine) -> float:
        """Return the gap in logits that a drafted text may differ by: 0 if no pass width changes a logit."""
        return 0.0 if self.width_fault(engine) is None else ROUNDED


def check_memory(specs: Sequence[LoadSpec]) -> None:
    """Raise TooLittleMemory unless all weights fit in free memory, each file counted once."""
    sizes = {spec.path: spec.memory for spec in specs if spec.in_main_memory}
    free = devices.free_memory()
    if sizes and (needed := sum(sizes.values()) + devices.ENGINE_OVERHEAD) > free:
        raise TooLittleMemory(" and ".join(spec.model.name for spec in specs), needed, free)


def forms_of(engine: Spec) -> tuple[str, ...]:
    """Return the forms of a model that an engine with its options reads, best first."""
    forms: tuple[str, ...] = engine.part.made_by.reads(**engine.options)
    return forms


def only_graph(model: StoredModel) -> bool:
    """Return whether a model is an OpenVINO graph without the files that it was made from."""
    return bool(model.files_in(GRAPH)) and not any(map(model.files_in, ("gguf", "safetensors")))
