"""A text that all requests of a batch begin with is read once: by hand, never at a loss, and only if it is shared."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import ArgumentError
from paceline.sim.cost.files import CostLine, FileCost
from paceline.sim.cost.roofline import RooflineCost, device_sheet
from paceline.sim.cost.what_if import scaled
from paceline.sim.serving.charges import SharedPrefixCost
from paceline.sim.serving.limits import SharedPrefix
from paceline.traces.shapes import presets
from paceline.traces.workloads.arrival import Arrival

from .both_ways import gaps
from .served_runs import MICROSECOND, POLICIES, LineCost, Run, limits, limits_of, pico, workloads

ALWAYS = SharedPrefix(least_tokens=0, least_rows=2)
GROUPS = SharedPrefix(least_tokens=0, least_rows=2, groups=True)


class Shares(LineCost):
    """As `LineCost`, over what is read; keeps what it was asked."""

    knows_reads = True

    def __init__(self, tables, **terms):
        super().__init__(tables, **terms)
        self.asked = []

    def shared_forward_s(self, model, *, num_rows, new_tokens, context_tokens, read_tokens):
        self.asked.append((model, num_rows, context_tokens, read_tokens))
        return self.forward_s(model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=read_tokens)


def same_prompts(count, *, blocks=(1, 2, 3), output=5):
    return [Arrival(f"q{n}", 0, 12, output, blocks=blocks) for n in range(count)]


def served(arrivals, rule, policy="target", unit_tokens=4, **options):
    tables = pico()
    bounds = replace(options.pop("limits", limits_of(tables)), shared_prefix=rule)
    cost = options.pop("cost", None) or Shares(tables)
    return Run(arrivals, tables, policy, bounds, cost=cost, unit_tokens=unit_tokens, **options).go()


def told(run):
    columns = {name: values.tolist() for name, values in (run.log.requests | run.log.preemptions).items()}
    return columns, run.outputs, run.served.num_emitted, run.log.meta.members, gaps(run.log)


def test_three_requests_by_hand():
    """Prompts are read in one step, side by side, since none is cached. Then four steps hold all 12 tokens in common.

    A token held costs the target 5 microseconds (level 4 of pico): each step saves those of two rows.
    """
    each, once = (served(same_prompts(3), rule) for rule in (None, ALWAYS))
    (first, *_), (last, *_) = ([run.times()[f"q{n}"] for n in range(3)] for run in (each, once))
    assert first[:2] == last[:2]
    assert first[2] - last[2] == 4 * 2 * 12 * 5 * MICROSECOND
    quick = served(same_prompts(3), ALWAYS, outputs=None)
    assert quick.times() == once.times()
    alone = served(same_prompts(1), ALWAYS)
    assert told(alone) == told(served(same_prompts(1), None))


def test_what_is_common_to_some_is_not_common_to_all():
    """vLLM's rule: a single request with another text, and every row reads its own."""
    arrivals = [*same_prompts(3), Arrival("other", 0, 12, 9, blocks=(7, 8, 9))]
    assert told(served(arrivals, ALWAYS)) == told(served(arrivals, None))


def test_groups_read_their_own_texts_once():
    """Two groups of two and one alone, of 12 tokens each: each step reads three texts, and so saves two.

    The first group and the second have a block of 4 in common, which is read once for all four.
    """
    arrivals = [*same_prompts(2), *(Arrival(f"p{n}", 0, 12, 5, blocks=(1, 8, 9)) for n in range(2))]
    arrivals.append(Arrival("alone", 0, 12, 5, blocks=(5, 6, 7)))
    run = served(arrivals, GROUPS, cost=(cost := Shares(pico())))
    assert {held - read for _, _, held, read in cost.asked} == {3 * 4 + 2 * 8}
    assert run.outputs == served(arrivals, None).outputs
    assert told(served(arrivals, ALWAYS)) == told(served(arrivals, None))
    few = SharedPrefix(least_tokens=0, least_rows=3, groups=True)
    served(arrivals, few, cost=(cost := Shares(pico())))
    assert {held - read for _, _, held, read in cost.asked} == {3 * 4}
    long = SharedPrefix(least_tokens=5, least_rows=2, groups=True)
    served(arrivals, long, cost=(cost := Shares(pico())))
    assert {held - read for _, _, held, read in cost.asked} == {2 * 8}


def test_a_cached_text_of_nobody_does_not_cut_the_text_of_a_group():
    """A request that has ended leaves another text with the same first block: the pair still shares 12 tokens."""
    arrivals = [Arrival("before", 0, 12, 1, blocks=(1, 8, 9))]
    arrivals += [one._replace(arrives_ps=10**12) for one in same_prompts(2)]
    long = SharedPrefix(least_tokens=12, least_rows=2, groups=True)
    served(arrivals, long, cost=(cost := Shares(pico())))
    assert {held - read for _, _, held, read in cost.asked} == {12}


