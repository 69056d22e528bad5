"""What experiments and benchmarks share: chains, timed steps, jobs in turn; benchmarks find what they import."""

import ast
import importlib
from importlib.util import find_spec
from pathlib import Path

from paceline.decoding.pool import Member, Pool
from paceline.policies import make_policy
from paceline.policies.chains import parse_chain
from paceline.sim.recorded import recorded_pool
from paceline.traces import SyntheticSpec, make_trace
from paceline_laboratory.replays import TimedSteps, chain, in_turns, interleaved, three_levels, two_levels
from paceline_laboratory.shared import Tally, add_drafts

from ..sim.tries.small_traces import replay

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TRACE = make_trace(SyntheticSpec(name="small", requests=3, tokens=12, prompt_tokens=4, acceptance=(0.7,)))


def names_in(file):
    """What can be imported from a file of the benchmarks."""
    for node in ast.parse(file.read_text()).body:
        yield from (part.id for part in ast.walk(node) if isinstance(part, ast.Name))
        yield from (getattr(node, "name", ""), *(each.asname or each.name for each in getattr(node, "names", ())))


def test_every_benchmark_finds_what_it_imports():
    """They stand outside of the packages, where no type checker sees that a name they import has moved."""
    found = 0
    for file in sorted(BENCHMARKS.rglob("*.py")):
        for node in (one for one in ast.walk(ast.parse(file.read_text())) if isinstance(one, ast.ImportFrom)):
            place = BENCHMARKS / f"{(node.module or '').replace('.', '/')}.py"
            names = {each.name for each in node.names}
            found += 1
            if node.level == 0 and node.module.partition(".")[0] in ("paceline", "paceline_laboratory"):
                module = importlib.import_module(node.module)
                assert all(hasattr(module, name) or find_spec(f"{node.module}.{name}") for name in names), (file, names)
            elif place.is_file():
                assert names <= set(names_in(place)), (file, names)
    assert found > 200


def test_every_chain_is_one_of_the_pool():
    pool, drafting = (
        Pool((Member(name="a"), Member(name="b"), Member(name="c", drafts_only=only), Member(name="target")))
        for only in (False, True)
    )
    two = two_levels(("a", "b", "c"), "target", (1, 4))
    three = three_levels(pool, lower=(1, 2), upper=(3,))
    assert two == ["a:1/target", "a:4/target", "b:1/target", "b:4/target", "c:1/target", "c:4/target"]
    assert three[:2] == ["a:1/b:3/target", "a:2/b:3/target"] == three_levels(drafting, lower=(1, 2), upper=(3,))
    assert len(three) == 3 * 2
    for text in (*two, *three):
        found = parse_chain(text, pool)
        assert chain(found.members, found.windows) == text


def test_every_step_is_timed_and_none_is_changed():
    pool = recorded_pool(TRACE)
    alone, _ = replay(TRACE, make_policy("two-level", pool))
    timed = TimedSteps(make_policy("two-level", pool))
    log, _ = replay(TRACE, timed)
    assert all(column.tolist() == alone.steps[name].tolist() for name, column in log.steps.items())
    assert len(timed.steps_s) == (~log.steps["prefill"].astype(bool)).sum()
    assert min(timed.steps_s) > 0
    assert timed.deciding_s > 0 < timed.learning_s


def test_all_jobs_run_in_turn_and_warm_ups_are_dropped():
    ran = []
    jobs = {name: lambda name=name: (ran.append(name), len(ran))[1] for name in "ab"}
    assert in_turns(jobs, runs=2, warm_ups=1) == {"a": [3, 5], "b": [4, 6]}
    assert "".join(ran) == "ababab"
    assert set(interleaved(jobs, runs=1)) == {"a", "b"}
    assert "".join(ran) == "ababab" + "abab"


class TwoByTwo:
    """The other vocabulary has a token for every two of the target's; a draft is spelled with `wrong` at its end."""

    def __init__(self, wrong=None):
        self.wrong = wrong

    def to_other(self, text):
        return [tuple(text[place : place + 2]) for place in range(0, len(text), 2)]

    def drafted(self, before, draft):
        tokens = [token for pair in draft for token in pair]
        return tokens if self.wrong is None else [*tokens[:-1], self.wrong]


def test_all_of_a_perfect_draft_counts_where_tokens_begin_alike_and_what_is_spelled_otherwise_is_told():
    tally = Tally()
    add_drafts(tally, TwoByTwo(), list(range(8)), range(1, 8), num_tokens=1)
    assert tally.counted == [2, 2, 2]  # odd cuts part a pair
    assert (tally.spelled_share, tally.counted_a_draft) == (1.0, 2)
    assert len(tally.reading_s) == len(tally.spelling_s) == 3
    tally = Tally()
    add_drafts(tally, TwoByTwo(wrong=-1), list(range(8)), range(2, 7, 2), num_tokens=1)
    assert (tally.spelled_share, Tally().spelled_share) == (0.5, 0.0)
