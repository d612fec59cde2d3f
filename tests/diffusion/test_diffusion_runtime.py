"""Diffusion models as users run them: what is chosen, streamed, counted, and refused."""

from __future__ import annotations

import json
from pathlib import Path

import puzzles
import pytest
import tiny
import tiny_diffusion
from said import Said
from typer.testing import CliRunner

import localspec
from localspec.cli.app import app
from localspec.core.sampler import Sampling
from localspec.errors import BadValue, LocalspecError, UnknownName, UnsupportedModel
from localspec.library import Library, Silent
from localspec.library.importing.add_local import add_local
from localspec.runtime import diffusion
from localspec.runtime.choice import Choice
from localspec.runtime.generation import Runtime


def loaded(library: Library, name: str, progress: Silent | None = None, **choice: str) -> Runtime:
    return Runtime.load(name, Choice(**choice), library, progress or Silent())  # type: ignore[arg-type]


def test_its_engine_and_its_sampler_are_found(library: Library, toy: str) -> None:
    runtime = loaded(library, toy)
    assert str(runtime.resolution.target.spec) == "diffusion"
    assert runtime.resolution.engine_reason == "it is a diffusion language model"
    assert str(runtime.sampler_spec) == "low_confidence"
    assert runtime.lossless
    answer, steps = runtime.answer(runtime.model.encode("12+34="), sampling=Sampling())
    assert len(list(steps)) == 2  # two places of a block, then a block
    assert puzzles.is_right("12+34=", answer.text)
    assert (answer.text, answer.finish_reason) == ("046", "stop")
    assert answer.stats.passes == 10
    assert answer.off_reason == diffusion.UNASKED


def test_an_import_sends_nobody_to_another_engine(library: Library, toy: str) -> None:
    said = Said()
    add_local(library, Path(toy), "brackets", said)
    assert said.lines == []
    assert str(loaded(library, "brackets").resolution.target.spec) == "diffusion"


def test_a_conversation_goes_on_from_the_same_text(library: Library, toy: str) -> None:
    """Prompts that share a beginning, and shorter ones, are read as in a fresh session."""
    runtime = loaded(library, toy)
    for prompt in ("12+34=", "12+35=", "([(", "([(]", "9"):
        tokens = runtime.model.encode(prompt)
        found = [runtime.answer(tokens, sampling=Sampling(), max_tokens=9)]
        found += [loaded(library, toy).answer(tokens, sampling=Sampling(), max_tokens=9)]
        for _, steps in found:
            list(steps)
        assert found[0][0].token_ids == found[1][0].token_ids


def test_a_draft_keeps_the_text_it_says_it_keeps(library: Library, toy: str, small: str) -> None:
    said = Said()
    plain = loaded(library, toy, sampler="left_to_right")
    drafted = loaded(
        library,
        toy,
        said,
        sampler="left_to_right",
        draft=f"diffusion:name={small}",
        draft_length="fixed:tokens=8",
    )
    assert drafted.lossless
    assert not [line for line in said.lines if "changes the text" in line]
    counted = 0
    for prompt in ("12+34=", "99+01=", "([((", "()[]", "5"):
        tokens = plain.model.encode(prompt)
        answers = [each.answer(tokens, sampling=Sampling(), max_tokens=20) for each in (plain, drafted)]
        for _, steps in answers:
            list(steps)
        assert answers[0][0].token_ids == answers[1][0].token_ids
        counted += answers[1][0].stats.accepted
    assert counted > 10


@pytest.mark.parametrize("options", ["", ",order=confidence", ",copies=two"])
def test_a_draft_that_changes_the_text_says_so(library: Library, toy: str, small: str, options: str) -> None:
    said = Said()
    runtime = loaded(library, toy, said, draft=f"diffusion:name={small}{options}")
    assert not runtime.lossless
    assert any("changes the text of `--sampler low_confidence`" in line for line in said.lines)
    answer, steps = runtime.answer(runtime.model.encode("12+34="), sampling=Sampling())
    list(steps)
    assert answer.text


def test_a_diffusion_draft_leaves_an_autoregressive_target_as_it_is(
    library: Library, tmp_path: Path, toy: str
) -> None:
    """It is a drafter like any other there."""
    target = tiny_target(tmp_path, toy)
    plain = loaded(library, str(target), engine="torch:device=cpu", draft="off")
    drafted = loaded(
        library,
        str(target),
        engine="torch:device=cpu",
        draft=f"diffusion:name={toy}",
        draft_length="fixed:tokens=4",
    )
    assert drafted.draft_engine is not None
    assert drafted.lossless
    for prompt in ("12+34=", "([("):
        tokens = plain.model.encode(prompt)
        answers = [each.answer(tokens, sampling=Sampling(), max_tokens=20) for each in (plain, drafted)]
        for _, steps in answers:
            list(steps)
        assert answers[0][0].token_ids == answers[1][0].token_ids
        assert answers[1][0].stats.drafted


def tiny_target(folder: Path, toy: str) -> Path:
    """Write a random Llama with the toy's tokenizer."""
    folder = folder / "target"
    folder.mkdir()
    model = tiny.make("llama", tied=True)
    model.values["token_embd.weight"] = model.values["token_embd.weight"][: len(puzzles.ALPHABET)]
    tiny.write_folder(model, folder, vocab_size=len(puzzles.ALPHABET))
    (folder / "tokenizer.json").write_bytes((Path(toy) / "tokenizer.json").read_bytes())
    return folder


