"""What is told of an answer: before it, after it, as numbers in words, and as values."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from localspec.cli import console

if TYPE_CHECKING:
    from localspec.chat import Chat
    from localspec.cli.talk.attach import Attached
    from localspec.runtime.generation import Answer, Runtime


def tell(file: Attached, runtime: Runtime) -> None:
    """Say what a file adds to the question."""
    from localspec.cli.talk.screen import printable

    tokens = len(runtime.encode(file.text, raw=False))
    line = f"{printable(str(file.path))}: {len(file.text):,} characters, {tokens:,} tokens"
    console.say(console.paint(line, console.DIM))


def after(answer: Answer, talk: Chat, stats: bool) -> None:
    """Say what is to be said after an answer."""
    runtime = talk.runtime
    if answer.full:
        console.say(f"The answer ends here: the context of {runtime.engine.context} tokens is full")
    if talk.grammar and answer.finish_reason == "length":
        more = "" if answer.full else "; more `--max-tokens` give it room"
        console.say(f"The answer is cut, so it does not fit its schema or grammar{more}")
    if runtime.note:
        console.say(runtime.note)
    if stats:
        console.say(console.paint(in_words(answer, runtime), console.DIM))


def as_values(answer: Answer, runtime: Runtime) -> dict[str, Any]:
    """Return an answer as the JSON object that `--json` prints; times are in seconds."""
    from localspec.runtime.resolution import STANDARD

    stats = answer.stats
    return {
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason,
        "prompt_tokens": answer.prompt_tokens,
        "kept_tokens": answer.kept_tokens,
        "tokens": len(answer.token_ids),
        "seconds": round(answer.seconds, 4),
        "prompt_seconds": round(answer.prompt_seconds, 4),
        "tokens_per_second": round(answer.tokens_per_second, 2),
        "speculation": {
            "drafter": str(runtime.draft_spec),
            "draft_length": str(runtime.draft_length_spec),
            "verifier": str(runtime.verifier_spec),
            "lossless": runtime.lossless,
            "passes": stats.passes,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "tokens_per_pass": round(stats.tokens_per_pass, 3),
            "draft_seconds": round(stats.draft_seconds, 4),
            "target_seconds": round(stats.target_seconds, 4),
            "sources": {
                name or runtime.draft_spec.name: asdict(share) for name, share in stats.sources.items()
            },
            "reason": answer.reason,
        },
        "decoding": str(runtime.decoding_spec or STANDARD),
        "model": runtime.model.name,
        "engine": str(runtime.engine_spec),
        "engine_reason": runtime.engine_reason,
        "tuned": runtime.tuned,
        "device": runtime.engine.device,
    }


def in_words(answer: Answer, runtime: Runtime) -> str:
    """Return the line that `--stats` prints."""
    stats = answer.stats
    why = f"tuned, {runtime.tuned:.2f} times the default" if runtime.tuned else runtime.engine_reason
    kept = f", {answer.kept_tokens} of them from disk," if answer.kept_tokens else ""
    parts = [
        f"{runtime.engine_spec.name} on {runtime.engine.device}: {why}",
        f"prompt {answer.prompt_tokens} tokens{kept} in {answer.prompt_seconds:.2f} s",
        f"answer {len(answer.token_ids)} tokens, {answer.tokens_per_second:.1f} a second",
    ]
    if runtime.decoding_spec:
        parts.append(f"{runtime.decoding_spec}: another text than the model's own")
    if answer.reason is not None:
        parts.append(f"speculation off: {answer.reason}")
    else:
        parts.append(
            f"{runtime.draft_spec} guessed {stats.drafted}, {stats.accepted} stood,"
            f" {stats.tokens_per_pass:.2f} tokens a pass"
        )
        named = ((name, share) for name, share in stats.sources.items() if name)
        parts += [f"{name}: {share.accepted} of {share.drafted} stood" for name, share in named]
    return " | ".join(parts)
