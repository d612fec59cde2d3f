"""From names to a measurement: who races on which prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from localspec import devices
from localspec.bench import baselines
from localspec.bench.backends import PLAIN, Contender, Own, Peer, PeerFailed, Program
from localspec.errors import BadValue
from localspec.library import Library, Model, Progress
from localspec.runtime.generation import Runtime
from localspec.runtime.resolution import OFF, Choice


def field(
    name: str,
    choice: Choice,
    drafts: Sequence[str],
    against: Sequence[str],
    library: Library,
    progress: Progress,
) -> tuple[list[Contender], Runtime, dict[str, str]]:
    """Return who races on the model called `name`, plain decoding first, its runtime, and who cannot start.

    All of localspec's own contenders share engines. A peer that cannot be started is left out with the
    reason; raises BadValue for one that does not exist, and what loading raises.
    """
    rows = [row for one in dict.fromkeys(against) if one != PLAIN for row in baselines.rows(one, draft=True)]
    if len(set(drafts)) != len(drafts):
        raise BadValue("A draft is named twice", "Name each once")
    plain = Runtime(name, replace(choice, draft=OFF), library, progress)
    racing: list[Contender] = [Own(PLAIN, plain)]
    loaded, draft = plain.engines, None
    for text in drafts:
        runtime = Runtime(name, replace(choice, draft=text), library, progress, loaded)
        loaded = list(dict([*loaded, *runtime.engines]).items())
        draft = draft or (runtime.draft_making.model if runtime.draft_making else None)
        racing.append(Own(text, runtime))
    absent: dict[str, str] = {}
    shared: dict[str, Program] = {}
    for row in rows:
        if row in baselines.WITH_DRAFT and draft is None:
            absent[row] = "there is no draft model among the contenders"
            continue
        progress.step(f"Starting {row}")
        name = baselines.SHARING.get(row, row)
        try:
            peer = Peer(row, given(plain, draft, choice), shared.get(name))
            shared[name] = peer.program
            racing.append(peer)
        except PeerFailed as error:
            absent[row] = error.message if error.hint is None else f"{error.message}; {error.hint}"
    return racing, plain, absent


def given(plain: Runtime, draft: Model | None, choice: Choice) -> dict[str, Any]:
    """Return what a peer is told: files, stop tokens, device, threads."""
    return {
        "model": files(plain.model),
        "draft": files(draft) if draft else {},
        "stop_tokens": plain.model.stop_tokens(),
        "device": plain.engine.device if plain.engine_spec.name == "openvino" else "CPU",
        "threads": choice.threads or devices.cpu().cores,
    }


def files(model: Model) -> dict[str, str]:
    """Return the model's files by form."""
    found = {form: model.files_in(form) for form in ("openvino", "gguf", "safetensors")}
    return {form: str(path.resolve()) for form, path in found.items() if path}
