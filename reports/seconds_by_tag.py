"""Seconds of each request of a run, and the figures of each tag.

All seconds of a run are divided among its requests, so those of the tags add up to those of the run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..runs.log import RunLog, added_seconds
from .tables import Column, Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class TagShare:
    """One tag's part in a run."""

    requests: int  # of this tag that finished
    output_tokens: int  # tokens they emitted
    duration_s: float  # share of the run's seconds of the requests of this tag, failed ones included, > 0

    @property
    def output_tokens_per_s(self) -> float:
        """Tokens per second spent on this tag; 0 if none of its requests finished."""
        return self.output_tokens / self.duration_s


TagShares = Mapping[str, TagShare]


@dataclass(frozen=True, slots=True, kw_only=True)
class ByTag:
    """Runs of several policies by tag, each at its first seed."""

    baseline: TagShares | None  # the target alone; None if its seconds are unknown
    policies: Mapping[str, TagShares]  # by name, in the order of the comparison; all hold the same tags

    @property
    def tags(self) -> list[str]:
        """In the order of the first policy."""
        return list(next(iter(self.policies.values())))

    def speed_ups(self, policy: str) -> dict[str, float] | None:
        """By tag, against the target alone on the same requests; None if its seconds are unknown."""
        return None if self.baseline is None else tag_speed_ups(self.policies[policy], self.baseline)

    def to_json(self) -> list[dict[str, Any]]:
        """The documented form (docs/compare.md): one object per policy."""
        return [{"policy": policy, "tags": self._tags_to_json(policy)} for policy in self.policies]

    def _tags_to_json(self, policy: str) -> dict[str, Any]:
        speed_ups = self.speed_ups(policy)
        return {
            tag: {
                **asdict(share),
                "output_tokens_per_s": share.output_tokens_per_s,
                "speed_up": None if speed_ups is None else speed_ups[tag],
            }
            for tag, share in self.policies[policy].items()
        }


def tag_shares(log: RunLog) -> dict[str, TagShare]:
    """A run by tag, tags in alphabetical order."""
    tags = log.requests["tag"]
    seconds = request_seconds(log)
    finished = log.requests["failed"] == ""
    shares = {}
    for tag in sorted(set(tags.tolist())):
        here = tags == tag
        shares[tag] = TagShare(
            requests=int((here & finished).sum()),
            output_tokens=int(log.requests["emitted_tokens"][here & finished].sum()),
            duration_s=float(seconds[here].sum()),
        )
    return shares


def tag_speed_ups(shares: TagShares, baseline: TagShares) -> dict[str, float]:
    """By tag, tokens per second over those of the baseline, the target alone under the same scenario.

    Raises ValueError if the runs do not hold the same tags, or the baseline finished no request of one.
    """
    if set(shares) != set(baseline):
        raise ValueError(f"tags must be those of the baseline ({', '.join(baseline)}), got {', '.join(shares)}")
    idle = [tag for tag, share in baseline.items() if not share.output_tokens]
    if idle:
        raise ValueError(f"baseline must have finished a request of every tag, got none of {idle[0]}")
    return {tag: share.output_tokens_per_s / baseline[tag].output_tokens_per_s for tag, share in shares.items()}


def request_seconds(log: RunLog) -> NDArray[np.float64]:
    """`[R]` seconds of a run divided among its requests; they add up to the `duration_s` of its summary.

    The requests of an operation share its seconds evenly, whatever each was fed: in a batch one forward serves all.
    Parts of an `Overlap` that ran at the same time count once (`added_seconds`). The rest of the run, such as deciding,
    is divided in proportion to decided steps. At batch 1 that is the time a request ran.
    """
    steps, ops, requests = log.steps, log.ops, log.requests
    num_requests = len(requests["request_id"])
    ran = steps["op"] >= 0
    op, request = steps["op"][ran], steps["request"][ran]
    rows = np.bincount(op, minlength=len(ops["duration_s"]))
    seconds = np.bincount(request, weights=added_seconds(log)[op] / rows[op], minlength=num_requests)
    rest_s = float(requests["finished_at_s"].max() - requests["arrived_at_s"].min()) - seconds.sum()
    decided = log.decided()
    if not decided.any():  # no decided step, and no time except rounding
        decided = ~decided
    num_steps = np.bincount(steps["request"][decided], minlength=num_requests)
    shared: NDArray[np.float64] = seconds + rest_s * num_steps / num_steps.sum()
    return shared


def tag_table(by_tag: ByTag) -> Grid:
    """One row per policy, one column per tag: the speed-up over the target alone; the best of each tag is bold."""
    figures = {policy: by_tag.speed_ups(policy) for policy in by_tag.policies}
    known = [speed_ups for speed_ups in figures.values() if speed_ups is not None]
    best = {tag: max(row[tag] for row in known) for tag in by_tag.tags} if known else {}
    bold = {
        (row, column)
        for row, speed_ups in enumerate(figures.values())
        if speed_ups is not None
        for column, tag in enumerate(by_tag.tags, start=1)
        if speed_ups[tag] == best[tag]
    }
    return Grid(
        title="speed-up by tag",
        columns=tag_columns(by_tag.tags),
        rows=tuple(
            (policy, *("unknown" if found is None else f"{found[tag]:.2f}x" for tag in by_tag.tags))
            for policy, found in figures.items()
        ),
        remarks=("against the target alone on the same requests, at the first seed",),
        bold=frozenset(bold),
    )


def tag_columns(headings: Sequence[str]) -> tuple[Column, ...]:
    """The columns of a table of policies by tag."""
    return (Column(heading="policy", number=False), *(Column(heading=heading or "no tag") for heading in headings))
