"""The highest rate at which a policy keeps its limits, and where policies change places."""

import random
from dataclasses import replace
from itertools import pairwise
from math import inf, log2, prod
from types import SimpleNamespace

import numpy as np
import paceline
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from paceline.cli.typed import rates
from paceline.reports.intervals import Interval, geometric_interval, mean_interval
from paceline.reports.limits import Limit
from paceline.reports.rates import Crossing, HighestRate, HighestRates, SeedRate, clusters_for
from paceline.studies.rates import AROUND, EMPTY_AT_FIRST, PRECISION, UNRANGED, NoRateError, _Search

LOAD = "poisson:requests=40"
POLICIES = ["plain", "draft:4/target"]
ASKED = {"workload": LOAD, "cluster": "h100", "cost": "h100", "seeds": 3}


@pytest.fixture(scope="module")
def cost(tmp_path_factory):
    line = '{{"intercept_s": {0}, "per_new_token_s": {1}, "per_kv_token_s": 1e-8}}'
    prices = {"draft": (0.00074, 2.5e-6), "mid": (0.0018, 6e-6), "slim": (0.0024, 8e-6), "target": (0.0048, 1.6e-5)}
    path = tmp_path_factory.mktemp("cost") / "large.json"
    rows = ", ".join(f'"{name}": {line.format(*price)}' for name, price in prices.items())
    path.write_text(f"{{{rows}}}")
    return path


@pytest.fixture(scope="module")
def found(cost):
    return paceline.find_rates(None, POLICIES, limits="p99_ttft < 0.03, p99_tpot < 0.012", **{**ASKED, "cost": cost})


def agrees_with_a_grid(row, trace, asked, limits, step):
    """The mean over seeds of where a grid of rates is split best lies within the interval."""
    low, high = row.rate.bounds
    least, most = min(one.broken_from for one in row.found.values()), max(one.kept_up_to for one in row.found.values())
    grid = [least / 1.15]
    while grid[-1] < most * 1.15:
        grid.append(grid[-1] * step)
    cells = paceline.compare_under_load(trace, row.policy, rates=grid, **asked).rates
    splits = []
    for number in range(len(row.found)):
        kept = [all(limit.kept(at.rows[0].runs[number].flat[limit.figure]) for limit in limits) for at in cells]
        wrong = [kept[:split].count(False) + kept[split:].count(True) for split in range(len(kept) + 1)]
        splits.append(grid[min(range(len(wrong)), key=wrong.__getitem__)])
    assert low / step <= geometric_interval(splits).mean <= high * step


@pytest.mark.parametrize(
    ("name", "step"),
    [("draft:4/target", 1.06), *(pytest.param(name, 1.02, marks=pytest.mark.slow) for name in POLICIES)],
)
@pytest.mark.slow
def test_a_grid_of_rates_finds_the_same(found, cost, name, step):
    (row,) = (row for row in found.rows if row.policy == name)
    agrees_with_a_grid(row, None, {**ASKED, "cost": cost}, found.limits, step)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trace", "workload", "policy", "limits"),
    [
        ("smollm2", "gamma:requests=50,cv=2", "draft:3/target", "p90_ttft < 2"),
        ("smollm2-coupled", "constant:requests=50", "draft:2/mid:4/target", "mean_e2e < 8, p95_tpot < 0.2"),
        ("pico-coupled", "poisson:requests=80", "adaptive", "p95_queue < 0.05"),
        ("pico", "react:sessions=12,steps=3,prompt=60,output=20,observation=30", "plain", "p90_e2e < 0.15"),
    ],
)
def test_a_fine_grid_finds_the_same_of_other_recordings_and_loads(trace, workload, policy, limits):
    asked = {"workload": workload, "cluster": "h100", "cost": "cpu", "seeds": 3}
    found = paceline.find_rates(trace, policy, limits=limits, **asked)
    agrees_with_a_grid(found.rows[0], trace, asked, found.limits, step=1.03)


class Jumps(_Search):
    """A policy whose limits are kept at rates that a function says."""

    def kept(self, policy, seed, rate):
        return policy(rate)

    def run(self, policy, seed, rate):
        metrics = SimpleNamespace(requests=9, duration_s=9 + 9 / rate, running_mean=min(rate, 1.0))
        return SimpleNamespace(metrics=metrics, flat={"tpot_s_p50": 1.0})


