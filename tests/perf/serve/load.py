"""Put load on `localspec serve`, and measure what several clients get.

    python tests/perf/serve/load.py together MODEL [--engine SPEC] [--draft SPEC] [--clients 4] [--repeat 3]
    python tests/perf/serve/load.py against MODEL --url http://127.0.0.1:8080/v1 [--clients 4] [--repeat 3]
    python tests/perf/serve/load.py single MODEL [--repeat 3]   # beside a conversation in this process
    python tests/perf/serve/load.py first MODEL                 # seconds to the first token
    python tests/perf/serve/load.py soak MODEL [--clients 64] [--seconds 360]

`together` compares clients that ask one server at once with the same ones in turn at another, `against` with
the same ones at once at another server of OpenAI's API. Each round has other prompts, one of each kind of
the bench's suites, since drafts copy from earlier answers. Both sides run in turns; ratios are of
medians. A figure is printed only beside texts that are equal to those of one client alone.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from localspec.bench import suites
from localspec.chat import Chat
from localspec.core.sampler import Sampling
from localspec.library import Library, Silent
from localspec.runtime.choice import Choice
from localspec.runtime.generation import Runtime

PROMPTS = [
    "Write a Python function that parses a line of CSV with quotes. Comment each step.",
    "Explain what a hash table is, and how collisions are resolved.",
    "Write a bash script that backs up a folder with rsync and keeps seven copies.",
    "List the planets of the solar system with one fact about each.",
    "Write a Rust struct for a matrix, with addition and multiplication.",
    "Describe step by step how a TCP connection is opened and closed.",
    "Write a SQL query for the three best customers of each month, and explain it.",
    "Give me a recipe for bread with exact amounts.",
]
WORD = re.compile(rb'"content": ?"[^"]')
KINDS = ("code-write", "prose", "math", "tools", "summary", "code-edit")
LONG = Path(__file__).parents[3] / "docs" / "performance.md"
BAD = [
    "{",
    '{"model": 3}',
    json.dumps({"model": "none", "messages": [{"role": "user", "content": "x"}]}),
    json.dumps({"model": "MODEL", "messages": [{"role": "user", "content": "word " * 60_000}]}),
    json.dumps({"model": "MODEL", "messages": [], "sideways": 1}),
]


class Said(NamedTuple):
    """An answer, its tokens, and the seconds until the first of them and until its end."""

    text: str
    tokens: int
    first: float
    seconds: float
    status: int = 200


class Compared(NamedTuple):
    """Tokens per second of both sides in a round, and whether the texts are those of one client alone."""

    first: float
    second: float
    same: bool


def _said(received: bytes, first: float, seconds: float) -> Said:
    """Return the answer in the bytes of a response, as far as it came."""
    status, text, used = int((received.split(maxsplit=2) + [b"0", b"0"])[1]), "", 0
    for line in re.findall(rb"^data: (\{.*\})\s*$", received, re.MULTILINE):
        found = json.loads(line)
        text += "".join(choice["delta"].get("content") or "" for choice in found.get("choices", ()))
        used = (found.get("usage") or {}).get("completion_tokens", used)
    return Said(text, used, first, seconds, status)


class Server:
    """A server of OpenAI's API, and the name that it has for the model."""

    def __init__(self, url: str, model: str) -> None:
        self.place = urlsplit(url)
        self.model = model

    def ask(self, prompt: str, tokens: int, leave_after: int | None = None) -> Said:
        """Return a greedy answer, read as a stream; the client may leave after so many pieces.

        What comes is parsed at its end: this process must not take the server's processor.
        """
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            **{"temperature": 0, "max_tokens": tokens, "stream": True},
            "stream_options": {"include_usage": True},
        }
        text = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {self.place.netloc}\r\nconnection: close\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
        started, first, pieces = perf_counter(), 0.0, list[bytes]()
        with socket.create_connection((self.place.hostname, self.place.port), timeout=600) as to:
            to.sendall(head.encode() + text)
            while piece := to.recv(65536):
                pieces.append(piece)
                if not first and WORD.search(piece):
                    first = perf_counter() - started
                if leave_after is not None and len(pieces) >= leave_after:
                    break
        seconds = perf_counter() - started
        return _said(b"".join(pieces), first, seconds)

    def status(self, body: str) -> int:
        with self._posted(body.replace('"MODEL"', json.dumps(self.model))) as response:
            response.read()
            return int(response.status)

    @contextmanager
    def _posted(self, body: str) -> Iterator[http.client.HTTPResponse]:
        with closing(
            http.client.HTTPConnection(self.place.hostname or "", self.place.port, timeout=600)
        ) as to:
            to.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
            yield to.getresponse()


