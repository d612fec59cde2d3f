"""Compiles a model for the NPU, in a child process first: the NPU's compiler may crash."""

from __future__ import annotations

import json
import math
import signal
import sys
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec import children
from localspec.core.types import Logits
from localspec.devices import processor
from localspec.disk import records, seal
from localspec.engines.npu.graph import read_static
from localspec.errors import DriverFailed, LocalspecError, UnknownDevice
from localspec.formats.graph.paged import first_line

CHILD = children.python("-m", "localspec.engines.npu.trial")
OTHERWISE = "Choose `--engine openvino`"


@dataclass(frozen=True, slots=True)
class Plan:
    """The limits that a graph is compiled for, in tokens."""

    device: str
    prompt: int
    response: int
    width: int

    @property
    def settings(self) -> dict[str, Any]:
        """The NPU plug-in's settings. Its KV cache holds the prompt, the answer and one more pass."""
        emulated = {"NPUW_DEVICES": "CPU", "NPUW_ONLINE_PIPELINE": "NONE"}
        return {
            "NPU_USE_NPUW": "YES",
            "NPUW_LLM": "YES",
            "NPUW_LLM_BATCH_DIM": 0,
            "NPUW_LLM_SEQ_LEN_DIM": 2,
            "NPUW_LLM_MAX_PROMPT_LEN": self.prompt,
            "NPUW_LLM_MIN_RESPONSE_LEN": self.response + math.ceil(self.width / 8) * 8,
            "NPUW_LLM_MAX_GENERATION_TOKEN_LEN": self.width,
            "NPUW_LLM_PREFILL_HINT": "STATIC",
        } | (emulated if self.device == "CPU" else {})


def infer(request: Any, tokens: list[int], past: int, mask: NDArray[np.int64]) -> Logits:
    """Read tokens after `past` others; return the last logits, as many as the plug-in keeps."""
    import openvino as ov

    inputs = {
        "input_ids": np.array(tokens, np.int64),
        "attention_mask": mask,
        "position_ids": np.arange(past, past + len(tokens), dtype=np.int64),
    }
    for name, array in inputs.items():
        request.set_tensor(name, ov.Tensor(array[None]))
    request.set_tensor("beam_idx", ov.Tensor(np.zeros(1, np.int32)))
    try:
        request.infer()
    except RuntimeError as error:
        raise DriverFailed(
            f"The NPU cannot read {len(tokens)} tokens: {first_line(error)}", OTHERWISE
        ) from None
    window: Logits = request.get_output_tensor(0).data[0]
    return window


def core_of(device: str) -> Any:
    """Return a Core with the device, whose emulation computes in float32; raises UnknownDevice."""
    import openvino as ov

    core = ov.Core()
    there = [name for name in core.available_devices if name.split(".")[0] == "NPU"]
    if device != "CPU" and device not in there:
        raise UnknownDevice(device, [*there, "CPU"])
    if device == "CPU":
        core.set_property("CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return core


def compiled(core: Any, graph: Any, plan: Plan, cache: Path | None) -> Any:
    """Return the compiled model, from OpenVINO's own cache in the folder `cache` if possible.

    Raises DriverFailed.
    """
    device = "NPU" if plan.device == "CPU" else plan.device
    kept = cache / "npu" if cache else None
    if kept:
        seal.drop_unsealed(kept)
    settings = plan.settings | ({"CACHE_DIR": str(kept)} if kept else {})
    try:
        compiled_model = core.compile_model(graph, device, settings)
        if kept:
            seal.seal(kept)
        return compiled_model
    except RuntimeError as error:
        raise DriverFailed(f"The NPU's compiler gave up: {first_line(error)}", OTHERWISE) from None


def try_out(core: Any, model: Path, plan: Plan, cache: Path | None) -> None:
    """Compile and run the model in a child process, unless an earlier trial in `cache` tells the result.

    Effects: the result is kept in `cache`. Raises DriverFailed if the compiler gave up or crashed.
    """
    file = cache / "npu-trials" / f"{_key(core, model, plan)}.json" if cache else None
    known = records.read(file) if file else {}
    if "works" not in known:
        message = last_words(model, plan, cache)
        known = {"works": message is None, "message": message, "model": str(model), "plan": asdict(plan)}
        if file:
            records.write(file, known)
    if not known["works"]:
        again = f"; to try again, delete `{file}`" if file else ""
        raise DriverFailed(
            f"The NPU's compiler gave up on `{model}`: {known['message']}", f"{OTHERWISE}{again}"
        )


def _key(core: Any, model: Path, plan: Plan) -> str:
    """Return a digest of all that the result of a trial depends on."""
    import openvino as ov

    emulated = plan.device == "CPU"
    driver = "emulation" if emulated else str(core.get_property(plan.device, "NPU_DRIVER_VERSION"))
    files = [(model / f"openvino_model.{kind}").stat() for kind in ("xml", "bin")]
    stamps = [(file.st_size, file.st_mtime_ns) for file in files]
    settings = sorted(plan.settings.items())
    parts = (processor(), str(model.resolve()), stamps, driver, ov.get_version(), plan, settings)
    return sha256(repr(parts).encode()).hexdigest()[:24]


def last_words(model: Path, plan: Plan, cache: Path | None) -> str | None:
    """Let a child process compile the model; return its last message and how it died, None if it lived."""
    child = children.run([*CHILD, str(model), json.dumps(asdict(plan)), str(cache or "")])
    if child.returncode == 0:
        return None
    crashed = child.returncode < 0
    how = signal.Signals(-child.returncode).name if crashed else f"status {child.returncode}"
    lines = [line.strip() for line in child.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    return f"{lines[-1]} ({how})" if lines else how


def main(model: str, plan: str, cache: str) -> None:
    """Compile the model in this process and read three tokens."""
    folder, chosen = Path(model), Plan(**json.loads(plan))
    graph = read_static(folder / "openvino_model.xml")
    compiled_model = compiled(core_of(chosen.device), graph, chosen, Path(cache) if cache else None)
    request = compiled_model.create_infer_request()
    infer(request, [0, 0], 0, np.ones(2, np.int64))
    infer(request, [0], 2, np.ones(3, np.int64))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except LocalspecError as error:
        sys.exit(error.message)
