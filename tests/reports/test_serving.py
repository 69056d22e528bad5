"""Every figure of a serving run, promises by class, quantiles of gaps, and who is best where."""

from dataclasses import asdict, replace
from math import sqrt
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.reports.intervals import enough_values, mean_interval
from paceline.reports.load import GOODPUT, IN_SYSTEM, Best, best_at, in_words, less
from paceline.reports.sections import latency_intervals
from paceline.reports.serving import Promises, ServiceLevels, gap_percentiles, metrics_of
from paceline.reports.serving_tables import IN_SECTIONS, MeasuredRun, SeedRow, what_was_asked
from paceline.reports.summary import Spread
from paceline.runs.recorder import ServingRecorder
from paceline.runs.serving import GAP_FIELDS, ServingAbout, total_gaps, total_ps

from ..runs.making import ABOUT, played
from .making import worked_log

NOTHING = Promises()


def to_all(**seconds):
    return Promises(others=ServiceLevels(**seconds))


class near:  # noqa: N801 - reads as pytest.approx
    """Equal to a spread but for rounding."""

    def __init__(self, spread):
        self.spread = spread

    def __eq__(self, found):
        if found is None or self.spread is None:
            return found is self.spread
        return asdict(found) == pytest.approx(asdict(self.spread), rel=1e-9)

    def __repr__(self):
        return f"near {self.spread}"


def test_latencies_by_hand():
    found = metrics_of(worked_log(), NOTHING)
    assert found.ttft_s == near(Spread(mean=1.75, p50=1.75, p90=1.95, p95=1.975, p99=1.995))
    assert found.e2e_s == near(Spread(mean=3.75, p50=3.75, p90=4.35, p95=4.425, p99=4.485))
    assert found.queue_s == near(Spread(mean=0.25, p50=0.25, p90=0.45, p95=0.475, p99=0.495))
    assert found.in_system_s == pytest.approx((4.5 + 3 + 3) / 3)
    tpots = [2.5 / 3, 1.5]
    assert found.tpot_s.mean == pytest.approx(sum(tpots) / 2)
    assert found.tpot_s.p90 == pytest.approx(tpots[0] + 0.9 * (tpots[1] - tpots[0]))
    assert found.itl_s == near(Spread(mean=1.25, p50=1.25, p90=1.5, p95=1.5, p99=1.5))


def test_counts_by_hand():
    found = metrics_of(worked_log(), to_all(ttft=1.8, tpot=2.0))
    assert (found.requests, found.finished, found.rejected, found.unfinished) == (4, 2, 1, 1)
    assert found.rejected_for == {"longer than the memory": 1}
    assert (found.prompt_tokens, found.output_tokens, found.unfinished_tokens) == (30, 6, 2)
    assert (found.duration_s, found.requests_per_s, found.output_tokens_per_s) == (6.0, 2 / 6, 1.0)
    assert found.emitted_tokens_per_s == 8 / 6
    assert (found.slo_met, found.slo_share, found.goodput_per_s) == (1, 0.25, 1 / 6)
    assert (found.preemptions, found.preempted_requests) == (0, 0)


def test_load_and_members_by_hand():
    found = metrics_of(worked_log(), NOTHING)
    (replica,) = found.replicas
    assert (replica.requests, replica.running_max, replica.waiting_max) == (4, 2, 1)
    assert found.running_mean == pytest.approx(8.5 / 6)
    assert found.waiting_mean == pytest.approx(2 / 6)
    assert found.busy_share == pytest.approx(5.9 / 6)
    draft, target = found.members
    assert (draft.verifications, draft.acceptance_length, draft.kv_use_mean) == (0, None, None)
    assert (draft.hit_share_blocks, draft.hit_share_tokens, draft.cached_prompt_share) == (None, None, None)
    assert target.kv_use_mean == pytest.approx((2 + 12) / (8 * 6))
    assert target.kv_use_max == 3 / 8
    assert (target.hit_share_blocks, target.hit_share_tokens) == (1 / 3, 16 / 70)
    assert target.cached_prompt_share == 16 / 70
    assert (target.verifications, target.acceptance_length, target.accepted_per_verification) == (4, 1.25, 0.5)
    assert target.acceptance_rate == 0.4


