"""Small served runs: a workload in a list, seconds on a line, a recorder that can be looked at."""

from dataclasses import replace
from functools import cache

from hypothesis import strategies as st
from paceline.base.files import shipped
from paceline.policies.by_name import make_policy
from paceline.runs.recorder import ServingRecorder
from paceline.runs.serving import ServingAbout
from paceline.sim.cost.base import CostModel
from paceline.sim.replay_tables import tables_of
from paceline.sim.serving.limits import EngineLimits, KvLimits
from paceline.sim.serving.replica import ReplicaSpec, Role
from paceline.sim.serving.routers import ROUTERS, Dispatcher, RouterSetting
from paceline.sim.serving.serve import serve
from paceline.traces.opening import open_recording
from paceline.traces.workloads.arrival import PS_PER_S, Arrival, WorkloadAbout

from ...rounds.small_rounds import one_request, recording_of, sequential

POLICIES = ("target", "draft:4/target", "draft:3/mid:6/target", "ngram:3/target", "adaptive")
MICROSECOND = PS_PER_S // 10**6


@cache
def pico():
    """The tables of the shipped recording: four models and prompt lookup."""
    return tables_of(open_recording(shipped("recordings", "pico.trace")))


@cache
def some_rounds():
    """The tables of an imported recording with two drafters."""
    bits = [position % 5 not in (2, 4) for position in range(24)]
    return tables_of(
        recording_of(
            *(
                one_request(
                    {"": 24 - index, "feature": 24 - index, "tokens": 24 - index},
                    {"feature": sequential(bits[index:], 4), "tokens": sequential(bits[: 24 - index], 4)},
                    request_id=f"r{index}",
                )
                for index in range(3)
            )
        )
    )


class LineCost(CostModel):
    """A forward takes microseconds for its rows, its new tokens and its context."""

    name = "line"
    lookup_s = 0.0

    def __init__(self, tables, *, each=40, new=3, context=1):
        self._scale = {name: 1 + level for level, name in enumerate(tables.pool.names)}
        self._terms = each, new, context

    def forward_s(self, model, *, num_rows, new_tokens, context_tokens):
        each, new, context = self._terms
        return self._scale[model] * (each + num_rows + new * new_tokens + context * context_tokens) / 10**6


class Listed:
    """A workload of a list."""

    def __init__(self, arrivals, unit_tokens=0):
        self._arrivals = tuple(arrivals)
        self.about = WorkloadAbout(
            name="listed",
            files=(),
            format="list",
            unit_tokens=unit_tokens,
            num_requests=len(self._arrivals),
            notes=(),
        )

    def __iter__(self):
        return iter(self._arrivals)


class Watching(ServingRecorder):
    """Knows the latest state of each replica, and whether used blocks ever outgrew memory."""

    def __init__(self, members, replicas):
        super().__init__(members, replicas)
        self.latest = {}

    def state(self, replica, at_ps, running, waiting, used_blocks):
        super().state(replica, at_ps, running, waiting, used_blocks)
        self.latest[replica] = (running, waiting, *used_blocks)


def limits_of(tables, *, max_num_seqs=8, token_budget=4096, **kv):
    """Limits with the same memory for every model."""
    kv = {"num_blocks": 10**6, "block_tokens": 4} | kv
    models = [member.name for member in tables.pool.members if not member.model_free]
    return EngineLimits(
        max_num_seqs=max_num_seqs, token_budget=token_budget, kv={name: KvLimits(**kv) for name in models}
    )