def test_what_does_nothing_for_it_is_refused(library: Library, toy: str, small: str) -> None:
    for choice, message in (
        ({"verifier": "rejection"}, "`--verifier rejection` does nothing"),
        ({"decoding": "contrastive"}, "`--decoding contrastive` does nothing"),
        ({"draft": "ngram"}, "`ngram` drafts token by token"),
        ({"draft": small}, "`hybrid` runs a model of text or head"),
        ({"draft": f"diffusion:name={small}", "draft_length": "heuristic"}, "`--draft-length heuristic`"),
        ({"engine": "diffusion:block=4"}, "was trained with blocks of 8 tokens"),
    ):
        with pytest.raises(BadValue, match=message) as caught:
            loaded(library, toy, **choice)
        assert caught.value.hint


def test_an_engine_that_does_not_run_it_is_refused(library: Library, tmp_path: Path, toy: str) -> None:
    for engine in ("openvino", "torch", "llamacpp"):
        with pytest.raises(UnsupportedModel, match="is a diffusion language model") as caught:
            loaded(library, toy, engine=engine)
        assert "`--engine diffusion`" in str(caught.value.hint)
    other = str(tiny_target(tmp_path, toy))
    with pytest.raises(UnsupportedModel, match="runs diffusion language models"):
        loaded(library, other, engine="diffusion")
    with pytest.raises(BadValue, match="`--sampler` is for diffusion language models"):
        loaded(library, other, engine="torch", sampler="wino")
    with pytest.raises(BadValue, match="runs a model of diffusion, and .* is one of text"):
        loaded(library, toy, draft=f"diffusion:name={other}")


def test_a_sampler_that_the_model_cannot_serve_is_refused(library: Library, tmp_path: Path, toy: str) -> None:
    folder = tiny_diffusion.write(tmp_path / "dream", "dream")
    (folder / "tokenizer.json").write_bytes((Path(toy) / "tokenizer.json").read_bytes())
    for sampler in ("wino", "anchor_revocable"):
        with pytest.raises(UnsupportedModel, match="predicts them one place before"):
            loaded(library, str(folder), sampler=sampler)
    assert loaded(library, str(folder), sampler="adas").sampler_spec
    with pytest.raises(UnknownName, match="Unknown sampler `win`"):
        Choice(sampler="win").check()
    with pytest.raises(BadValue, match="whose text does not see the block"):
        loaded(library, str(folder), draft=f"diffusion:name={toy}")


def test_grammars_and_logprobs_are_refused(library: Library, toy: str) -> None:
    runtime = loaded(library, toy)
    prompt = runtime.model.encode("1")
    with pytest.raises(BadValue, match="follows no grammar"):
        runtime.answer(prompt, sampling=Sampling(), grammar='start: "a"')
    with pytest.raises(BadValue, match="tells no `logprobs`"):
        runtime.answer(prompt, sampling=Sampling(), alternatives=2)


def test_the_context_ends_an_answer(library: Library, tmp_path: Path, toy: str) -> None:
    """The last block is shorter where the context is no multiple of it."""
    folder = tmp_path / "short"
    folder.mkdir()
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        (folder / name).write_bytes((Path(toy) / name).read_bytes())
    about = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(
        json.dumps(about | {"max_position_embeddings": 21, "eos_token_id": 5})
    )
    runtime = loaded(library, str(folder))
    answer, steps = runtime.answer(runtime.model.encode("([(["), sampling=Sampling())
    list(steps)
    assert len(answer.token_ids) == 17
    assert answer.context_full


def test_the_command_line_streams_blocks_and_counts_passes(library: Library, toy: str, small: str) -> None:
    run = CliRunner().invoke
    found = run(app, ["chat", toy, "12+34=", "--raw", "--stats", "--sampler", "adas"])
    assert found.exit_code == 0
    assert found.stdout.strip() == "046"
    assert "adas: " in found.stderr
    assert "passes, " in found.stderr
    values = json.loads(run(app, ["chat", toy, "12+34=", "--raw", "--json"]).stdout)
    assert values["sampler"] == "low_confidence"
    assert values["speculation"]["passes"] == 10
    listed = run(app, ["parts", "samplers"]).stdout
    assert listed.startswith("samplers\n")
    assert "entropy_bounded" in listed
    assert "engines" not in listed
    with pytest.raises(LocalspecError, match="Unknown kind of parts `sampler`"):
        run(app, ["parts", "sampler"], catch_exceptions=False)


def test_seeds_temperatures_and_stops_are_those_of_others(library: Library, toy: str) -> None:
    run = CliRunner().invoke

    def text(*options: str) -> str:
        return str(run(app, ["chat", toy, "(", "--raw", "--max-tokens", "15", *options]).stdout)

    warm = ("--temperature", "2")
    assert text(*warm, "--seed", "1") == text(*warm, "--seed", "1") != text(*warm, "--seed", "2")
    whole = text()
    stop = whole[4:6]
    assert text("--stop", stop).strip() == whole[: whole.index(stop)].strip()


def test_bench_compares_the_text_of_a_draft(library: Library, toy: str, small: str, tmp_path: Path) -> None:
    suite = tmp_path / "sums.jsonl"
    suite.write_text('{"name": "a", "kind": "sums", "turns": ["12+34="]}\n')
    options = ["--sampler", "left_to_right", "--draft", f"diffusion:name={small}", "--suite", str(suite)]
    found = CliRunner().invoke(app, ["bench", toy, *options, "--repeat", "1", "--tokens", "9"])
    assert found.exit_code == 0
    assert "none differs" in found.stdout


def test_from_python(library: Library, toy: str) -> None:
    with localspec.load(toy, sampler="wino") as model:
        assert model.generate("12+34=", raw=True).text == "046"