def naive_spread(values):
    if not values:
        return None
    p50, p90, p95, p99 = np.percentile(values, (50, 90, 95, 99)).tolist()
    return Spread(mean=sum(values) / len(values), p50=p50, p90=p90, p95=p95, p99=p99)


@given(run=played(), bounds=st.tuples(st.integers(1, 3 * 10**6), st.integers(1, 10**6)))
def test_figures_are_those_of_every_token(run, bounds):
    """Exact fractions of seconds: a picosecond of the toy is one of the clock."""
    ttft_ps, tpot_ps = bounds
    found = metrics_of(run.log, to_all(ttft=ttft_ps / 1e12, tpot=tpot_ps / 1e12))
    done = [told for told in run.told if told.ended >= 0 and not told.rejected]
    first = {id(told): told.outputs[0][0] for told in done}
    ttft = [(first[id(told)] - told.arrival.arrives_ps) / 1e12 for told in done]
    e2e = [(told.ended - told.arrival.arrives_ps) / 1e12 for told in done]
    queue = [(told.scheduled - told.arrival.arrives_ps) / 1e12 for told in done]
    several = [told for told in done if told.arrival.output_tokens > 1]
    tpot = [(told.ended - first[id(told)]) / 1e12 / (told.arrival.output_tokens - 1) for told in several]
    gaps = [gap / 1e12 for told in run.told for gap in told.gaps]
    for name, values in {"ttft": ttft, "tpot": tpot, "e2e": e2e, "queue": queue, "itl": gaps}.items():
        assert getattr(found, f"{name}_s") == near(naive_spread(values)), name
    met = [
        told
        for told in done
        if first[id(told)] - told.arrival.arrives_ps <= ttft_ps
        and told.ended - first[id(told)] <= tpot_ps * (told.arrival.output_tokens - 1)
    ]
    assert found.slo_met == len(met)
    ends = [
        (told.ended if told.ended >= 0 else run.log.meta.ended_at_ps, told) for told in run.told if not told.rejected
    ]
    in_system = [(end - told.arrival.arrives_ps) / 1e12 for end, told in ends]
    assert found.in_system_s == (pytest.approx(sum(in_system) / len(in_system)) if ends else None)
    assert found.finished + found.rejected + found.unfinished == found.requests == len(run.told)
    assert found.output_tokens + found.unfinished_tokens == sum(told.emitted for told in run.told)
    assert found.preemptions == sum(len(told.preempted) for told in run.told)
    assert found.preempted_requests == sum(bool(told.preempted) for told in run.told)


def test_a_run_of_nothing():
    found = metrics_of(ServingRecorder(["target"], {"r0": [4]}).log(ABOUT), to_all(ttft=1.0))
    assert (found.requests, found.duration_s) == (0, 0)
    assert found.requests_per_s is found.ttft_s is found.itl_s is None
    assert (found.slo_met, found.slo_share, found.goodput_per_s) == (0, None, None)
    assert found.busy_share is None


def test_promises_in_years_are_met():
    assert metrics_of(worked_log(), to_all(tpot=1e18, e2e=1e300)).slo_met == 2


NAMES = ("", "chat", "batch")
levels = st.builds(
    lambda ttft, e2e: ServiceLevels(ttft=ttft, e2e=e2e),
    st.none() | st.integers(1, 10**6).map(lambda ps: ps / 1e12),
    st.none() | st.integers(1, 10**6).map(lambda ps: ps / 1e12),
)
promises = st.builds(
    lambda others, classes: Promises(others=others, classes=classes),
    levels,
    st.dictionaries(st.sampled_from(NAMES[1:]), levels),
)


def of_classes(log, names):
    """The log with these classes of its requests."""
    column = np.empty(len(names), object)
    column[:] = names
    return replace(log, requests={**log.requests, "slo": column})


@st.composite
def classed(draw):
    log = draw(played()).log
    return of_classes(log, [draw(st.sampled_from(NAMES)) for _ in log.requests["slo"]])


