"""Observed runs that are served again: their requests, how they drafted, and the simulator that replays both.

A client sees enough of a server that drafts to replay its rounds: how many tokens a round drafts, and in how many
rounds each answer was written. Which tokens of a round were accepted is unknown, and does not matter for seconds:
accepted tokens are spread evenly over the rounds of their answer, and the last round accepts a whole draft, as engines
draft in full to the end.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import numpy as np

from ..base.errors import ArgumentError, check_within, counted
from ..base.terminal import held_interrupts
from ..runs.observed import (
    SINCE_START,
    ObservedAcceptance,
    ObservedMeta,
    ObservedRequest,
    ObservedRun,
    read_run,
)
from ..runs.serving import ServingLog
from ..sim.cost.base import CostModel
from ..sim.cost.files import FileCost
from ..sim.replay_tables import ReplayTables
from ..traces.meta import ModelInfo
from ..traces.recording import Recording
from ..traces.rounds.recording import RoundsRecording
from ..traces.rounds.rounds import TARGET_ALONE, DrafterInfo, Rounds, RoundsMeta, RoundsRequest
from ..traces.workloads.arrival import Arrival, WorkloadAbout
from .options import ServingOptions
from .serving import ServingSetting, Watched, check_policy, serving_run, serving_setting
from .setting import NamedPolicy, named_policy

PLAIN: Final = "plain"
OBSERVED: Final = "observed"
DRAFTER, TARGET = "draft", "target"  # members of a run that drafts
MOST_DRAFTED = 64  # tokens a round
_ODD_SHARE = 0.02  # difference of counts that should be equal: a server counts while its counters are read
_JOINED_SHARE = (
    0.1  # share of rounds that may share a chunk with another: a token need not end a character, or a network packet
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRequests:
    """The requests of an observed run that can be served again; implements `Workload`."""

    name: str  # of the run
    requests: tuple[ObservedRequest, ...]  # that finished, by the time at which they were sent
    left_out: int  # failed and unfinished ones, and those without a token
    tagged: bool = False  # whether each has its own tag, which identifies its rounds

    @property
    def about(self) -> WorkloadAbout:
        notes = (
            (f"{counted(self.left_out, 'observed request')} did not finish, or had no text: not replayed",)
            if self.left_out
            else ()
        )
        count = len(self.requests)
        return WorkloadAbout(
            name=self.name,
            files=(),
            format=OBSERVED,
            unit_tokens=0,
            num_requests=count,
            notes=notes,
            num_arrivals=count,
        )

    def __iter__(self) -> Iterator[Arrival]:
        began_ps = self.requests[0].sent_at_ps
        for one in self.requests:
            tag = one.request_id if self.tagged else ""
            yield Arrival(one.request_id, one.sent_at_ps - began_ps, *_tokens_of(one), tag=tag)

    def rows_of(self, other: ServingLog) -> Sequence[int]:
        """Rows of a serving log for these requests, in their order."""
        rows = {name: row for row, name in enumerate(other.requests["request_id"].tolist())}
        return [rows[one.request_id] for one in self.requests]


def _tokens_of(one: ObservedRequest) -> tuple[int, int]:
    assert one.prompt_tokens is not None
    assert one.output_tokens is not None
    return one.prompt_tokens, one.output_tokens


def replayed_requests(run: ObservedRun, name: str) -> ReplayedRequests:
    """Those that can be served again; raises ArgumentError for one whose tokens were not counted, or without any."""
    finished = run.finished
    for one in finished:
        for field in ("prompt_tokens", "output_tokens"):
            if getattr(one, field) is None:
                raise ArgumentError(
                    f"{name}: request {one.request_id}: {field} must be known to be replayed, the server told none; "
                    "observe with --usage or --count-tokens"
                )
    kept = tuple(one for one in finished if one.output_tokens and one.outputs_at_ps)
    if not kept:
        raise ArgumentError(f"{name}: must hold a request that finished with a token, has none")
    return ReplayedRequests(name=name, requests=kept, left_out=len(run.requests) - len(kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """How a server drafted in a run, for R requests."""

    tokens: int = 0  # drafted a round; 0: none
    rounds: tuple[int, ...] = ()  # `[R]` of each request, after its first token
    told_by: str = ""  # where the rounds of each request were read, in words; "" without drafts

    @property
    def policy(self) -> str:
        """The policy that drafts so, as the name of a chain."""
        return f"{DRAFTER}:{self.tokens}/{TARGET}" if self.tokens else PLAIN


def drafts_of(requests: ReplayedRequests, meta: ObservedMeta, stated: int | None) -> Drafts:
    """How a run drafted; `stated` is the number of tokens a round drafts, if the user gave it.

    Raises ArgumentError for unknown lengths of drafts, different ones, or an unknown number of rounds.
    """
    told, name = meta.acceptance, requests.name
    if not has_drafted(told, stated):
        return Drafts()
    tokens = _drafted_a_round(meta, name, stated, len(requests.requests))
    lengths = [(one.output_tokens or 0) - 1 for one in requests.requests]
    rounds, told_by = _rounds_of(requests, meta, lengths, tokens)
    kept = [min(max(count, -(-length // (tokens + 1))), length) for count, length in zip(rounds, lengths, strict=True)]
    return Drafts(tokens=tokens, rounds=tuple(kept), told_by=told_by)


def has_drafted(told: ObservedAcceptance | None, stated: int | None) -> bool:
    """Whether a server drafted, as it told, or the user stated."""
    return stated is not None or (
        told is not None and bool(told.drafts or told.drafted or (told.accept_length or 1.0) > 1.0)
    )


def _of_one_length(told: ObservedAcceptance | None, tokens: int, num_answers: int) -> bool:
    """Whether drafts have this many tokens, except one for each answer, which may have none."""
    assert told is not None
    assert told.drafts is not None
    assert told.drafted is not None
    whole = tokens * told.drafts
    return whole - tokens * num_answers <= told.drafted * (1 + _ODD_SHARE) and told.drafted <= whole * (1 + _ODD_SHARE)


def _drafted_a_round(meta: ObservedMeta, name: str, stated: int | None, num_answers: int) -> int:
    """Tokens of a whole draft: the last one of an answer may have been cut at its end."""
    told = meta.acceptance
    mean = None if told is None or not told.drafts or told.drafted is None else told.drafted / told.drafts
    found = stated if stated is not None else None if mean is None else round(mean)
    if found is None:
        raise ArgumentError(
            f"{name}: the server does not tell how many tokens it drafts a round; say it, as in {name}=3 for K = 3"
        )
    if mean is not None and not _of_one_length(told, found, num_answers):
        said = f"{stated} were stated" if stated is not None else "a calibration needs drafts of one length"
        raise ArgumentError(f"{name}: the server drafted {mean:.3g} tokens a round, {said}")
    check_within(f"{name}: drafted tokens a round", found, f"[1, {MOST_DRAFTED}]")
    return found


def _rounds_of(
    requests: ReplayedRequests, meta: ObservedMeta, lengths: Sequence[int], tokens: int
) -> tuple[list[int], str]:
    """(rounds of each request, where they were read); `lengths` are tokens after the first one."""
    told, kept = meta.acceptance, requests.requests
    if all(one.accepted is not None for one in kept):
        answers = [length - (one.accepted or 0) for one, length in zip(kept, lengths, strict=True)]
        return answers, "its answers tell"
    chunks = [len(one.outputs_at_ps) - 1 for one in kept]
    mean = None if told is None or told.source == SINCE_START else told.accept_length
    if mean is None and told is not None and told.drafts and told.accepted is not None:
        mean = 1 + told.accepted / told.drafts
    by_chunks = sum(lengths) / max(1, sum(chunks))
    if mean is None and 1.0 < by_chunks <= tokens + 1:
        return chunks, "a chunk is taken for a round: the server tells nothing of the run's rounds"
    if mean is None:
        raise ArgumentError(
            f"{requests.name}: the server does not tell how many drafted tokens stayed, and its chunks hold "
            f"{by_chunks:.3g} tokens each; observe it with its /metrics page"
        )
    # An answer's last round may accept tokens that its length cuts off: up to a draft for each answer.
    cut = tokens * len(kept) / max(1, sum(chunks))
    near = by_chunks <= mean * (1 + _JOINED_SHARE) and mean <= by_chunks * (1 + _ODD_SHARE) + cut
    if near and by_chunks <= tokens + 1:
        return chunks, "a chunk of its stream is a round"
    return [round(length / mean) for length in lengths], f"{mean:.3g} tokens a round in the mean, not by answer"


def recording_of(requests: ReplayedRequests, drafts: Drafts) -> RoundsRecording:
    """A recording with the rounds of each request, tagged with its id; shapes take no memory."""
    info = DrafterInfo(name=DRAFTER, by_start=True, window=max(1, drafts.tokens), prefilled=True)
    shape = {"parameters": 1, "layers": 1, "hidden_size": 1, "kv_bytes_per_token": 1, "dtype": "float32"}
    models = tuple(ModelInfo(name=name, **shape) for name in (DRAFTER, TARGET))  # type: ignore[arg-type]
    meta = RoundsMeta(name=requests.name, source=OBSERVED, drafters=(info,), target=TARGET, models=models)
    counts = drafts.rounds or (0,) * len(requests.requests)
    return RoundsRecording(
        meta=meta,
        requests=tuple(
            _recorded(one, count, drafts.tokens) for one, count in zip(requests.requests, counts, strict=True)
        ),
    )


def _recorded(one: ObservedRequest, num_rounds: int, drafted: int) -> RoundsRequest:
    prompt, output = _tokens_of(one)
    rounds: dict[str, Rounds] = {}
    if num_rounds:
        accepted = _spread(output - 1 - num_rounds, num_rounds, drafted)
        start = 1 + np.concatenate([[0], np.cumsum(accepted + 1)[:-1]])
        rounds[DRAFTER] = Rounds(
            start=start.astype(np.int32),
            accepted=accepted.astype(np.int32),
            drafted=np.full(num_rounds, drafted, np.int32),
        )
    return RoundsRequest(
        request_id=one.request_id,
        tag=one.request_id,
        prompt_tokens=prompt,
        num_tokens={DRAFTER if rounds else TARGET_ALONE: output},
        rounds=rounds,
    )


def _spread(accepted: int, num_rounds: int, drafted: int) -> np.ndarray:
    """`[R]` accepted tokens of each round, `accepted` in all: evenly, except the last."""
    last = min(drafted, accepted)
    rest = accepted - last
    counts = np.diff(np.arange(num_rounds) * rest // max(1, num_rounds - 1)) if num_rounds > 1 else np.empty(0, int)
    return np.append(counts, last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayer:
    """Serves observed requests on a cluster, at any seconds."""

    setting: ServingSetting
    policy: NamedPolicy | None  # None: every replica has its own
    tables: ReplayTables
    seed: int  # of all random draws

    @property
    def target(self) -> str:
        """The target's name."""
        return self.setting.recording.about.target

    @property
    def has_rounds(self) -> bool:
        """Whether each request has its own rounds in the recording, by its tag."""
        return self.setting.recording.about.source == OBSERVED

    @property
    def cost_names(self) -> str:
        """The costs of all replicas, as shown."""
        return ", ".join(dict.fromkeys(replica.cost_name for replica in self.setting.cluster.replicas))

    def priced(self, cost: CostModel) -> "Replayer":
        """The same with another cost for all replicas."""
        setting = self.setting.with_replicas(lambda replica: replace(replica, cost=cost, cost_name=cost.name))
        return replace(self, setting=setting)

    def served(self, requests: ReplayedRequests) -> ServingLog:
        """One run; raises ValueError and CostRangeError as `simulate`, KeyboardInterrupt if it is interrupted."""
        with held_interrupts() as interrupts:
            watched = Watched(interrupts=interrupts, on_ended=lambda: None)
            setting = replace(self.setting, workload=requests.name)
            log, _ = serving_run(
                setting, self.policy, requests, self.tables, rate=None, seed=self.seed, watched=watched
            )
            if interrupts.heard():
                raise KeyboardInterrupt
        return log