@given(arrivals=workloads(unit_tokens=8), policy=st.sampled_from(POLICIES), bounds=limits(pico(), prefix_cache=True))
def test_groups_read_at_least_the_longest_row_and_change_no_token(arrivals, policy, bounds):
    run = served(arrivals, GROUPS, policy, unit_tokens=8, limits=bounds, cost=(cost := Shares(pico())))
    for model, num_rows, held, read in cost.asked:
        assert model == "target"
        assert 0 < read < held <= num_rows * read
    each = served(arrivals, None, policy, unit_tokens=8, limits=bounds)
    assert run.outputs == each.outputs


@pytest.mark.parametrize(
    "rule", [SharedPrefix(least_tokens=13, least_rows=2), SharedPrefix(least_tokens=0, least_rows=4)]
)
def test_short_texts_and_few_rows_are_read_row_by_row(rule):
    assert told(served(same_prompts(3), rule)) == told(served(same_prompts(3), None))


@given(arrivals=workloads(unit_tokens=0), policy=st.sampled_from(POLICIES), bounds=limits(pico()))
def test_without_sharing_nothing_changes(arrivals, policy, bounds):
    each, once = (served(arrivals, rule, policy, unit_tokens=0, limits=bounds) for rule in (None, ALWAYS))
    assert told(each) == told(once)


@given(arrivals=workloads(unit_tokens=8), policy=st.sampled_from(POLICIES), bounds=limits(pico(), prefix_cache=True))
def test_what_is_read_lies_between_the_text_once_and_all_that_is_held(arrivals, policy, bounds):
    run = served(arrivals, ALWAYS, policy, unit_tokens=8, limits=bounds, cost=(cost := Shares(pico())))
    for model, num_rows, held, read in cost.asked:
        common, rest = divmod(held - read, num_rows - 1)
        assert (model, rest) == ("target", 0)
        assert common <= read < held
        assert num_rows * common <= held
    each = served(arrivals, None, policy, unit_tokens=8, limits=bounds)
    assert run.outputs == each.outputs  # sharing changes seconds, never tokens


COSTS = st.sampled_from(
    [
        RooflineCost(device_sheet()["h100"], (presets()["llama-3.1-8b"].info("m"),)),
        RooflineCost(device_sheet()["h100"], (presets()["qwen-3-30b-a3b"].info("m"),), tensor_parallel=2),
        FileCost("f", {"m": CostLine(intercept_s=1e-3, per_new_token_s=1e-6, per_kv_token_s=1e-9 / 3)}),
        scaled(RooflineCost(device_sheet()["h100"], (presets()["llama-3.1-8b"].info("m"),)), {"m": 0.7}, target="m"),
    ]
)


@given(COSTS, st.integers(1, 256), st.integers(0, 8), st.integers(0, 20_000), st.integers(0, 10**6))
def test_a_forward_never_costs_more_and_is_the_same_where_nothing_is_shared(cost, rows, more, common, rest):
    asked = {"num_rows": rows, "new_tokens": rows * (1 + more), "context_tokens": rows * common + rest}
    each = SharedPrefixCost(cost, ALWAYS, lambda: 0).forward_s("m", **asked)
    once = SharedPrefixCost(cost, ALWAYS, lambda: common).forward_s("m", **asked)
    assert once <= each
    if rows == 1 or common == 0:
        assert once == each
    assert cost.shared_forward_s("m", **asked, read_tokens=asked["context_tokens"]) == cost.forward_s("m", **asked)


def test_a_roofline_by_hand():
    """docs/cluster.md: 64 rows of 4,096 common tokens and 100 of their own; a token held is 131,072 bytes."""
    shape = presets()["llama-3.1-8b"].info("m")
    cost = RooflineCost(device_sheet()["h100"], (shape,))
    shared = SharedPrefixCost(cost, SharedPrefix(), lambda: 4096)
    found = shared.forward_s("m", num_rows=64, new_tokens=64, context_tokens=64 * 4196)
    read = 4096 + 64 * 100 + 64
    weights = 8_030_261_248 - 128_256 * 4096  # without the embedding
    assert found == pytest.approx(5.21e-3, abs=5e-6)
    assert cost.forward_s("m", num_rows=64, new_tokens=64, context_tokens=64 * 4196) == pytest.approx(
        15.31e-3, abs=5e-6
    )
    assert found == pytest.approx((2 * weights + 131_072 * read) / 3.35e12 + 32 * 1e-5, rel=1e-7)
    # Arithmetic is not shared: of 32 tokens a row, all of which attend to the common text.
    wide = shared.forward_s("m", num_rows=64, new_tokens=64 * 32, context_tokens=64 * 4196)
    arithmetic = 64 * 32 * (2 * weights + 4 * 32 * 4096 * (4196 + 16.5))
    assert wide == pytest.approx(arithmetic / 989e12 + 32 * 1e-5, rel=1e-7)


def test_a_cost_that_does_not_tell_what_is_read_is_refused():
    with pytest.raises(
        ArgumentError, match=r"shared_prefix of a replica needs a cost that tells what is read, .*; line does not"
    ):
        served(same_prompts(2), ALWAYS, cost=LineCost(pico()))