@contextmanager
def serving(options: argparse.Namespace, *more: str) -> Iterator[tuple[Server, int]]:
    """Start `localspec serve`; yield it and its process id."""
    given = ["--engine", options.engine, "--draft", options.draft, *more]
    command = [sys.executable, "-m", "localspec", "serve", options.model, "--port", "0", *given]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = ""
        while not (found := re.search(r"(http://[\w.:]+)/v1", said)):
            line = process.stderr.readline()
            assert line, said
            said += line
        try:
            yield Server(found[1], options.model), process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()


def at_once(server: Server, prompts: Sequence[str], tokens: int) -> tuple[float, list[Said]]:
    """Return tokens per second of all clients together, and their answers."""
    started = perf_counter()
    with ThreadPoolExecutor(len(prompts)) as pool:
        found = list(pool.map(lambda prompt: server.ask(prompt, tokens), prompts))
    return sum(said.tokens for said in found) / (perf_counter() - started), found


def in_turn(server: Server, prompts: Sequence[str], tokens: int) -> tuple[float, list[Said]]:
    """Return tokens per second of clients one after another, and their answers."""
    started = perf_counter()
    found = [server.ask(prompt, tokens) for prompt in prompts]
    return sum(said.tokens for said in found) / (perf_counter() - started), found


def report(first: list[float], second: list[float], same: bool) -> dict[str, Any]:
    middle = statistics.median(first), statistics.median(second)
    found = {"tokens_per_second": [round(one, 1) for one in middle], "repetitions": len(first)}
    return found | ({"ratio": round(middle[0] / middle[1], 2)} if same else {"texts": "differ"})


def rounds(options: argparse.Namespace) -> Iterator[list[str]]:
    """Yield the prompts of each round, the first of which warms up."""
    kinds = [suites.load(kind) for kind in KINDS]
    prompts = [prompt.turns[0] for several in zip(*kinds, strict=False) for prompt in several]
    for number in range(options.repeat + 1):
        yield prompts[number * options.clients :][: options.clients]


def compared(options: argparse.Namespace, ask: Callable[[list[str]], Compared]) -> dict[str, Any]:
    """Ask both sides the prompts of each round, and report."""
    found = [ask(prompts) for prompts in rounds(options)]
    measured = found[1:]
    speeds = [each.first for each in measured], [each.second for each in measured]
    return report(*speeds, all(each.same for each in found))


def together(options: argparse.Namespace) -> dict[str, Any]:
    several = ("--parallel", str(options.clients))
    with serving(options, *several) as (server, _), serving(options, *several) as (other, _):

        def ask(prompts: list[str]) -> Compared:
            speed, said = at_once(server, prompts, options.tokens)
            turns, alone = in_turn(other, prompts, options.tokens)
            return Compared(speed, turns, texts(said) == texts(alone))

        return compared(options, ask)


def against(options: argparse.Namespace) -> dict[str, Any]:
    other = Server(options.url, options.model)
    with serving(options, "--parallel", str(options.clients)) as (server, _):

        def ask(prompts: list[str]) -> Compared:
            speed, said = at_once(server, prompts, options.tokens)
            theirs, _ = at_once(other, prompts, options.tokens)
            alone = in_turn(server, prompts, options.tokens)[1]
            return Compared(speed, theirs, texts(said) == texts(alone))

        return compared(options, ask)


def single(options: argparse.Namespace) -> dict[str, Any]:
    choice = Choice(engine=options.engine, draft=options.draft)
    runtime = Runtime.load(options.model, choice, Library(), Silent())
    with serving(options) as (server, _):

        def ask(prompts: list[str]) -> Compared:
            speed, said = in_turn(server, prompts, options.tokens)
            told, started, tokens = [], perf_counter(), 0
            for prompt in prompts:
                answer, steps = Chat(runtime, sampling=Sampling(), max_tokens=options.tokens).ask(prompt)
                told.append("".join(step.text for step in steps))
                tokens += len(answer.token_ids)
            return Compared(speed, tokens / (perf_counter() - started), texts(said) == told)

        return compared(options, ask)


def texts(said: Sequence[Said]) -> list[str]:
    return [each.text for each in said]


