"""`localspec show` with the real SmolLM2, and with an unknown name."""

from __future__ import annotations

from command import Localspec

from models import SMALL

FIELDS = [
    *("name", "kind", "folder", "source", "revision", "precision", "weights", "others", "engines"),
    *("architecture", "context", "pictures", "formats", "template"),
    *("draft", "drafts", "target", "dropped", "card", "history", "created", "sizes", "digests"),
]


def test_a_model_is_described(localspec: Localspec) -> None:
    localspec.run("chat", SMALL, "Hi", "--max-tokens", "1")
    found = localspec.run("show", SMALL, "--json").values
    assert list(found) == FIELDS
    assert (found["name"], found["architecture"], found["template"]) == (SMALL, "llama", True)
    assert (found["target"], found["card"]) == (None, None)
    assert found["weights"] == "8 bits with a scale for 64, 8 bits with a scale for 256"
    assert found["engines"] == {}
    assert found["sizes"]["openvino_model.bin"] > 1e8
    assert all(len(digest) == 64 for digest in found["digests"].values())
    told = localspec.run("show", SMALL)
    assert told.code == 0
    assert told.out.startswith(SMALL)
    assert "openvino_model.bin" in told.out


def test_an_unknown_name_gets_suggestions(localspec: Localspec) -> None:
    found = localspec.run("show", "smollm2-135")
    assert found.code == 1
    assert "`smollm2-135` is not in the library" in found.err
    localspec.run("show", "qwen3-8b").refused(1, "not in the library", "localspec pull qwen3-8b")
    assert SMALL in found.err
