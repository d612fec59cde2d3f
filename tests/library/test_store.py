from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.errors import (
    BrokenModel,
    DigestMismatch,
    LocalspecError,
    NetworkError,
    StorageError,
    UnknownModel,
    UnsupportedModel,
)
from localspec.library import Library, StoredModel, catalogue, home, storage
from localspec.library.catalogue import CatalogueEntry
from localspec.library.sources import Source

pytestmark = pytest.mark.usefixtures("hub")


def leftovers(library: Library) -> list[str]:
    """List the files in the library that are not of complete models, except locks."""
    found = library.models.iterdir() if library.models.is_dir() else []
    return [path.name for path in found if path.name.startswith(".") and path.suffix != ".lock"]


def entry_for(path: Path, monkeypatch: pytest.MonkeyPatch, said: Any, **values: Any) -> CatalogueEntry:
    """Make a catalogue whose only model is the file at `path`, drafted for by `small`."""
    digest = storage.digest_of(path, said)
    fixed: dict[str, Any] = {"title": "T", "licence": "L", "parameters": "1", "context": 512, "sources": ()}
    entry = CatalogueEntry(name="tiny", aliases=("t",), digest=digest, draft="small", **{**fixed, **values})
    monkeypatch.setattr(catalogue, "entries", lambda: (entry,))
    return entry


