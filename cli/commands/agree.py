"""`paceline agree`: the same policies in both worlds, compared step by step."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...counted import counted
from ...decoding.contract import Policy
from ...decoding.pool import Pool
from ...policies.spec import make_policy
from ...progress import Progress, tracked
from ...reports.agreement import Agreement
from ...reports.start_words import start_words
from ...reports.tables.agreement import agreement_table, difference_text, leaving_line, total_line
from ...runtime.no_oracles import refuse_oracle, refuse_oracle_by_name
from ...runtime.prompts import read_prompts
from ...studies.agree_recording import (
    GivenClosureOption,
    GivenReachOption,
    GivenRunOption,
    GivenTraceOption,
    RecordingAsked,
    recording_of,
)
from ...studies.both_worlds import BothWorlds
from ...studies.default_policies import default_policies
from ...studies.near_ties import near_tie_line, near_ties_at
from ...studies.runtime_door import runtime_module
from ...traces.meta import Sampling
from ...traces.tries.recording import TrieRecording
from ..options.lossless import LosslessOption, admitted
from ..options.memory import CacheMode, CacheOption
from ..options.models import LimitOption, MaxNewTokensOption, PoolOption, PromptsOption, ThreadsOption, load_pool
from ..options.sampling import (
    RecordedSamplingMode,
    RecordedSamplingOption,
    RecordedSeedOption,
    RecordedTemperatureOption,
    TopKOption,
    TopPOption,
    sampling_of,
)
from ..options.start import LiveStart, LiveStartOption
from ..output import JsonOption, check_json_path, print_table, say, write_json

if TYPE_CHECKING:
    from ...runtime.pools.pool import ModelPool

Ties = list[tuple[str, int]]
DIFFERENT = 1  # exit code: the worlds differ


def agree(
    prompts: PromptsOption,
    policy: Annotated[
        list[str] | None, typer.Option(help="As --policy of compare, once for each; default: a representative set.")
    ] = None,
    pool: PoolOption = None,
    trace: GivenTraceOption = None,
    max_new_tokens: MaxNewTokensOption = 64,
    sampling: RecordedSamplingOption = RecordedSamplingMode.greedy,
    temperature: RecordedTemperatureOption = None,
    seed: RecordedSeedOption = None,
    top_p: TopPOption = None,
    top_k: TopKOption = None,
    batch: Annotated[int, typer.Option(help="Requests running at a time.", min=1)] = 1,
    cache: CacheOption = CacheMode.slots,
    start: LiveStartOption = LiveStart.prefill,
    closure: GivenClosureOption = None,
    reach: GivenReachOption = None,
    run: GivenRunOption = None,
    limit: LimitOption = None,
    lossless: LosslessOption = False,
    threads: ThreadsOption = 1,
    json: JsonOption = None,
) -> None:
    """Run policies in both worlds, on a recording and on the models, and compare every step. Exit 1 if they differ."""
    mode = sampling_of(sampling, temperature, seed, top_p, top_k)
    check_json_path(json, prompts)
    for name in policy or ():
        refuse_oracle_by_name(name)
    asked = RecordingAsked(
        sampling=mode, max_new_tokens=max_new_tokens, trace=trace, closure=closure, reach=reach, run=run
    )
    requests = read_prompts(prompts)[:limit]
    loaded = load_pool(pool, threads=threads)
    policies = _policies(policy, runtime_module("pools.loaded_pool").loaded_pool(loaded), lossless=lossless)
    recording = recording_of(asked, loaded, requests, policies.values())
    worlds = BothWorlds(
        pool=loaded,
        recording=recording,
        prompts=requests,
        batch=batch,
        cache=cache,
        start=start.start,
        lossless=lossless,
    )
    agreements = _agreements(worlds, policies)
    meta = _meta(loaded, recording, worlds, max_new_tokens=max_new_tokens)
    ties = [near_ties_at(agreement, recording, loaded) for agreement in agreements]
    if json is None:
        _print(meta, mode, agreements, ties, loaded)
    else:
        write_json(_to_json(meta, agreements, ties), json)
    if any(agreement.difference for agreement in agreements):
        raise typer.Exit(DIFFERENT)


def _policies(names: list[str] | None, pool: Pool, *, lossless: bool) -> dict[str, Policy]:
    """The policies of the runtime by name, built first: a wrong one is told before a long recording."""
    policies: dict[str, Policy] = {}
    for name in names or default_policies(pool):
        if name in policies:
            raise ValueError(f"--policy {name} is given twice")
        policies[name] = admitted(make_policy(name, pool), name, lossless=lossless)
        refuse_oracle(policies[name], name)
    return policies


def _agreements(worlds: BothWorlds, policies: Mapping[str, Policy]) -> list[Agreement]:
    """Replay all policies, which is quick and may refuse, then run and compare each."""
    replays = [worlds.replay(name) for name in tracked(policies, "replaying", total=len(policies), unit="policies")]
    agreements = []
    with Progress("comparing", len(policies), unit="policies") as progress:
        for (name, policy), replay in zip(policies.items(), replays, strict=True):
            progress.note(name)
            agreements.append(worlds.agreement(name, policy, replay, progress))
            progress.advance()
    return agreements


def _meta(pool: "ModelPool", recording: TrieRecording, worlds: BothWorlds, *, max_new_tokens: int) -> dict[str, Any]:
    meta = recording.meta
    return {
        "pool": pool.name,
        "trace": meta.name,
        "closure": meta.closure.model_dump(),
        "near_ties": meta.near_ties,
        "dtype": meta.dtype,
        "trunk_near_ties": None if meta.trunk_near_ties is None else meta.trunk_near_ties.model_dump(),
        "sampling": meta.sampling.model_dump(),
        "requests": len(recording.requests),
        "max_new_tokens": max_new_tokens,
        "batch": worlds.batch,
        "cache": worlds.cache.value,
        "start": worlds.start.value,
    }


def _to_json(meta: dict[str, Any], agreements: Sequence[Agreement], ties: Sequence[Ties]) -> dict[str, Any]:
    """The documented form (docs/agree.md): `meta`, the verdict, and per policy every field of `Agreement`, and ties."""
    agree = not any(agreement.difference for agreement in agreements)
    rows = [asdict(agreement) | {"near_ties": near} for agreement, near in zip(agreements, ties, strict=True)]
    return {"meta": meta, "agree": agree, "policies": rows}


def _print(
    meta: dict[str, Any],
    sampling: Sampling,
    agreements: Sequence[Agreement],
    ties: Sequence[Ties],
    pool: "ModelPool",
) -> None:
    closure = meta["closure"]
    say(
        f"pool {meta['pool']} and recording {meta['trace']} ({sampling.words}; {closure['kind']}, reach "
        f"{closure['reach']}, run {closure['run']}), {counted(meta['requests'], 'request')}, at most "
        f"{counted(meta['max_new_tokens'], 'token')} each, batch {meta['batch']}, cache {meta['cache']}"
        f"{start_words(meta)}"
    )
    print_table(agreement_table(agreements))
    for agreement in agreements:
        if agreement.left is not None:
            say(leaving_line(agreement, agreement.left))
    for agreement, near in zip(agreements, ties, strict=True):
        if agreement.difference is not None:
            typer.echo(difference_text(agreement, agreement.difference, pool.decode))
            say(near_tie_line(near, meta["dtype"]))
    if any(agreement.difference for agreement in agreements):
        say(
            f"the recording holds {counted(meta['near_ties'], 'near tie')}: "
            "choices between two tokens that rounding may flip"
        )
    say(total_line(agreements))