@pytest.mark.parametrize(
    ("kept", "told"),
    [(lambda rate: not 3.9 < rate < 4.1, "holds at every rate"), (lambda rate: 0.99 < rate < 1.01, "holds at no rate")],
)
def test_a_search_ends_where_limits_turn_for_some_rates_alone(kept, told):
    kept.name = "p"
    search = Jumps(runs=None, limits=(Limit(figure="tpot_s_p50", sign="<", bound=0.0),))
    with pytest.raises(NoRateError, match=told):
        search._highest(kept, 0, 1.0, 4.0)


@given(st.floats(2.0, 1e4), st.just(0.0) | st.floats(0.001, 0.12), st.integers(0, 100))
def test_where_limits_hold_and_break_in_turns_it_is_in_the_middle(edge, width, salt):
    """Kept below the edge and broken above it, but within `width` on either side as chance says."""

    def kept(rate):
        off = log2(rate / edge) / log2(1 + width) if width else inf * (rate - edge)
        return off < 0 if abs(off) > 1 else random.Random(f"{salt} {rate:.9g}").random() < (1 - off) / 2

    found = Jumps(runs=None, limits=())._settled(kept, 0, edge / (1 + width) ** 1.01)
    assert kept(found.rate)
    assert found.rate <= found.kept_up_to
    assert found.broken_from <= found.kept_up_to
    reach = AROUND * (1 + width)
    assert edge / reach**1.5 <= found.rate <= edge * reach


@pytest.mark.slow
def test_seeds_are_paired(found):
    """What arrivals do to both is not in the interval of the ratio."""
    best, other = found.rows
    assert found.best == "plain"
    ratio = other.over(best)
    apart = other.rate.high / best.rate.low - other.rate.low / best.rate.high
    assert ratio.high - ratio.low < apart / 3
    assert best.over(best).bounds == pytest.approx((1.0, 1.0))
    (json,) = [row for row in found.to_json()["policies"] if row["policy"] == other.policy]
    assert json["of_best_ci"] == list(ratio.bounds)
    assert len(json["rate_by_seed"]) == 3


@pytest.mark.slow
def test_policies_change_places_where_their_times_are_equal(cost):
    """The mean difference is 0 there, and at the ends its 95% interval begins to hold 0."""
    asked = {**ASKED, "cost": cost, "workload": "poisson:requests=200"}
    found = paceline.find_rates(None, POLICIES, limits="mean_ttft < 0.08", **asked)
    (one,) = found.crossings
    assert (one.below, one.above) == ("draft:4/target", "plain")
    assert one.low < one.rate < one.high
    step = 1 + 3 * PRECISION
    rates = [one.low / step, one.low * step, one.rate / step, one.rate * step, one.high / step, one.high * step]
    signs = []
    for at in paceline.compare_under_load(None, POLICIES, **asked, rates=sorted(rates)).rates:
        plain, drafting = (row.by_seed("in_system_s") for row in at.rows)
        less = mean_interval([drafting[seed] - plain[seed] for seed in plain])
        signs.append((less.mean > 0, (less.low > 0) - (less.high < 0)))
    assert signs == [(False, -1), (False, 0), (False, 0), (True, 0), (True, 0), (True, 1)]
    assert found.lines()[-1].startswith("least time in the system: draft:4/target below, plain above ")


class Curves(_Search):
    """Policies whose time in the system is a function of rate and seed."""

    def seconds(self, policy, seed, rate):
        return policy.curve(log2(rate), seed)


def crossings_of(curves, seeds, rates):
    """Of functions of (logarithm of the rate, seed), by name."""
    named = [SimpleNamespace(name=name, curve=curve) for name, curve in curves.items()]
    search = Curves(runs=SimpleNamespace(seeds=range(seeds), has_chance=seeds > 1), limits=())
    return list(search.crossings(named, rates))


GRID = [2 ** (step / 2) for step in range(13)]  # 1 to 64


def test_one_policy_is_the_quickest_without_a_run():
    def curve(at, seed):
        raise AssertionError("played for nothing")

    assert crossings_of({"alone": curve}, 3, GRID) == []


@given(st.lists(st.floats(0.2, 5.8), min_size=1, max_size=4, unique=True), st.sampled_from([1, 3]))
def test_every_change_inside_the_range_is_found(places, seeds):
    """Two policies that change places at several rates, the same one being best at both ends among them."""
    places = sorted(places)
    assume(all(after - before > 0.6 for before, after in pairwise(places)))

    def gap(at, seed):
        return (-1) ** len(places) * prod(at - place for place in places) * (1 + 0.1 * seed)

    found = crossings_of({"a": gap, "b": lambda at, seed: 0.0}, seeds, GRID)
    assert [log2(one.rate) for one in found] == pytest.approx(places, abs=0.01)
    names = ["ab"[number % 2] for number in range(len(places) + 1)]
    names = names if gap(0, 0) < 0 else ["ba"[number % 2] for number in range(len(places) + 1)]
    assert [(one.below, one.above) for one in found] == [*pairwise(names)]