def first(options: argparse.Namespace) -> dict[str, Any]:
    """Measure first tokens: of a long prompt, of the same prefix again, and beside another's long prompt."""
    text = LONG.read_text("utf-8")
    chunk = 11_000 if options.model.startswith("qwen") else 9_000  # characters, about 4,000 tokens
    found: dict[str, list[float]] = {"uncached": [], "cached": [], "alone": [], "beside": [], "pass": []}
    with serving(options, "--parallel", "2") as (server, _):
        server.ask("Hello.", 4)
        for number in range(options.repeat):
            prompt = f"Version {number}{random.random()}. " + text[number * 3000 :][:chunk]
            found["uncached"].append(server.ask(prompt + " Sum up.", 2).first)
            found["cached"].append(server.ask(prompt + " What is it about?", 2).first)
            found["alone"].append(server.ask(f"{random.random()} is a number. Is it?", 2).first)
            prompt = f"{random.random()} " + text[number * 3000 :][:chunk]
            with ThreadPoolExecutor(1) as pool:
                long = pool.submit(server.ask, prompt, 2)
                sleep(0.2 * statistics.median(found["uncached"]))
                found["beside"].append(server.ask(f"{random.random()} is a number. Is it?", 2).first)
                found["pass"].append(long.result().first / 32)  # chunks of 128 tokens
    middle = {name: statistics.median(values) for name, values in found.items()}
    return {name: round(value, 3) for name, value in middle.items()} | {
        "cached_share": round(middle["cached"] / middle["uncached"], 3),
        "more_passes": round((middle["beside"] - middle["alone"]) / middle["pass"], 1),
    }


def soak(options: argparse.Namespace) -> dict[str, Any]:
    """Let clients ask, leave, send long prompts and bad bodies; count what came, and compare all texts.

    The memory is that after half of the time and at the end: engines keep what they made for each width.
    """
    text, random_ = LONG.read_text("utf-8"), random.Random(0)
    long = [text[at : at + 3000] for at in range(0, 12_000, 3000)]
    counts, memory = Counter[str](), list[int]()
    with serving(options, "--queue", str(options.clients)) as (server, process):
        expected = {prompt: server.ask(prompt, 24).text for prompt in [*PROMPTS, *long]}

        def client(seed: float, until: float) -> None:
            mine = random.Random(seed)
            while perf_counter() < until:
                counts[request(server, mine, expected)] += 1

        for _ in range(2):
            until = perf_counter() + options.seconds / 2
            with ThreadPoolExecutor(options.clients) as pool:
                list(pool.map(lambda seed, until=until: client(seed, until), seeds(random_, options.clients)))
            sleep(12)  # until the server has tidied up
            memory.append(resident(process))
        assert all(server.ask(prompt, 24).text == said for prompt, said in expected.items())
    grown = round(memory[1] / memory[0] - 1, 3)
    return {**counts, "memory_mb": [each // 1024 for each in memory], "grown": grown}


def seeds(random_: random.Random, count: int) -> list[float]:
    return [random_.random() for _ in range(count)]


def request(server: Server, mine: random.Random, expected: dict[str, str]) -> str:
    """Send a request of some kind; return what came of it."""
    kind, prompt = mine.choices(["whole", "leaves", "bad"], [6, 3, 2])[0], mine.choice(list(expected))
    if kind == "bad":
        status = server.status(mine.choice(BAD))
        return "bad bodies refused" if status in (400, 404) else f"bad body: {status}"
    if kind == "leaves":
        server.ask(prompt, 24, leave_after=mine.randint(0, 12))
        return "left"
    said = server.ask(prompt, 24)
    return "equal" if said.text == expected[prompt] else f"other text, status {said.status}"


def resident(process: int) -> int:
    """Return the KiB of memory that a process has."""
    status = Path(f"/proc/{process}/status").read_text("utf-8")
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0])


COMMANDS = {"together": together, "against": against, "single": single, "first": first, "soak": soak}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("model")
    parser.add_argument("--engine", default="openvino")
    parser.add_argument("--draft", default="auto")
    parser.add_argument("--url", default="http://127.0.0.1:8080/v1")
    parser.add_argument("--clients", type=int)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=360)
    options = parser.parse_args()
    options.clients = options.clients or (64 if options.command == "soak" else 4)
    found = COMMANDS[options.command](options)
    sys.stdout.write(json.dumps({"command": options.command, "model": options.model, **found}) + "\n")


if __name__ == "__main__":
    main()
