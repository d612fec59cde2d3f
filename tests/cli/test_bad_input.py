"""Bad input: the error that the user sees, and no incomplete files."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
from command import MODEL, WITH_FILE_LIMIT, Localspec

LIMIT = ("--max-tokens", "3")


@pytest.fixture(autouse=True)
def nothing_new(localspec: Localspec) -> Iterator[None]:
    """Require that an error adds nothing to the library."""
    before = localspec.names()
    yield
    assert localspec.names() == before


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["chat", "smollm2-135n", "hi"], 1, ["nknown model `smollm2-135n`", "`smollm2-135m`"]),
        (["chat", MODEL, "hi", "--draft", "ngrm"], 2, ["drafter or model `ngrm`", "`ngram`"]),
        (
            ["chat", MODEL, "hi", "--draft-length", "fixd"],
            2,
            ["Unknown draft-length policy `fixd`", "`fixed`"],
        ),
        (["chat", MODEL, "hi", "--verifier", "exakt"], 2, ["Unknown verifier `exakt`", "`exact`"]),
        (["chat", MODEL, "hi", "--engine", "openvin"], 2, ["Unknown engine `openvin`", "`openvino`"]),
        (["chat", MODEL, "hi", "--engine", "openvino:grup=0"], 2, ["`grup`", "`group`"]),
        (["chat", MODEL, "hi", "--engine", "openvino:kv=f31"], 2, ["`f31`", "`f32`"]),
        (["chat", MODEL, "hi", "--draft", "ngram:longest=0"], 2, ["`0`", "from 1 to 64"]),
        (
            ["chat", MODEL, "hi", "--draft", "draft_model"],
            2,
            ["`draft_model` needs `name`", "draft_model:name="],
        ),
        (["chat", MODEL, "hi", "--device", "TPU"], 1, ["Unknown device `TPU`", "`CPU`"]),
        (["chat", MODEL, "hi", "--top-p", "2"], 2, ["`top-p` is 2", "from 0 to 1"]),
        (
            ["chat", MODEL, "hi", "--top-p", "0.5", "--temperature", "0"],
            2,
            ["`--top-p`", "--temperature 0.7"],
        ),
        (["chat", MODEL, "hi", "--temperature", "-1"], 2, ["`temperature` is -1", "from 0 to 100"]),
        (["chat", MODEL, "hi", "--decoding", "contrastiv"], 2, ["Unknown decoding", "`contrastive`"]),
        (["chat", MODEL, "hi", "--decoding", "contrastive:k=0"], 2, ["`0`", "from 1 to 100"]),
        (["chat", MODEL, "hi", "--decoding", "contrastive", "--draft", "ngram"], 2, ["`--draft`"]),
        (["chat", MODEL, "hi", "--decoding", "contrastive", "--temperature", "1"], 2, ["`--temperature`"]),
        (["chat", MODEL, "hi", "--decoding", "contrastive", "--seed", "1"], 2, ["`--seed`"]),
        (["chat", MODEL, "hi", "--decoding", "contrastive", "--engine", "npu"], 2, ["`hidden`", "`npu`"]),
        (["chat", MODEL, "hi", "--draft", "early_exit"], 2, ["needs `layer`"]),
        (["chat", MODEL, "hi", "--draft", "early_exit:layer=30"], 2, ["layer 30", "30 layers", "1 to 29"]),
        (["chat", MODEL, "hi", "--draft", "early_exit:layer=8", "--engine", "npu"], 2, ["`exit`", "`npu`"]),
        (["chat", MODEL, "hi", "--raw", "--system", "x"], 1, ["`--raw`", "`--system`"]),
        (["chat", MODEL, "hi", "--raw", "--think"], 1, ["`--raw`", "`--think`"]),
        (["chat", MODEL, "hi", "--no-think"], 2, ["no switch for thinking", "`--no-think`"]),
        (["chat", "--list", "--continue"], 2, ["`--list` stands alone", "`--continue`"]),
        (["chat", MODEL, "--list"], 2, ["`--list` stands alone", "`MODEL`"]),
        (["chat", MODEL, "hi", "--continue", "--session", "x"], 2, ["`--continue`", "`--session`"]),
        (["chat", MODEL, "hi", "--continue"], 1, ["No conversation to continue"]),
        (["chat", MODEL, "hi", "--session", ""], 2, ["cannot be the name of a conversation"]),
        (["chat", MODEL, "hi", "--json-schema", "no.json"], 2, ["No such file: `no.json`"]),
        (["chat", MODEL, "hi", "--json-schema", "x", "--grammar", "y"], 2, ["`--json-schema`", "exclude"]),
        (["chat", MODEL, "hi", "--file", "no.txt"], 1, ["No such file: `no.txt`"]),
        (["chat", MODEL, "hi", "--file", "/"], 1, ["`/` cannot be read"]),
        (["chat", MODEL, "hi", "--file", "/dev/zero"], 1, ["more than any context holds"]),
        (["chat", MODEL, "hi", "--file", "/dev/null"], 1, ["`/dev/null` is empty"]),
        (["chat", MODEL, "hi", "--stop", ""], 2, ["`stop` is empty"]),
        (["chat", MODEL, ""], 1, ["prompt is empty"]),
        (["chat", MODEL, " \n"], 1, ["prompt is empty"]),
        (["chat", MODEL], 1, ["prompt is empty"]),
        (["chat", "no/such.gguf", "hi"], 1, ["No such file or folder: `no/such.gguf`"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_command_is_refused(
    localspec: Localspec, arguments: list[str], code: int, said: list[str]
) -> None:
    localspec.run(*arguments, *LIMIT).refused(code, *said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["chat", MODEL, "hi", "--max-token", "3"], ["--max-token", "`--max-tokens`"]),
        (["chatt", MODEL, "hi"], ["`chatt`", "`chat`"]),
        (["chat", MODEL, "hi", "--max-tokens", "many"], ["`--max-tokens`"]),
        (["chat", MODEL, "hi", "--max-tokens", "0"], ["`--max-tokens`"]),
        (["chat", MODEL, "hi", "there"], ["there"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_parser_errors_look_like_other_errors(
    localspec: Localspec, arguments: list[str], said: list[str]
) -> None:
    localspec.run(*arguments).refused(2, *said)


def test_a_suggestion_names_each_model_once(localspec: Localspec) -> None:
    found = localspec.run("chat", "smollm2-135n", "hi")
    assert found.err.count("`smollm2-135m`") == 1


def test_the_error_for_a_long_prompt_has_both_lengths(localspec: Localspec) -> None:
    localspec.chat("--raw", *LIMIT, stdin="word " * 9000).refused(1, "has 9001 tokens", "holds 8192")


def test_a_file_that_is_not_gguf(localspec: Localspec, tmp_path: Path) -> None:
    path = tmp_path / "notes.gguf"
    path.write_text("these are notes, not a model")
    localspec.run("chat", str(path), "hi", *LIMIT).refused(1, "`", "is not a GGUF file")


def test_a_truncated_gguf(localspec: Localspec, gguf: Path, tmp_path: Path) -> None:
    path = tmp_path / "half.gguf"
    with gguf.open("rb") as file:
        path.write_bytes(file.read(8 << 20))
    localspec.run("chat", str(path), "hi", *LIMIT).refused(1, "is truncated", "98,362,432", "8,388,608")


def test_an_ir_with_truncated_weights(localspec: Localspec, tmp_path: Path) -> None:
    for file in (localspec.home / "models" / MODEL).iterdir():
        if file.name == "openvino_model.bin":
            (tmp_path / file.name).write_bytes(file.read_bytes()[: 50 << 20])
        elif file.name != "model.toml":
            shutil.copyfile(file, tmp_path / file.name)
    localspec.run("chat", str(tmp_path), "hi", *LIMIT).refused(1, str(tmp_path))


def test_a_draft_with_a_different_vocabulary(localspec: Localspec, tmp_path: Path) -> None:
    draft = tiny.write_gguf(tiny.make("llama", interleaved=True), tmp_path / "tiny.gguf")
    own = Localspec(tmp_path / "home")
    (own.home / "models").mkdir(parents=True)
    (own.home / "models" / MODEL).symlink_to(localspec.home / "models" / MODEL)
    own.chat("hi", "--draft", f"draft_model:name={draft}", *LIMIT).refused(
        1, "Token 0 is `<|endoftext|>`", f"`{MODEL}` and `!` in `tiny-", "`--draft universal:name=tiny-"
    )


def test_no_network(fresh: Localspec) -> None:
    closed = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    fresh.run("chat", "hf:a/b", "hi", *LIMIT, **closed).refused(1, "Cannot connect to `127.0.0.1:9`")
    assert fresh.names() == set()


def test_a_full_disk_during_an_import(fresh: Localspec, gguf: Path) -> None:
    room = (sys.executable, "-c", WITH_FILE_LIMIT, "50000000")
    fresh.run("chat", str(gguf), "hi", *LIMIT, before=room).refused(1, "is full", "`LOCALSPEC_HOME`")
    assert fresh.names() == set()


def test_a_home_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = Localspec(tmp_path / "file" / "home").run("chat", MODEL, "hi", *LIMIT)
    found.refused(1, "file")
