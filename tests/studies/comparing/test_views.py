"""What a comparison shows beside its table."""

import pytest
from paceline.policies.oracles import OracleChain
from paceline.reports.side_by_side import SideBySide
from paceline.sim.cost.base import CostRangeError
from paceline.sim.recorded import recorded_pool
from paceline.studies.compare import PolicyRuns, regret_in
from paceline.traces import SyntheticSpec, make_trace


def test_regret_without_seconds_of_the_oracle_gives_the_reason():
    pool = recorded_pool(make_trace(SyntheticSpec(name="s", requests=1, tokens=4, models=("a", "b"))))
    runs = PolicyRuns(asked=["a:2/b"], summaries={}, shares={}, refused={"oracle-chain": CostRangeError("no seconds")})
    with pytest.raises(CostRangeError, match=r"^no seconds$"):
        regret_in(SideBySide(meta={}, baseline=None, rows=()), runs, {"oracle-chain": OracleChain(pool)})