def test_a_gguf_is_imported_once(
    library: Library, tmp_path: Path, make_gguf: Any, said: Any, converted: list[str]
) -> None:
    path = make_gguf(tmp_path / "my model.gguf")
    model = library.resolve(str(path), said)
    digest = storage.digest_of(path, said)
    assert model.name == f"my model-{digest[:8]}"
    assert model.files_in("gguf") == path
    assert sorted(file.name for file in model.folder.iterdir()) == [
        "chat_template.jinja",
        "generation_config.json",
        "model.toml",
        "openvino_model.bin",
        "openvino_model.xml",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert (model.manifest.architecture, model.manifest.context) == ("llama", 512)
    said.steps.clear()
    assert library.resolve(str(path), said) == model
    assert library.resolve(model.name, said) == model
    assert (said.steps, converted) == ([], ["llama"])
    assert leftovers(library) == []


def test_the_same_file_elsewhere_is_hashed_once(
    library: Library, tmp_path: Path, make_gguf: Any, said: Any, converted: list[str]
) -> None:
    path = make_gguf(tmp_path / "a.gguf")
    model = library.resolve(str(path), said)
    copy = Path(shutil.copy(path, tmp_path / "b.gguf"))
    assert library.resolve(str(copy), said).name == model.name
    said.steps.clear()
    assert library.resolve(str(copy), said).name == model.name
    assert library.resolve(str(path), said).name == model.name
    assert (said.steps, converted) == ([], ["llama"])


def test_a_changed_file_is_another_model(
    library: Library, tmp_path: Path, make_gguf: Any, said: Any, converted: list[str]
) -> None:
    first = library.resolve(str(make_gguf(tmp_path / "a.gguf", 1)), said)
    second = library.resolve(str(make_gguf(tmp_path / "a.gguf", 2)), said)
    assert first.name != second.name
    assert [model.name for model in library.all()] == sorted([first.name, second.name])


def test_a_file_of_the_catalogue_gets_its_name_and_draft(
    library: Library,
    tmp_path: Path,
    make_gguf: Any,
    said: Any,
    converted: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = make_gguf(tmp_path / "a.gguf")
    entry_for(path, monkeypatch, said)
    model = library.resolve(str(path), said)
    assert (model.name, model.draft) == ("tiny", "small")
    assert library.find("T") == model
    assert library.resolve("tiny", said) == model


def test_the_configuration_files(
    library: Library, tmp_path: Path, make_gguf: Any, said: Any, converted: list[str]
) -> None:
    model = library.resolve(str(make_gguf(tmp_path / "a.gguf")), said)
    assert model.stop_tokens() == [9, 10]
    assert model.first_tokens() == [9]
    assert model.sampling_defaults() == {"temperature": 0.5, "do_sample": True}
    assert model.tokenizer().encode("abc", add_special_tokens=False).ids == [8, 2]
    template = model.template()
    assert template is not None
    assert template.render([{"role": "user", "content": "hi"}]) == "<|endoftext|>hi<|im_end|>"


def test_a_template_for_tools_is_kept(tmp_path: Path, make_gguf: Any) -> None:
    from localspec.formats.gguf.file import GgufFile
    from localspec.library.importing.convert import tokenizer_config

    metadata = GgufFile.open(make_gguf(tmp_path / "a.gguf")).metadata
    metadata = {**metadata, "tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "tools"}
    assert tokenizer_config(metadata)["chat_template"] == [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "tools"},
    ]


@pytest.mark.parametrize("error", [RuntimeError("bug"), KeyboardInterrupt()])
def test_a_failed_import_leaves_nothing(
    library: Library,
    tmp_path: Path,
    make_gguf: Any,
    said: Any,
    converted: list[str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    path = make_gguf(tmp_path / "a.gguf")
    break_converter(monkeypatch, error)
    with pytest.raises(type(error)):
        library.resolve(str(path), said)
    assert leftovers(library) == []
    assert library.all() == []


def break_converter(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(source: Any, into: Path, progress: Any) -> dict[str, str]:
        (into / "openvino_model.bin").write_bytes(bytes(10))
        raise error

    monkeypatch.setattr(sys.modules["localspec.formats.graph.ir"], "import_weights", fail)


SCRIPT = """
    import os, sys, time, types
    from pathlib import Path
    from localspec.library import Library, Silent

    def import_weights(source, into, progress):
        (into / "openvino_model.xml").write_text("<net/>")
        (into / "openvino_model.bin").write_bytes(bytes(10))
        with open(sys.argv[3], "a") as log:
            log.write("converted\\n")
        if sys.argv[4] == "die":
            os._exit(9)
        time.sleep(0.5)
        return {}

    module = types.ModuleType("localspec.formats.graph.ir")
    module.import_weights = import_weights
    sys.modules["localspec.formats.graph.ir"] = module
    print(Library(Path(sys.argv[1])).resolve(sys.argv[2], Silent()).name)
"""


def start(library: Library, path: Path, log: Path, way: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(library.home), str(path), str(log), way]
    root = str(Path(__file__).parents[2])
    return subprocess.Popen(words, cwd=root, stdout=subprocess.PIPE, text=True)


def test_what_a_killed_import_left_is_removed(
    library: Library, tmp_path: Path, make_gguf: Any, said: Any, converted: list[str]
) -> None:
    path = make_gguf(tmp_path / "a.gguf")
    with start(library, path, tmp_path / "log", "die") as process:
        process.communicate()
    assert process.returncode == 9
    assert len(leftovers(library)) == 1
    assert library.all() == []
    library.resolve(str(path), said)
    assert leftovers(library) == []


def test_two_processes_import_once(library: Library, tmp_path: Path, make_gguf: Any) -> None:
    path = make_gguf(tmp_path / "a.gguf")
    log = tmp_path / "log"
    with start(library, path, log, "live") as one, start(library, path, log, "live") as two:
        names = {one.communicate()[0], two.communicate()[0]}
    assert len(names) == 1
    assert log.read_text() == "converted\n"
    assert leftovers(library) == []


def test_a_second_import_says_that_it_waits(library: Library, said: Any) -> None:
    from localspec.library.locks import locked

    def second() -> None:
        with locked(library.models, "m", said):
            entered.append(True)

    entered: list[bool] = []
    with locked(library.models, "m", said):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.3)
        assert entered == []
    thread.join()
    assert said.lines == ["Another localspec is using `m`; waiting for it"]
    assert entered == [True]


@pytest.mark.parametrize("damage", ["manifest", "gone", "short", "missing"])
def test_a_damaged_model_is_imported_again(
    library: Library, tmp_path: Path, make_gguf: Any, said: Any, converted: list[str], damage: str
) -> None:
    path = make_gguf(tmp_path / "a.gguf")
    model = library.resolve(str(path), said)
    if damage == "manifest":
        (model.folder / "model.toml").write_text('name = "a')
    elif damage == "gone":
        (model.folder / "model.toml").unlink()
    elif damage == "short":
        (model.folder / "openvino_model.bin").write_bytes(bytes(999))
    else:
        (model.folder / "tokenizer.json").unlink()
    assert library.find(model.name) is None
    assert library.all() == []
    assert library.resolve(str(path), said).name == model.name
    assert library.find(model.name) is not None
    assert len(converted) == 2


def test_too_little_space_is_reported_before_the_start(
    library: Library,
    tmp_path: Path,
    make_gguf: Any,
    said: Any,
    converted: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = make_gguf(tmp_path / "a.gguf")
    monkeypatch.setattr(storage, "free_bytes", lambda folder: 1234)
    needed = f"{int(path.stat().st_size * 1.8):,}"
    with pytest.raises(StorageError, match=f"1,234 bytes are free and {needed} are needed"):
        library.resolve(str(path), said)
    assert converted == []
    assert leftovers(library) == []


@pytest.mark.parametrize(
    ("number", "message"), [(errno.ENOSPC, "is full: "), (errno.EACCES, "cannot be written")]
)
def test_errors_of_the_disk_are_explained(
    library: Library,
    tmp_path: Path,
    make_gguf: Any,
    said: Any,
    converted: list[str],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    message: str,
) -> None:
    break_converter(monkeypatch, OSError(number, os.strerror(number), "x.bin"))
    with pytest.raises(StorageError, match=message):
        library.resolve(str(make_gguf(tmp_path / "a.gguf")), said)
    assert leftovers(library) == []


def test_a_truncated_gguf_is_refused(
    library: Library, tmp_path: Path, make_gguf: Any, said: Any, converted: list[str]
) -> None:
    path = make_gguf(tmp_path / "a.gguf")
    os.truncate(path, path.stat().st_size - 100)
    with pytest.raises(BrokenModel, match="is truncated"):
        library.resolve(str(path), said)
    assert leftovers(library) == []


def write_openvino(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "openvino_model.xml").write_text("<net/>")
    (folder / "openvino_model.bin").write_bytes(bytes(50))
    write_beside(folder)
    return folder


def write_beside(folder: Path) -> None:
    from tokenizers import Tokenizer, models, processors

    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    tokenizer.add_special_tokens(["<s>", "</s>", "<|eot|>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"model_type": "qwen3", "max_position_embeddings": 40960}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text('{"eos_token_id": [4], "top_k": 20, "top_p": null}')
    templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    words = {"eos_token": {"content": "</s>"}, "bos_token": "<s>", "chat_template": templates}
    (folder / "tokenizer_config.json").write_text(json.dumps(words))


def check_beside(model: StoredModel) -> None:
    assert model.first_tokens() == [2]
    assert model.stop_tokens() == [3, 4]
    assert model.sampling_defaults() == {"top_k": 20}
    assert (model.manifest.architecture, model.manifest.context) == ("qwen3", 40960)
    template = model.template()
    assert template is not None
    assert template.render([]) == "plain"
    assert template.render([], tools=[{"type": "function"}]) == "tools"


def test_an_openvino_folder_is_used_in_place(library: Library, tmp_path: Path, said: Any) -> None:
    folder = write_openvino(tmp_path / "ov")
    model = library.resolve(str(folder), said)
    assert (model.name, model.folder) == ("ov", folder)
    check_beside(model)
    assert library.all() == []
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UnsupportedModel, match=r"no `tokenizer\.json`"):
        library.resolve(str(folder), said)


def test_a_model_without_a_chat_template(library: Library, tmp_path: Path, said: Any) -> None:
    folder = write_openvino(tmp_path / "ov")
    config: dict[str, Any] = {"add_bos_token": False, "bos_token": "<s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    model = library.resolve(str(folder), said)
    assert model.template() is None
    assert model.first_tokens() == [2]  # transformers does not ask `add_bos_token` of most classes
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"tokenizer_class": "LlamaTokenizer"}))
    assert library.resolve(str(folder), said).first_tokens() == []
    (folder / "chat_template.jinja").write_text("from its own file")
    template = model.template()
    assert template is not None
    assert template.render([]) == "from its own file"


def test_a_hugging_face_folder_is_imported_once(
    library: Library, tmp_path: Path, said: Any, converted: list[str]
) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    write_beside(folder)
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    data = len(header).to_bytes(8, "little") + header + np.ones(2, np.float32).tobytes()
    (folder / "model.safetensors").write_bytes(data)
    model = library.resolve(str(folder), said)
    assert model.name.startswith("hf-")
    check_beside(model)
    assert library.resolve(str(folder), said) == model
    assert converted == ["qwen3"]


def test_an_openvino_repository_stays_in_the_cache(
    library: Library, hub: Any, said: Any, tmp_path: Path
) -> None:
    folder = write_openvino(tmp_path / "ov")
    hub.repositories["o/m-ov"] = {path.name: path.read_bytes() for path in folder.iterdir()}
    model = library.resolve("hf:o/m-ov", said)
    assert model.name == "o--m-ov"
    check_beside(model)
    assert [path.name for path in (library.models / model.name).iterdir()] == ["model.toml"]
    hub.asked.clear()
    assert library.resolve("hf:o/m-ov", said) == model
    assert hub.asked == []
    shutil.rmtree(tmp_path / "hub cache")
    assert library.find(model.name) is None


def test_a_gguf_of_the_hub_must_be_the_one_of_the_catalogue(
    library: Library,
    hub: Any,
    said: Any,
    tmp_path: Path,
    make_gguf: Any,
    converted: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = make_gguf(tmp_path / "m.gguf")
    entry_for(path, monkeypatch, said, sources=(Source.parse("hf:o/m:m.gguf"),))
    hub.repositories["o/m"] = {"m.gguf": path.read_bytes()[:-1] + b"x"}
    with pytest.raises(DigestMismatch, match="is not the expected file"):
        library.resolve("tiny", said)
    assert library.all() == []
    shutil.rmtree(tmp_path / "hub cache")
    hub.repositories["o/m"] = {"m.gguf": path.read_bytes()}
    model = library.resolve("hf:o/m:m.gguf", said)
    assert (model.name, model.draft) == ("tiny", "small")
    assert model.manifest.source.startswith("hf:o/m@0123456789")


def test_trying_the_next_source_is_reported(
    library: Library,
    hub: Any,
    said: Any,
    tmp_path: Path,
    make_gguf: Any,
    converted: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = make_gguf(tmp_path / "m.gguf")
    sources = (Source.parse("hf:o/gone"), Source.parse("hf:o/m"))
    entry_for(path, monkeypatch, said, sources=sources)
    with pytest.raises(NetworkError) as caught:
        library.resolve("tiny", said)
    assert "All 2 sources failed" in caught.value.message
    assert "\n  hf:o/gone: Unknown repository `o/gone`" in caught.value.message
    assert "\n  hf:o/m: " in caught.value.message
    hub.repositories["o/m"] = {"m.gguf": path.read_bytes()}
    said.lines.clear()
    assert library.resolve("tiny", said).name == "tiny"
    line, disk = said.lines
    assert line.endswith("trying the next source")
    assert disk.startswith("`tiny` takes up to 0.0 GB of disk")


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        (
            "smollm2-136m",
            "Unknown model `smollm2-136m`",
            "Did you mean `smollm2-135m`, `smollm2-360m`",
        ),
        ("o/m", "No such file or folder: `o/m`", "Did you mean `hf:o/m`?"),
        ("./none.gguf", "No such file or folder: `none.gguf`", "Check the path"),
        ("..", "`..` has no .safetensors files", "Give the folder of a model"),
    ],
)
def test_unknown_names(
    library: Library,
    said: Any,
    name: str,
    message: str,
    hint: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    with pytest.raises(LocalspecError) as caught:
        library.resolve(name, said)
    assert caught.value.message == message
    assert str(caught.value.hint).startswith(hint)


def test_names_cannot_leave_the_library(library: Library) -> None:
    (library.home / "secret").mkdir(parents=True)
    assert [library.find(name) for name in ("../secret", "..", ".", "", "/etc")] == [None] * 5


def test_remove(library: Library, tmp_path: Path, make_gguf: Any, said: Any, converted: list[str]) -> None:
    path = make_gguf(tmp_path / "a.gguf")
    model = library.resolve(str(path), said)
    library.remove(model.name, said)
    assert library.all() == []
    assert leftovers(library) == []
    assert path.is_file()
    with pytest.raises(UnknownModel, match="is not in the library"):
        library.remove(model.name, said)


def test_home_can_be_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    assert home() == tmp_path
    monkeypatch.delenv("LOCALSPEC_HOME")
    assert home().name == "localspec"