class Run:
    """A served run and what came of it; `limits` of every replica, or a list of each one's."""

    def __init__(self, arrivals, tables, policy="target", limits=None, *, num_replicas=1, router="round-robin",
                 cost=None, unit_tokens=0, stale_ps=0, roles=None, **options):  # fmt: skip
        roles = roles or [Role.both] * num_replicas
        if not isinstance(limits, list):
            limits = [limits or limits_of(tables)] * len(roles)
        self.recorder = Watching(
            tables.pool.names,
            {
                f"replica{index}": [
                    own.kv[member.name].num_blocks if member.name in own.kv else None for member in tables.pool.members
                ]
                for index, own in enumerate(limits)
            },
        )
        cost = cost or LineCost(tables)
        specs = [
            ReplicaSpec(
                policy=make_policy(policy, tables.pool) if isinstance(policy, str) else policy(),
                policy_name=str(policy),
                cost=cost,
                decide_s=cost.decide_s(str(policy)),
                limits=own,
                role=role,
            )
            for role, own in zip(roles, limits, strict=True)
        ]
        self.outputs = {}

        def dispatch(replicas):
            setting = RouterSetting(num_replicas=len(replicas))
            return Dispatcher(ROUTERS.parse(router).build(setting), router, replicas, stale_ps)

        self.served = None
        self._options = {"dispatch": dispatch, "recorder": self.recorder, "outputs": self.outputs} | options
        self._given = Listed(arrivals, unit_tokens), tables, specs

    def go(self):
        self.served = serve(*self._given, **self._options)
        return self

    @property
    def log(self):
        return self.recorder.log(ServingAbout(policy="p", workload="w", cluster="c"))

    def times(self):
        """By id: when it was first scheduled, its first token and its end."""
        requests = self.log.requests
        return {
            name: (int(scheduled), int(first), int(ended))
            for name, scheduled, first, ended in zip(
                requests["request_id"],
                requests["scheduled_at_ps"],
                requests["first_token_at_ps"],
                requests["ended_at_ps"],
                strict=True,
            )
        }


@st.composite
def workloads(draw, *, most=12, unit_tokens=0):
    """Requests of any lengths at any times, some at once, some that share the start of their prompts."""
    arrivals, now_ps = [], 0
    for index in range(draw(st.integers(1, most))):
        now_ps += draw(st.sampled_from([0, 0, 1, 150, 2_000])) * MICROSECOND
        prompt = draw(st.integers(1, 40))
        units = draw(st.integers(0, prompt // unit_tokens)) if unit_tokens else 0
        text = draw(st.integers(0, 2))
        blocks = tuple(text * 100 + place for place in range(units))
        arrivals.append(Arrival(f"q{index}", now_ps, prompt, draw(st.integers(1, 60)), blocks=blocks))
    return arrivals


@st.composite
def limits(draw, tables, *, block_tokens=(1, 4, 8), prefix_cache=None):
    """Limits from ample to so tight that requests are put back, or rejected."""
    size = draw(st.sampled_from(block_tokens))
    return limits_of(
        tables,
        max_num_seqs=draw(st.integers(1, 6)),
        token_budget=draw(st.integers(1, 48)),
        num_blocks=draw(st.sampled_from([10**6, 130 // size, 100 // size, 60 // size])),
        block_tokens=size,
        prefix_cache=draw(st.booleans()) if prefix_cache is None else prefix_cache,
    )


def drawn_as(drawn, record_id):
    """An id of a request that replays a given one of the recording."""
    return next(name for number in range(10**6) if drawn.of(name := f"{record_id}-{number}", "") == record_id)


def whole_answers(tables, count):
    """The tables of some requests whose answers fill their budgets: replay drafts no further than a served one."""
    requests = [one for one in tables.trace.requests if len(one.trie.trunk) - 1 == one.max_new_tokens]
    return tables_of(replace(tables.trace, requests=tuple(requests[:count])))


@cache
def target_only():
    """The tables of an imported recording of the target alone."""
    return tables_of(recording_of(one_request({"": 24}, {}), drafters=()))


def check_little(log):
    """Requests in the system, added up over time, are the times of requests in the system, added up."""
    end = log.meta.ended_at_ps
    over_time = sum(replica.running_ps + replica.waiting_ps for replica in log.meta.replicas)
    ended = log.requests["ended_at_ps"].tolist()
    arrived = log.requests["arrived_at_ps"].tolist()
    assert over_time == sum((end if e < 0 else e) - a for a, e in zip(arrived, ended, strict=True))
