"""A task's totals: as the JSON object of `--json`, and as the line of `--stats`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from localspec.cli.answers import acceptance_rate, format_counts

if TYPE_CHECKING:
    from localspec.runtime.generation import Runtime


def summary(runtime: Runtime, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the outcome and the totals of a task's transcript `lines`; times are in seconds."""
    answers = [line for line in lines if line["event"] == "answer"]
    results = [line for line in lines if line["event"] == "result"]
    tokens, drafted, accepted = (total(answers, key) for key in ("tokens", "drafted", "accepted"))
    return {
        "answer": lines[-1].get("text", ""),
        "finish_reason": lines[-1].get("reason", "interrupted"),
        "steps": len(answers),
        "calls": len(results),
        "failed_calls": total(results, "failed"),
        "tokens": tokens,
        "seconds": round(total(answers, "seconds"), 4),
        "prompt_seconds": round(total(answers, "prompt_seconds"), 4),
        "tool_seconds": round(total(results, "seconds"), 4),
        "speculation": {
            "drafter": str(runtime.draft_spec),
            "drafted": drafted,
            "accepted": accepted,
            "acceptance_rate": acceptance_rate(drafted, accepted),
            "tokens_per_pass": round(tokens / max(tokens - accepted, 1), 3),
        },
        "model": runtime.model.name,
        "engine": str(runtime.resolution.target.spec),
        "transcript": lines,
    }


def total(lines: list[dict[str, Any]], key: str) -> Any:
    """Return the sum of a value over lines."""
    return sum(line[key] for line in lines)


def format_stats_line(values: dict[str, Any]) -> str:
    """Return the line that `--stats` prints."""
    speculation = values["speculation"]
    prefill, decode = values["prompt_seconds"], values["seconds"] - values["prompt_seconds"]
    counts = format_counts(speculation["drafted"], speculation["accepted"], speculation["tokens_per_pass"])
    return " | ".join(
        [
            f"{values['steps']} answers, {values['calls']} calls ({values['failed_calls']} failed)",
            f"prompts in {prefill:.1f} s, {values['tokens']} tokens in {decode:.1f} s",
            f"{speculation['drafter']}: {counts}",
            f"tools took {values['tool_seconds']:.1f} s",
        ]
    )
