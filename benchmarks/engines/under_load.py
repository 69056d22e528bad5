"""Throughput by draft length under load, as servers had it and as the simulator has it from a device's name alone.

The rows (`under_load.csv`) are tokens per second of closed loops, greedy, each of one run (the first server's plain
ones of four). Steps of up to 64 requests are in the fit, on the second server those of humaneval alone; queues and
prompts are not. Acceptance is imported from a line as the server logs it: published shares of drafts kept at each
position, or, of a published accept length, what they are if all positions are alike. The spread of answers is not known
where they ended by themselves: they are drawn from half to one and a half times their mean.

python -m benchmarks.engines.under_load [--server NAME] [--concurrency N ...] [--write] (--write: docs/fidelity.md)
"""

import csv
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import paceline
from paceline.traces.importers import ImportOptions, Load, read_recording
from paceline.traces.rounds.recording import RoundsRecording
from scipy.optimize import brentq

from ..shared.report import parser_of
from .fidelity import markdown, rewrite

ROWS = Path(__file__).with_suffix(".csv")
BEGIN, END = "<!-- made by benchmarks/engines/under_load.py -->", "<!-- end of load -->"


class Text(NamedTuple):
    """Requests of one kind."""

    prompt: int  # tokens, on average
    answer: tuple[int, int]  # least and most tokens
    kept: Sequence[float]  # share of drafts kept at each position


@dataclass(frozen=True, kw_only=True)
class Server:
    """A measured server."""

    told: str  # what it is, in words
    replica: str  # its table of a cluster file
    head: Mapping[str, object] | None  # config of its drafter; None: the preset of an EAGLE-3 head
    texts: Mapping[str, Text]


def alike(accept_length: float, drafted: int) -> list[float]:
    """Shares of drafts kept at each position, where each keeps the same share of what came to it."""
    share = brentq(lambda share: sum(share**place for place in range(1, drafted + 1)) - accept_length + 1, 0.0, 1.0)
    return [share**place for place in range(1, drafted + 1)]


WIDE_HEAD = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 1,
    "intermediate_size": 14_336, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 131_072, "draft_vocab_size": 131_072, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
SERVERS = {
    # k-grid-opb of github.com/swiss-ai/apertus-speculative-decoding. Kept: accept lengths of 1 to 5 and 7 drafts, less
    # those of one fewer; what the last two share falls by the same part twice. The target is priced as Llama 3.1 8B,
    # whose layers have as many weights.
    "gh200": Server(
        told="Apertus 1.5 8B with an EAGLE-3 head on a GH200, vLLM 0.23",
        replica='device = "gh200"\nmax_num_seqs = 256\ntoken_budget = 16384\n',
        head=WIDE_HEAD,
        texts={"open-perfectblend": Text(563, (241, 721), (0.855, 0.703, 0.578, 0.455, 0.373, 0.305, 0.249))},
    ),
    # github.com/manojarulmurugan/SpecDecoding-Study-vLLM-SGLang, phase3_results/runs, repeat 1, prefix caching off.
    "a100": Server(
        told="Llama 3.1 8B with an EAGLE-3 head on an A100 of 80 GB, vLLM 0.24",
        replica='device = "a100-80gb"\nprefix_cache = false\n',
        head=None,
        texts={
            "humaneval": Text(208, (176, 512), alike(4.08, 5)),
            "gsm8k": Text(717, (256, 256), alike(2.88, 5)),
            "rag": Text(711, (256, 256), alike(2.56, 5)),
        },
    ),
}


class Cell(NamedTuple):
    """What a server had at a number of requests at a time."""

    requests: int
    tokens_per_s: Mapping[int, float]  # by draft length; 0 is the target alone


def measured(server: str) -> dict[tuple[str, int], Cell]:
    """By text and requests at a time."""
    found: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    requests = {}
    for row in csv.DictReader(ROWS.read_text(encoding="utf-8").splitlines()):
        if row["server"] == server:
            key = row["text"], int(row["concurrency"])
            found[key][int(row["drafted"])], requests[key] = float(row["tokens_per_s"]), int(row["requests"])
    return {key: Cell(requests[key], by_length) for key, by_length in found.items()}


