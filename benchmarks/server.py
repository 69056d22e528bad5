"""The cost of `paceline serve` over the runtime alone, and whether it withstands many clients and hours.

python benchmarks/server.py [overhead] [clients] [soak] [--pool pico] [--policy draft:3/target] [--turns 5]

overhead: processor seconds per token of the server's process at batch 8, over those of `decode` for the same prompts in
this process; in turns, medians. Clients stream, and their processor time is not counted.
clients: --clients streams at a time for --clients-s seconds; every answer must be complete, or the specified 429.
soak: --soak-clients for --soak-s seconds of mixed traffic (streams, whole answers, clients that leave, bad requests)
with --record; the memory of the server after a tenth, at half and at the end, and what it holds after the last client.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
from paceline.base.files import pool_path
from paceline.runtime.decode import decode
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.prompts import Prompt, read_prompts
from paceline.studies.setting import named_policy
from paceline.traces.meta import Sampling
from paceline_laboratory.findings import Cell, table_cell
from shared.report import parser_of, show

BATCH, TOKENS = 8, 48
DONE = b"data: [DONE]"
GOAL_OVERHEAD, GOAL_GROWTH = 10.0, 5.0  # percent


@dataclass
class Server:
    """A server in a process of its own."""

    process: psutil.Process
    port: int

    def processor_s(self) -> float:
        """Processor seconds of all its threads, since its start."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def memory_mib(self) -> float:
        """Resident memory of the process."""
        return float(self.process.memory_info().rss) / 2**20

    async def ask(self, path: str, body: bytes, *, most_bytes: int | None = None) -> tuple[int, bytes]:
        """(status, body) of a POST; disconnects after `most_bytes` of the answer. Raises OSError."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        with closing(writer):
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            status = int((await reader.readline()).split()[1])
            return status, await (reader.read(most_bytes) if most_bytes else reader.read())

    async def held(self) -> dict[str, float]:
        """The counts of requests and blocks in /metrics."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        with closing(writer):
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            page = (await reader.read()).decode()
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        lines = [line for line in page.splitlines() if line.startswith(names)]
        return {line.partition("{")[0]: float(line.split()[-1]) for line in lines}