def test_a_third_policy_in_the_middle_is_found():
    """Best between two grid rates alone, where the two others cross."""
    curves = {
        "low": lambda at, seed: at, "high": lambda at, seed: 6.5 - at, "between": lambda at, seed: 3.2 + 0 * at,
    }  # fmt: skip
    found = crossings_of(curves, 1, GRID)
    assert [(one.below, one.above) for one in found] == [("low", "between"), ("between", "high")]
    assert [log2(one.rate) for one in found] == pytest.approx([3.2, 3.3], abs=0.01)


def test_intervals_hold_the_truth():
    """Of 200 crossings with noise over 4 seeds at most 8% are outside."""
    rng, missed = np.random.default_rng(0), 0

    def curves(noise):
        return {"a": lambda at, seed: at - 3 + noise[0, seed], "b": lambda at, seed: noise[1, seed]}

    for _ in range(200):
        (found,) = crossings_of(curves(rng.normal(0, 0.4, size=(2, 4))), 4, GRID)
        missed += not (found.low or 0) <= 8 <= (found.high or inf)
    assert missed <= 16


def test_what_is_not_told_apart_is_said():
    def row(policy, *rates):
        found = {seed: SeedRate(rate=one, broken_from=one, kept_up_to=one) for seed, one in enumerate(rates)}
        return HighestRate(policy=policy, found=found, figures={"p99_ttft": 0.1}, rejected={})

    rows = (row("a", 10.0, 11.0, 9.0), row("b", 9.9, 10.0, 9.5))
    crossing = Crossing(below="b", above="a", rate=3.0, low=2.5, high=None)
    meta = {"workload": "w", "cluster": "c", "trace": "t", "setting": {}}
    shown = {"looked_at": (1.0, 10.0), "quickest": "b", "crossings": (crossing,), "meta": meta, "remarks": ()}
    found = HighestRates(limits=(Limit(figure="ttft_s_p99", sign="<", bound=0.2),), rows=rows, **shown)
    first, second = found.lines()
    assert first.startswith("best: a, 9.97 arrivals/s; b (9.8) cannot be told apart from it on these 3 seeds; about ")
    assert second.endswith(
        "b below, a above 3 arrivals/s, which may be chance: a is surely the better one at no higher rate"
    )
    assert found.to_json()["crossings"] == [{"below": "b", "above": "a", "rate": 3.0, "rate_ci": [2.5, None]}]
    assert not any("by_seed" in column for column in found.to_dicts()[0])
    alike = replace(found, rows=(row("a", 10.0), row("b", 10.0)))
    assert alike.lines()[0] == "best: a, 10 arrivals/s; b (10) cannot be told apart from it on this seed"
    narrow = {seed: SeedRate(rate=1.0, broken_from=0.999, kept_up_to=1.001) for seed in (0, 1)}
    (shown,) = replace(found, rows=(replace(rows[0], found=narrow),)).tables()
    assert not [remark for remark in shown.remarks if "in turns" in remark], "from 1.00 to 1.00 times its rate"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"limits": "p99_ttf < 1"}, "`limits` knows no figure 'p99_ttf': did you mean p99_ttft"),
        ({"limits": "slo_share > 0.9"}, "`limits` slo_share goes with `slo`"),
        ({"limits": "p99_ttft < 1", "slo": {"ttft": 1}}, "`slo` goes with a limit on slo_share"),
        ({"limits": "p99_ttft < 1", "horizon_s": 3.0}, "`horizon_s` must be left out where rates are found"),
        ({"limits": "p99_ttft < 1", "concurrency": 2}, "`concurrency` has no part where rates are found, got 2"),
        ({"limits": "p99_ttft < 1", "workload": "poisson:rate=3,requests=9"}, "leave their rate open"),
        ({"limits": "p99_ttft < 1", "chains": ["draft:1..2/target"]}, "`policies` has no part beside `chains`"),
        (
            {"limits": "p99_ttft < 0.001"},
            "p99_ttft < 0.001 holds at no rate under plain: at 0.00391 arrivals/s, the low",
        ),
        (
            {"limits": "p99_ttft < 100s", "workload": "poisson:seconds=20"},
            "`workload` must give a number of requests too: at 16 arrivals/s its seconds hold 320, more than 100",
        ),
        (
            {"limits": "p99_ttft < 1", "workload": "poisson:seconds=3e7", "limit": 20},
            "`workload` must give a number of requests too: at 1 arrivals/s its seconds hold 30,000,000, more",
        ),
        (
            {"limits": "p99_ttft < 100s"},
            "p99_ttft < 100 holds at every rate under plain: at .* all 40 requests come as",
        ),
    ],
)
def test_what_will_not_do_is_one_line(given, said, cost, monkeypatch):
    monkeypatch.setattr("paceline.studies.rates.MOST_DRAWN", 100)
    with pytest.raises(ValueError, match=said) as error:
        paceline.find_rates(None, "plain", **{**ASKED, "cost": cost, **given})
    assert "\n" not in str(error.value)


