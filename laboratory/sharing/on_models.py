"""The same on models: prompts that share text, run and simulated side by side, with and without prefix caches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ...decoding.prefill import Start
from ...decoding.prefixes.size import PrefixCacheSize
from ...policies.spec import make_policy
from ...progress import Progress
from ...runs.agreement import Agreement
from ...runs.log import RunLog
from ...runtime.memory import Memory
from ...runtime.pools.loaded_members import loaded_pool
from ...runtime.pools.pool import ModelPool
from ...runtime.prompts import Prompt
from ...sim.cost.make import default_cost, make_cost
from ...sim.simulate import Scenario, simulate
from ...sim.tries.tables import TrieTables
from ...studies.both_worlds import BothWorlds
from ...studies.named_policies import named_policy
from ...studies.recording_to_agree import closure_for, recording_made_now
from ...traces.tries.recording import TrieRecording
from ..findings.finding import ExperimentSetting
from ..findings.table import Cell as TableCell
from ..findings.table import Rows, cell, table
from ..model_runs import GREEDY, prompts_of, ran
from ..timing import in_turns
from .serving import CACHE, CHAINS, OFF, PLAIN

GROUPS, PROMPTS_OF_GROUP, TEXTS_OF_HEAD = 3, 4, 3
MAX_NEW_TOKENS, BATCH, RUNS = 32, 4, 5
REACH = 10  # tokens that one of the chains has pending at most, and one more
CACHES = {OFF: None, CACHE: PrefixCacheSize(num_blocks=256)}
Key = tuple[str, str]  # chain and sharing


@dataclass(frozen=True, slots=True, kw_only=True)
class InBothWorlds:
    """One chain with one kind of sharing.

    Attributes:
        agreement: of its steps and hits in both worlds, at made-up seconds.
        simulated_s, measured_s: until the last request ended; measured, of the quickest of interleaved runs.
        simulated_hits, measured_hits: tokens that prefix caches held, all members together, in the timed runs.
        tokens: of all answers.
    """

    agreement: Agreement
    simulated_s: float
    measured_s: float
    simulated_hits: int
    measured_hits: int
    tokens: int


def in_both_worlds(pool: ModelPool, prompts: Sequence[Prompt], trace: TrieRecording) -> dict[Key, InBothWorlds]:
    """Every chain on these prompts, with prefix caches and without, by chain and sharing; seconds are the trace's."""
    closure = closure_for((), None, REACH, None)
    recording = recording_made_now(pool, prompts, GREEDY, closure, MAX_NEW_TOKENS)
    keys = [(chain, sharing) for sharing in CACHES for chain in CHAINS]
    jobs = {
        key: partial(
            ran, pool, key[0], prompts, max_new_tokens=MAX_NEW_TOKENS, batch=BATCH,
            memory=Memory(prefixes=CACHES[key[1]]),
        )
        for key in keys
    }  # fmt: skip
    logs = {key: [log for _, log in runs] for key, runs in in_turns(jobs, runs=RUNS).items()}
    agreements = _agreements(pool, recording, prompts, keys)
    cost = make_cost(default_cost(trace), trace)
    found = {}
    for chain, sharing in keys:
        tables = TrieTables(recording)
        scenario = Scenario(tables=tables, cost=cost, batch=BATCH, prefixes=CACHES[sharing])
        simulated = simulate(scenario, make_policy(chain, tables.pool), chain)
        quickest = min(logs[chain, sharing], key=_seconds)
        found[chain, sharing] = InBothWorlds(
            agreement=agreements[chain, sharing],
            simulated_s=_seconds(simulated),
            measured_s=_seconds(quickest),
            simulated_hits=int(simulated.ops["hit_tokens"].sum()),
            measured_hits=int(quickest.ops["hit_tokens"].sum()),
            tokens=int(quickest.requests["emitted_tokens"].sum()),
        )
    return found


def shared_prompts(setting: ExperimentSetting) -> tuple[Prompt, ...]:
    """Groups of prompts that begin with the same texts, several of the pool's own one after another.

    Raises:
        ValueError: a pool with too few prompts.
    """
    num_head, num_all = GROUPS * TEXTS_OF_HEAD, GROUPS * PROMPTS_OF_GROUP
    own = prompts_of(replace(setting, limit=None), num_head + num_all)
    if len(own) < num_head + num_all:
        raise ValueError(f"--pool {setting.pool}: must have {num_head + num_all} prompts or more, got {len(own)}")
    heads = [" ".join(one.text for one in own[at : at + TEXTS_OF_HEAD]) for at in range(0, num_head, TEXTS_OF_HEAD)]
    ends = enumerate(own[num_head:])
    prompts = [
        Prompt(request_id=f"shared-{number}", text=f"{heads[number // PROMPTS_OF_GROUP]} {one.text}", tag=one.tag)
        for number, one in ends
    ]
    return tuple(prompts[: setting.limit])


def _agreements(
    pool: ModelPool, recording: TrieRecording, prompts: Sequence[Prompt], keys: Sequence[Key]
) -> dict[Key, Agreement]:
    found = {}
    with Progress("both worlds", len(keys), unit="runs") as progress:
        for chain, sharing in keys:
            worlds = BothWorlds(
                pool=pool,
                recording=recording,
                prompts=prompts,
                batch=BATCH,
                start=Start.prefill,
                lossless=True,
                memory=Memory(prefixes=CACHES[sharing]),
            )
            policy = named_policy(chain)
            replay = worlds.replay(policy)
            found[chain, sharing] = worlds.agreement(policy, policy.build(loaded_pool(pool)), replay, progress)
            progress.advance()
    return found


def _seconds(log: RunLog) -> float:
    return float(log.requests["finished_at_s"].max())


def speed_up(found: Mapping[Key, InBothWorlds], chain: str, sharing: str, world: str) -> float:
    """Over the target alone with the same sharing; `world` is "simulated" or "measured"."""
    plain, one = (getattr(found[name, sharing], f"{world}_s") for name in (PLAIN, chain))
    return float(plain / one)


def term(found: Mapping[Key, InBothWorlds], chain: str, world: str) -> float:
    """The interaction term of a chain and the prefix cache."""
    return speed_up(found, chain, CACHE, world) / speed_up(found, chain, OFF, world)


def models_table(found: Mapping[Key, InBothWorlds]) -> Rows:
    """A row for each chain and sharing."""
    title = (
        f"on the models: {GROUPS} groups of {PROMPTS_OF_GROUP} prompts, batch {BATCH}, the quickest of {RUNS} "
        "interleaved runs, beside their replay"
    )
    return table(title, [_row(found, *key) for key in found])


def _row(found: Mapping[Key, InBothWorlds], chain: str, sharing: str) -> list[TableCell]:
    one = found[chain, sharing]
    worlds, has_term = ("simulated", "measured"), sharing == CACHE and chain != PLAIN
    return [
        cell("chain", chain),
        cell("sharing", sharing),
        cell("equal steps", one.agreement.num_steps),
        cell("differences", 0 if one.agreement.difference is None else 1),
        cell("hit tokens, simulated", one.simulated_hits),
        cell("measured", one.measured_hits),
        *(cell(f"{world} tokens/s", one.tokens / getattr(one, f"{world}_s"), digits=0) for world in worlds),
        *(cell(f"{world} speed-up", speed_up(found, chain, sharing, world), "x", 2) for world in worlds),
        *(cell(f"{world} interaction", term(found, chain, world) if has_term else None, digits=2) for world in worlds),
    ]
