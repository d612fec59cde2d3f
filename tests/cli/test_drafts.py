"""`prune-draft`, `quantize`, `export` and `build` as real processes on real weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import MODEL, Localspec

from localspec.build import no_gain
from localspec.cli.drafts.prune_draft import sibling
from localspec.formats.gguf.file import GgufFile
from localspec.library import Library, Silent

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def localspec(tmp_path_factory: pytest.TempPathFactory, gguf: Path) -> Iterator[Localspec]:
    """The command with a library for this module: other tests must not use the drafts that it builds."""
    home = tmp_path_factory.mktemp("home")
    assert Library(home).resolve(str(gguf), Silent()).name == MODEL
    yield Localspec(home)
    shutil.rmtree(home)


@pytest.fixture
def few(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.txt"
    file.write_text("Name three colours.\nWhat is the capital of France?\n")
    return file


def test_a_draft_is_pruned_shown_used_and_exported(localspec: Localspec, few: Path, tmp_path: Path) -> None:
    options = ("--layers", "29", "--vocab", "32768", "--bits", "8", "--prompts", str(few), "--name", "cut")
    card = localspec.run("prune-draft", MODEL, *options, "--json").values
    assert (len(card["layers"]), card["of_layers"], card["tokens"]) == (29, 30, 32768)
    assert set(card["agreement_by_class"]) == {"prompts"}
    assert card["parent"] == MODEL
    assert card["versions"]["localspec"]
    assert card["predicted"]["speedup"] >= 1
    shown = localspec.run("show", "cut", "--json").values
    assert shown["card"] == card
    assert card["target"] == MODEL
    assert shown["target"] == (None if no_gain(card) else MODEL)
    plain = localspec.chat("Count to five.", "--max-tokens", "24", "--draft", "off", "--json").values
    drafted = localspec.chat("Count to five.", "--max-tokens", "24", "--draft", "cut", "--json").values
    assert drafted["token_ids"] == plain["token_ids"]
    localspec.run("export", "cut", "--to", "gguf", "-o", str(tmp_path / "no")).refused(
        1, "The head was trimmed", "--vocab all"
    )
    assert not (tmp_path / "no").exists()


def test_a_model_in_eight_bits(localspec: Localspec, few: Path) -> None:
    card = localspec.run(
        "quantize", MODEL, "--bits", "8", "--name", "smol8", "--prompts", str(few), "--json"
    ).values
    assert card["precision"] == "INT8"
    library = Library(localspec.home)
    target = library.find(MODEL)
    assert target is not None
    assert sibling(target, library) == MODEL  # not its own copy
    assert card["perplexity_ratio"] == pytest.approx(1, abs=0.05)
    assert "measured" not in card
    ran = localspec.run("chat", "smol8", "Say hi.", "--max-tokens", "8", "--draft", "off")
    assert ran.code == 0
    assert ran.out.strip()


def test_exports_are_complete_models(localspec: Localspec, tmp_path: Path) -> None:
    into = tmp_path / "a folder"
    found = localspec.run("export", MODEL, "--to", "gguf", "--type", "q8_0", "-o", str(into), "--json").values
    assert set(found["sizes"]) >= {"model.gguf", "tokenizer.json", "chat_template.jinja"}
    assert GgufFile.open(into / "model.gguf").precision == "Q8_0"
    asked = ("Count to five.", "--max-tokens", "16", "--draft", "off", "--engine", "llamacpp", "--json")
    ran = localspec.run("chat", str(into / "model.gguf"), *asked)
    assert len(ran.values["token_ids"]) == 16
    localspec.run("export", MODEL, "--to", "gguf", "-o", str(into)).refused(2, "already exists")
    folder = tmp_path / "folder"
    localspec.run("export", MODEL, "--to", "torch", "-o", str(folder))
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["rope_theta"]) == ("llama", 100000.0)
    ran = localspec.run("chat", str(folder), *asked[:-3], "--engine", "torch", "--json")
    assert len(ran.values["token_ids"]) == 16


def test_a_recipe_in_a_file(localspec: Localspec, few: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        f'about = "Mine."\ntarget = "{MODEL}"\nfrom = "{MODEL}"\nname = "mine"\n'
        'steps = ["prune:layers=0-27+29", "quantize:bits=8"]\n'
        "[needs]\nmemory = 1\ndisk = 1\nminutes = 1\n"
    )
    ran = localspec.run("build", str(recipe), "--prompts", str(few))
    assert ran.code == 0, ran.err
    assert "mine, a draft for smollm2-135m" in ran.out
    assert "29 of 30" in ran.out
    assert "an estimate" in ran.err
    assert "are free" in ran.err
    assert localspec.run("build", str(recipe)).code == 2  # it is there already


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("prune-draft", MODEL, "--layers", "99", "--name", "x"), 2, "is 99 and the model has 30"),
        (("prune-draft", MODEL, "--engine", "gguf", "--vocab", "9000"), 2, "a trimmed vocabulary"),
        (("prune-draft", MODEL, "--engine", "torch", "--bits", "4"), 2, "`--bits 4` does not fit torch"),
        (("prune-draft", MODEL, "--engine", "toy"), 2, "Unknown engine `toy`"),
        (("prune-draft", MODEL, "--heal", "soon"), 2, "soon"),
        (("prune-draft", MODEL, "--prompts", "/nowhere"), 2, "No such file"),
        (("prune-draft", MODEL, "--bits", "5"), 2, "`bits` of `quantize` is 5"),
        (("export", MODEL, "--to", "onnx"), 2, "onnx"),
        (("export", MODEL, "--to", "torch", "--npu"), 2, "is only for OpenVINO graphs"),
        (("build", "qwen3-9b"), 2, "Unknown recipe or file"),
    ],
)
def test_wrong_build_options_are_refused_before_loading(
    localspec: Localspec, arguments: tuple[str, ...], code: int, said: str
) -> None:
    localspec.run(*arguments).refused(code, said)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00"])
def test_a_wrong_prompts_file(localspec: Localspec, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes(content)
    ran = localspec.run("prune-draft", MODEL, "--prompts", str(file))
    ran.refused(2, str(file))
