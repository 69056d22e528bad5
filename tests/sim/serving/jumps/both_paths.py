"""The same run in jumps and step by step, compared in all that it says."""

from dataclasses import replace

from hypothesis import strategies as st
from paceline.runs.serving import JUMPS, STEP_BY_STEP

from ..engine.served_runs import Run, limits
from .lined_costs import LinedLineCost


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


def check(arrivals, tables, **options):
    """Compare both paths; returns the log of the jumps."""
    options = {"outputs": None, "cost": LinedLineCost(tables)} | options
    jumps = Run(arrivals, tables, **options)
    found = told(jumps)
    steps = Run(arrivals, tables, stepwise=True, **options)
    assert found == told(steps)
    assert set(jumps.served.paths) == {JUMPS}
    assert set(steps.served.paths) == {f"{STEP_BY_STEP}: asked for"}
    return jumps


@st.composite
def whole_budgets(draw, tables):
    """Limits whose token budget has room for a whole batch."""
    found = draw(limits(tables))
    most = min(found.max_num_seqs, found.token_budget)
    drop_units = draw(st.sampled_from([0, 0, 1]))
    kv = {name: replace(member, drop_units=drop_units) for name, member in found.kv.items()}
    return replace(found, max_num_seqs=most, kv=kv)