@given(log=classed(), promised=promises)
def test_classes_add_up_to_the_whole(log, promised):
    found = metrics_of(log, promised)
    assert [one.name for one in found.classes] in ([], sorted({*log.requests["slo"].tolist()}))
    if not found.classes:
        assert not any(log.requests["slo"].tolist())
        return
    for count in ("requests", "finished", "rejected", "unfinished", "output_tokens"):
        assert sum(getattr(one, count) for one in found.classes) == getattr(found, count)
    kept = [one for one in found.classes if one.slo_met is not None]
    assert (found.slo_met is None) == (not promised.any)
    if found.slo_met is not None:
        assert sum(one.slo_met for one in kept) == found.slo_met
        asked = sum(one.requests for one in kept)
        assert found.slo_share == (found.slo_met / asked if asked else None)
    for one in found.classes:
        assert (one.slo_met is None) == (not promised.of(one.name).promised)


@given(log=classed(), same=levels)
def test_the_same_promise_to_every_class_is_one_to_all(log, same):
    each = metrics_of(log, Promises(others=same, classes=dict.fromkeys(NAMES[1:], same)))
    assert asdict(each) == asdict(metrics_of(log, Promises(others=same)))


@given(run=played(), name=st.sampled_from(NAMES[1:]), same=levels)
def test_a_class_of_all_requests_has_the_figures_of_the_run(run, name, same):
    log = of_classes(run.log, [name] * len(run.log.requests["slo"]))
    found = metrics_of(log, Promises(classes={name: same}))
    for one in found.classes:
        figures = asdict(one)
        assert figures.pop("name") == name
        assert figures == {figure: asdict(found)[figure] for figure in figures}


def test_a_run_by_hand():
    """docs/glossary.md: a and c are chat, b is batch, d has no class and is promised nothing."""
    log = of_classes(worked_log(), ["chat", "batch", "chat", ""])
    promised = Promises(classes={"chat": ServiceLevels(ttft=2.5), "batch": ServiceLevels(e2e=2)})
    found = metrics_of(log, promised)
    assert (found.slo_met, found.slo_share, found.goodput_per_s) == (1, 1 / 3, 1 / 6)
    none, batch, chat = found.classes
    assert (chat.requests, chat.finished, chat.rejected, chat.slo_met, chat.slo_share) == (2, 1, 1, 1, 0.5)
    assert (batch.requests, batch.slo_met, batch.slo_share, batch.goodput_per_s) == (1, 0, 0.0, 0.0)
    assert (none.requests, none.unfinished, none.slo_met, none.slo_share, none.ttft_s) == (1, 1, None, None, None)
    assert chat.ttft_s.mean == 2.0
    assert found.to_json()["classes"]["batch"]["e2e_s"]["mean"] == 3.0
    assert promised.in_words() == "SLO chat: ttft 2.5 s; batch: e2e 2 s"
    assert replace(promised, others=ServiceLevels(queue=1)).in_words().endswith("; others: queue 1 s")


@pytest.mark.parametrize("given_to", ["others", "classes"])
def test_nothing_promised_is_no_promise(given_to):
    nothing = ServiceLevels()
    assert not Promises(**{given_to: {"chat": nothing} if given_to == "classes" else nothing}).any


@st.composite
def runs_of_gaps(draw, most_ps):
    """Runs that rise, fall and stand still, ties among them; none holds a gap below zero."""
    rows = []
    for _ in range(draw(st.integers(1, 8))):
        count = draw(st.integers(1, 12))
        first, last = draw(st.integers(0, most_ps)), draw(st.integers(0, most_ps))
        increment = 0 if count == 1 else int((last - first) / (count - 1))
        rows.append((first, increment, count, draw(st.integers(1, 5))))
    return {name: np.array(column) for name, column in zip(GAP_FIELDS, zip(*rows, strict=True), strict=True)}


def written_out(gaps):
    runs = zip(*(gaps[name].tolist() for name in GAP_FIELDS), strict=True)
    return [
        first + place * increment
        for first, increment, count, rows in runs
        for place in range(count)
        for _ in range(rows)
    ]


