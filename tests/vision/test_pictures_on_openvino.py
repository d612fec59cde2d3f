"""OpenVINO on the text part of a LLaVA: logits and texts of torch, and a session like any other."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from command import Localspec
from random_models import tiny_vision
from random_models.tiny_vision import TOKEN, VOCAB, encoded, picture
from test_seeing import text_with

from localspec.build import BuildPlan, build
from localspec.chat import Chat
from localspec.core.contracts import PictureSession, TreeSession
from localspec.core.cursor import Cursor
from localspec.core.rewind_check import rewind_fault
from localspec.core.sampler import Sampling
from localspec.core.types import Branch, Picture
from localspec.engines.openvino import OpenVino
from localspec.engines.torch.engine import Torch
from localspec.errors import BadValue, BrokenModel, ContextFull, MissingExtra, UnsupportedModel
from localspec.formats.graph.ir import import_weights
from localspec.formats.huggingface.safetensors import SafetensorsFolder, copy_tensors
from localspec.formats.vision import config, stored
from localspec.library import Library, Silent, StoredModel
from localspec.runtime.choice import Choice
from localspec.runtime.generation import Runtime

TOY = Path(__file__).parents[1] / "data" / "vision" / "toy"
KINDS = ("llama", "mistral", "qwen2", "siglip", "full")
PICTURES = [picture(40, 28), picture(20, 33, 1)]


def halved(into: Path, kind: str) -> Path:
    """Write a LLaVA whose numbers float16 holds."""
    whole = tiny_vision.llava(into / "whole", kind if kind in KINDS[:3] else KINDS[0])
    model = transformers.LlavaForConditionalGeneration.from_pretrained(whole)
    about = model.config
    if kind == "siglip":
        torch.manual_seed(0)
        about.vision_config = transformers.SiglipVisionConfig(**tiny_vision.CLIP, image_size=12, patch_size=4)
        model = tiny_vision._spread(transformers.LlavaForConditionalGeneration(about))
    if kind in KINDS[3:]:
        about.vision_feature_select_strategy = "full"
    tiny_vision.saved(model.half(), into / "half", tiny_vision.LLAVA_PIXELS, tiny_vision.PART)
    return into / "half"


def written(path: Path, into: Path) -> Path:
    """Write the graph and the eyes of a LLaVA, in float16."""
    folder = SafetensorsFolder.open(path)
    into.mkdir()
    text = config.language_model(folder)
    facts = import_weights(text, into, Silent(), plain=True)
    stored.write(folder, text, facts["context"], into)
    return into


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A LLaVA in float16, and its graph with the same numbers."""
    work = tmp_path_factory.mktemp("folders")
    path = halved(work, "llama")
    return path, written(path, work / "graph")


@pytest.fixture
def session(folders: tuple[Path, Path]) -> PictureSession:
    return session_of(OpenVino(folders[1]))


def session_of(engine: Any) -> PictureSession:
    found = engine.session()
    assert isinstance(found, PictureSession)
    return found


def both(path: Path, graph: Path) -> list[PictureSession]:
    """Return a session of each engine, with activations and a KV cache in float32."""
    return [session_of(engine) for engine in (Torch(path, device="cpu"), OpenVino(graph, group=0, kv="f32"))]


def seen(cursor: Cursor, text: Sequence[int], pictures: Sequence[Picture], rows: int = 1) -> Any:
    """Return a copy of the logits of a text with pictures."""
    cursor.see(pictures, text)
    return cursor.read(text, rows).copy()


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_torch(kind: str, tmp_path: Path) -> None:
    path = halved(tmp_path, kind)
    sessions = both(path, written(path, tmp_path / "graph"))
    for shown in (PICTURES[:1], PICTURES, []):
        text = text_with(sessions[0], shown)
        rows = [seen(Cursor(each), text, shown, len(text)) for each in sessions]
        assert np.abs(rows[0] - rows[1]).max() < 1e-3
        for each in sessions:
            each.rewind(0)


