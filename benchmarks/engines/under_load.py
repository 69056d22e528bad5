"""Throughput by draft length under load, as a server had it and as the simulator has it from a device's name alone.

The rows (`under_load.csv`) are of Apertus 1.5 8B with an EAGLE-3 head on one GH200 under vLLM 0.23 (k-grid-opb of
github.com/swiss-ai/apertus-speculative-decoding): a closed loop, greedy, prompts of 563 and answers of 481 tokens on
average, one run each, of the target alone the mean of four. Seconds of their steps at up to 64 requests are in the fit;
queues, prompts and all above are not. Acceptance is imported from a line as its server logs it, made of the published
accept lengths. The target is priced as Llama 3.1 8B, whose layers have as many weights. The spread of lengths is not
known: answers are drawn from half to one and a half times their mean.

python -m benchmarks.engines.under_load [--concurrency N ...] [--write] (--write: the table of docs/fidelity.md)
"""

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import paceline
from paceline.traces.importers import ImportOptions, Load, read_recording
from paceline.traces.rounds.recording import RoundsRecording

from ..shared.report import parser_of
from .fidelity import markdown, rewrite

ROWS = Path(__file__).with_suffix(".csv")
BEGIN, END = "<!-- made by benchmarks/engines/under_load.py -->", "<!-- end of load -->"
# Kept at each position of a draft: accept lengths of 1 to 5 and 7 drafted tokens, less those of one token fewer; what
# the last two share falls by the same part twice.
KEPT = (0.855, 0.703, 0.578, 0.455, 0.373, 0.305, 0.249)
PROMPT, ANSWER = 563, (241, 721)
HEAD = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 1,
    "intermediate_size": 14_336, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 131_072, "draft_vocab_size": 131_072, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
SERVER = '[[replicas]]\ndevice = "gh200"\nmax_num_seqs = 256\ntoken_budget = 16384\n'


def line() -> str:
    """A line of the server's log for a thousand drafts."""
    accepted, drafted = round(1000 * sum(KEPT)), 1000 * len(KEPT)
    return (
        f"INFO 10-10 11:19:54 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: {1 + sum(KEPT):.2f}, "
        f"Accepted throughput: 1.00 tokens/s, Drafted throughput: 1.00 tokens/s, Accepted: {accepted} tokens, "
        f"Drafted: {drafted} tokens, Per-position acceptance rate: {', '.join(map(str, KEPT))}, "
        f"Avg Draft acceptance rate: {accepted / drafted:.1%}"
    )


def measured() -> dict[int, tuple[int, dict[int, float]]]:
    """By requests at a time: how many there were, and tokens per second by draft length (0: the target alone)."""
    found: dict[int, tuple[int, dict[int, float]]] = {}
    for row in csv.DictReader(ROWS.read_text(encoding="utf-8").splitlines()):
        _, by_length = found.setdefault(int(row["concurrency"]), (int(row["requests"]), {}))
        by_length[int(row["drafted"])] = float(row["tokens_per_s"])
    return found


def recorded(folder: Path) -> RoundsRecording:
    """The log as a recording, with the shapes of both models."""
    log, head = folder / "vllm.log", folder / "head.json"
    log.write_text(f"{line()}\n", encoding="utf-8")
    head.write_text(json.dumps(HEAD), encoding="utf-8")
    load = Load(requests=400, output_tokens=sum(ANSWER) // 2, prompt_tokens=PROMPT)
    options = ImportOptions(load=load, names={"drafter": "eagle"})
    return read_recording("vllm-log", [log], options).with_shapes(["target=llama-3.1-8b", f"eagle={head}"])


def simulated(
    recording: RoundsRecording, cluster: Path, concurrency: int, requests: int, lengths: Iterable[int]
) -> dict[int, float]:
    """Tokens per second of a simulated server by draft length."""
    workload = f"closed:concurrency={concurrency},requests={requests},prompt={PROMPT},output={ANSWER[0]}..{ANSWER[1]}"
    policies = {length: f"eagle:{length}/target" if length else "target" for length in lengths}
    found = paceline.compare_under_load(recording, [*policies.values()], workload=workload, cluster=cluster, seeds=1)
    by_policy = {row["policy"]: row["runs"][0]["output_tokens_per_s"] for row in found.to_json()["rows"]}
    return {length: by_policy[policy] for length, policy in policies.items()}


def best(tokens_per_s: Mapping[int, float]) -> int:
    """The draft length of most tokens per second."""
    return max(tokens_per_s, key=tokens_per_s.__getitem__)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--concurrency", type=int, nargs="*")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    truth = measured()
    rows = []
    with TemporaryDirectory() as name:
        recording, cluster = recorded(Path(name)), Path(name) / "server.toml"
        cluster.write_text(SERVER, encoding="utf-8")
        for concurrency in given.concurrency or truth:
            requests, had = truth[concurrency]
            said = simulated(recording, cluster, concurrency, requests, had)
            gains = [f"{had[length] / had[0]:.2f}, {said[length] / said[0]:.2f}" for length in had if length]
            lost = 1 - had[best(said)] / had[best(had)]
            rows.append(
                [
                    f"{concurrency}",
                    f"{had[0]:,.0f}, {said[0]:,.0f}",
                    *gains,
                    f"{best(had)}, {best(said)}",
                    f"{lost:.1%}",
                ]
            )
            print(" | ".join(rows[-1]), flush=True)
    lengths = (length for length in truth[1][1] if length)
    head = ["requests", "plain, tokens/s", *(f"K = {length}" for length in lengths), "best K", "loses"]
    lines = markdown(head, rows)
    print("\n".join(lines))
    if given.write:
        rewrite(BEGIN, END, lines)


if __name__ == "__main__":
    main()