def replayer(
    cluster: str | Path,
    policy: str | None,
    recording: Recording | str | Path | None,
    *,
    cost: str | None,
    seed: int,
    is_fitted: bool = False,
) -> Replayer:
    """A cluster to serve on; arguments and errors are those of `simulate`.

    Without a policy replicas that have none of their own are plain. With `is_fitted` their seconds are still to be
    fitted, and the cluster's costs are not used.
    """
    unknown = FileCost("what is fitted", {}) if is_fitted else None
    setting = serving_setting(recording, "observed", cluster, ServingOptions(cost=cost, seed=seed), cost=unknown)
    return replayer_of(setting, policy)


def replayer_of(setting: ServingSetting, policy: str | None) -> Replayer:
    """The cluster of a setting, at its seed; as `replayer`, whatever workload the setting has."""
    seed = setting.replay.seed
    own = all(replica.policy is not None for replica in setting.cluster.replicas)
    asked = PLAIN if policy is None and not own else policy
    named, tables = None if asked is None else named_policy(asked), setting.tables(seed)
    check_policy(setting, named, tables)
    return Replayer(setting=setting, policy=named, tables=tables, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayable:
    """A run, its replayed requests, and how it drafted."""

    run: ObservedRun
    requests: ReplayedRequests
    drafts: Drafts

    @property
    def name(self) -> str:
        """The run's name."""
        return self.requests.name

    def replayer(self, cluster: str | Path, cost: str | None, seed: int, *, is_fitted: bool = False) -> Replayer:
        """A cluster that drafts as the run did; raises as `replayer`, and for a policy of the cluster's own."""
        recording = recording_of(self.requests, self.drafts)
        found = replayer(cluster, None, recording, cost=cost, seed=seed, is_fitted=is_fitted)
        if found.policy is None or any(one.policy is not None for one in found.setting.cluster.replicas):
            raise ArgumentError(
                f"`cluster` must have no policy where runs say how they drafted ({self.name}: {self.drafts.policy})"
            )
        return replayer_of(found.setting, self.drafts.policy)


Asked = str | Path  # a run, or RUN=K with the number of tokens a round drafts


def replayable(asked: Asked, *, with_rounds: bool = True) -> Replayable:
    """A run by its name, with how it drafted; without rounds it counts as plain.

    Raises ValueError, one line, for no valid run, or one that lacks what its replay needs.
    """
    path, stated = named_run(asked)
    if stated is not None and not with_rounds:
        raise ArgumentError(f"RUN=K must be RUN alone where its own rounds are not replayed, got {str(asked)!r}")
    run, name = read_run(path), str(path)
    requests = replayed_requests(run, name)
    drafts = drafts_of(requests, run.meta, stated) if with_rounds else Drafts()
    return Replayable(run=run, requests=replace(requests, tagged=True), drafts=drafts)


def named_run(asked: Asked) -> tuple[Path, int | None]:
    """(the run, tokens that a round of it drafts if that is stated); raises ArgumentError for no number."""
    before, equals, after = str(asked).rpartition("=")
    if not equals or Path(asked).exists():
        return Path(asked), None
    if not (after.isascii() and after.isdigit() and 1 <= int(after) <= MOST_DRAFTED):
        raise ArgumentError(
            f"RUN=K must end with the tokens that a round drafts, in [1, {MOST_DRAFTED}], got {str(asked)!r}"
        )
    return Path(before), int(after)


_SAME: Final = ("model", "drafter")


def check_same_server(runs: Sequence[Replayable]) -> None:
    """Raise ArgumentError, which names two of them, for runs of different servers, models or drafters.

    A server is the machine of its address: another port is the same server, since one may run with a drafter and one
    without. Unknown fields are not compared.
    """
    for field in ("server", *_SAME):
        told = [(run.name, value) for run in runs if (value := _told(run, field))]
        for name, value in told[1:]:
            if value != told[0][1]:
                raise ArgumentError(
                    f"`calibrate` must have runs of one {field}: {told[0][0]} is of {told[0][1]}, {name} of {value}"
                )


def _told(run: Replayable, field: str) -> str:
    meta = run.run.meta
    if field == "server":
        return urlsplit(meta.url).hostname or "" if "://" in meta.url else ""
    value = str(getattr(meta, field))
    return "" if value == "unknown" else value


def is_priced(replays: Replayer) -> bool:
    """Whether the seconds of all replicas are from a FILE.json, and so independent of shapes."""
    return all(isinstance(replica.cost, FileCost) for replica in replays.setting.cluster.replicas)
