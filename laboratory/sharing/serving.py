"""One cell: a workload served under a chain, with what its requests have in common shared or not.

Prompts are *read* and answers *written*, often in the same forward: a step of the target takes chunks of prompts beside
the rows that decode. The split of seconds is therefore by the terms of the cost, which is linear: **reading** is
what the tokens of prompts add to forwards, `per_new_token_s` for each one that a member's prefix cache did not hold;
**writing** is all else that forwards take, attention to what caches hold included. Letter: L members.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...reports.serving.metrics import ServingMetrics
from ...runs.serving.log import ServingLog
from ...studies.serving.simulate import simulate
from ...traces.tries.recording import TrieRecording

# Weights over 2.04e12 bytes/s, two operations a parameter over 3.12e14/s, keys and values over 2.04e12 bytes/s: models
# of 1, 3 and 8 billion parameters (Llama 3) on an A100.
COST = {
    "draft": {"intercept_s": 0.00121, "per_new_token_s": 7.9e-6, "per_kv_token_s": 1.61e-8},
    "mid": {"intercept_s": 0.00315, "per_new_token_s": 2.06e-5, "per_kv_token_s": 5.62e-8},
    "target": {"intercept_s": 0.00788, "per_new_token_s": 5.15e-5, "per_kv_token_s": 6.43e-8},
}
KV_BYTES = {"draft": 32_768, "mid": 114_688, "target": 131_072}  # of a token: 16, 28 and 32 layers
BLOCK_TOKENS = 16
AMPLE_BLOCKS = 100_000

PLAIN, TWO, THREE = "plain", "draft:4/target", "draft:3/mid:6/target"
CHAINS = (PLAIN, TWO, THREE)

# Rows of a cluster file's replica.
OFF, CACHE, ATTENTION = "off", "prefix cache", "cache and attention"
SHARINGS = {
    OFF: "prefix_cache = false",
    CACHE: "prefix_cache = true",
    ATTENTION: "prefix_cache = true\nshared_prefix = { groups = true, least_rows = 2 }",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What serves a workload.

    Attributes:
        sharing: a key of `SHARINGS`.
        max_num_seqs: requests in a batch at most.
        blocks: of each member, >= 1.
        uncached: members that keep no prefix cache of their own, whatever `sharing` says.
    """

    sharing: str = CACHE
    max_num_seqs: int = 16
    blocks: int = AMPLE_BLOCKS
    uncached: tuple[str, ...] = ()

    def toml(self) -> str:
        """The cluster file."""
        lines = [
            "[[replicas]]",
            "device = 'a100'",
            f"max_num_seqs = {self.max_num_seqs}",
            "token_budget = 8192",
            f"block_tokens = {BLOCK_TOKENS}",
            f"kv_blocks = {self.blocks}",
            SHARINGS[self.sharing],
            *(f"members.{name} = {{ prefix_cache = false }}" for name in self.uncached),
        ]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What one run came to.

    Attributes:
        duration_s: until the last request ended.
        tokens_per_s: output tokens over that.
        ttft_s, tpot_s: means over requests.
        reading_s, writing_s: by member that ran; see the module.
        hit_shares: by member that ran, of the tokens of prompts.
        acceptance_length: tokens that a verification by the target leaves, its own among them.
        running: requests in the batch, over time.
        preemptions: of all requests.
    """

    duration_s: float
    tokens_per_s: float
    ttft_s: float
    tpot_s: float
    reading_s: Mapping[str, float]
    writing_s: Mapping[str, float]
    hit_shares: Mapping[str, float]
    acceptance_length: float
    running: float
    preemptions: int


def served(workload: str | Path, chain: str, server: Server, *, trace: TrieRecording, seed: int, folder: Path) -> Cell:
    """Serve a workload once, in a folder for its files.

    Args:
        workload: a generator's text, or a file.
        chain: of the replica.
        server: see above.
        trace: that acceptance is drawn from.
        seed: of all that is drawn: with one seed, all chains and servers meet the same requests.
        folder: for cost and cluster.
    """
    cost, cluster = folder / "cost.json", folder / "cluster.toml"
    cost.write_text(json.dumps({member.name: COST.get(member.name, COST["target"]) for member in trace.meta.models}))
    cluster.write_text(server.toml())
    run = simulate(workload, chain, trace, cluster=cluster, cost=str(cost), seed=seed)
    return _cell(run.report.rows[0].runs[0].metrics, run.log)


def _cell(metrics: ServingMetrics, log: ServingLog) -> Cell:
    """Figures of a run in which every request finished."""
    assert metrics.finished == metrics.requests, "a request of an experiment that was not served"
    assert metrics.ttft_s is not None
    assert metrics.tpot_s is not None
    ran = [(level, one) for level, one in enumerate(metrics.members) if one.forwards]
    prompts, cached = log.requests["prompt_tokens"], log.requests["cached_tokens"]
    reading = {one.name: _reading_s(one.name, int((prompts - cached[:, level]).sum())) for level, one in ran}
    return Cell(
        duration_s=metrics.duration_s,
        tokens_per_s=metrics.output_tokens / metrics.duration_s,
        ttft_s=metrics.ttft_s.mean,
        tpot_s=metrics.tpot_s.mean,
        reading_s=reading,
        writing_s={one.name: one.busy_s - reading[one.name] for _, one in ran},
        hit_shares={one.name: one.cached_prompt_share or 0.0 for _, one in ran},
        acceptance_length=metrics.members[-1].acceptance_length or 0.0,
        running=metrics.running_mean or 0.0,
        preemptions=metrics.preemptions,
    )


def _reading_s(member: str, tokens: int) -> float:
    return COST[member]["per_new_token_s"] * tokens
