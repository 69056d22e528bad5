"""Whether the same policies take the same steps on a recording and on its models: what `paceline agree` does."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..arguments import ArgumentError, check_least
from ..counted import counted
from ..decoding.policy import Policy
from ..decoding.pool import Pool
from ..decoding.prefill import Start, start_of
from ..decoding.prefixes.size import prefix_cache_size
from ..policies.about import check_tags
from ..policies.default_policies import default_policies
from ..progress import Progress, quiet, tracked
from ..reports.tables.agreement import agreement_table, difference_text, prefix_line, record_exit_line, total_line
from ..reports.tables.comparison import prefix_words, start_words
from ..reports.tables.grid import Grid
from ..reports.tables.printed import Printed, flat_rows
from ..runs.agreement import Agreement
from ..runtime.ahead.pace import AHEAD_KINDS, AheadKind, check_ahead, check_has_use
from ..runtime.memory import CacheKind, Memory
from ..runtime.no_oracles import refuse_oracle
from ..runtime.pools.loaded_members import loaded_pool
from ..runtime.pools.pool import ModelPool
from ..runtime.prompts import Prompt, prompts_of
from ..runtime.recording.near_ties import near_ties_along
from ..traces.meta import Closure, Sampling
from ..traces.tries.recording import TrieRecording
from .both_worlds import BothWorlds
from .named_policies import NamedPolicy, PoliciesGiven, named_policies
from .pool import load_pool
from .record import ClosureKind
from .recording_to_agree import closure_for, matching_trace, recording_made_now

# Where worlds differ, near ties are looked for among so many choices: a step's drafts, and what a verifier adds.
LOOKED_AT = 16


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Agreements(Printed):
    """What came of running policies in both worlds; prints as `paceline agree` does. Letter: P policies.

    Attributes:
        meta: what was compared: pool, recording, sampling, batch and so on.
        policies: `[P]` how far each takes the same steps.
        near_ties: `[P]` members and output positions of near ties at the difference, if there is one.
        decode: text of token ids.
    """

    meta: Mapping[str, Any]
    policies: tuple[Agreement, ...]
    near_ties: tuple[list[tuple[str, int]], ...]
    decode: Callable[[list[int]], str]

    @property
    def agree(self) -> bool:
        """Whether no policy differs."""
        return not any(agreement.difference for agreement in self.policies)

    def tables(self) -> Sequence[Grid]:
        """One row per policy."""
        meta = self.meta
        closure, sampling = meta["closure"], Sampling.model_validate(meta["sampling"])
        head = (
            f"pool {meta['pool']} and recording {meta['trace']} ({sampling.words}; {closure['kind']}, reach "
            f"{closure['reach']}, run {closure['run']}), {counted(meta['requests'], 'request')}, at most "
            f"{counted(meta['max_new_tokens'], 'token')} each, batch {meta['batch']}, cache {meta['cache']}"
            f"{start_words(meta)}{prefix_words(meta)}"
            f"{_overlap_words(meta)}"
        )
        return [replace(agreement_table(self.policies), title=head)]

    def lines(self) -> Sequence[str]:
        """Where policies left the record, the first difference of each that differs (several lines), and the total."""
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
        """The documented form (docs/agree.md): `meta`, the verdict, and per policy its `Agreement`, and near ties."""
        rows = [asdict(one) | {"near_ties": near} for one, near in zip(self.policies, self.near_ties, strict=True)]
        return {"meta": dict(self.meta), "agree": self.agree, "policies": rows}

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each policy; columns as in docs/agree.md, `policies[]`, with the number of near ties."""
        return flat_rows([row | {"near_ties": len(row["near_ties"])} for row in self.to_json()["policies"]])


