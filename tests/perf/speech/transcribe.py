"""Time transcription with and without a draft, and beside OpenVINO GenAI.

    python tests/perf/speech/transcribe.py drafts MODEL AUDIO... [--draft auto] [--repeat 6]
    python tests/perf/speech/transcribe.py genai MODEL FOLDER AUDIO... [--repeat 6]

`drafts` transcribes each file in turns, plain and with the draft, in one process, and compares all tokens;
the order changes from round to round. `genai` does so with a WhisperPipeline of FOLDER, the same model
exported by optimum-cli. Medians of the rounds, without the first one.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from localspec.library import Library, Silent
from localspec.speech.audio import blocks
from localspec.speech.loading import load
from localspec.speech.transcriber import Request, SpeechStats, Transcriber
from localspec.speech.types import Segment

LONG = 40  # tokens of a window that has a lot to decode
ALL = 1e6  # seconds for which a draft may pay: it is always loaded


def transcribed(to: Transcriber, file: Path, language: str | None) -> tuple[list[Segment], SpeechStats]:
    found = list(to.transcribe(file, Request(language=language), later=ALL))
    return found, to.stats


def decoding(stats: SpeechStats) -> float:
    """Return the seconds of all but reading the file, its features, its windows and the encoder."""
    return stats.decode_seconds + stats.draft_seconds


def drafts(options: argparse.Namespace) -> dict[str, Any]:
    library = Library()
    ways = {name: load(options.model, name, library, Silent()) for name in ("off", options.draft)}
    taken: dict[tuple[Path, str], list[SpeechStats]] = defaultdict(list)
    for turn in range(options.repeat + 1):
        for file in options.audio:
            said = {}
            for name in list(ways)[:: 1 if turn % 2 else -1]:
                segments, stats = transcribed(ways[name], file, options.language)
                said[name] = [segment.tokens for segment in segments]
                if turn:
                    taken[file, name].append(stats)
            assert said["off"] == said[options.draft], f"{file}: another text with a draft"
    rows, sums = {}, defaultdict[str, float](float)
    for file in options.audio:
        plain, draft = taken[file, "off"], taken[file, options.draft]
        both = {name: statistics.median(map(decoding, each)) for name, each in (("p", plain), ("d", draft))}
        whole = {
            name: statistics.median(s.seconds for s in each) for name, each in (("p", plain), ("d", draft))
        }
        kind = "long" if plain[0].tokens >= LONG * plain[0].windows else "short"
        for name in "pd":
            sums[f"{name} {kind} decode"] += both[name]
            sums[f"{name} {kind} whole"] += whole[name]
        rows[file.name] = {
            "tokens": plain[0].tokens,
            "passes": [plain[0].passes, draft[-1].passes],
            "drafted": sum(each.drafted_windows > 0 for each in draft),
            "decode": round(both["p"] / both["d"], 3) if both["d"] else None,  # nobody speaks
            "whole": round(whole["p"] / whole["d"], 3),
            "seconds": [round(whole["p"], 3), round(whole["d"], 3)],
        }
    return {"files": rows, "speed-up": _speedups(sums), "worst": min(row["whole"] for row in rows.values())}


def _speedups(sums: dict[str, float]) -> dict[str, float]:
    found = {}
    for what in ("decode", "whole"):
        for kinds in (["long"], ["short"], ["long", "short"]):
            plain, draft = (sum(sums.get(f"{name} {kind} {what}", 0.0) for kind in kinds) for name in "pd")
            if draft:
                found[f"{'+'.join(kinds)} {what}"] = round(plain / draft, 3)
    return found


def genai(options: argparse.Namespace) -> dict[str, Any]:
    import openvino_genai

    own = load(options.model, "off", Library(), Silent())
    peer = openvino_genai.WhisperPipeline(str(options.folder), "CPU")
    rows: dict[str, dict[str, list[float]]] = {}
    for turn in range(options.repeat + 1):
        for file in options.audio:
            samples = np.concatenate(list(blocks(file)))
            row = rows.setdefault(file.name, defaultdict(list))
            for name in ("own", "peer")[:: 1 if turn % 2 else -1]:
                started = perf_counter()
                if name == "own":
                    _, stats = transcribed(own, file, options.language)
                    per_token = stats.decode_seconds / max(stats.tokens, 1)
                else:
                    language = f"<|{options.language}|>" if options.language else None
                    extra = {"language": language} if language else {}
                    answer = peer.generate(samples.tolist(), return_timestamps=True, **extra)
                    metrics = answer.perf_metrics
                    count = metrics.get_num_generated_tokens()
                    per_token = metrics.get_tpot().mean / 1000 if count > 1 else float("nan")
                if turn:
                    row[f"{name} seconds"].append(perf_counter() - started)
                    row[f"{name} token"].append(per_token)
    return {
        name: {key: round(statistics.median(value), 4) for key, value in row.items()}
        for name, row in rows.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("drafts", "genai"):
        command = commands.add_parser(name)
        command.add_argument("model")
        if name == "genai":
            command.add_argument("folder", type=Path)
        command.add_argument("audio", type=Path, nargs="+")
        command.add_argument("--draft", default="auto")
        command.add_argument("--language")
        command.add_argument("--repeat", type=int, default=6)
    options = parser.parse_args()
    print(json.dumps({"drafts": drafts, "genai": genai}[options.command](options), indent=1))


if __name__ == "__main__":
    main()