def test_whole_texts_are_those_of_torch(folders: tuple[Path, Path]) -> None:
    for shown in (PICTURES[:1], PICTURES):
        texts = []
        for session in both(*folders):
            cursor, tokens = Cursor(session), text_with(session, shown)
            for _ in range(32):
                tokens.append(int(seen(cursor, tokens, shown)[0].argmax()))
            texts.append(tokens)
        assert texts[0] == texts[1]


def test_a_text_read_in_any_pieces_has_the_same_logits(session: PictureSession) -> None:
    text = text_with(session, PICTURES)
    session.see(PICTURES, text)
    whole = session.forward(text, len(text)).copy()
    for piece in (1, 3, 7):
        for at in (piece + 1, 20):  # before the pictures, and within the second one
            assert session.rewind(at) == at
            for begin in range(at, len(text), piece):
                part = text[begin : begin + piece]
                assert np.abs(session.forward(part, len(part)) - whole[begin : begin + piece]).max() < 1e-4


def test_rewinds_are_exact_also_without_a_picture(session: PictureSession) -> None:
    assert rewind_fault(session, VOCAB, kept=20) is None


def test_another_picture_in_the_same_place_is_seen(session: PictureSession) -> None:
    cursor, first, second, third = Cursor(session), picture(12, 12, 1), picture(12, 12, 2), picture(12, 12, 3)
    text = text_with(session, [first, second])
    before = seen(cursor, text, [first, second])
    cursor.see([first, third], text)
    assert cursor.tokens == text[:15]  # up to the second picture
    assert np.abs(cursor.read(text) - before).max() > 0.01
    assert np.abs(seen(cursor, text, [first, second]) - before).max() < 1e-5


def test_branches_are_read_behind_pictures(session: PictureSession) -> None:
    assert isinstance(session, TreeSession)
    text = text_with(session, PICTURES)
    session.see(PICTURES, text)
    session.forward(text, 0)
    found = session.forward_tree([10, 11], 2, [Branch(12, 0), Branch(13, 2), Branch(14, 1)]).copy()
    assert session.rewind(len(text)) == len(text)
    for tokens, rows in (([10, 11, 14], (0, 1, 4)), ([10, 12, 13], (0, 2, 3))):
        assert np.abs(session.forward(tokens, 3) - found[list(rows)]).max() < 1e-4
        session.rewind(len(text))


def test_chunks_are_exported_unless_there_are_pictures(folders: tuple[Path, Path]) -> None:
    engine = OpenVino(folders[1], pad="on")
    one, other = Cursor(engine.session(), chunk=32), Cursor(engine.session(), chunk=32)
    assert isinstance(one.session, PictureSession)
    plain, shown = [5 + at % 30 for at in range(70)], [3, *[TOKEN] * 9, *range(4, 36)]
    assert seen(one, shown, PICTURES[:1]).any()
    assert not one.exportable
    rows = seen(one, plain, [])
    assert one.exportable
    other.see([], plain)
    for number in range(one.chunks):
        other.import_chunk(plain[32 * number : 32 * number + 32], one.export_chunk(number))
    assert one.chunks == 2
    assert np.array_equal(other.read(plain), rows)
    behind = [*plain, *shown]
    fresh = seen(Cursor(engine.session(), chunk=32), behind, PICTURES[:1])
    assert np.abs(seen(other, behind, PICTURES[:1]) - fresh).max() < 1e-5


def test_a_full_context_is_told(session: PictureSession) -> None:
    session.forward([3] * 250, 0)
    with pytest.raises(ContextFull):
        session.forward([3] * 7, 1)
    assert session.forward([3] * 6, 1).shape == (1, VOCAB)


@pytest.mark.parametrize("option", ["exit", "hidden", "taps", "hints", "pairs"])
def test_options_that_a_model_with_eyes_lacks_are_refused(folders: tuple[Path, Path], option: str) -> None:
    values: dict[str, Any] = {"exit": 2, "hidden": True, "taps": "2", "hints": "x", "pairs": "x"}
    with pytest.raises(BadValue, match=f"`{option}` does nothing"):
        OpenVino(folders[1], **{option: values[option]})