def test_goodput_may_be_asked_for(cost):
    asked = {**ASKED, "cost": cost, "seeds": 1, "slo": {"ttft": 0.03}}
    found = paceline.find_rates(None, "plain", limits="slo_share > 0.9", **asked)
    assert found.rows[0].figures["slo_share"] > 0.9
    assert found.tables()[0].title.endswith("; slo_share > 0.9; SLO ttft 0.03 s")
    assert found.to_json()["slo"] == {"ttft": 0.03}
    assert found.lines() == []


def test_ranges_of_rates():
    assert rates("--rate", "1:4:1,0.5") == (1.0, 2.0, 3.0, 4.0, 0.5)
    assert rates("--rate", "0.1:0.3:0.1") == (0.1, 0.2, 0.3)
    for text in ("4:1:1", "1:2", "1:2:0", "0:2:1", "1:inf:1", "a:2:1"):
        with pytest.raises(ValueError, match="--rate ranges are LOW:HIGH:STEP"):
            rates("--rate", text)


def test_chains_with_ranges_are_compared_under_load(cost):
    asked = {**ASKED, "cost": cost, "seeds": 1, "rates": [20.0]}
    found = paceline.compare_under_load(chains=["draft:1..3:2/target"], **asked)
    assert [row.about.policy for row in found.rates[0].rows] == ["draft:1/target", "draft:3/target"]


MANY = {**ASKED, "seeds": 2, "workload": "poisson:requests=300"}


@pytest.fixture(scope="module")
def of_plain(cost):
    return paceline.find_rates(None, "plain", limits="p99_tpot < 0.012", **MANY | {"cost": cost})


def test_clusters_that_share_a_rate(of_plain, cost, tmp_path):
    """As many as the highest rate of one says keep the limits; one less does not."""
    asked, (row,) = MANY | {"cost": cost}, of_plain.rows
    rate = 2.5 * row.rate.mean
    assert clusters_for(rate, row.rate).mean == 3
    for count, holds in ((3, True), (2, False)):
        path = tmp_path / f"{count}.toml"
        path.write_text(f'[[replicas]]\ndevice = "h100"\ncount = {count}\n')
        (at,) = paceline.compare_under_load(None, ["plain"], rates=[rate], **asked | {"cluster": path}).rates
        assert all(run.flat["tpot_s_p99"] < 0.012 for run in at.rows[0].runs) == holds
    one = Interval(mean=5.0, low=3.0, high=11.0)
    assert clusters_for(10.0, one) == Interval(mean=2, low=1, high=4)


def test_what_flatters_a_rate_is_told(of_plain):
    """Neither an empty server at the start nor the range of the cost is in the brackets."""
    asked = {"workload": "poisson:requests=30", "cluster": "h100", "models": ["target=llama-3.1-8b"], "seeds": 1}
    of_device = paceline.find_rates(None, "plain", limits="p99_ttft < 0.03", **asked)
    doubts = [remark for remark in of_device.remarks if remark in (EMPTY_AT_FIRST, UNRANGED)]
    assert doubts == [EMPTY_AT_FIRST, UNRANGED]
    assert UNRANGED not in of_plain.remarks, "a cost without a range"


def test_the_number_of_clusters_for_a_rate_is_a_column(of_plain):
    asked = replace(of_plain, asked=1e4)
    (grid,) = asked.tables()
    cells = dict(zip((column.heading for column in grid.columns), grid.rows[0], strict=True))
    assert cells["for 10000/s"].startswith(f"{clusters_for(1e4, of_plain.rows[0].rate).mean:,}")
    assert any(remark.startswith("for 10000/s: clusters like this one") for remark in grid.remarks)
    assert asked.to_json()["policies"][0]["clusters"] == clusters_for(1e4, of_plain.rows[0].rate).mean
    assert "clusters" not in of_plain.to_json()["policies"][0]
