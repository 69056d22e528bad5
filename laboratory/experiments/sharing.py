"""Sharing of prefixes meets speculation: what each makes the other worth, by workload, chain and kind of sharing.

Rollouts that branch, agents that send a growing context, workers on one context, and tool calls with and without the
model between them; forwards as long as those of models of 1, 3 and 8 billion parameters on an A100. Drafts and verdicts
are as recorded. At one seed every chain and kind of sharing has the same requests and recorded answers, so common
random effects cancel in their ratios.

Prompts are *read* and answers *written*, often in the same forward. So the terms of the cost, which is linear, split
seconds: **reading** is what the tokens of prompts add to forwards, `per_new_token_s` for each one that a member's
prefix cache lacked; **writing** is the rest of forwards' seconds, attention to cached tokens included.

Also: other batches and less memory, where sharing changes how many requests run at a time; members below the target
that keep no prefix cache, a fault of real engines; and the same on models.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

import paceline
from paceline.base.terminal import Progress
from paceline.decoding.prefix_cache import PrefixCacheSize
from paceline.decoding.seen import Start
from paceline.policies.by_name import make_policy
from paceline.reports.intervals import Interval, mean_interval, over_product
from paceline.reports.panels import Panel, Series
from paceline.reports.serving import ServingMetrics
from paceline.runs.agreement import Agreement
from paceline.runs.log import RunLog
from paceline.runs.serving import ServingLog
from paceline.runtime.pools.members import loaded_pool
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.prompts import Prompt
from paceline.runtime.threads import Memory
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.by_name import default_cost, make_cost
from paceline.sim.simulate import Scenario, simulate
from paceline.studies.agree import BothWorlds, closure_for, recording_made_now
from paceline.studies.setting import named_policy
from paceline.traces.contexts.on_disk import read_trace
from paceline.traces.contexts.recording import TrieRecording

from ..findings import Cell, ExperimentSetting, Finding, Rows, table, table_cell
from ..replays import A100_COST, a100_cost, in_turns
from ..shared import GREEDY, models_of, prompts_of, ran

MORE, LESS, OPEN = "more", "less", "as much, or chance hides it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interaction:
    """Two changes, alone and together, of the same requests."""

    without: Interval  # speed-up by speculation without sharing
    together: Interval  # the same with it
    gain: Interval  # by sharing, without speculation
    # `together / without`, which equals the gain of sharing with speculation over its gain without. Above 1 each
    # increases the other's gain
    term: Interval

    @property
    def words(self) -> str:
        """Whether speculation gains more or less with sharing, if the 95% interval decides it."""
        low, high = self.term.bounds
        return MORE if low > 1.0 else LESS if high < 1.0 else OPEN


def interaction(
    neither: Sequence[float], speculation: Sequence[float], sharing: Sequence[float], both: Sequence[float]
) -> Interaction:
    """The term of durations, each by seed in the same order, of runs with the same requests.

    Ratios are taken seed by seed, so random effects common to all four runs cancel. Raises ValueError for fewer than
    two seeds.
    """
    without, gain, all_in_all = (
        [a / b for a, b in zip(neither, changed, strict=True)] for changed in (speculation, sharing, both)
    )
    together = [a / b for a, b in zip(sharing, both, strict=True)]
    each = {"without": without, "together": together, "gain": gain, "term": over_product(all_in_all, [without, gain])}
    return Interaction(**{name: mean_interval(values) for name, values in each.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLoad:
    """A workload."""

    name: str  # of its generator
    text: str  # as `open_workload` takes it, `{sessions}` in place of their number
    sessions: int  # of a run

    def workload(self, limit: int | None) -> str:
        """The generator's text, with at most `limit` sessions."""
        return self.text.format(sessions=self.sessions if limit is None else min(self.sessions, limit))