@asynccontextmanager
async def serving(pool: str, policy: str, *more: str) -> AsyncIterator[Server]:
    """A server that runs until the end of the block; raises RuntimeError unless it exits cleanly."""
    command = [sys.executable, "-m", "paceline", "serve", "--pool", pool, "--policy", policy, "--port", "0", *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        if "serving" not in line:
            raise RuntimeError(line + process.stderr.read())
        try:
            yield Server(psutil.Process(process.pid), int(line.rsplit(":", 1)[1]))
        finally:
            process.send_signal(signal.SIGTERM)
            said = process.stderr.read()
        if process.wait() != 0:
            raise RuntimeError(said)


def asked(pool: str, text: str, **fields: object) -> bytes:
    whole = {"model": pool, "prompt": text, "max_tokens": TOKENS, "temperature": 0, **fields}
    return json.dumps(whole).encode()


async def overhead(pool: str, policy: str, turns: int) -> list[list[Cell]]:
    """Processor and wall seconds per token of the server and of the runtime."""
    models = ModelPool.load(pool_path(pool), threads=1)
    texts = [prompt.text for prompt in read_prompts(pool_path(pool) / "prompts.jsonl")[: 2 * BATCH]]
    num_tokens = [0]
    served: list[tuple[float, float]] = []
    alone: list[tuple[float, float]] = []

    def run_alone() -> tuple[float, float]:
        processor_s, clock_s = time.process_time(), time.perf_counter()
        outputs, _ = decode(
            models,
            named_policy(policy).build(loaded_pool(models)),
            [Prompt(request_id=str(number), text=text) for number, text in enumerate(texts)],
            sampling=Sampling(mode="greedy"),
            max_new_tokens=TOKENS,
            name=policy,
            batch=BATCH,
        )
        num_tokens[0] = sum(len(output.tokens) for output in outputs)
        return time.process_time() - processor_s, time.perf_counter() - clock_s

    async with serving(pool, policy) as server:

        async def run_served() -> tuple[float, float]:
            processor_s, clock_s = server.processor_s(), time.perf_counter()
            places = asyncio.Semaphore(BATCH)

            async def one(text: str) -> None:
                async with places:
                    status, said = await server.ask("/v1/completions", asked(pool, text, stream=True))
                    assert (status, DONE in said) == (200, True)

            await asyncio.gather(*map(one, texts))
            return server.processor_s() - processor_s, time.perf_counter() - clock_s

        await run_served()
        run_alone()
        for _ in range(turns):
            served.append(await run_served())
            alone.append(run_alone())
    rows, tokens = [], num_tokens[0]
    for name, place in (("processor", 0), ("clock", 1)):
        theirs, ours = (median(one[place] for one in found) for found in (alone, served))
        more = [100 * (one[place] / other[place] - 1) for one, other in zip(served, alone, strict=True)]
        rows.append(
            [
                table_cell("seconds of the", name),
                table_cell("runtime, ms a token", 1e3 * theirs / tokens, digits=3),
                table_cell("served, ms a token", 1e3 * ours / tokens, digits=3),
                table_cell("more, %", median(more), digits=1),
                table_cell("from", min(more), digits=1),
                table_cell("to", max(more), digits=1),
                table_cell("goal, %", GOAL_OVERHEAD, digits=0),
            ]
        )
    return rows


async def clients(pool: str, policy: str, count: int, seconds: float) -> list[list[Cell]]:
    """The outcomes of many streaming clients, and what the server held afterwards."""
    text = read_prompts(pool_path(pool) / "prompts.jsonl")[0].text
    found: Counter[str] = Counter()
    first_s: list[float] = []
    ends_s = 0.0

    async def client(server: Server) -> None:
        while time.monotonic() < ends_s:
            begun_s = time.monotonic()
            try:
                status, said = await server.ask("/v1/completions", asked(pool, text, stream=True, max_tokens=16))
            except (OSError, ValueError, IndexError) as error:
                found[f"failed: {type(error).__name__}"] += 1
                continue
            whole = status != 200 or said.rstrip().rpartition(b"0\r\n")[0].rstrip().endswith(DONE) or DONE in said
            found[str(status) if whole else "cut off"] += 1
            if status == 429:
                first_s.append(time.monotonic() - begun_s)
                await asyncio.sleep(1)  # as in Retry-After

    async with serving(pool, policy) as server:
        ends_s = time.monotonic() + seconds
        await asyncio.gather(*(client(server) for _ in range(count)))
        held = await drained(server)
    refused_s = sorted(first_s)
    return [
        [
            table_cell("clients", count),
            table_cell("seconds", seconds, digits=0),
            table_cell("whole answers", found.pop("200", 0)),
            table_cell("429", found.pop("429", 0)),
            table_cell("a 429 took, s (p99)", refused_s[int(0.99 * len(refused_s))] if refused_s else 0.0, digits=2),
            table_cell("other ends", ", ".join(f"{count} {what}" for what, count in found.items()) or "none"),
            table_cell("held at the end", sum(held.values()), digits=0),
        ]
    ]


async def drained(server: Server) -> dict[str, float]:
    """What the server holds without requests, after a minute at most."""
    for _ in range(60):
        if not any((held := await server.held()).values()):
            break
        await asyncio.sleep(1)
    return held


async def soak(pool: str, policy: str, count: int, seconds: float) -> list[list[Cell]]:
    """Memory of a server under mixed traffic, and what it holds after the last client."""
    texts = [prompt.text for prompt in read_prompts(pool_path(pool) / "prompts.jsonl")]
    chance, found, memory = random.Random(0), Counter[str](), list[tuple[float, float]]()
    begun_s = 0.0

    async def client(server: Server) -> None:
        while time.monotonic() - begun_s < seconds:
            kind, text = chance.choice(("stream", "whole", "leaves", "sampled", "bad")), chance.choice(texts)
            fields: dict[str, object] = {
                "max_tokens": chance.randint(1, TOKENS),
                "stream": kind in ("stream", "leaves"),
            }
            if kind == "sampled":
                fields |= {"temperature": 0.9, "n": 2, "stop": ["."]}
            if kind == "bad":
                fields |= {"max_tokens": 10**6}
            most = chance.randint(1, 4000) if kind == "leaves" else None
            status, _ = await server.ask("/v1/completions", asked(pool, text, **fields), most_bytes=most)
            found[f"{kind} {status}"] += 1

    async def watch(server: Server) -> None:
        while (since_s := time.monotonic() - begun_s) < seconds:
            memory.append((since_s, server.memory_mib()))
            await asyncio.sleep(min(5.0, seconds / 40))

    with tempfile.TemporaryDirectory() as folder:
        more = ["--record", str(Path(folder) / "traffic"), "--record-every", "5"]
        async with serving(pool, policy, *more) as server:
            begun_s = time.monotonic()
            await asyncio.gather(watch(server), *(client(server) for _ in range(count)))
            held = await drained(server)
            memory.append((seconds, server.memory_mib()))
    start, middle = (median(mib for at_s, mib in memory if low <= at_s / seconds <= high) for low, high in SHARES)
    end = median(mib for at_s, mib in memory if at_s >= 0.95 * seconds)
    return [
        [
            table_cell("seconds", seconds, digits=0),
            table_cell("requests", sum(found.values())),
            table_cell("ends", ", ".join(f"{count} {what}" for what, count in sorted(found.items()))),
            table_cell("MiB after a tenth", start, digits=1),
            table_cell("at half", middle, digits=1),
            table_cell("at the end", end, digits=1),
            table_cell("growth, %", 100 * (end / start - 1), digits=1),
            table_cell("goal, %", GOAL_GROWTH, digits=0),
            table_cell("held at the end", sum(held.values()), digits=0),
        ]
    ]


SHARES: Sequence[tuple[float, float]] = ((0.08, 0.12), (0.48, 0.52))  # of the seconds, where memory is read


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument(
        "parts", nargs="*", choices=("overhead", "clients", "soak"), default=["overhead", "clients", "soak"]
    )
    parser.add_argument("--pool", default="pico", help="a shipped pool")
    parser.add_argument("--policy", default="draft:3/target")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--clients-s", type=float, default=60.0)
    parser.add_argument("--soak-clients", type=int, default=2 * BATCH)
    parser.add_argument("--soak-s", type=float, default=600.0)
    options = parser.parse_args()
    load = f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the start"
    if "overhead" in options.parts:
        rows = asyncio.run(overhead(options.pool, options.policy, options.turns))
        show(f"{options.pool}, {options.policy}, batch {BATCH}, medians of {options.turns} turns", rows, load)
    if "clients" in options.parts:
        show(
            "many clients", asyncio.run(clients(options.pool, options.policy, options.clients, options.clients_s)), load
        )
    if "soak" in options.parts:
        show("soak", asyncio.run(soak(options.pool, options.policy, options.soak_clients, options.soak_s)), load)


if __name__ == "__main__":
    main()
