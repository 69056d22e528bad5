"""Answers of real models under several policies, in turn, with right answers and quality side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DecodedByPolicy(Printed):
    """Runs of the same prompts, one a policy.

    Attributes:
        runs: in the order of the policies; an interrupted one is the last.
    """

    runs: tuple[Decoded, ...]

    def tables(self) -> Sequence[Grid]:
        """A row a policy, and the texts beside the target's own where a policy is lossy."""
        known = [(run, run.summary) for run in self.runs]
        rows = [_cells(run, summary) for run, summary in known if summary is not None]
        if not rows:
            return []
        quality = quality_table([summary for _, summary in known if summary is not None])
        title = f"{counted(self.runs[0].num_requests, 'prompt')}, each policy in turn"
        return [table(rows, title=title), *([] if quality is None else [quality])]

    def lines(self) -> Sequence[str]:
        """Right answers by tag and kinds of failures, a line a policy where anything is known of them."""
        return [f"{run.log.meta['policy']}: {line}" for run in self.runs for line in run.score_lines()]

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/runtime.md): `policies`, of each what one alone has."""
        return {"policies": [run.to_json() for run in self.runs]}

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each output; columns as of one policy, after `policy`."""
        return [{"policy": run.log.meta["policy"], **row} for run in self.runs for row in run.to_dicts()]


def decode_each(
    pool: ModelPool | Path | str | None,
    prompts: Sequence[Prompt],
    policies: PoliciesGiven,
    options: Mapping[str, Any],
    *,
    lossless: bool = False,
    threads: int = 1,
    chat: bool = False,
    devices: Mapping[str, str] | None = None,
    forward: ForwardKind = "auto",
    debug: bool = False,
) -> DecodedByPolicy:
    """Answer the same prompts under each of several policies, with models that are loaded once.

    Args:
        pool: as of `decode`.
        prompts: that each answers.
        policies: two or more, of names of their own.
        options: further keywords of `decode`.
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
    runs: list[Decoded] = []
    for policy in asked:
        runs.append(decode(models, prompts, policy, lossless=lossless, forward=forward, debug=debug, **options))
        if runs[-1].log.meta["interrupted"] or runs[-1].quality_interrupted:
            break
    return DecodedByPolicy(runs=tuple(runs))


def _cells(run: Decoded, summary: Summary) -> dict[str, str]:
    cells = {
        "policy": summary.policy,
        "tokens/s": f"{summary.output_tokens_per_s:,.1f}",
        "target calls /token": f"{summary.target_calls_per_token:.3f}",
        "rejection rate": f"{summary.rejection_rate:.1%}",
    }
    known = [score for score in run.scores.values() if score.right is not None]
    if known:
        cells["right answers"] = f"{sum(bool(score.right) for score in known):,} of {len(known):,}"
    return cells