_TOOLS = "steps=6,system=1024,prompt=200,output=geometric:60,observation=lognormal:250:0.5,wait=exponential:0.5"
LOADS = (
    SessionLoad(
        name="tree-rollouts",
        text="tree-rollouts:branch=4@0/2@32/2@64,prompt=lognormal:1000:0.5,output=128,sessions={sessions}",
        sessions=8,
    ),
    SessionLoad(
        name="persistent-agent",
        text=(
            "persistent-agent:turns=10,system=1024,prompt=lognormal:250:0.5,output=geometric:60,wait=exponential:0.5,"
            "sessions={sessions}"
        ),
        sessions=16,
    ),
    SessionLoad(
        name="shared-workers",
        text="shared-workers:workers=4,rounds=6,prompt=lognormal:1000:0.5,output=64,sessions={sessions}",
        sessions=6,
    ),
    SessionLoad(name="react", text=f"react:{_TOOLS},sessions={{sessions}}", sessions=20),
    SessionLoad(name="rewoo", text=f"rewoo:{_TOOLS},sessions={{sessions}}", sessions=20),
)
# Groups of answers to long prompts, as many at a time as memory allows.
CROWD = SessionLoad(
    name="groups of 16 rollouts",
    text="tree-rollouts:branch=16@0,prompt=lognormal:4000:0.2,output=96,sessions={sessions}",
    sessions=6,
)


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
class SharingServer:
    """The server of a workload."""

    sharing: str = CACHE  # a key of `SHARINGS`
    max_num_seqs: int = 16  # requests in a batch at most
    blocks: int = AMPLE_BLOCKS  # of each member, >= 1
    uncached: tuple[str, ...] = ()  # members that keep no prefix cache of their own, regardless of `sharing`

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
class ServedCell:
    """The figures of one run."""

    duration_s: float  # until the last request ended
    tokens_per_s: float  # output tokens over that
    # means over requests
    ttft_s: float
    tpot_s: float
    # by member that ran; see the module
    reading_s: Mapping[str, float]
    writing_s: Mapping[str, float]
    hit_shares: Mapping[str, float]  # by member that ran, of the tokens of prompts
    acceptance_length: float  # tokens that a verification by the target commits, its own included
    running: float  # requests in the batch, over time
    preemptions: int  # of all requests


def served(
    workload: str | Path, chain: str, server: SharingServer, *, trace: TrieRecording, seed: int, folder: Path
) -> ServedCell:
    """Serve a workload once, its files in `folder`; at one seed all chains and servers have the same requests."""
    cost, cluster = a100_cost(trace, folder), folder / "cluster.toml"
    cluster.write_text(server.toml())
    run = paceline.simulate(workload, chain, trace, cluster=cluster, cost=cost, seed=seed)
    return _cell(run.rows[0].runs[0].metrics, run.log)


