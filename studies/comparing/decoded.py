"""Answers of real models under several policies, in turn, with right answers and quality side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ...arguments import check_least
from ...counted import counted
from ...reports.summary import Summary
from ...reports.tables.grid import Grid, table
from ...reports.tables.printed import Printed
from ...reports.tables.quality import quality_table
from ...runtime.forward.forward_choice import ForwardKind
from ...runtime.pools.loaded_members import loaded_pool
from ...runtime.pools.pool import ModelPool
from ...runtime.prompts import Prompt
from ..decode import Decoded, decode
from ..named_policies import PoliciesGiven, named_policies
from ..pool import load_pool

# Rounds in which each policy answers.
REPEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DecodedByPolicy(Printed):
    """Runs of the same prompts, one a policy.

    Attributes:
        runs: of the first round, in the order of the policies; an interrupted one is the last.
        speeds: tokens/s by round and policy, of whole rounds only; the first is that of `runs`.
        asked_rounds: rounds that there were to be.
    """

    runs: tuple[Decoded, ...]
    speeds: tuple[tuple[float, ...], ...] = ()
    asked_rounds: int = 1

    @property
    def num_rounds(self) -> int:
        """Whole rounds."""
        return len(self.speeds)

    @property
    def is_cut_short(self) -> bool:
        """Whether an interrupt left rounds out."""
        return self.num_rounds < self.asked_rounds

    def tables(self) -> Sequence[Grid]:
        """A row a policy, and the texts beside the target's own where a policy is lossy."""
        known = [(run, run.summary) for run in self.runs]
        speeds = self._speeds()
        rows = [
            _cells(run, summary, speeds[place] if speeds else _once(summary))
            for place, (run, summary) in enumerate(known)
            if summary is not None
        ]
        if not rows:
            return []
        quality = quality_table([summary for _, summary in known if summary is not None])
        rounds = f"; medians of {counted(self.num_rounds, 'round')}" if self.num_rounds > 1 else ""
        title = f"{counted(self.runs[0].num_requests, 'prompt')}, each policy in turn{rounds}"
        return [table(rows, title=title), *([] if quality is None else [quality])]

    def _speeds(self) -> list[dict[str, str]]:
        """Cells of each policy: its median, least and most tokens/s, and its median share of the first's in a round."""
        cells = []
        for place, own in enumerate(zip(*self.speeds, strict=True)):
            shares = [row[place] / row[0] for row in self.speeds if row[0] > 0]
            cells.append(
                {
                    "tokens/s": f"{median(own):,.1f}",
                    "least to most": f"{min(own):,.1f} to {max(own):,.1f}",
                    f"over {self.runs[0].log.meta['policy']}": f"{median(shares):.2f}x" if shares else "-",
                }
            )
        return cells

    def lines(self) -> Sequence[str]:
        """Right answers by tag and kinds of failures, a line a policy where anything is known of them."""
        return [f"{run.log.meta['policy']}: {line}" for run in self.runs for line in run.score_lines()]

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/runtime.md): `policies`, of each what one alone has."""
        return {"policies": [run.to_json() for run in self.runs], "tokens_per_s": [list(row) for row in self.speeds]}

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each output; columns as of one policy, after `policy`."""
        return [{"policy": run.log.meta["policy"], **row} for run in self.runs for row in run.to_dicts()]


def decode_each(
    pool: ModelPool | Path | str | None,
    prompts: Sequence[Prompt],
    policies: PoliciesGiven,
    options: Mapping[str, Any],
    *,
    repeats: int = REPEATS,
    lossless: bool = False,
    threads: int = 1,
    chat: bool = False,
    devices: Mapping[str, str] | None = None,
    forward: ForwardKind = "auto",
    debug: bool = False,
) -> DecodedByPolicy:
    """Answer the same prompts under each of several policies, with models that are loaded once.

    Each policy first answers one prompt, of which nothing is kept. Policies take turns within a round, so that a
    machine that becomes slower does so for all of them.

    Args:
        pool: as of `decode`.
        prompts: that each answers.
        policies: two or more, of names of their own.
        options: further keywords of `decode`.
        repeats: rounds in which each policy answers once, >= 1. Texts and quality are of the first one.
        lossless: refuse policies that may commit other text than the target's, before any has run.
        threads: where the pool is loaded.
        chat: where the pool is loaded.
        devices: where the pool is loaded.
        forward: how models are run.
        debug: check the caches.

    Raises:
        ValueError, PolicyError: as `decode`; of a policy's own arguments before any has run.
    """
    asked = named_policies(policies)
    models = load_pool(pool, threads=threads, devices=devices, debug=debug, forward=forward, chat=chat)
    members = loaded_pool(models)
    for policy in asked:
        policy.admitted(members, lossless=lossless)
    check_least("`repeats`", repeats, 1)
    keywords: dict[str, Any] = {"lossless": lossless, "forward": forward, "debug": debug, **options}
    speed_only = keywords | {"quality": False, "run_tests": False}
    for policy in asked:
        warm = decode(models, prompts, policy, **speed_only | {"limit": 1})
        if warm.log.meta["interrupted"]:
            return DecodedByPolicy(runs=(warm,), asked_rounds=repeats)
    first: list[Decoded] = []
    for policy in asked:
        first.append(decode(models, prompts, policy, **keywords))
        if first[-1].log.meta["interrupted"] or first[-1].quality_interrupted:
            return DecodedByPolicy(runs=tuple(first), asked_rounds=repeats)
    speeds = [_speeds_of(first)]
    while len(speeds) < repeats:
        again: list[Decoded] = []
        for policy in asked:
            again.append(decode(models, prompts, policy, **speed_only))
            if again[-1].log.meta["interrupted"]:
                return DecodedByPolicy(runs=tuple(first), speeds=tuple(speeds), asked_rounds=repeats)
        speeds.append(_speeds_of(again))
    return DecodedByPolicy(runs=tuple(first), speeds=tuple(speeds), asked_rounds=repeats)


def _speeds_of(runs: Sequence[Decoded]) -> tuple[float, ...]:
    """Tokens/s of each; 0 of one that finished no request."""
    return tuple(0.0 if run.summary is None else run.summary.output_tokens_per_s for run in runs)


def _once(summary: Summary) -> dict[str, str]:
    return {"tokens/s": f"{summary.output_tokens_per_s:,.1f}"}


def _cells(run: Decoded, summary: Summary, speeds: Mapping[str, str]) -> dict[str, str]:
    cells = {
        "policy": summary.policy,
        **speeds,
        "target calls /token": f"{summary.target_calls_per_token:.3f}",
        "rejection rate": f"{summary.rejection_rate:.1%}",
    }
    known = [score for score in run.scores.values() if score.right is not None]
    if known:
        cells["right answers"] = f"{sum(bool(score.right) for score in known):,} of {len(known):,}"
    return cells