def test_a_start_from_the_kept_graph_is_the_same(folders: tuple[Path, Path], tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        session = session_of(OpenVino(folders[1], tmp_path))
        text = text_with(session, PICTURES)
        found.append(seen(Cursor(session), text, PICTURES, len(text)))
    assert np.array_equal(*found)
    assert len([path for path in (tmp_path / "cpu").iterdir() if path.is_dir()]) == 1


def test_eyes_come_without_the_text_part(folders: tuple[Path, Path]) -> None:
    engine = OpenVino(folders[1])
    assert engine.eyes
    assert engine.eyes._model is None  # nothing is loaded for a text
    engine.eyes.eyes.look(PICTURES[0])
    model = engine.eyes._model
    eyes = sum(p.numel() for name, p in model.named_parameters() if config.EYES.match(name))
    assert sum(p.numel() for p in model.parameters()) - eyes < 200
    weights, file = ((folders[1] / name).stat().st_size for name in ("openvino_model.bin", stored.FILE))
    assert OpenVino.weighs(folders[1]) == weights + 2 * file


@pytest.mark.parametrize("library", stored.LIBRARIES)
def test_missing_libraries_are_named(
    folders: tuple[Path, Path], library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "find_spec", lambda name: None if name == library else name)
    with pytest.raises(MissingExtra, match="vision") as found:
        OpenVino(folders[1])
    assert library.replace("PIL", "pillow") in str(found.value)


@pytest.mark.parametrize("change", ["dropped", "renamed", "cut"])
def test_damaged_eyes_are_told(folders: tuple[Path, Path], tmp_path: Path, change: str) -> None:
    graph = shutil.copytree(folders[1], tmp_path / "graph")
    source = SafetensorsFolder.open(folders[0])
    names = [name for name in source.tensors if config.EYES.match(name)]
    if change == "dropped":
        names.remove(next(name for name in names if "projector" in name))
    if change == "renamed":
        names.append(next(name for name in source.tensors if not config.EYES.match(name)))
        source.tensors["vision_tower.odd"] = source.tensors[names[-1]]
        source._data["vision_tower.odd"] = source._data[names.pop()]
        names.append("vision_tower.odd")
    copy_tensors(source, names, graph / stored.FILE)
    if change == "cut":
        (graph / stored.FILE).write_bytes((graph / stored.FILE).read_bytes()[:-100])
    session = session_of(OpenVino(graph))
    with pytest.raises(BrokenModel, match="The eyes in"):
        session.see(PICTURES[:1], text_with(session, PICTURES[:1]))


def folder_of(values: dict[str, Any], path: Path) -> SafetensorsFolder:
    return SafetensorsFolder(path, {"model_type": "llava", "image_token_index": 40, **values}, {})


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"vision_config": {}},
        {"vision_config": {"model_type": "siglip_vision_model"}},
        {"vision_config": {"image_size": 48, "patch_size": 6}, "vision_feature_select_strategy": "full"},
    ],
)
def test_absent_keys_of_eyes_are_filled_in_as_transformers_does(
    values: dict[str, Any], tmp_path: Path
) -> None:
    tower = config.read(folder_of(values, tmp_path)).tower
    about = transformers.LlavaConfig(**json.loads(json.dumps(values)))
    eyes = about.vision_config
    more = (eyes.model_type == config.CLIP) - (about.vision_feature_select_strategy == "default")
    assert tower == config.Tower(eyes.image_size, eyes.patch_size, more)


