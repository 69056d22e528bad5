"""The highest rate at which a policy keeps its limits, and where policies change places."""

from itertools import pairwise
from statistics import fmean

import paceline
import pytest
from paceline.cli.typed import rates
from paceline.reports.limits import Limit
from paceline.reports.rates import Crossing, HighestRate, HighestRates
from paceline.studies.rates import PRECISION

LOAD = "poisson:requests=60"
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


def test_a_fine_grid_of_rates_finds_the_same(found, cost):
    """Seed by seed the last rate of a grid that keeps the limits, and of the figures' means one within the interval."""
    for row in found.rows:
        low, high = row.rate.bounds
        least, most = min(row.by_seed.values()), max(row.by_seed.values())
        step = 1.01
        grid = [least / step**3]
        while grid[-1] < most * step**3:
            grid.append(grid[-1] * step)
        cells = paceline.compare_under_load(None, row.policy, rates=grid, **{**ASKED, "cost": cost}).rates
        for number, (seed, rate) in enumerate(row.by_seed.items()):
            flats = [one.rows[0].runs[number].flat for one in cells]
            kept = [flat["ttft_s_p99"] < 0.03 and flat["tpot_s_p99"] < 0.012 for flat in flats]
            turns = [at for at, (ours, after) in enumerate(pairwise(kept)) if ours and not after]
            assert any(grid[at] / step < rate * (1 + PRECISION) and rate < grid[at + 1] * step for at in turns), seed
        means = [
            all(fmean(run.flat[name] for run in one.rows[0].runs) < bound for name, bound in BOUNDS.items())
            for one in cells
        ]
        last = max((rate for rate, fits in zip(grid, means, strict=True) if fits), default=grid[0])
        assert low / step <= last <= high * step


BOUNDS = {"ttft_s_p99": 0.03, "tpot_s_p99": 0.012}


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


def test_policies_change_places_where_their_times_are_equal(cost):
    asked = {**ASKED, "cost": cost, "workload": "poisson:requests=200", "seeds": 2}
    found = paceline.find_rates(None, POLICIES, limits="mean_ttft < 0.08", **asked)
    (crossing,) = found.crossings
    assert (crossing.below, crossing.above) == ("draft:4/target", "plain")
    for factor, better in ((0.97, crossing.below), (1.03, crossing.above)):
        for seed, rate in crossing.by_seed.items():
            at = {**asked, "seed": seed, "seeds": 1, "rates": [rate * factor]}
            (one,) = paceline.compare_under_load(None, POLICIES, **at).best
            assert one.policy == better
    assert found.lines()[-1].startswith("least time in the system: draft:4/target below, plain above ")


def test_what_is_not_told_apart_is_said():
    def row(policy, *rates):
        return HighestRate(policy=policy, by_seed=dict(enumerate(rates)), figures={"p99_ttft": 0.1})

    rows = (row("a", 10.0, 11.0, 9.0), row("b", 9.9, 10.0, 9.5))
    crossing = Crossing(below="b", above="a", by_seed={0: 3.0}, seeds=3)
    meta = {"workload": "w", "cluster": "c", "trace": "t", "setting": {}}
    shown = {"looked_at": (1.0, 10.0), "quickest": "b", "crossings": (crossing,), "meta": meta, "remarks": ()}
    found = HighestRates(limits=(Limit(figure="ttft_s_p99", sign="<", bound=0.2),), rows=rows, **shown)
    first, second = found.lines()
    assert first.startswith("best: a, 9.97 arrivals/s; b (9.8) cannot be told apart from it on these 3 seeds; about ")
    assert second == "least time in the system: b below, a above, at 1 of 3 seeds alone: where is not known"
    assert found.to_json()["crossings"][0]["rate"] is None


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
        ({"limits": "p99_ttft < 100"}, "p99_ttft < 100 holds at every rate under plain: at .* all 60 requests come as"),
    ],
)
def test_what_will_not_do_is_one_line(given, said, cost):
    with pytest.raises(ValueError, match=said) as error:
        paceline.find_rates(None, "plain", **{**ASKED, "cost": cost, **given})
    assert "\n" not in str(error.value)


def test_goodput_may_be_asked_for(cost):
    asked = {**ASKED, "cost": cost, "seeds": 1, "slo": {"ttft": 0.03}}
    found = paceline.find_rates(None, "plain", limits="slo_share > 0.9", **asked)
    assert found.rows[0].figures["slo_share"] > 0.9
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