@given(gaps=st.sampled_from([3, 40, 10**6]).flatmap(runs_of_gaps), percents=st.lists(st.integers(0, 100), min_size=1))
def test_percentiles_of_runs_are_those_of_all_gaps(gaps, percents):
    every = written_out(gaps)
    assert (total_gaps(gaps), total_ps(gaps)) == (len(every), sum(every))
    assert gap_percentiles(gaps, percents) == pytest.approx(np.percentile(every, percents).tolist(), rel=1e-12)


@given(gaps=runs_of_gaps(2**61))
def test_gaps_of_weeks_are_exact(gaps):
    """Beyond what floats tell apart."""
    every = sorted(written_out(gaps))
    assert total_ps(gaps) == sum(every)
    assert gap_percentiles(gaps, [0, 100]) == [float(every[0]), float(every[-1])]


def test_millions_of_gaps_cost_what_their_runs_cost():
    gaps = {"first_ps": [10, 5], "increment_ps": [1, 0], "count": [10**6, 1], "rows": [10**6, 10**12]}
    columns = {name: np.array(column) for name, column in gaps.items()}
    assert gap_percentiles(columns, [0, 50, 75, 100]) == [5.0, 7.5, 500_009.25, 1_000_009.0]


def row(policy, *values, figure="in_system_s"):
    def run(seed, value):
        meta = SimpleNamespace(about=ServingAbout(policy=policy, workload="w", cluster="c", seed=seed))
        return MeasuredRun(folder="", meta=meta, metrics=None, flat={figure: value, "rejected": 0})

    return SeedRow(runs=tuple(run(seed, value) for seed, value in enumerate(values)))


def test_the_least_time_and_the_most_goodput_are_best():
    assert best_at(1.0, [row("a", 3.0), row("b", 2.0)], IN_SYSTEM) == Best(rate=1.0, policy="b", tied=())
    good = [row("a", 3.0, figure="slo_share"), row("b", 2.0, figure="slo_share")]
    assert best_at(1.0, good, GOODPUT).policy == "a"


def test_differences_of_the_same_seeds_tell_apart_what_intervals_do_not():
    spread = [row("a", 1.0, 5.0, 9.0), row("b", 1.1, 5.1, 9.1)]
    assert best_at(None, spread, IN_SYSTEM).tied == ()
    crossed = [row("a", 1.0, 5.0, 9.0), row("b", 1.1, 4.9, 9.2)]
    assert best_at(None, crossed, IN_SYSTEM).tied == ("b",)


def test_what_differs_is_the_mean_over_the_same_seeds():
    behind = less(row("a", 1.1, 5.3, 9.2), row("b", 1.0, 5.0, 9.0))["in_system_s"]
    assert (behind.mean, behind.half_width) == pytest.approx((0.2, 0.1 / sqrt(3) * 4.302653), rel=1e-6)
    assert less(row("a", 2.0), row("b", 1.5))["in_system_s"].bounds == (0.5, 0.5)
    assert less(row("a", None), row("b", 1.5)) == {}


def test_about_so_many_seeds_would_tell_two_apart():
    found = best_at(None, [row("a", 1.0, 5.0, 9.0), row("b", 1.3, 4.9, 9.2)], IN_SYSTEM)
    assert (found.tied, found.seeds) == (("b",), 3)
    values = [0.3, -0.1, 0.2]
    repeats = found.enough // 3
    assert mean_interval(values * repeats).low > 0 > mean_interval(values * (repeats // 2)).low
    assert enough_values([-1.0, 1.0]) is None


def test_a_run_without_chance_stands_for_every_seed():
    assert best_at(1.0, [row("a", 2.0), row("b", 3.0, 3.5, 4.0)], IN_SYSTEM).tied == ()
    assert best_at(1.0, [row("a", 2.0), row("b", 1.5, 3.0, 4.0)], IN_SYSTEM).tied == ("b",)
    equal = Best(rate=1.0, policy="a", tied=("b",), same=("b",))
    assert best_at(1.0, [row("a", 2.0), row("b", 2.0)], IN_SYSTEM) == equal
    assert best_at(1.0, [row("a", 2.0), row("b", 2.0, 2.0)], IN_SYSTEM) == replace(equal, seeds=2)


def test_nobody_is_best_where_a_figure_is_not_known():
    assert best_at(1.0, [row("a", None), row("b", 2.0)], IN_SYSTEM) is None


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([], []),
        ([(None, "a")], ["least time in the system: a at the workload's own rate"]),
        ([(1.0, "a"), (2.0, "a")], ["least time in the system: a from 1 to 2 arrivals/s"]),
        (
            [(1.0, "a"), (2.5, "a"), (4.0, "b"), (8.0, "a")],
            [
                "least time in the system: a from 1 to 2.5 arrivals/s; b at 4 arrivals/s; a at 8 arrivals/s",
                "between 2.5 arrivals/s and 4 arrivals/s the best policy changes from a to b",
                "between 4 arrivals/s and 8 arrivals/s the best policy changes from b to a",
            ],
        ),
    ],
)
def test_words(found, said):
    assert in_words([Best(rate=rate, policy=policy, tied=()) for rate, policy in found], IN_SYSTEM) == said


