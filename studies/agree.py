"""What `paceline agree` does: run the same policies on a recording and on its models, and compare every step.

The recording is an existing one of the same requests, or one made now, as deep as policies need.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..base.errors import ArgumentError, counted
from ..base.terminal import Progress, quiet, tracked
from ..decoding.legal_steps import Policy
from ..decoding.pool import Pool
from ..decoding.prefix_cache import prefix_cache_size
from ..decoding.seen import Observation, Start, start_of
from ..decoding.steps import Draft, Outcome, Step
from ..policies.about import StepWatch, WatchedPolicy, check_tags
from ..policies.chain_text import default_policies
from ..reports.agreement import agreement_table, difference_text, prefix_line, record_exit_line, total_line
from ..reports.comparison import prefix_words, start_words
from ..reports.tables import Grid, Printed, flat_rows
from ..runs.agreement import Agreement, Drafts, compare_runs, joined
from ..runs.log import RunLog
from ..runtime.ahead import check_has_use
from ..runtime.decode import decode, whole
from ..runtime.forward_kinds import AHEAD_KINDS, AheadKind
from ..runtime.pools.members import loaded_pool
from ..runtime.pools.pool import ModelPool
from ..runtime.prompts import Prompt, first_of, prompts_of
from ..runtime.recording.near_ties import near_ties_along
from ..runtime.recording.recorder import record
from ..runtime.refusals import refuse_oracle
from ..runtime.threads import Memory
from ..sim.contexts import TrieTables
from ..sim.cost.files import CostLine, FileCost
from ..sim.recorded import UnrecordedContextError, UnrecordedTreeError
from ..sim.simulate import Scenario, simulate
from ..traces.contexts.meta import TrieMeta
from ..traces.contexts.on_disk import read_trace
from ..traces.contexts.recording import TrieRecording
from ..traces.contexts.trie import TrieRequest
from ..traces.errors import TraceFormatError
from ..traces.meta import GREEDY, Closure, Sampling, TreeClosure
from .decode import load_pool
from .options import AgreeOptions, ClosureKind, checked, takes
from .record import closure_of
from .setting import NamedPolicy, PoliciesGiven, named_policies

PER_NEW_TOKEN = 2.0**-6


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRun:
    """A replay: its log, the committed tokens by request, and what was drafted."""

    log: RunLog
    tokens: dict[str, list[int]]
    drafts: Drafts


class NotedDrafts(WatchedPolicy):
    """Passes all calls on to a policy, and keeps the ids of each draft, which its next decision finds pending.

    `climbed`: whether a member drafted after tokens that it has not judged, of smaller members.
    """

    def __init__(self, policy: Policy, watch: StepWatch) -> None:
        super().__init__(policy, watch)
        self.climbed = False
        self.drafts: dict[tuple[str, int], tuple[int, ...]] = {}
        self._told = Counter[str]()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - what the policy says of itself, as `about`
        return getattr(self.wrapped, name)

    def decide(self, seen: Observation) -> Step:
        """The policy's step."""
        if seen.last is not None and seen.last.num_drafted:
            pending = seen.pending_from(max(0, seen.num_pending - seen.last.num_drafted))
            self.drafts[seen.request_id, self._told[seen.request_id]] = tuple(one.token for one in pending)
        step = super().decide(seen)
        if isinstance(step, Draft) and step.model in seen.pool.names:
            self.climbed |= seen.waiting(step.model) > 0
        return step

    def learn(self, outcome: Outcome) -> None:
        """Pass on the outcome, and count it."""
        self._told[outcome.request_id] += 1
        super().learn(outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class BothWorlds:
    """What a policy is run on in either world. In both it sees the same stated seconds."""

    pool: ModelPool
    recording: TrieRecording  # of the prompts, made from the pool
    prompts: Sequence[Prompt]  # in the order of the recording
    batch: int  # requests running at a time
    memory: Memory  # how the runtime keeps keys and values; its prefix caches are used in the replay too
    start: Start  # how requests begin
    lossless: bool  # whether only lossless policies are allowed
    overlap: AheadKind = "auto"  # how members of the runtime work at the same time

    def replay(self, policy: NamedPolicy) -> ReplayedRun | None:
        """A replay within the record; None for a policy whose lossy steps leave it.

        Raises ValueError where a policy left the record without lossy steps.
        """
        try:
            return self._replay(policy, strict=True)
        except _LeftRecordError as left:
            noted, cause = left.args
            if noted.watch.inexact:
                return None
            request_id, position, _ = cause.args
            recorded = _what_was_recorded(self.recording, noted, cause)
            raise ArgumentError(
                f"policy {policy.name} leaves the recording (request {request_id}, output position {position}), and "
                f"what is modelled cannot agree: it was recorded with {recorded}"
            ) from cause

    def agreement(
        self, policy: NamedPolicy, decider: Policy, replay: ReplayedRun | None, progress: Progress
    ) -> Agreement:
        """How far the policy takes the same steps in both worlds; `decider` is the same policy, built for the runtime.

        A policy that leaves the record is built again for each batch of requests: what it learns beyond the record must
        not affect the next ones. `progress` counts policies and shows which requests run.
        """
        if replay is not None:
            return self._compared(policy.name, decider, replay)
        parts = []
        for start in range(0, len(self.prompts), self.batch):
            progress.note(f"{policy.name}, request {start + 1} of {len(self.prompts)}")
            part = slice(start, start + self.batch)
            recording = replace(self.recording, requests=self.recording.requests[part])
            some = replace(self, recording=recording, prompts=self.prompts[part])
            built = policy.build(loaded_pool(self.pool))
            parts.append(some._compared(policy.name, built, some._replay(policy, strict=False)))
        return joined(parts)

    def _replay(self, policy: NamedPolicy, *, strict: bool) -> ReplayedRun:
        tables = TrieTables(self.recording)
        cost = synthetic_cost(self.recording.meta.model_names)
        scenario = Scenario(
            tables=tables, cost=cost, batch=self.batch, strict=strict, start=self.start, prefixes=self.memory.prefixes
        )
        decider = policy.admitted(tables.pool, lossless=self.lossless)
        watch = StepWatch(tables.pool.target)
        tokens: dict[str, list[int]] = {}
        noted = NotedDrafts(decider, watch)
        try:
            log = simulate(scenario, noted, policy.name, outputs=tokens)
        except UnrecordedContextError as error:
            raise _LeftRecordError(noted, error) from error
        return ReplayedRun(log=log, tokens=tokens, drafts=noted.drafts)

    def _compared(self, name: str, policy: Policy, replay: ReplayedRun) -> Agreement:
        noted = NotedDrafts(policy, StepWatch(self.recording.meta.model_names[-1]))
        found = decode(
            self.pool,
            noted,
            self.prompts,
            sampling=self.recording.meta.sampling,
            max_new_tokens=self.recording.requests[0].max_new_tokens,
            name=name,
            batch=self.batch,
            start=self.start,
            memory=self.memory,
            overlap=self.overlap,
            prices=synthetic_cost(self.recording.meta.model_names),
        )
        outputs, ran = whole(found)  # an incomplete run proves nothing
        ran_tokens = {output.request_id: output.tokens for output in outputs}
        return compare_runs(
            replay.log,
            ran,
            replayed_tokens=replay.tokens,
            ran_tokens=ran_tokens,
            replayed_drafts=replay.drafts,
            ran_drafts=noted.drafts,
        )


class _LeftRecordError(Exception):
    """A policy left the record; holds its `NotedDrafts`, and the `UnrecordedContextError`."""


def _what_was_recorded(recording: TrieRecording, noted: NotedDrafts, cause: UnrecordedContextError) -> str:
    """What was recorded and what to do about it, as the end of a message."""
    closure = recording.meta.closure
    if isinstance(cause, UnrecordedTreeError):
        return f"`trees` {closure.words}; record with trees as wide and as deep"
    recorded = f"`closure` {closure.kind} `reach` {closure.reach} `run` {closure.run}"
    if closure.kind == "monotone" and noted.climbed:
        return f"{recorded}; drafts after unjudged ones of a smaller member need `closure` full and a small `reach`"
    return f"{recorded}; record deeper"


def synthetic_cost(names: Sequence[str]) -> FileCost:
    """One second for a forward of the target, half of the next larger one's for each smaller model.

    `names` are smallest first. Each further new token adds a 64th. All are binary fractions, so that sums are exact in
    any order, and the context takes no time, since the runtime's prices do not depend on it.
    """
    seconds = {name: 2.0**-below for below, name in enumerate(reversed(names))}
    lines = {
        name: CostLine(intercept_s=each * (1 - PER_NEW_TOKEN), per_new_token_s=each * PER_NEW_TOKEN)
        for name, each in seconds.items()
    }
    return FileCost("made up", lines)


LEAST_REACH = 16  # for policies that do not state their most pending tokens


def recording_made_now(
    pool: ModelPool, prompts: Sequence[Prompt], sampling: Sampling, closure: Closure, max_new_tokens: int
) -> TrieRecording:
    """A recording that is not kept on disk, without seconds; raises as `record`."""
    with TemporaryDirectory(prefix="paceline-agree-") as folder:
        return record(
            pool,
            prompts,
            sampling=sampling,
            closure=closure,
            max_new_tokens=max_new_tokens,
            out=Path(folder) / "agree.trace",
            name="made now",
        )


def closure_for(policies: Iterable[Policy], kind: ClosureKind | None, reach: int | None, run: int | None) -> Closure:
    """The requested closure; by default as deep as the most pending tokens that any policy states.

    The trees that policies state are always recorded.
    """
    deciders = list(policies)
    trees = dict.fromkeys(tree for policy in deciders for tree in getattr(policy, "trees", ()))
    if reach is None:
        reach = max([LEAST_REACH, *(_most_off_trunk(policy) for policy in deciders)])
    closure = closure_of(kind, reach, run, usual=reach)
    recorded = tuple(TreeClosure(model=tree.model, shape=tree.shape.text) for tree in trees)
    return closure.model_copy(update={"trees": recorded})


def _most_off_trunk(policy: Policy) -> int:
    """Tokens of a run that a policy may have pending; of a tree those of its longest path."""
    most: int = getattr(policy, "most_off_trunk", getattr(policy, "most_pending", 0))
    return most


def matching_trace(
    path: Path, pool: ModelPool, prompts: Sequence[Prompt], *, sampling: Sampling, max_new_tokens: int
) -> TrieRecording:
    """The recording at `path`, its requests cut down to `prompts` and in their order.

    Raises:
        TraceFormatError: not a recording of this pool with this sampling, or one that lacks a prompt or has it with
            other tokens, another tag or budget; one line.
    """
    trace = read_trace(path)
    _check_pool(path, trace.meta, pool)
    if trace.meta.sampling != sampling:
        wanted, found = (_named(one.model_dump(exclude_none=True)) for one in (sampling, trace.meta.sampling))
        raise TraceFormatError(path, "sampling", f"must be the one asked for, {wanted}", found)
    records = {one.request_id: one for one in trace.requests}
    requests = tuple(_matching(path, records, prompt, pool, max_new_tokens) for prompt in prompts)
    return replace(trace, requests=requests)


def _check_pool(path: Path, meta: TrieMeta, pool: ModelPool) -> None:
    if meta.tokenizer_sha256 != pool.tokenizer_sha256:
        rule = f"must be that of pool {pool.name}, {pool.tokenizer_sha256[:12]}"
        raise TraceFormatError(path, "tokenizer_sha256", rule, meta.tokenizer_sha256[:12])
    recorded: dict[str, Any] = {model.name: (model.parameters, model.layers, model.dtype) for model in meta.models}
    if meta.ngram is not None:
        ngram = meta.ngram
        recorded = {ngram.name: _words(ngram.max_match, ngram.min_match, ngram.occurrence), **recorded}
    loaded: dict[str, Any] = {
        member.name: (member.num_parameters, member.num_layers, member.dtype)
        if (lookup := member.lookup) is None
        else _words(lookup.max_match, lookup.min_match, lookup.occurrence)
        for member in pool.members
    }
    if list(recorded.items()) != list(loaded.items()):
        raise TraceFormatError(path, "models", f"must be those of pool {pool.name}, {_named(loaded)}", _named(recorded))
    reader = "" if pool.feature_level is None else pool.members[pool.feature_level].name
    recorded_reader = "" if meta.features is None else meta.features.model
    if recorded_reader != reader:
        raise TraceFormatError(path, "features.model", f"must be that of pool {pool.name}, {reader!r}", recorded_reader)
    recorded_eos, eos = sorted(meta.eos_token_ids), sorted(pool.eos_token_ids)
    if recorded_eos != eos:
        raise TraceFormatError(path, "eos_token_ids", f"must be {eos}", recorded_eos)


def _words(max_match: int, min_match: int, occurrence: str) -> str:
    """A prompt lookup in words, the same for recordings and for pools."""
    return f"matches of {min_match} to {max_match}, {occurrence}"


def _named(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _matching(
    path: Path, records: dict[str, TrieRequest], prompt: Prompt, pool: ModelPool, max_new_tokens: int
) -> TrieRequest:
    recorded = records.get(prompt.request_id)
    field = f"requests, {prompt.request_id}"
    if recorded is None:
        raise TraceFormatError(path, field, "must be recorded for every prompt", None)
    if list(recorded.prompt) != pool.encode(prompt.text):
        put = "as it is, without --chat" if pool.chat is None else "as the chat template puts it"
        raise TraceFormatError(path, f"{field}, prompt", f"must be the tokens of the prompt {put}", recorded.prompt)
    if recorded.tag != prompt.tag:
        raise TraceFormatError(path, f"{field}, tag", f"must be that of the prompt, {prompt.tag!r}", recorded.tag)
    if recorded.max_new_tokens != max_new_tokens:
        rule = f"must be the one asked for, {max_new_tokens}"
        raise TraceFormatError(path, f"{field}, max_new_tokens", rule, recorded.max_new_tokens)
    return recorded


# Where worlds differ, near ties are searched among this many choices: a step's drafts, and the verifier's own token.
LOOKED_AT = 16


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Agreements(Printed):
    """The results of running policies in both worlds; prints as `paceline agree` does. Letter: P policies."""

    meta: Mapping[str, Any]  # what was compared: pool, recording, sampling, batch and so on
    policies: tuple[Agreement, ...]  # `[P]` how far each takes the same steps
    # `[P]` members and output positions of near ties at the difference, if there is one
    near_ties: tuple[list[tuple[str, int]], ...]
    decode: Callable[[list[int]], str]

    @property
    def agree(self) -> bool:
        """Whether no policy differs."""
        return not any(agreement.difference for agreement in self.policies)

    def tables(self) -> Sequence[Grid]:
        meta = self.meta
        closure, sampling = meta["closure"], Sampling.model_validate(meta["sampling"])
        ahead = "" if meta["overlap"] == "auto" else f", members that work at the same time in {meta['overlap']}"
        head = (
            f"pool {meta['pool']} and recording {meta['trace']} ({sampling.words}; {closure['kind']}, reach "
            f"{closure['reach']}, run {closure['run']}), {counted(meta['requests'], 'request')}, at most "
            f"{counted(meta['max_new_tokens'], 'token')} each, batch {meta['batch']}, cache {meta['cache']}"
            f"{start_words(meta)}{prefix_words(meta)}{ahead}"
        )
        return [replace(agreement_table(self.policies), title=head)]

    def lines(self) -> Sequence[str]:
        lines = [record_exit_line(one, one.left) for one in self.policies if one.left is not None]
        for one, near in zip(self.policies, self.near_ties, strict=True):
            if one.difference is not None:
                lines.append(difference_text(one, one.difference, self.decode))
                lines.append(_near_tie_line(near, self.meta["dtype"]))
        if not self.agree:
            ties = counted(self.meta["near_ties"], "near tie")
            lines.append(f"the recording holds {ties}: choices between two tokens that rounding may flip")
        lines.append(total_line(self.policies))
        lines += [
            f"members of {', '.join(names)} worked at the same time in {how}"
            for how in AHEAD_KINDS
            if (names := [one.policy for one in self.policies if one.ahead == how])
        ]
        if self.meta["prefix_cache"] is not None:
            lines.append(prefix_line(self.policies))
        return lines

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/validation.md): `meta`, the verdict, per policy its `Agreement`, and near ties."""
        rows = [asdict(one) | {"near_ties": near} for one, near in zip(self.policies, self.near_ties, strict=True)]
        return {"meta": dict(self.meta), "agree": self.agree, "policies": rows}

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each policy; columns as in docs/validation.md, `policies[]`, with the number of near ties."""
        return flat_rows([row | {"near_ties": len(row["near_ties"])} for row in self.to_json()["policies"]])


@takes(AgreeOptions)
def agree(
    pool: ModelPool | Path | str | None,
    prompts: str | Path | Sequence[Prompt | str],
    policies: PoliciesGiven | None = None,
    *,
    recording: str | Path | None = None,
    **options: Any,  # noqa: ANN401 - see `AgreeOptions`
) -> Agreements:
    """Run policies in both worlds, on a recording and on the models, and compare every step.

    Args:
        pool: models, or where they are; None is the shipped pool (`load_pool`).
        prompts: a JSONL file by its path, or texts. A policy may name tags of those that `limit` leaves out.
        policies: as of `compare`; a representative set if None.
        recording: a .trace folder of these prompts and this pool; None records now.
        options: see `AgreeOptions`.

    Raises:
        ValueError: a wrong policy, prompt or recording, or a policy that leaves the recording by lossless steps.
    """
    own = checked(AgreeOptions, options)
    memory = Memory(cache=own.cache, prefixes=prefix_cache_size(own.prefix_cache, own.block_tokens))
    start, given = start_of(own.start), None if policies is None else named_policies(policies)
    for policy in given or ():
        refuse_oracle(policy.made_by, policy.name)
    if recording is not None and (own.closure, own.reach, own.run) != (None, None, None):
        raise ArgumentError("`closure`, `reach` and `run` belong to a recording made now; `recording` has its own")
    sampling, everyone = own.sampling or GREEDY, prompts_of(prompts)
    requests = first_of(everyone, own.limit)
    models = load_pool(pool, threads=own.threads, chat=own.chat)
    members = loaded_pool(models)
    asked = named_policies(default_policies(members)) if given is None else given
    deciders = [_decider(policy, members, everyone, lossless=own.lossless) for policy in asked]
    check_has_use(own.overlap, {policy.name: made for policy, made in zip(asked, deciders, strict=True)})
    longest = own.max_new_tokens
    if recording is not None:
        replayed = matching_trace(Path(recording), models, requests, sampling=sampling, max_new_tokens=longest)
    else:
        closure = closure_for(deciders, own.closure, own.reach, own.run)
        replayed = recording_made_now(models, requests, sampling, closure, longest)
    worlds = BothWorlds(
        pool=models,
        recording=replayed,
        prompts=requests,
        batch=own.batch,
        memory=memory,
        start=start,
        lossless=own.lossless,
        overlap=own.overlap,
    )
    # Replays come first: they are fast and may raise.
    replays = [worlds.replay(policy) for policy in tracked(asked, "replaying", total=len(asked), unit="policies")]
    agreements = []
    with Progress("comparing", len(asked), unit="policies") as progress, quiet():
        for policy, decider, replay in zip(asked, deciders, replays, strict=True):
            progress.note(policy.name)
            agreements.append(worlds.agreement(policy, decider, replay, progress))
            progress.advance()
    return Agreements(
        meta=_meta(worlds, max_new_tokens=longest),
        policies=tuple(agreements),
        near_ties=tuple(_near_ties_at(agreement, replayed, models) for agreement in agreements),
        decode=models.decode,
    )


def _decider(policy: NamedPolicy, pool: Pool, prompts: Sequence[Prompt], *, lossless: bool) -> Policy:
    """A policy of the runtime, which may name tags of prompts."""
    made = policy.admitted(pool, lossless=lossless)
    refuse_oracle(made, policy.name)
    check_tags(made, policy.name, (prompt.tag for prompt in prompts), "the prompts")
    return made


def _meta(worlds: BothWorlds, *, max_new_tokens: int) -> dict[str, Any]:
    meta = worlds.recording.meta
    return {
        "pool": worlds.pool.name,
        "trace": meta.name,
        "closure": meta.closure.model_dump(),
        "near_ties": meta.near_ties,
        "dtype": meta.dtype,
        "trunk_near_ties": None if meta.trunk_near_ties is None else meta.trunk_near_ties.model_dump(),
        "sampling": meta.sampling.model_dump(),
        "requests": len(worlds.recording.requests),
        "max_new_tokens": max_new_tokens,
        "batch": worlds.batch,
        "cache": worlds.memory.cache,
        "start": worlds.start.value,
        "overlap": worlds.overlap,
        "prefix_cache": None if worlds.memory.prefixes is None else asdict(worlds.memory.prefixes),
    }


def _near_ties_at(agreement: Agreement, recording: TrieRecording, pool: ModelPool) -> list[tuple[str, int]]:
    """Members and output positions of near ties among the next choices along the trunk; none without a difference."""
    difference = agreement.difference
    if difference is None:
        return []
    record = next(record for record in recording.requests if record.request_id == difference.request_id)
    trunk = record.trie.token[record.trie.trunk[1:]].tolist()
    first = min(difference.num_committed, len(trunk))
    answer = trunk[: first + LOOKED_AT]
    return near_ties_along(
        pool, record.request_id, record.prompt, answer, first=first, sampling=recording.meta.sampling
    )


def _near_tie_line(ties: list[tuple[str, int]], dtype: str) -> str:
    if not ties:
        return f"  no near tie in {dtype} among the next {LOOKED_AT} choices: rounding is hardly the cause"
    member, position = ties[0]
    return (
        f"  a near tie: {member}'s choice at output position {position} differs by less than rounding in {dtype} moves "
        "it, so that another width of forward may choose the other token"
    )
