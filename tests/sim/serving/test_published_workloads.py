"""Published workloads served whole under chains of two and three levels: what comes in comes out, once."""

import pytest
from paceline.policies.by_name import make_policy
from paceline.runs.serving import ServingAbout, total_ps
from paceline.sim.cost.files import CostLine, FileCost
from paceline.sim.serving.charges import to_ps
from paceline.sim.serving.limits import EngineLimits, KvLimits
from paceline.sim.serving.replica import ReplicaSpec
from paceline.sim.serving.routers import ROUTERS, Dispatcher, RouterSetting
from paceline.sim.serving.serve import serve
from paceline.traces.workloads import open_workload

from ...data_folder import data_folder, with_data
from .engine.served_runs import Watching, check_little, pico

DATA = data_folder()
CHAINS = ("draft:4/target", "draft:3/mid:6/target")
# Of models of 1 to 8 billion parameters on an H100, as in docs/serving.md.
COST = FileCost(
    "large",
    {
        name: CostLine(intercept_s=intercept_s, per_new_token_s=new_s, per_kv_token_s=held_s)
        for name, intercept_s, new_s, held_s in (
            ("draft", 0.00074, 2.5e-6, 1e-8),
            ("mid", 0.0018, 6e-6, 3.4e-8),
            ("slim", 0.0024, 8e-6, 2e-8),
            ("target", 0.0048, 1.6e-5, 3.9e-8),
        )
    },
)
pytestmark = [pytest.mark.slow, with_data]


class Published:
    """A file of the data, with the replicas that serve it.

    Attributes:
        requests: in the file.
        output_tokens: of all of them.
    """

    def __init__(self, file, requests, output_tokens, *, replicas, num_blocks, block_tokens=16, **changes):
        self.file, self.requests, self.output_tokens = file, requests, output_tokens
        self.num_replicas, self.changes = replicas, changes
        kv = KvLimits(num_blocks=num_blocks, block_tokens=block_tokens)
        self.limits = EngineLimits(
            max_num_seqs=256, token_budget=8192, kv=dict.fromkeys(("draft", "mid", "slim", "target"), kv)
        )

    def served(self, chain, **options):
        """(log, what the run says besides, latest states by replica)."""
        tables = pico()
        blocks = [self.limits.kv[member.name].num_blocks if member.name in self.limits.kv else None
                  for member in tables.pool.members]  # fmt: skip
        recorder = Watching(tables.pool.names, {f"replica{index}": blocks for index in range(self.num_replicas)})
        router = ROUTERS.parse("prefix-affinity").build(RouterSetting(num_replicas=self.num_replicas))
        served = serve(
            open_workload(DATA / self.file, **self.changes),
            tables,
            [
                ReplicaSpec(policy=make_policy(chain, tables.pool), policy_name=chain, cost=COST, limits=self.limits)
                for _ in range(self.num_replicas)
            ],
            dispatch=lambda replicas: Dispatcher(router, "prefix-affinity", replicas),
            recorder=recorder,
            **options,
        )
        return recorder.log(ServingAbout(policy=chain, workload=self.file, cluster="c")), served, recorder.latest


AZURE, MOONCAKE, AGENTS = "azure_llm_2023", "mooncake_fast25", "agent_traces_kvcache_tester"
CODE = Published(f"{AZURE}/AzureLLMInferenceTrace_code.csv.gz", 8_819, 245_896, replicas=1, num_blocks=25_000)
TALKS = Published(f"{AZURE}/AzureLLMInferenceTrace_conv.csv.gz", 19_366, 4_088_665, replicas=2, num_blocks=25_000)
SHARED = Published(
    f"{MOONCAKE}/conversation_trace.jsonl.gz", 12_031, 4_122_048, replicas=4, num_blocks=8_000, block_tokens=64
)
SESSIONS = {"replicas": 8, "num_blocks": 1_600, "block_tokens": 512, "zero_tokens": "one", "rate": 0.1}
AGENT_FILE = f"{AGENTS}/agent_traces_compact.jsonl.gz"
CASES = {
    "code, two levels": (CODE, CHAINS[0]),
    "code, three levels": (CODE, CHAINS[1]),
    "talks, two levels": (TALKS, CHAINS[0]),
    "talks, three levels": (TALKS, CHAINS[1]),
    "shared prefixes, two levels": (SHARED, CHAINS[0]),
    "shared prefixes, three levels": (SHARED, CHAINS[1]),
    "sessions, two levels": (Published(AGENT_FILE, 46_218, 20_339_447, **SESSIONS), CHAINS[0]),
    # Whole it takes six minutes; it was run so, and closes.
    "sessions, three levels": (Published(AGENT_FILE, 7_643, 3_206_223, limit=150, **SESSIONS), CHAINS[1]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_whole_file_ends(case):
    published, chain = CASES[case]
    log, served, states = published.served(chain)
    requests, finished = log.requests, log.finished
    rejected = requests["rejected"] != ""
    assert served.stopped == log.meta.stopped == ""
    assert len(finished) == published.requests == finished.sum() + rejected.sum()
    assert not (finished & rejected).any()
    assert requests["output_tokens"].sum() == published.output_tokens
    assert (requests["emitted_tokens"] == requests["output_tokens"] * finished).all()
    assert requests["emitted_tokens"].sum() == served.num_emitted
    longest = published.limits.kv["target"].num_tokens
    assert (rejected == (requests["prompt_tokens"] + requests["output_tokens"] > longest)).all()
    assert len(states) == published.num_replicas
    assert not any(map(any, states.values()))  # no request, no block of any member
    _check_times(log)


def test_what_a_horizon_cuts_is_counted():
    log, served, _ = SHARED.served(CHAINS[1], horizon_ps=to_ps(600.0))
    requests, finished = log.requests, log.finished
    unfinished = requests["ended_at_ps"] < 0
    assert served.stopped == log.meta.stopped == "horizon"
    assert unfinished.any()
    assert len(finished) == (finished ^ unfinished).sum()
    assert requests["emitted_tokens"].sum() == served.num_emitted
    assert (requests["emitted_tokens"][finished] == requests["output_tokens"][finished]).all()
    assert (requests["emitted_tokens"][unfinished] < requests["output_tokens"][unfinished]).all()
    _check_times(log)


def _check_times(log):
    """Gaps between outputs are the time between first and last tokens; times in the system are Little's."""
    requests, finished = log.requests, log.finished
    if not log.meta.stopped:
        assert total_ps(log.gaps) == (requests["ended_at_ps"] - requests["first_token_at_ps"])[finished].sum()
    check_little(log)