def test_what_chance_leaves_open_is_said():
    (_, said) = in_words([Best(rate=4.0, policy="a", tied=("b", "c"), seeds=3, enough=12)], IN_SYSTEM)
    assert said == (
        "at 4 arrivals/s b, c cannot be told apart from a on these 3 seeds; about 12 would tell one of them apart"
    )
    (_, said) = in_words([Best(rate=4.0, policy="a", tied=("b",), seeds=3, enough=12)], IN_SYSTEM)
    assert said == "at 4 arrivals/s b cannot be told apart from a on these 3 seeds; about 12 would do"


def test_what_holds_at_neighbouring_rates_is_said_once():
    tied, costs = {"tied": ("b",), "seeds": 3}, {"tied": (), "by_cost": ("c",)}
    found = [Best(rate=rate, policy="a", enough=enough, **tied) for rate, enough in ((1.0, 4), (2.0, 12), (4.0, 7))]
    assert in_words(found, IN_SYSTEM)[1:] == [
        "from 1 to 4 arrivals/s b cannot be told apart from a on these 3 seeds; about 12 would do"
    ]
    apart = [found[0], Best(rate=2.0, policy="a", tied=()), found[2]]
    assert [line.split(" b ")[0] for line in in_words(apart, IN_SYSTEM)[1:]] == ["at 1 arrivals/s", "at 4 arrivals/s"]
    unknown = [found[0], replace(found[1], enough=None)]
    assert in_words(unknown, IN_SYSTEM)[1:] == ["from 1 to 2 arrivals/s b cannot be told apart from a on these 3 seeds"]
    costly = [Best(rate=rate, policy="a", **costs) for rate in (1.0, 2.0)]
    assert in_words(costly, IN_SYSTEM)[1:] == ["from 1 to 2 arrivals/s c cannot be told apart from a by this cost"]


@pytest.mark.parametrize(
    ("costs", "said"),
    [
        ([], []),
        (["h100"], []),
        (["h100 (vllm)"], []),
        (["h100 (sglang)"], ["seconds of h100 (sglang)"]),
        (["fitted.json", "fitted.json", "mine (vllm)"], ["seconds of fitted.json, mine (vllm)"]),
    ],
)
def test_a_title_says_whose_seconds_a_cluster_has_but_for_those_of_the_device_that_it_is_called_by(costs, said):
    replicas = {str(number): {"cost": cost} for number, cost in enumerate(costs)}
    assert what_was_asked({"replicas": replicas}, "h100") == said
    assert what_was_asked({"replicas": replicas, "cost": "large.json"}, "h100") == ["cost large.json"]


def test_a_title_says_factors_and_devices_once_and_the_engine_that_was_asked_for():
    asked = {"replicas": {"a": {"cost": "h100 x2 tensor parallel (sglang), draft x2"}}}
    asked |= {"scale": {"draft": 2.0}, "tensor_parallel": 2, "engine": "sglang"}
    assert what_was_asked(asked, "h100") == ["seconds of h100 x2 tensor parallel (sglang), draft x2"]
    assert what_was_asked(asked | {"cost": "h100"}, "h100") == ["cost h100 (sglang), tensor parallel 2, draft x2"]