def agree(
    pool: ModelPool | Path | str | None,
    prompts: str | Path | Sequence[Prompt | str],
    policies: PoliciesGiven | None = None,
    *,
    recording: str | Path | None = None,
    sampling: Sampling | None = None,
    max_new_tokens: int = 64,
    limit: int | None = None,
    batch: int = 1,
    cache: CacheKind = "slots",
    start: Start | str = "prefill",
    closure: ClosureKind | None = None,
    reach: int | None = None,
    run: int | None = None,
    lossless: bool = False,
    threads: int = 1,
    chat: bool = False,
    overlap: AheadKind = "auto",
    prefix_cache: int | None = None,
    block_tokens: int | None = None,
) -> Agreements:
    """Run policies in both worlds, on a recording and on the models, and compare every step.

    Args:
        pool: models, or where they are; None is the shipped pool (`load_pool`).
        prompts: a JSONL file by its path, or texts.
        policies: as of `compare`; a representative set if None.
        recording: a .trace folder of these prompts and this pool; None records now.
        sampling: greedy or coupled; greedy if None.
        max_new_tokens: longest answer, >= 1.
        limit: only the first so many prompts, >= 1; all if None. A policy may name tags of those left out.
        batch: requests running at a time, >= 1.
        cache: how the runtime keeps keys and values.
        start: how requests begin, `prefill` or `draft`.
        closure: of a recording made now, as `reach` and `run` are; None is monotone.
        reach: most tokens off the trunk; None for what the policies need.
        run: most of them by a member after a larger one's; None is `reach`.
        lossless: refuse policies that may commit other text than the target's.
        threads: CPU threads of torch, where a pool is loaded.
        chat: put prompts as questions of a dialogue, by the chat template of the pool's tokenizer.
        overlap: how members of the runtime work at the same time, as of `decode`; a replay needs no such choice.
        prefix_cache: blocks of each member's prefix cache, in both worlds, >= 1; None for none.
        block_tokens: of one of these blocks, >= 1; 16 if None.

    Raises:
        ValueError: a wrong policy, prompt or recording, or a policy that leaves the recording by lossless steps.
    """
    memory = Memory(cache=cache, prefixes=prefix_cache_size(prefix_cache, block_tokens))
    how: dict[str, Any] = {"start": start_of(start), "lossless": lossless, "overlap": check_ahead(overlap)}
    given = _asked_for(policies)
    if recording is not None and (closure, reach, run) != (None, None, None):
        raise ArgumentError("`closure`, `reach` and `run` belong to a recording made now; `recording` has its own")
    sampling, everyone = sampling or Sampling(mode="greedy"), prompts_of(prompts)
    requests = _first(everyone, limit)
    models = load_pool(pool, threads=threads, chat=chat)
    members = loaded_pool(models)
    asked = named_policies(default_policies(members)) if given is None else given
    deciders = [_decider(policy, members, everyone, lossless=lossless) for policy in asked]
    check_has_use(how["overlap"], {policy.name: made for policy, made in zip(asked, deciders, strict=True)})
    closed = None if recording is not None else closure_for(deciders, closure, reach, run)
    replayed = _recording(recording, models, requests, closed, sampling=sampling, max_new_tokens=max_new_tokens)
    worlds = BothWorlds(pool=models, recording=replayed, prompts=requests, batch=batch, memory=memory, **how)
    return _agreements(worlds, asked, deciders, max_new_tokens=max_new_tokens)


def _recording(
    given: str | Path | None,
    pool: ModelPool,
    prompts: Sequence[Prompt],
    closure: Closure | None,
    *,
    sampling: Sampling,
    max_new_tokens: int,
) -> TrieRecording:
    """What is replayed: the recording that was given, or one that is made now, with a closure."""
    if given is not None:
        return matching_trace(Path(given), pool, prompts, sampling=sampling, max_new_tokens=max_new_tokens)
    assert closure is not None
    return recording_made_now(pool, prompts, sampling, closure, max_new_tokens)


def _asked_for(policies: PoliciesGiven | None) -> Sequence[NamedPolicy] | None:
    """The policies that were named, none of which may see ahead."""
    given = None if policies is None else named_policies(policies)
    for policy in given or ():
        refuse_oracle(policy.made_by, policy.name)
    return given


def _first(prompts: Sequence[Prompt], limit: int | None) -> Sequence[Prompt]:
    if limit is not None:
        check_least("`limit`", limit, 1)
    return prompts[:limit]


def _decider(policy: NamedPolicy, pool: Pool, prompts: Sequence[Prompt], *, lossless: bool) -> Policy:
    """A policy of the runtime, which may name the tags of prompts."""
    made = policy.admitted(pool, lossless=lossless)
    refuse_oracle(made, policy.name)
    check_tags(made, policy.name, (prompt.tag for prompt in prompts), "the prompts")
    return made


def _agreements(
    worlds: BothWorlds, asked: Sequence[NamedPolicy], deciders: Sequence[Policy], *, max_new_tokens: int
) -> Agreements:
    """Replay all policies, which is quick and may refuse, then run and compare each."""
    replays = [worlds.replay(policy) for policy in tracked(asked, "replaying", total=len(asked), unit="policies")]
    agreements = []
    with Progress("comparing", len(asked), unit="policies") as progress, quiet():
        for policy, decider, replay in zip(asked, deciders, replays, strict=True):
            progress.note(policy.name)
            agreements.append(worlds.agreement(policy, decider, replay, progress))
            progress.advance()
    return Agreements(
        meta=_meta(worlds, max_new_tokens=max_new_tokens),
        policies=tuple(agreements),
        near_ties=tuple(_near_ties_at(agreement, worlds.recording, worlds.pool) for agreement in agreements),
        decode=worlds.pool.decode,
    )


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


def _overlap_words(meta: Mapping[str, Any]) -> str:
    return "" if meta["overlap"] == "auto" else f", members that work at the same time in {meta['overlap']}"


def _near_tie_line(ties: list[tuple[str, int]], dtype: str) -> str:
    """What near ties at a difference say of it."""
    if not ties:
        return f"  no near tie in {dtype} among the next {LOOKED_AT} choices: rounding is hardly the cause"
    member, position = ties[0]
    return (
        f"  a near tie: {member}'s choice at output position {position} differs by less than rounding in {dtype} moves "
        "it, so that another width of forward may choose the other token"
    )
