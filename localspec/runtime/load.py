"""Load what a resolution needs, in parallel, and beside imports of the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from localspec.runtime.loading import LoadSpec, check_memory

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from localspec.core.contracts import Engine
    from localspec.formats.tokenizer.token_bytes import Translation
    from localspec.runtime.drafts import DraftPlan
    from localspec.runtime.resolution import Resolution

HEAD_START = 0.1  # seconds: engines read their files, then compile for long without Python's lock


@dataclass(frozen=True, slots=True)
class Loaded:
    """The engines and the tokenizer of a resolution, in memory."""

    engines: dict[LoadSpec, Engine]
    tokenizer: Tokenizer
    translation: Translation | None


def load(
    resolution: Resolution,
    engines: Sequence[tuple[LoadSpec, Engine]] = (),
    meanwhile: Callable[[], Any] = lambda: None,
) -> Loaded:
    """Load what a resolution needs, in parallel; `engines` that are loaded already are used again.

    `meanwhile` runs in the calling thread while the others load. Raises TooLittleMemory, what the engines
    raise, and what `meanwhile` raises.
    """
    ready = dict(engines)
    specs = dict.fromkeys([resolution.target, *resolution.draft.loads])
    missing = [spec for spec in specs if spec not in ready]
    check_memory(missing)
    with ThreadPoolExecutor(4) as pool:  # each of the four keeps one core busy
        loading = {spec: pool.submit(spec.load) for spec in missing}
        texts = pool.submit(_texts, resolution.target, resolution.draft, loading.values())
        meanwhile()
        ready |= {spec: engine.result() for spec, engine in loading.items()}
        return Loaded(ready, *texts.result())


def _texts(
    target: LoadSpec, draft: DraftPlan, engines: Iterable[Future[Engine]]
) -> tuple[Tokenizer, Translation | None]:
    """Return the target's tokenizer, and the translation of the draft's tokens.

    Opening a tokenizer holds Python's lock for 0.1 s and more, in which no engine could begin to compile.
    """
    wait(engines, HEAD_START)
    tokenizer = target.model.tokenizer()
    return tokenizer, draft.translation(target.model)
