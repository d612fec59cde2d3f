"""An answer's statistics, as a line and as JSON, and notes before and after an answer."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from localspec.cli import console

ONE_ANSWER = 4096  # tokens at most of an answer outside a conversation, unless the user says otherwise

if TYPE_CHECKING:
    from localspec.chat import Chat
    from localspec.cli.talk.attach import File
    from localspec.runtime.answer import Answer
    from localspec.runtime.generation import Runtime


def describe_file(file: File, runtime: Runtime) -> None:
    """Print the name and the size of a file that is attached to a question.

    Raises PromptError for a picture that the model cannot see.
    """
    from localspec.cli.talk.attach import AttachedPicture

    if isinstance(file, AttachedPicture):
        width, height = file.size
        seen = runtime.tokens_of(file.encoded)
        console.say(f"{file.path}: {width:,} x {height:,} pixels, {seen:,} tokens", console.DIM)
        return
    tokens = len(runtime.encode(file.text, raw=False))
    line = f"{file.path}: {len(file.text):,} characters, {tokens:,} tokens"
    console.say(line, console.DIM)


def report(answer: Answer, chat: Chat, stats: bool) -> None:
    """Print notes on an answer, such as a full context, and its `stats` if wanted."""
    from localspec.core.stop import LENGTH, REPEATING

    runtime = chat.runtime
    if answer.context_full:
        console.say(f"The answer ends here: the context of {runtime.engine.context} tokens is full")
    if answer.finish_reason == REPEATING:
        console.say("The answer ends here: it repeats one passage; `--no-loop-guard` lets it go on")
    elif answer.finish_reason == LENGTH and chat.max_tokens == ONE_ANSWER and not answer.context_full:
        console.say(f"The answer ends here: it has {ONE_ANSWER:,} tokens; `--max-tokens` allows more")
    if chat.grammar and answer.finish_reason in (LENGTH, REPEATING):
        hint = "" if answer.context_full else "; raise `--max-tokens`"
        console.say(f"The answer is cut off, so it does not match its schema or grammar{hint}")
    if runtime.drafter.note:
        console.say(runtime.drafter.note)
    if stats:
        console.say(format_stats_line(answer, runtime), console.DIM)


def answer_values(answer: Answer, runtime: Runtime) -> dict[str, Any]:
    """Return an answer as the JSON object that `--json` prints; times are in seconds."""
    from localspec.runtime.choice import STANDARD

    return {
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason,
        "prompt_tokens": answer.prompt_tokens,
        "cached_prompt_tokens": answer.cached_prompt_tokens,
        "tokens": len(answer.token_ids),
        "seconds": round(answer.seconds, 4),
        "prompt_seconds": round(answer.prompt_seconds, 4),
        "tokens_per_second": round(answer.tokens_per_second, 2),
        "speculation": speculation_values(answer, runtime),
        "decoding": str(runtime.decoding_spec or STANDARD),
        **({"sampler": str(runtime.sampler_spec)} if runtime.sampler_spec else {}),
        **({"vision_tokens": runtime.vision_tokens} if runtime.vision_tokens else {}),
        "model": runtime.model.name,
        "engine": str(runtime.resolution.target.spec),
        "engine_reason": runtime.resolution.engine_reason,
        "tuned": runtime.resolution.tuned_speedup,
        "device": runtime.engine.device,
    }


def speculation_values(answer: Answer, runtime: Runtime) -> dict[str, Any]:
    """Return what speculation did for an answer; `off_reason` is null when tokens were drafted."""
    stats = answer.stats
    return {
        "drafter": str(runtime.draft_spec),
        "draft_length": str(runtime.resolution.draft_length),
        "verifier": str(runtime.resolution.verifier),
        "lossless": runtime.lossless,
        "passes": stats.passes,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "acceptance_rate": acceptance_rate(stats.drafted, stats.accepted),
        "tokens_per_pass": round(stats.tokens_per_pass, 3),
        "draft_seconds": round(stats.draft_seconds, 4),
        "target_seconds": round(stats.target_seconds, 4),
        "sources": {
            name or runtime.draft_spec.name: asdict(counts) for name, counts in stats.sources.items()
        },
        "estimated_speedup": answer.estimated_speedup and round(answer.estimated_speedup, 2),
        "expected_gain": {
            name or runtime.draft_spec.name: round(gain, 3) for name, gain in answer.gains.items()
        },
        "off_reason": answer.off_reason,
        **(
            {}
            if runtime.verifier.lossless or runtime.decoding_spec or runtime.sampler_spec
            else {"tiers": tier_values(answer)}
        ),
    }


def tier_values(answer: Answer) -> dict[str, Any]:
    """Return who emitted the tokens of a lossy answer, and the overshoot of an unseen token."""
    tiers = answer.tiers
    shares = {tier: round(share, 4) for tier, share in tiers.shares.items()}
    return {"shares": shares, "overshoot": round(tiers.overshoot_per_token, 4)}


def acceptance_rate(drafted: int, accepted: int) -> float | None:
    """Return the share of drafted tokens that were accepted, None when none were drafted."""
    return round(accepted / drafted, 4) if drafted else None


def format_counts(drafted: int, accepted: int, tokens_per_pass: float) -> str:
    """Return "120 drafted, 96 accepted (80 %), 3.20 tokens per pass"."""
    rate = f" ({accepted / drafted:.0%})".replace("%", " %") if drafted else ""
    return f"{drafted} drafted, {accepted} accepted{rate}, {tokens_per_pass:.2f} tokens per pass"


def format_speed(answer: Answer) -> str:
    """Return "31.4 tokens/s, ~1.7x plain, 80 % of 120 guesses accepted"."""
    stats = answer.stats
    speed = [f"{answer.tokens_per_second:.1f} tokens/s"]
    if answer.estimated_speedup:
        speed.append(f"~{answer.estimated_speedup:.1f}x plain")
    if stats.drafted:
        speed.append(f"{stats.accepted / stats.drafted:.0%} of {stats.drafted} guesses accepted")
    return ", ".join(speed).replace("%", " %")


def format_tiers(answer: Answer) -> str:
    """Return "not the model's own text: 40 % draft, 60 % full, overshoot +0.12 per unseen token"."""
    shares = ", ".join(f"{share:.0%} {tier}" for tier, share in answer.tiers.shares.items())
    overshoot = f"overshoot {answer.tiers.overshoot_per_token:+.2f} per unseen token"
    return f"not the model's own text: {shares.replace('%', ' %')}, {overshoot}"


def format_stats_line(answer: Answer, runtime: Runtime) -> str:
    """Return the line that `--stats` prints: speed and gain first, then prompt, engine and drafts."""
    stats = answer.stats
    cached = f" ({answer.cached_prompt_tokens} cached)" if answer.cached_prompt_tokens else ""
    reason = (
        f"tuned, {runtime.resolution.tuned_speedup:.2f} times the default's speed"
        if runtime.resolution.tuned_speedup
        else runtime.resolution.engine_reason
    )
    parts = [
        format_speed(answer),
        f"{len(answer.token_ids)} tokens",
        f"prompt {answer.prompt_tokens} tokens{cached} in {answer.prompt_seconds:.2f} s",
        f"{runtime.resolution.target.spec.name} on {runtime.engine.device}: {reason}",
    ]
    if runtime.decoding_spec:
        parts.append(f"{runtime.decoding_spec}: lossy, not the model's standard text")
    if runtime.sampler_spec:
        parts.append(
            f"{runtime.sampler_spec}: {stats.passes} passes, {stats.tokens_per_pass:.2f} tokens a pass"
        )
    if answer.tiers.tokens:
        parts.append(format_tiers(answer))
    if runtime.vision_tokens:
        parts.append(f"vision tokens {runtime.vision_tokens}: not the full model's text")
    if answer.off_reason is not None:
        parts.append(f"speculation off: {answer.off_reason}")
    else:
        sources = [
            f"{name} {source.accepted} of {source.drafted}" for name, source in stats.sources.items() if name
        ]
        drafts = f"{runtime.draft_spec}, {stats.tokens_per_pass:.2f} tokens per pass"
        parts.append(f"{drafts}: {', '.join(sources)}" if sources else drafts)
    if answer.gains:
        gains = [f"{name or runtime.draft_spec.name} {gain:+.2f}" for name, gain in answer.gains.items()]
        parts.append(f"expected gain of a first guess, in passes: {', '.join(gains)}")
    return " | ".join(parts)
