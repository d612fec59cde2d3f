"""Shared by tests of several folders: an answer asked of the toy engine, and one fixed run of hypothesis."""

from __future__ import annotations

import locale
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from passes import Numbers

from localspec import devices, plugins
from localspec.core.contracts import Drafter, DraftLengthPolicy, Verifier
from localspec.core.cursor import Cursor
from localspec.core.decode import decode
from localspec.core.sampler import Constraint, Sampler, Sampling
from localspec.core.stop import OutputProcessor
from localspec.core.types import Step
from localspec.runtime import loading

# before torch or llama.cpp is there: tests share the cores, on which OpenMP's threads would spin
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def utf8() -> None:
    """Files are UTF-8 in tests: some library sets the C locale on the way, in which they would be ASCII."""
    locale.setlocale(locale.LC_CTYPE, "C.UTF-8")


CARD = devices.has_nvidia_driver()
LARGE = bool(os.environ.get("LOCALSPEC_TEST_LARGE"))

PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)


@dataclass(frozen=True)
class Answer:
    """The totals of one answer's steps."""

    steps: list[Step]

    @property
    def tokens(self) -> list[int]:
        return [token for found in self.steps for token in found.tokens]

    @property
    def text(self) -> str:
        return "".join(found.text for found in self.steps)

    @property
    def finish(self) -> str | None:
        return self.steps[-1].finish


def ask_toy(
    target: Cursor,
    drafter: Drafter | None = None,
    draft_length: DraftLengthPolicy | None = None,
    verifier: Verifier | None = None,
    *,
    prompt: Sequence[int] = PROMPT,
    sampling: Sampling | None = None,
    seed: int = 0,
    room: int = 24,
    stop_tokens: Collection[int] = (),
    stop: Sequence[str] = (),
    constraint: Constraint | None = None,
) -> Answer:
    """Return the answer to `prompt`: plain, exact decoding unless other parts are given."""
    checked = verifier or plugins.parse("verifiers", "exact").make()
    sampler = Sampler(
        sampling or Sampling(),
        seed=seed,
        answer_from=len(prompt),
        coupled=checked.coupled,
        quantiles=checked.quantiles,
        constraint=constraint,
    )
    steps = decode(
        prompt,
        target,
        drafter or plugins.parse("drafters", "none").make(target),
        draft_length or plugins.parse("draft_length", "fixed:tokens=4").make(),
        checked,
        sampler,
        OutputProcessor(Numbers(), stop_tokens=stop_tokens, stop=stop, max_new_tokens=room),
    )
    return Answer(list(steps))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that need gigabytes of models, unless asked for, or a card that is not here."""
    absent = [name for name, there in (("large", LARGE), ("cuda", CARD)) if not there]
    left_out = [item for item in items if any(map(item.get_closest_marker, absent))]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give engines a cache folder of the session's own."""
    folder = tmp_path_factory.mktemp("compiled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "compiled_folder", lambda model: folder / model.resolve().name)
        yield folder


@pytest.fixture(scope="module")
def one_torch_thread() -> Iterator[None]:
    """Let torch compute in one thread: several would wait for each other on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def ask() -> Callable[..., Answer]:
    return ask_toy
