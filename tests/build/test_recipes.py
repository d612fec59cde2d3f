from __future__ import annotations

from pathlib import Path

import pytest

from localspec import plugins
from localspec.build import recipes
from localspec.errors import BadValue, UnknownName
from localspec.library import catalogue


@pytest.mark.parametrize("name", recipes.names())
def test_a_shipped_recipe_can_be_followed(name: str) -> None:
    found = recipes.load(name)
    assert catalogue.lookup(found.target) is not None
    known = [str(source) for entry in catalogue.entries() for source in entry.sources]
    assert catalogue.lookup(found.source) is not None or found.source in known
    for step in found.steps:
        plugins.parse("steps", step)
    assert found.about.endswith(".")
    assert min(found.needs.memory, found.needs.disk) > 10**8
    assert found.needs.minutes > 0


def test_recipes_are_shipped() -> None:
    there = {"qwen3-8b", "qwen3-4b", "qwen3-14b", "qwen2.5-coder-1.5b", "qwen2.5-coder-7b", "llama-3.1-8b"}
    there |= {"gemma-3-4b", "starcoder-15b", "tiny-starcoder", "smollm2-135m"}
    assert there == set(recipes.names())


def test_a_file_is_a_recipe(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    text = Path(recipes._folder() / "smollm2-135m.toml").read_text("utf-8")
    file.write_text(text.replace('name = "smollm2-135m-draft"', 'name = "mine"'))
    assert recipes.load(str(file)).name == "mine"


@pytest.mark.parametrize("text", ["", "about = 3", 'target = "x"', "[", 'colour = "red"'])
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(BadValue, match="is not a recipe") as caught:
        recipes.load(str(file))
    assert "smollm2-135m" in str(caught.value.hint)


def test_an_unknown_name_has_near_ones() -> None:
    with pytest.raises(UnknownName, match="Unknown recipe or file `smollm2-135`") as caught:
        recipes.load("smollm2-135")
    assert "smollm2-135m" in str(caught.value.hint)