def _cell(metrics: ServingMetrics, log: ServingLog) -> ServedCell:
    assert metrics.finished == metrics.requests, "a request of an experiment that was not served"
    assert metrics.ttft_s is not None
    assert metrics.tpot_s is not None
    ran = [(level, one) for level, one in enumerate(metrics.members) if one.forwards]
    prompts, cached = log.requests["prompt_tokens"], log.requests["cached_tokens"]
    reading = {
        one.name: A100_COST[one.name]["per_new_token_s"] * int((prompts - cached[:, level]).sum()) for level, one in ran
    }
    return ServedCell(
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


GROUPS, PROMPTS_OF_GROUP, TEXTS_OF_HEAD = 3, 4, 3
MAX_NEW_TOKENS, BATCH, RUNS = 32, 4, 5
REACH = 10  # most pending tokens of the chains, plus one
CACHES = {OFF: None, CACHE: PrefixCacheSize(num_blocks=256)}
Key = tuple[str, str]  # chain and sharing


@dataclass(frozen=True, slots=True, kw_only=True)
class InBothWorlds:
    """One chain with one kind of sharing."""

    agreement: Agreement  # of its steps and hits in both worlds, at stated seconds
    # until the last request ended; measured, of the fastest of interleaved runs
    simulated_s: float
    measured_s: float
    # tokens that prefix caches held, all members together, in the timed runs
    simulated_hits: int
    measured_hits: int
    tokens: int  # of all answers


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
    """Groups of prompts that begin with the same texts, several of the pool's own one after another."""
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
    return table(title, [_row_of_both_worlds(found, *key) for key in found])


def _row_of_both_worlds(found: Mapping[Key, InBothWorlds], chain: str, sharing: str) -> list[Cell]:
    one = found[chain, sharing]
    worlds, has_term = ("simulated", "measured"), sharing == CACHE and chain != PLAIN
    return [
        table_cell("chain", chain),
        table_cell("sharing", sharing),
        table_cell("equal steps", one.agreement.num_steps),
        table_cell("differences", 0 if one.agreement.difference is None else 1),
        table_cell("hit tokens, simulated", one.simulated_hits),
        table_cell("measured", one.measured_hits),
        *(table_cell(f"{world} tokens/s", one.tokens / getattr(one, f"{world}_s"), digits=0) for world in worlds),
        *(table_cell(f"{world} speed-up", speed_up(found, chain, sharing, world), "x", 2) for world in worlds),
        *(
            table_cell(f"{world} interaction", term(found, chain, world) if has_term else None, digits=2)
            for world in worlds
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One load in some cells."""

    load: SessionLoad
    cells: Mapping[Key, Sequence[ServedCell]]  # one for each seed, in the same order
    # requests in a batch at most, or gigabytes for keys and values of all members of a chain, if varied
    size: int = 0

    def durations(self, chain: str, sharing: str) -> list[float]:
        """Seconds until the last request ended, by seed."""
        return [one.duration_s for one in self.cells[chain, sharing]]

    def interaction(self, chain: str, sharing: str, over: str) -> Interaction:
        """The interaction of a chain, over the target alone, and a kind of sharing, over another."""
        keys = ((PLAIN, over), (chain, over), (PLAIN, sharing), (chain, sharing))
        return interaction(*(self.durations(*key) for key in keys))

    def mean(self, chain: str, sharing: str, figure: str) -> float:
        """Over seeds, of a number of `ServedCell`."""
        return fmean(getattr(one, figure) for one in self.cells[chain, sharing])

    def seconds(self, chain: str, sharing: str, what: str) -> float:
        """Reading or writing, of all members together, mean over seeds."""
        return fmean(sum(getattr(one, f"{what}_s").values()) for one in self.cells[chain, sharing])


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingRuns:
    """What loads are served with; at one seed all cells have the same requests, and the same recorded answers."""

    trace: TrieRecording
    seeds: Sequence[int]
    limit: int | None  # sessions of a load at most
    folder: Path  # for files

    def cell(self, load: SessionLoad, chain: str, server: SharingServer) -> list[ServedCell]:
        """A load under one chain, by seed."""
        work = load.workload(self.limit)
        return [served(work, chain, server, trace=self.trace, seed=seed, folder=self.folder) for seed in self.seeds]

    def in_all_cells(self, load: SessionLoad) -> Served:
        """A load under every chain, with every kind of sharing."""
        keys = [(chain, sharing) for sharing in SHARINGS for chain in CHAINS]
        cells = {(chain, kind): self.cell(load, chain, SharingServer(sharing=kind)) for chain, kind in keys}
        return Served(load=load, cells=cells)

    def crowd(self, size: int, *, most: int, memory_bytes: int | None) -> Served:
        """The crowd at most `most` at a time, in limited memory, where each member of a chain has as many blocks."""
        cells = {}
        for chain, sharing in ((chain, sharing) for sharing in (OFF, CACHE) for chain in MEMBERS):
            token_bytes = sum(KV_BYTES[name] for name in MEMBERS[chain])
            blocks = AMPLE_BLOCKS if memory_bytes is None else memory_bytes // (BLOCK_TOKENS * token_bytes)
            server = SharingServer(sharing=sharing, max_num_seqs=most, blocks=blocks)
            cells[chain, sharing] = self.cell(CROWD, chain, server)
        return Served(load=CROWD, cells=cells, size=size)

    def uncached(self, found: Sequence[Served]) -> "list[Uncached]":
        """Every load again under each chain, its drafts without prefix caches."""
        return [
            Uncached(
                load=one.load.name,
                chain=chain,
                cached=one.cells[chain, CACHE],
                uncached=self.cell(one.load, chain, SharingServer(sharing=CACHE, uncached=below)),
            )
            for one in found
            for chain, below in BELOW.items()
        ]


BATCHES = (1, 4, 16, 64)
MEMORIES_GB = (2, 4, 8, 16)
CROWDED = 64  # requests in a batch at most, where memory limits it
MEMBERS = {PLAIN: ("target",), TWO: ("draft", "target")}


def batch_table(found: Sequence[Served]) -> Rows:
    """A row for each batch."""
    title = f"{CROWD.name}, {TWO}: at most N requests at a time, memory ample"
    return table(title, [[table_cell("batch", one.size), *_common(one)] for one in found])


def memory_table(found: Sequence[Served]) -> Rows:
    """A row for each memory."""
    title = f"{CROWD.name}, {TWO}: keys and values of all members in limited memory, at most {CROWDED} at a time"
    return table(title, [_memory_row(one) for one in found])


def _memory_row(one: Served) -> list[Cell]:
    return [
        table_cell("memory", one.size, "GB"),
        table_cell("preempted, no cache", one.mean(TWO, OFF, "preemptions"), digits=0),
        table_cell("preempted, cache", one.mean(TWO, CACHE, "preemptions"), digits=0),
        *_common(one),
    ]


def _common(one: Served) -> list[Cell]:
    return [
        table_cell("plain runs, no cache", one.mean(PLAIN, OFF, "running"), digits=1),
        table_cell("plain runs, cache", one.mean(PLAIN, CACHE, "running"), digits=1),
        *_terms("cache gains plain", one.interaction(TWO, CACHE, OFF)),
    ]


def _terms(gain: str, one: Interaction) -> list[Cell]:
    return [
        table_cell(gain, one.gain.mean, "x", 2),
        table_cell("speed-up without", one.without.mean, "x", 2),
        table_cell("speed-up with", one.together.mean, "x", 2),
        table_cell("interaction", one.term.mean, digits=3),
        table_cell("±", one.term.half_width, digits=3),
        table_cell("speculation is worth", one.words),
    ]


SPECULATING = tuple(chain for chain in CHAINS if chain != PLAIN)
STEPS = ((CACHE, OFF), (ATTENTION, CACHE))  # (kind of sharing, baseline)


def cells_table(found: Served) -> Rows:
    """One load: a row for each chain and kind of sharing."""
    return table(found.load.name, [_row_of_served(found, *key) for key in found.cells])


def _row_of_served(found: Served, chain: str, sharing: str) -> list[Cell]:
    def mean(figure: str) -> float:
        return found.mean(chain, sharing, figure)

    hits = found.cells[chain, sharing]
    members = {name: 100 * fmean(one.hit_shares[name] for one in hits) for name in hits[0].hit_shares}
    return [
        table_cell("chain", chain),
        table_cell("sharing", sharing),
        table_cell("tokens/s", mean("tokens_per_s"), digits=0),
        table_cell("TTFT", 1e3 * mean("ttft_s"), "ms", 0),
        table_cell("TPOT", 1e3 * mean("tpot_s"), "ms", 2),
        table_cell("prompts", found.seconds(chain, sharing, "reading"), "s", 1),
        table_cell("answers", found.seconds(chain, sharing, "writing"), "s", 1),
        *(table_cell(f"hits of {name}", members.get(name), "%", 1) for name in ("draft", "mid", "target")),
        table_cell("accept. length", mean("acceptance_length"), digits=2),
    ]


def interaction_table(found: Sequence[Served]) -> Rows:
    """A row for each load, chain and kind of sharing."""
    keys = [(one, chain, *step) for one in found for chain in SPECULATING for step in STEPS]
    return table("what sharing makes speculation worth", [_interaction(*key) for key in keys])


def _interaction(found: Served, chain: str, sharing: str, over: str) -> list[Cell]:
    return [
        table_cell("workload", found.load.name),
        table_cell("chain", chain),
        table_cell("sharing", sharing),
        table_cell("over", over),
        *_terms("it gains plain", found.interaction(chain, sharing, over)),
    ]


BELOW = {TWO: ("draft",), THREE: ("draft", "mid")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncached:
    """A chain whose members below the target read every prompt again."""

    load: str
    chain: str
    # one run for each seed, with prefix caches in all members, and in the target alone
    cached: Sequence[ServedCell]
    uncached: Sequence[ServedCell]

    @property
    def slowdown(self) -> Interval:
        """Its duration over that with caches in all members."""
        return mean_interval([a.duration_s / b.duration_s for a, b in zip(self.uncached, self.cached, strict=True)])


def uncached_table(found: Sequence[Uncached]) -> Rows:
    """A row for each load and chain."""
    return table("members below the target without a prefix cache of their own", map(_uncached, found))


def _uncached(one: Uncached) -> list[Cell]:
    def below(cells: Sequence[ServedCell]) -> float:
        return sum(cell.reading_s[name] for cell in cells for name in BELOW[one.chain]) / len(cells)

    def tpot(cells: Sequence[ServedCell]) -> float:
        return 1e3 * sum(cell.tpot_s for cell in cells) / len(cells)

    return [
        table_cell("workload", one.load),
        table_cell("chain", one.chain),
        table_cell("drafts read prompts, with", below(one.cached), "s", 2),
        table_cell("without", below(one.uncached), "s", 2),
        table_cell("TPOT with", tpot(one.cached), "ms", 2),
        table_cell("TPOT without", tpot(one.uncached), "ms", 2),
        table_cell("takes longer by", 100 * (one.slowdown.mean - 1.0), "%", 1),
        table_cell("±", 100 * one.slowdown.half_width, "%", 1),
    ]


def panels(found: Sequence[Served], without: Sequence[Uncached], batches: Sequence[Served]) -> tuple[Panel, ...]:
    """Terms and speed-ups by workload, speed-ups by batch, and the cost of drafts without prefix caches."""
    names = tuple(one.load.name for one in found)
    speed_ups = {
        "no sharing": [one.interaction(TWO, CACHE, OFF).without for one in found],
        CACHE: [one.interaction(TWO, CACHE, OFF).together for one in found],
        ATTENTION: [one.interaction(TWO, ATTENTION, OFF).together for one in found],
    }
    sizes = tuple(map(str, (one.size for one in batches)))
    by_batch = {
        "no sharing": [one.interaction(TWO, CACHE, OFF).without for one in batches],
        CACHE: [one.interaction(TWO, CACHE, OFF).together for one in batches],
    }
    terms = {chain: [one.interaction(chain, CACHE, OFF).term for one in found] for chain in SPECULATING}
    slower = {chain: [one.slowdown for one in without if one.chain == chain] for chain in SPECULATING}
    return (
        _panel("speculation beside a prefix cache over without", "interaction term", names, terms),
        _panel(f"{TWO} over the target alone", "speed-up", names, speed_ups),
        _panel(f"{TWO}, rollouts, at most N at a time", "speed-up", sizes, by_batch, x_label="batch"),
        _panel("drafts without prefix caches over with", "time", names, slower),
    )


def _panel(
    title: str, y_label: str, names: tuple[str, ...], lines: Mapping[str, Sequence[Interval]], *, x_label: str = ""
) -> Panel:
    series = tuple(
        Series(
            name=name,
            x=tuple(map(float, range(len(names)))),
            y=tuple(one.mean for one in intervals),
            ends=tuple(one.bounds for one in intervals),
        )
        for name, intervals in lines.items()
    )
    return Panel(title=title, x_label=x_label, y_label=y_label, series=series, kind="bar", categories=names)


def answer(
    found: Sequence[Served],
    without: Sequence[Uncached],
    batches: Sequence[Served],
    models: Mapping[tuple[str, str], InBothWorlds],
) -> str:
    """The answer in sentences."""
    pairs = [(one, chain) for one in found for chain in SPECULATING]
    cache, attention = ([one.interaction(chain, *step) for one, chain in pairs] for step in STEPS)
    dear = max(without, key=lambda one: one.slowdown.mean)
    cost = f"{100 * (dear.slowdown.mean - 1):.0f}% ({dear.load}, {dear.chain})"
    smallest, largest = ((one.size, one.interaction(TWO, CACHE, OFF).term.mean) for one in (batches[0], batches[-1]))
    return (
        f"A prefix cache makes speculation worth {_counted(cache)}, of {len(pairs)} pairs of workload and chain; the "
        f"interaction term is {_range(cache)}. Attention that reads common texts once makes it worth "
        f"{_counted(attention)}, {_range(attention)} over the cache alone. Rollouts served at most "
        f"{smallest[0]} at a time have a term of {smallest[1]:.2f} under {TWO}, at most "
        f"{largest[0]} {largest[1]:.2f}. Members below the target that keep no prefix cache of "
        f"their own cost up to {cost}. {_on_models(models)}"
    )


def _on_models(models: Mapping[tuple[str, str], InBothWorlds]) -> str:
    alike = [one for one in models.values() if one.agreement.difference is None]
    steps = sum(one.agreement.num_steps for one in models.values())
    terms = [
        f"{chain} {term(models, chain, 'measured'):.2f}, simulated {term(models, chain, 'simulated'):.2f}"
        for chain in SPECULATING
    ]
    return (
        f"On the models {len(alike)} of {len(models)} runs took the same {steps:,} steps and found the same tokens as "
        f"their replay; measured terms of the cache are: {'; '.join(terms)}."
    )


def _counted(terms: Sequence[Interaction]) -> str:
    more, less = (sum(term.words == words for term in terms) for words in (MORE, LESS))
    return f"more in {more}, less in {less}, and chance leaves {len(terms) - more - less} open"


def _range(terms: Sequence[Interaction]) -> str:
    means = [term.term.mean for term in terms]
    return f"{min(means):.2f} to {max(means):.2f}"


SEEDS, FEW_SEEDS = 5, 2


def run(setting: ExperimentSetting) -> Finding:
    """Serve every load in every cell, then with drafts without prefix caches and in other sizes; then run models."""
    trace = read_trace(setting.trace)
    pool, _ = models_of(setting, trace, 1)
    prompts = shared_prompts(setting)
    seeds = range(setting.seed, setting.seed + (SEEDS if setting.limit is None else FEW_SEEDS))
    with tempfile.TemporaryDirectory() as name:
        runs = SharingRuns(trace=trace, seeds=seeds, limit=setting.limit, folder=Path(name))
        found = [runs.in_all_cells(load) for load in LOADS]
        without = runs.uncached(found)
        batches = [runs.crowd(size, most=size, memory_bytes=None) for size in BATCHES]
        memories = [runs.crowd(size, most=CROWDED, memory_bytes=size * 10**9) for size in MEMORIES_GB]
    models = in_both_worlds(pool, prompts, trace)
    return Finding(
        question="Does sharing of prefixes make speculation worth more or less, and where?",
        tables=(
            interaction_table(found),
            *map(cells_table, found),
            uncached_table(without),
            batch_table(batches),
            memory_table(memories),
            models_table(models),
        ),
        panels=panels(found, without, batches),
        answer=answer(found, without, batches, models),
    )