def test_what_is_equal_is_no_matter_of_chance():
    (_, said) = in_words([Best(rate=4.0, policy="a", tied=("b", "c"), same=("b", "c"))], IN_SYSTEM)
    assert said == "at 4 arrivals/s b and c did exactly as well as a"
    _, equal, left = in_words([Best(rate=None, policy="a", tied=("b", "c"), same=("b",), seeds=3)], IN_SYSTEM)
    assert equal == "at the workload's own rate b did exactly as well as a"
    assert left == "at the workload's own rate c cannot be told apart from a on these 3 seeds"


def test_where_all_promises_are_met_by_all_the_time_in_the_system_tells_them_apart():
    def both(policy, share, seconds):
        (run,) = row(policy, share, figure="slo_share").runs
        return SeedRow(runs=(replace(run, flat={**run.flat, "in_system_s": seconds}),))

    equal = best_at(1.0, [both("a", 1.0, 3.0), both("b", 1.0, 2.0)], GOODPUT)
    assert (equal.policy, equal.tied, equal.aim) == ("b", (), IN_SYSTEM)
    apart = best_at(2.0, [both("a", 0.9, 3.0), both("b", 0.8, 2.0)], GOODPUT)
    assert (apart.policy, apart.aim) == ("a", GOODPUT)
    assert in_words([equal, apart], GOODPUT) == [
        "highest SLO met: a tie, all met as many promises; least time in the system: b at 1 arrivals/s",
        "highest SLO met: a at 2 arrivals/s",
    ]


def test_intervals_of_one_run_hold_the_mean_over_runs():
    """Requests that wait for each other, at 70% load: one by one they would promise far too much."""
    rng, runs, count = np.random.default_rng(11), 400, 200
    held = {"ttft_s_mean": 0, "ttft_s_p95": 0}
    took, apart = rng.exponential(0.7, (count, runs)), rng.exponential(1.0, (count, runs))
    waits = [np.zeros(runs)]
    for before, gap in zip(took, apart[1:], strict=False):  # Lindley's recursion
        waits.append(np.maximum(0.0, waits[-1] + before - gap))
    waits = np.transpose(waits + took)
    true = {"ttft_s_mean": np.mean(waits), "ttft_s_p95": np.mean(np.percentile(waits, 95, axis=1))}
    for seconds in waits:
        ps = np.rint(seconds * 1e12).astype(np.int64)
        columns = {"arrived_at_ps": np.zeros(count, np.int64), "first_token_at_ps": ps, "ended_at_ps": ps}
        columns |= {"scheduled_at_ps": ps, "output_tokens": np.ones(count, np.int64)}
        found = latency_intervals(SimpleNamespace(requests=columns, finished=np.ones(count, np.bool_)))
        for name, mean in true.items():
            held[name] += found[name].low <= mean <= found[name].high
    assert min(held.values()) / runs > 0.84
    assert "tpot_s_mean" not in found  # of requests with one token
    ps = np.arange(1, count + 1) * 10**12  # beyond saturation
    columns = {**columns, "first_token_at_ps": ps, "ended_at_ps": ps}
    found = latency_intervals(SimpleNamespace(requests=columns, finished=np.ones(count, np.bool_)))
    assert found["ttft_s_mean"].half_width > found["ttft_s_mean"].mean
    assert "far too wide where times grow through the run" in IN_SECTIONS
    ps[: count // 5] = 0  # a fifth that waits for nothing
    columns = {**columns, "first_token_at_ps": ps, "ended_at_ps": ps}
    assert "ttft_s_mean" not in latency_intervals(SimpleNamespace(requests=columns, finished=np.ones(count, np.bool_)))
    assert "there is none where fewer than 50 requests have a figure, or it is 0 in a part" in IN_SECTIONS


def test_few_requests_have_no_interval_of_their_own():
    log = SimpleNamespace(
        requests={name: np.arange(49) for name in ("arrived_at_ps", "first_token_at_ps", "ended_at_ps")}
        | {"scheduled_at_ps": np.arange(49), "output_tokens": np.full(49, 2)},
        finished=np.ones(49, np.bool_),
    )
    assert latency_intervals(log) == {}