@pytest.mark.parametrize("kind", KINDS[:3])
def test_absent_sizes_of_text_are_filled_in_as_transformers_does(kind: str) -> None:
    about = transformers.AutoConfig.for_model(kind)
    assert {key: getattr(about, key) for key in config.TEXT_SIZES} == config.TEXT_SIZES


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vision_config": {"model_type": "pixtral"}}, "are a `pixtral`"),
        ({"vision_feature_select_strategy": "some"}, "expected default or full"),
        ({"text_config": {"model_type": "gemma"}}, "`gemma` model, which is not supported behind eyes"),
    ],
)
def test_other_eyes_are_refused(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        config.language_model(folder_of(values, tmp_path))


def loaded(library: Library, path: Path, **choice: Any) -> Runtime:
    return Runtime.load(str(path), Choice(**choice), library, Silent())


def test_a_second_turn_goes_on_from_the_same_text(library: Library, llava: Path) -> None:
    runtime = loaded(library, llava, engine="openvino")
    talk = Chat(runtime, sampling=Sampling(), max_tokens=12)
    talk.send("w5 w6", [encoded(1)])
    assert talk.usage().reused >= 10  # the picture, and what is before it
    second = talk.send("w8", [encoded(2)])
    fresh = Chat(loaded(library, llava, engine="openvino"), sampling=Sampling(), max_tokens=12)
    fresh.messages = talk.messages[:-1]
    assert fresh.stream_reply().finish().token_ids == second.token_ids


def imported(library: Library, path: Path, *formats: str) -> StoredModel:
    return library.resolve(str(path), Silent(), formats)


def test_a_graph_that_is_added_later_keeps_the_eyes(library: Library, llava: Path) -> None:
    first = imported(library, llava, "safetensors")
    assert first.files_in("openvino") is None
    later = imported(library, llava, "openvino")
    assert later.folder == first.folder
    assert later.sees
    assert later.manifest.context == 256
    assert session_of(OpenVino(later.folder)).tokens_of(PICTURES[0]) == 9


def test_auto_says_where_the_parts_run(library: Library, llava: Path, qwen: Path) -> None:
    reasons = {
        (runtime.resolution.target.spec.name, runtime.resolution.engine_reason)
        for runtime in (
            loaded(library, llava),
            loaded(library, llava, engine="openvino"),
            loaded(library, llava, vision_tokens="keep=5"),
            loaded(library, llava, device="cpu".upper()),
        )
    }
    assert ("openvino", "it was chosen; its eyes run on torch") in reasons
    assert ("openvino", "`CPU` was requested; its eyes run on torch") in reasons
    assert len([name for name, _ in reasons if name == "openvino"]) == 3
    assert [reason for name, reason in reasons if name == "torch"] == [
        "it is a model with eyes, whose visual tokens sit out layers there alone"
    ]
    other = loaded(library, qwen).resolution
    assert other.target.spec.name == "torch"
    assert "on OpenVINO it does not run" in other.engine_reason
    assert "positions in height and width" in other.engine_reason


def test_what_openvino_does_not_see_is_refused(library: Library, llava: Path, qwen: Path) -> None:
    with pytest.raises(BadValue, match="`--vision-tokens` does nothing on `openvino`"):
        Choice(engine="openvino", vision_tokens="keep=5").check()
    with pytest.raises(UnsupportedModel, match="positions in height and width"):
        loaded(library, qwen, engine="openvino")
    for choice in ({"engine": "npu"}, {"device": "NPU"}):
        with pytest.raises(UnsupportedModel, match="`npu` runs no eyes"):
            loaded(library, llava, **choice)


def test_nothing_is_built_of_a_model_with_eyes(library: Library, llava: Path) -> None:
    plan = BuildPlan("small", str(llava), str(llava), ("prune:layers=4",))
    with pytest.raises(UnsupportedModel, match="is a model with eyes, of which nothing is built"):
        build(plan, [], library, Silent())


def test_the_command_tells_where_the_parts_run(llava: Path, tmp_path: Path) -> None:
    localspec = Localspec(tmp_path / "home")
    image = tmp_path / "scene.png"
    image.write_bytes(base64.b64decode(encoded(1)))
    asked = ("chat", str(llava), "w5 w6", "--image", str(image), "--max-tokens", "8")
    said = localspec.run(*asked, "--stats")
    assert said.code == 0, said.err
    assert "40 x 28 pixels, 9 tokens" in said.err
    assert "openvino on CPU: " in said.err
    assert "; its eyes run on torch" in said.err
    plain = localspec.run(*asked, "--json", "--engine", "openvino", "--draft", "off").values
    assert plain["text"] == said.out.strip()
    localspec.run(*asked, "--engine", "openvino", "--vision-tokens", "keep=5").refused(2, "`--vision-tokens`")
    shown = localspec.run("show", str(plain["model"])).out
    assert "the text part runs on openvino or torch, its eyes run on torch" in shown
