"""Synthetic recordings with independent acceptance, flat costs, and a replay of a policy over them."""

from paceline.sim import Scenario, TableCost, TrieTables, simulate
from paceline.traces import SyntheticSpec, make_trace
from paceline.traces.meta import CostTable

NAMES = ("draft", "mid", "target")


def recording(*acceptance, requests=12, tokens=300, tags=("a",), seed=0, reach=24):
    """`draft` (and `mid`) agree with the target at these rates, each token on its own."""
    names = NAMES if len(acceptance) == 2 else ("draft", "target")
    spec = SyntheticSpec(
        requests=requests,
        tokens=tokens,
        prompt_tokens=4,
        models=names,
        acceptance=acceptance,
        depth_decay=0.0,
        shared_difficulty=1.0,
        tags=tags,
        reach=reach,
        run=reach,
        seed=seed,
    )
    return TrieTables(make_trace(spec))


def flat(**forward_s):
    """A forward costs the same at every width."""
    tables = {name: CostTable(new_tokens=(1, 4096), seconds=(taken, taken)) for name, taken in forward_s.items()}
    return TableCost("flat", tables)


def replayed(tables, cost, policy, *, batch=1):
    return simulate(Scenario(tables=tables, cost=cost, batch=batch), policy, "p")


def seconds_of(log):
    return float(log.requests["finished_at_s"].max())
