"""Recordings of known acceptance, flat costs, replays of a policy over them, and policies that are looked at."""

from types import SimpleNamespace

from paceline.benchmarks.shared.closed_forms import speedup
from paceline.decoding.rules import NO_SIGNAL
from paceline.decoding.seen import PendingToken, Start
from paceline.policies import Draft, check_policy
from paceline.policies.check import ToyWorld, check_pool
from paceline.sim import Scenario, TableCost, TrieTables, simulate
from paceline.traces import SyntheticSpec, make_trace
from paceline.traces.meta import CostTable

from ..decoding.script import run

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


def best_window(acceptance, cost_ratio, *, most):
    """The window from 0 to `most` of most `speedup`, the smallest among equals; 0 says that drafting does not pay."""
    return max(range(most + 1), key=lambda window: speedup(acceptance, window, cost_ratio))


POOL = check_pool()


class Watched:
    """Keeps every step of a policy with what came of it, and the text it saw before."""

    def __init__(self, policy):
        self.policy, self.steps, self.outcomes = policy, [], []

    def decide(self, seen):
        step = self.policy.decide(seen)
        self.steps.append(step)
        return step

    def learn(self, outcome):
        self.outcomes.append(outcome)
        self.policy.learn(outcome)


def watched(policy, *, budget=60, start=Start.draft, **world):
    """All of the text is the policy's own unless it starts with a prefill."""
    watch = Watched(policy)
    session = run(watch, budget=budget, world=ToyWorld(POOL, **world), start=start)
    return watch, session


def blocks_of(watch):
    """The outcomes of a request, cut after every step that committed something."""
    blocks, block = [], []
    for outcome in watch.outcomes:
        block.append(outcome)
        if outcome.num_emitted:
            blocks.append(block)
            block = []
    assert blocks
    assert not block
    return blocks


FREE_TOKENS = 64  # that a forward of `compute_bound` takes at the price of one


def compute_bound(*, draft_s=0.02, target_s=1.0):
    """Forwards take one price up to 64 new tokens, and in proportion to them beyond, as on a device."""
    widths = (1, FREE_TOKENS, 64 * FREE_TOKENS)
    seconds = {"draft": draft_s, "target": target_s}
    tables = {name: CostTable(new_tokens=widths, seconds=(s, s, 64 * s)) for name, s in seconds.items()}
    return TableCost("compute-bound", tables)


class Rounds:
    """Passes on to a policy, and keeps how each round began: requests that ran, and tokens asked for (0: none)."""

    def __init__(self, policy):
        self.policy = policy
        self.begun = []

    def decide(self, seen):
        begins = seen.num_pending == 0 and (seen.last is None or seen.last.num_emitted > 0)
        num_running = seen.load.num_running
        step = self.policy.decide(seen)
        if begins:
            self.begun.append((num_running, step.tokens if isinstance(step, Draft) else 0))
        return step

    def learn(self, outcome):
        self.policy.learn(outcome)


def seen_of(**changes):
    """A request before its next round."""
    known = {"num_pending": 0, "found_nothing": False, "last": None, "request_id": "r7"}
    return SimpleNamespace(**known | changes)


def done(name):
    """The outcome that ends a request."""
    return SimpleNamespace(request_id=name, done=True)


def built_by_check(make, **options):
    """Every policy that a check made, once it has run them all; they have to be lossless."""
    made = []

    def build(pool):
        made.append(make(pool))
        return made[-1]

    assert check_policy(build, **options).lossless
    return made


class TextSeen:
    """A request before its next block, of which the text and what is pending are known."""

    last, tag = None, "a"

    def __init__(self, name, prompt, answer=(), room=99, pending=()):
        self.request_id, self.prompt, self._answer, self.room = name, tuple(prompt), list(answer), room
        self.pending = [PendingToken(token, "draft", "mid", NO_SIGNAL) for token in pending]
        self.num_pending = len(pending)

    def emitted_from(self, start):
        return self._answer[start:]
