"""The same run with cycles that are added up and step by step, compared in all that it says."""

from dataclasses import replace

from hypothesis import strategies as st
from paceline.decoding.results import Drafted
from paceline.runs.serving import STEP_BY_STEP
from paceline.sim.serving.limits import Admission, KvWindow
from paceline.sim.serving.requests import NO_DRAFT
from paceline.traces.workloads.arrival import Arrival

from .lined_costs import COSTS, LinedLineCost
from .served_runs import LineCost, Run, limits, pico, some_rounds, target_only, workloads

ROUTERS = ("round-robin", "least-loaded", "least-loaded,by=kv", "least-loaded,by=tokens", "two-choices",
           "prefix-affinity")  # fmt: skip
BY_PENDING = ("target", "draft:4/target", "draft:3/mid:6/target", "draft:1/target", "mid:7/target", "ngram:3/target",
              "ngram:2/mid:5/target", "draft:2/mid:4/slim:6/target", "confident,below=0.6,most=5")  # fmt: skip
ASKED = ("adaptive", "specrouter", "off-under-load", "goodput", "slo", "autotune", "via-sd", "via-sd-lossless",
         "early-commit", "cascade", "adaedl", "hedgespec", "specrouter,select=request",
         "per-tag,default=plain,math=adaptive,code=draft:2/target")  # fmt: skip
OF_ROUNDS = ("target", "feature:4/target", "tokens:2/target", "feature:6/target", "adaptive")


def gaps(log):
    """How often each gap was seen."""
    found = {}
    columns = (log.gaps[name].tolist() for name in ("first_ps", "increment_ps", "count", "rows"))
    for first, increment, count, rows in zip(*columns, strict=True):
        for place in range(count):
            gap = first + increment * place
            found[gap] = found.get(gap, 0) + rows
    return found


def told(run):
    """All that a run says, save for the states that its series shows, and how it was worked out."""
    run.go()
    log, served = run.log, run.served
    meta = log.meta.model_dump()
    for replica in meta["replicas"]:
        del replica["states"], replica["path"]
    columns = {name: values.tolist() for name, values in (log.requests | log.preemptions).items()}
    return meta, columns, gaps(log), (served.num_emitted, served.num_cycled, served.num_modelled, served.stopped)


def check(arrivals, tables, policy="target", **options):
    """Compare both ways; returns the run that adds up."""
    options = {"cost": LinedLineCost(tables)} | options
    added, steps = (Run(arrivals, tables, policy, stepwise=stepwise, **options) for stepwise in (False, True))
    assert told(added) == told(steps)
    assert added.outputs == steps.outputs
    assert set(steps.served.paths) == {STEP_BY_STEP}
    assert Drafted([], []) == NO_DRAFT  # whose lists all requests with nothing pending share
    return added


class Turns:
    """Requests that follow one another, after a while or at once."""

    depths = ()

    def __init__(self, name, left, think_ps):
        self._name, self._left, self._think_ps = name, left, think_ps

    def after(self, ended_ps):
        if not self._left:
            return ()
        turns = Turns(self._name, self._left - 1, self._think_ps)
        return (Arrival(f"{self._name}-{self._left}", ended_ps + self._think_ps, 9, 7, turns=turns),)


@st.composite
def sessions(draw, **options):
    """Workloads of which some requests are followed by others."""
    thinks = st.sampled_from([0, 0, 1, 10**8])
    return [
        arrival._replace(turns=Turns(arrival.request_id, draw(st.integers(0, 3)), draw(thinks)))
        for arrival in draw(workloads(most=20, **options))
    ]


@st.composite
def tight(draw, tables):
    """Limits of all kinds, with prefix caches that lose the end of a hit among them."""
    found = draw(limits(tables))
    drop_units = draw(st.sampled_from([0, 0, 1]))
    kv = {name: replace(member, drop_units=drop_units) for name, member in found.kv.items()}
    if draw(st.booleans()):
        found = replace(found, token_budget=4096)
    if draw(st.booleans()):
        name = draw(st.sampled_from(sorted(kv)))
        kv[name] = replace(kv[name], num_blocks=10**6, prefix_cache=draw(st.booleans()))
    if draw(st.booleans()):
        name, most_new = draw(st.sampled_from(sorted(kv))), found.token_budget
        whole, near, tokens = draw(st.integers(0, 2)), draw(st.integers(1, 3)), draw(st.sampled_from([1, 5, 16, 40]))
        kv[name] = replace(kv[name], window=KvWindow(tokens=tokens, whole=whole, near=near, most_new=most_new))
    return replace(found, kv=kv, admission=draw(st.sampled_from([Admission.first_chunk, Admission.whole_prompt])))


@st.composite
def cases(draw):
    """A recording, a policy that replays it, and what it costs."""
    tables = draw(st.sampled_from([pico(), pico(), some_rounds(), target_only()]))
    policies = {pico(): BY_PENDING + ASKED, some_rounds(): OF_ROUNDS, target_only(): ("target",)}[tables]
    return tables, draw(st.sampled_from(policies)), draw(st.sampled_from([*COSTS, LineCost]))(tables)


@st.composite
def settings_of(draw, tables, unit_tokens):
    """What else a run is given."""
    return {
        "limits": draw(tight(tables)),
        "num_replicas": draw(st.integers(1, 3)),
        "router": draw(st.sampled_from(ROUTERS)),
        "stale_ps": draw(st.sampled_from([0, 0, 10**9, 10**7])),
        "unit_tokens": unit_tokens,
        "horizon_ps": draw(st.sampled_from([None, None, 1, 10**8, 10**9, 3 * 10**9])),
    }
