"""Visual tokens that sit out layers: what Reroute, PDrop and FastV compute, against transformers' layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from random_models.tiny_vision import TOKEN, VOCAB, picture
from test_seeing import session_of, text_with

from localspec.core.contracts import PictureSession
from localspec.core.cursor import Cursor
from localspec.engines.torch.engine import Torch
from localspec.errors import BadValue
from localspec.pictures.schedule import METHODS, Decision, Schedule, by_mean, parse

SEEN = [picture(40, 28, 1), picture(20, 33, 2)]


def read(session: PictureSession, text: list[int], rows: int = 1) -> Any:
    session.see(SEEN, text)
    return session.forward(text, rows).copy()


def reference(path: Path, text: list[int], schedule: Schedule) -> tuple[Any, list[set[int]]]:
    """Return the last token's logits by transformers' layers over the whole text, and who ran in each.

    A token that does not run keeps its state, and is seen by none.
    """
    engine = Torch(path, device="cpu")
    assert engine.seeing
    model, count = engine.model, len(text)
    visual = {place for place, token in enumerate(text) if token == TOKEN}
    run, offered, ran = set(range(count)), visual, []
    with torch.inference_mode():
        x = model.get_input_embeddings()(torch.tensor([text]))
        x[0, sorted(visual)] = torch.cat([engine.seeing.look(each).states for each in SEEN])
        inner = model.model.language_model
        inner.config._attn_implementation = "eager"
        turns = inner.rotary_emb(x, torch.arange(count)[None])
        for at, layer in enumerate(inner.layers):
            keep = schedule.keep_at(at)
            if keep is not None:
                seen = _mask(count, (set(range(count)) - visual) | offered)
                heads = layer.self_attn(
                    layer.input_layernorm(x), position_embeddings=turns, attention_mask=seen
                )[1]
                scores = heads[0, :, -1].mean(0)
                best = sorted(offered, key=lambda place: -scores[place])[:keep]
                run = (set(range(count)) - visual) | set(best)
                offered = offered if schedule.returns else set(best)
            ran.append(run & visual)
            y = layer(x, attention_mask=_mask(count, run), position_embeddings=turns)
            y = y[0] if isinstance(y, tuple) else y
            kept = sorted(run)
            x[0, kept] = y[0, kept]
        inner.config._attn_implementation = "sdpa"
        return model.lm_head(inner.norm(x[:, -1]))[0].numpy(), ran


def _mask(count: int, seen: set[int]) -> Any:
    mask = torch.full((count, count), -1e9).triu(1)
    mask[:, [place for place in range(count) if place not in seen]] = -1e9
    return mask[None, None]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("keep", [4, 5, 8])
def test_logits_are_those_of_layers_that_some_tokens_sit_out(llava: Path, method: str, keep: int) -> None:
    session = session_of(llava, vision_tokens=f"keep={keep}+method={method}")
    text = text_with(session, SEEN)
    schedule = by_mean(2 * keep, method, 8, 18)
    wanted, ran = reference(llava, text, schedule)
    assert np.abs(read(session, text) - wanted).max() < 1e-4
    assert session._memory.lengths == [len(text) - 18 + len(places) for places in ran]  # type: ignore[attr-defined]


def test_tokens_return_with_reroute_alone(llava: Path) -> None:
    text = text_with(session_of(llava), SEEN)
    decisions = (Decision(2, 5), Decision(4, 5), Decision(6, 5))
    _, ran = reference(llava, text, Schedule(decisions))
    assert any(after - before for before, after in zip(ran[2:], ran[3:], strict=False))
    _, ran = reference(llava, text, Schedule(decisions, returns=False))
    assert not any(after - before for before, after in zip(ran, ran[1:], strict=False))


@pytest.mark.parametrize("method", METHODS)
def test_all_tokens_kept_is_the_full_model(llava: Path, method: str) -> None:
    full, session = session_of(llava), session_of(llava, vision_tokens=f"keep=9+method={method}")
    text = text_with(full, SEEN)
    assert np.abs(read(session, text) - read(full, text)).max() < 1e-4


def test_one_decision_without_return_is_the_pruner(llava: Path) -> None:
    text = text_with(session_of(llava), SEEN)
    found = {
        method: read(session_of(llava, vision_tokens=f"keep=3+layers=2+method={method}"), text)
        for method in METHODS
    }
    full = read(session_of(llava), text)
    assert np.abs(found["reroute"] - full).max() > 0.01
    for method in METHODS[1:]:
        assert np.abs(found[method] - found["reroute"]).max() < 1e-4


@pytest.mark.parametrize("kind", ["llava", "qwen"])
def test_the_choice_is_the_same_before_and_with_the_last_token(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """A runtime reads all but the last token of a prompt first, and that token with a draft."""
    path = request.getfixturevalue(kind)
    session, other = (session_of(path, vision_tokens="keep=5") for _ in range(2))
    text = text_with(session, SEEN)
    whole = read(session, text)
    cursor = Cursor(other)
    cursor.see(SEEN, text)
    cursor.read(text[:-1], rows=0)
    rows = cursor.read([*text, 11, 12, 13], rows=4).copy()
    assert np.abs(rows[0] - whole[0]).max() < 1e-4
    assert np.abs(session.forward([11, 12, 13], 3) - rows[1:]).max() < 1e-4
    cursor.read([*text, 14], rows=1)  # the draft is taken back
    assert np.abs(cursor.read([*text, 11, 12, 13], rows=4) - rows).max() < 1e-4


def test_a_rewind_into_a_chosen_stretch_goes_back_to_its_beginning(llava: Path) -> None:
    session = session_of(llava, vision_tokens="keep=5")
    text = text_with(session, SEEN)
    whole = read(session, text)
    session.forward([11, 12, 13], 0)
    assert session.rewind(len(text) + 1) == len(text) + 1
    assert session.rewind(len(text)) == len(text)
    assert session.rewind(len(text) - 1) == 0
    assert np.abs(session.forward(text, 1) - whole).max() < 1e-5


def test_a_later_picture_is_chosen_from_by_itself(llava: Path) -> None:
    session = session_of(llava, vision_tokens="keep=5")
    first = text_with(session, SEEN[:1])
    session.see(SEEN[:1], first)
    session.forward(first, 1)
    second = [*first, 10, 11, *[TOKEN] * 9, 12, 13]
    session.see(SEEN, second)
    assert session.forward(second[len(first) :], 1).shape == (1, VOCAB)
    assert session.rewind(len(second) - 1) == len(first)
    again = session.forward(second[len(first) :], 1).copy()
    assert session.rewind(0) == 0
    assert np.isfinite(again).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("keep", "no schedule"),
        ("keep=", "no schedule"),
        ("keep=0", "above 0"),
        ("keep=6-7", "above 0"),
        ("keep=6+method=other", "no method"),
        ("keep=6+keep=7", "no schedule"),
        ("keep=5-5+layers=4-2", "do not ascend"),
        ("keep=5-5+layers=0-2", "do not ascend"),
        ("keep=-5", "no schedule"),
        ("layers=2", "no schedule"),
        ("keep=2+layers=9", "has 8 layers"),
        ("keep=1", "Keep [0-9]+ or more"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_before_a_picture_comes(
    llava: Path, text: str, message: str
) -> None:
    with pytest.raises(BadValue, match=message):
        Torch(llava, device="cpu", vision_tokens=text)


@pytest.mark.parametrize("layers", [6, 12, 28, 32, 40])
@pytest.mark.parametrize("share", [0.5, 0.25])
@pytest.mark.parametrize("method", METHODS)
def test_a_mean_is_kept_whatever_the_method(layers: int, share: float, method: str) -> None:
    schedule = by_mean(share * 576, method, layers, 576)
    assert abs(schedule.average(layers, 576) - share * 576) < 2
    assert [decision.layer for decision in schedule.decisions] == sorted(
        {decision.layer for decision in schedule.decisions}
    )
    assert schedule.returns == (method == "reroute")


def test_the_schedule_of_the_paper_keeps_its_mean() -> None:
    wanted = parse("keep=259-259-130-65+layers=2-7-15-23")
    assert wanted
    assert abs(wanted.schedule(32, 576).average(32, 576) - 192) < 1
    assert abs(by_mean(192, "reroute", 32, 576).decisions[0].keep - 259) <= 1