def line(kept: Sequence[float]) -> str:
    """A line of the server's log for ten thousand drafts."""
    rates = [round(share, 3) for share in kept]
    accepted, drafted = round(10_000 * sum(rates)), 10_000 * len(rates)
    return (
        f"INFO 10-10 11:19:54 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: {1 + sum(rates):.2f}, "
        f"Accepted throughput: 1.00 tokens/s, Drafted throughput: 1.00 tokens/s, Accepted: {accepted} tokens, "
        f"Drafted: {drafted} tokens, Per-position acceptance rate: {', '.join(f'{rate:.3f}' for rate in rates)}, "
        f"Avg Draft acceptance rate: {accepted / drafted:.1%}"
    )


def recorded(folder: Path, server: Server, text: Text) -> RoundsRecording:
    """The log as a recording, with the shapes of both models."""
    log, head = folder / "vllm.log", folder / "head.json"
    log.write_text(f"{line(text.kept)}\n", encoding="utf-8")
    if server.head is not None:
        head.write_text(json.dumps(server.head), encoding="utf-8")
    load = Load(requests=400, output_tokens=sum(text.answer) // 2, prompt_tokens=text.prompt)
    options = ImportOptions(load=load, names={"drafter": "eagle"})
    drafter = "eagle3" if server.head is None else head
    return read_recording("vllm-log", [log], options).with_shapes(["target=llama-3.1-8b", f"eagle={drafter}"])


def simulated(
    recording: RoundsRecording, cluster: Path, text: Text, concurrency: int, requests: int, lengths: Iterable[int]
) -> dict[int, float]:
    """Tokens per second of a simulated server by draft length."""
    least, most = text.answer
    output = f"{least}..{most}" if most > least else f"{least}"
    workload = f"closed:concurrency={concurrency},requests={requests},prompt={text.prompt},output={output}"
    policies = {length: f"eagle:{length}/target" if length else "target" for length in lengths}
    found = paceline.compare_under_load(recording, [*policies.values()], workload=workload, cluster=cluster, seeds=1)
    by_policy = {row["policy"]: row["runs"][0]["output_tokens_per_s"] for row in found.to_json()["rows"]}
    return {length: by_policy[policy] for length, policy in policies.items()}


def best(tokens_per_s: Mapping[int, float]) -> int:
    """The draft length of most tokens per second."""
    return max(tokens_per_s, key=tokens_per_s.__getitem__)


def table(name: str, asked: Sequence[int] | None) -> list[str]:
    """A server's table: in each cell what it had, and what is simulated."""
    server, truth, rows = SERVERS[name], measured(name), []
    with TemporaryDirectory() as made:
        cluster = Path(made) / "server.toml"
        cluster.write_text(f"[[replicas]]\n{server.replica}", encoding="utf-8")
        for text, kind in server.texts.items():
            recording = recorded(Path(made), server, kind)
            for (of_text, concurrency), (requests, had) in truth.items():
                if of_text != text or concurrency not in (asked or [concurrency]):
                    continue
                said = simulated(recording, cluster, kind, concurrency, requests, had)
                gains = [f"{had[length] / had[0]:.2f}, {said[length] / said[0]:.2f}" for length in had if length]
                lost = 1 - had[best(said)] / had[best(had)]
                cells = [f"{concurrency}", f"{had[0]:,.0f}, {said[0]:,.0f}", *gains, f"{best(had)}, {best(said)}"]
                rows.append([*([text] if len(server.texts) > 1 else []), *cells, f"{lost:.1%}"])
                print(" | ".join(rows[-1]), flush=True)
    lengths = next(iter(truth.values())).tokens_per_s
    head = ["requests", "plain, tokens/s", *(f"K = {length}" for length in lengths if length), "best K", "loses"]
    return [f"**{server.told}**", "", *markdown([*(["text"] if len(server.texts) > 1 else []), *head], rows)]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--server", choices=[*SERVERS], help="by default all")
    parser.add_argument("--concurrency", type=int, nargs="*")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    if given.write and (given.server or given.concurrency):
        parser.error("--write goes with all servers and loads")
    lines = [line for name in ([given.server] if given.server else SERVERS) for line in table(name, given.concurrency)]
    print("\n".join(lines))
    if given.write:
        rewrite(BEGIN, END, lines)


if __name__ == "__main__":
    main()
