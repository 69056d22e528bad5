"""How often intervals hold the truth: of `compare`, over requests drawn from known ones, `simulate` and `validate`.

python benchmarks/intervals.py [--samples 1000]

Drawn: random tokens, random seconds, tags that differ in their gain. pico: requests of the shipped recording, whose
true speed-up is that of all of them, drawn with replacement: the same number of each tag, or as they come. Each kind of
sample is read as by default, and with --fixed-mix. Sessions: five turns each, with nearly the same gain, drawn by
session and, as if sessions were unknown, by request. simulate: latencies of one run of Poisson arrivals; the truth is
the mean over the runs of all seeds, a tenth of the number of samples, and at least 10. Equally fast: how often
`compare` calls one of several such policies slower than the best. run: the machine has another pace in each turn of a
policy; a quarter of the number of samples. validate: one run against another of servers that take requests in turn,
with other chance in each request's seconds, so that the true error is 0.
"""

from collections.abc import Callable
from heapq import heapreplace

import numpy as np
import paceline
from paceline import open_recording
from paceline.policies import make_policy
from paceline.reports.observed import errors_between
from paceline.reports.resampled import RequestShares, Resampled
from paceline.reports.tables import console_of_output, print_tables
from paceline.sim.cost.by_name import default_cost, make_cost
from paceline.sim.replay_tables import tables_of
from paceline.sim.simulate import Scenario, simulate
from paceline_laboratory.findings import Cell, table, table_cell
from shared.report import parser_of

Pair = tuple[RequestShares, RequestShares]  # of a policy and of the target alone on the same requests
SPREAD = 0.25  # of the logarithm of a request's seconds
CHAIN = "draft:4/target"


def shares(tag: np.ndarray, tokens: np.ndarray, seconds: np.ndarray) -> RequestShares:
    """The shares of requests, numbered as they come."""
    numbers = np.array([f"q{index:05}" for index in range(len(tokens))], dtype=object)
    return RequestShares(request_id=numbers, tag=tag, tokens=tokens, seconds=seconds, speed=tokens / seconds)


def drawn(rng: np.random.Generator, count: int, num_tags: int, *, as_they_come: bool = False) -> tuple[Pair, float]:
    """A sample, and the true speed-up of its population; equally many of each tag unless `as_they_come`."""
    place = rng.integers(num_tags, size=count) if as_they_come else np.arange(count) % num_tags
    gain = 1.0 + 0.3 * place
    tokens = rng.integers(20, 200, count).astype(float)
    alone_s = tokens * 0.1
    ours_s = alone_s / gain * rng.lognormal(0.0, SPREAD, count)
    tag = np.array([f"t{number}" for number in place], dtype=object)
    true = 1 / np.mean(1 / (1.0 + 0.3 * np.arange(num_tags))) / np.exp(SPREAD**2 / 2)
    return (shares(tag, tokens, ours_s), shares(tag, tokens, alone_s)), float(true)


TURNS, OF_SESSIONS, OF_TURNS = 5, 0.4, 0.05  # last two: spreads of the log of a gain, of sessions and of their turns


def of_sessions(rng: np.random.Generator, sessions: int) -> tuple[Pair, float]:
    """A sample of sessions, whose turns are consecutive, and the true speed-up of its population."""
    tag, tokens = np.full(TURNS * sessions, "t", dtype=object), np.full(TURNS * sessions, 100.0)
    alone_s = rng.uniform(5, 20, TURNS * sessions)
    gain = np.repeat(rng.lognormal(0.0, OF_SESSIONS, sessions), TURNS)
    ours_s = alone_s / gain * rng.lognormal(0.0, OF_TURNS, TURNS * sessions)
    true = np.exp(-(OF_SESSIONS**2 + OF_TURNS**2) / 2)
    return (shares(tag, tokens, ours_s), shares(tag, tokens, alone_s)), float(true)


def recorded() -> Pair:
    """All requests of pico under a chain and alone, at batch 1."""
    recording = open_recording("pico")
    tables = tables_of(recording)
    runs = []
    for policy in (CHAIN, "plain"):
        scenario = Scenario(tables=tables, cost=make_cost(default_cost(recording), recording))
        runs.append(RequestShares.of(simulate(scenario, make_policy(policy, tables.pool), policy)))
    return runs[0], runs[1]


def some(pair: Pair, rng: np.random.Generator, each: int | None, count: int) -> Pair:
    """A sample of `each` requests of every tag, or of `count` as they come."""
    tags = pair[0].tag
    if each is None:
        places = rng.integers(len(tags), size=count)
    else:
        places = np.concatenate([rng.choice(np.flatnonzero(tags == tag), each) for tag in sorted(set(tags.tolist()))])
    ours, alone = (shares(one.tag[places], one.tokens[places], one.seconds[places]) for one in pair)
    return ours, alone


def coverage(
    sample: Callable[[np.random.Generator], tuple[Pair, float]],
    samples: int,
    *,
    turns: int = 1,
    fixed_mix: bool = False,
) -> float:
    """Share of intervals that hold the truth; `turns` consecutive requests are a session."""
    rng, held = np.random.default_rng(7), 0
    for _ in range(samples):
        (ours, alone), true = sample(rng)
        sessions = {name: str(place // turns) for place, name in enumerate(ours.request_id)}
        found = Resampled({"ours": [ours], "alone": [alone]}, sessions=sessions, fixed_mix=fixed_mix)
        interval = found.rate_over("ours", "alone")
        assert interval is not None
        held += interval.low <= true <= interval.high
    return held / samples


SHAPES = ("target=llama-3.1-8b", "draft=llama-3.2-1b", "mid=llama-3.2-3b", "slim=llama-3.1-8b")
LATENCIES = {
    "TTFT mean": "ttft_s_mean", "TTFT p99": "ttft_s_p99", "TPOT mean": "tpot_s_mean",
    "E2E mean": "e2e_s_mean", "E2E p99": "e2e_s_p99",
}  # fmt: skip


def served(requests: int, rate: float, seeds: int) -> list[Cell]:
    """The share of runs whose intervals hold the mean over all runs."""
    asked = {"cluster": "h100", "cost": "h100", "models": SHAPES, "rate": rate}
    rows = [
        paceline.simulate(f"poisson:requests={requests}", CHAIN, seed=seed, **asked).rows[0] for seed in range(seeds)
    ]
    cells = [table_cell("requests", requests), table_cell("arrivals/s", f"{rate:g}")]
    for heading, name in LATENCIES.items():
        intervals = [row.interval(name) for row in rows]
        true = np.mean([row.mean(name) for row in rows])
        held = [one is not None and one.low <= true <= one.high for one in intervals]
        cells.append(table_cell(heading, float(np.mean(held)), digits=2))
    return cells


def calls_one_slower(rng: np.random.Generator, count: int, policies: int) -> bool:
    """Whether one of equally fast policies counts as slower than the best of a sample of `count` requests."""
    tag, tokens = np.full(count, "t", dtype=object), rng.integers(20, 200, count).astype(float)
    alike_s = tokens / rng.lognormal(0.0, OF_SESSIONS, count)
    own = {str(name): shares(tag, tokens, alike_s * rng.lognormal(0.0, SPREAD, count)) for name in range(policies)}
    best, found = min(own, key=lambda name: own[name].seconds.sum()), Resampled({name: [own[name]] for name in own})
    over = [found.rate_over(best, name) for name in own if name != best]
    return any(one is not None and one.low > 1 for one in over)


def holds_of_rounds(rng: np.random.Generator, count: int, rounds: int, apart: float) -> bool:
    """Whether the interval of `run` holds the true speed-up; `apart`: spread of the log of a round's seconds."""
    tag, tokens = np.full(count, "t", dtype=object), rng.integers(20, 200, count).astype(float)
    took = {"ours": tokens / rng.lognormal(0.0, OF_SESSIONS, count), "alone": tokens}
    runs = {
        name: [shares(tag, tokens, own * rng.lognormal(0.0, apart)) for _ in range(rounds)]
        for name, own in took.items()
    }
    interval = Resampled(runs).rate_over("ours", "alone")
    assert interval is not None
    return interval.low <= np.exp(-(OF_SESSIONS**2) / 2) <= interval.high


def latencies(arrived: np.ndarray, seconds: np.ndarray, servers: int) -> np.ndarray:
    """Seconds from arrival to end of requests that the next free server takes in turn."""
    free, ends = [0.0] * servers, []
    for at, took in zip(arrived.tolist(), seconds.tolist(), strict=True):
        ends.append(max(at, free[0]) + took)
        heapreplace(free, ends[-1])
    return np.array(ends) - arrived


def errors(rng: np.random.Generator, count: int, servers: int, load: float, samples: int) -> list[Cell]:
    """The share of intervals of errors that hold the true one, 0."""
    held: dict[str, list[bool]] = {}
    for _ in range(samples):
        arrived, size = np.cumsum(rng.exponential(1 / load / servers, count)), rng.lognormal(-0.125, 0.5, count)
        worlds = [latencies(arrived, size * rng.lognormal(0.0, 0.3, count), servers) for _ in range(2)]
        for part, (low, high) in errors_between(np.stack(worlds, axis=1)).items():
            held.setdefault(part, []).append(low <= 0 <= high)
    cells = [table_cell("servers", servers), table_cell("load", load, digits=1), table_cell("requests", count)]
    return [*cells, *(table_cell(part, float(np.mean(of)), digits=2) for part, of in held.items())]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--samples", type=int, default=1000)
    samples = parser.parse_args().samples
    rows: list[list[Cell]] = []

    def add(words: str, count: int, sample: Callable[[np.random.Generator], tuple[Pair, float]]) -> None:
        held = [coverage(sample, samples, fixed_mix=fixed) for fixed in (False, True)]
        cells = [table_cell(name, share, digits=3) for name, share in zip(("held", "fixed mix"), held, strict=True)]
        rows.append([table_cell("sample", words), table_cell("requests", count), *cells])

    for count, num_tags in ((40, 1), (10, 1), (5, 1)):
        add("drawn, one tag", count, lambda rng, n=count, t=num_tags: drawn(rng, n, t))
    for count, num_tags in ((40, 8), (20, 4), (12, 3)):
        add(f"drawn, as many of {num_tags} tags", count, lambda rng, n=count, t=num_tags: drawn(rng, n, t))
    for count, num_tags in ((40, 8), (20, 4), (10, 3)):
        add(
            f"drawn, {num_tags} tags as they come",
            count,
            lambda rng, n=count, t=num_tags: drawn(rng, n, t, as_they_come=True),
        )
    pair = recorded()
    true = pair[0].tokens.sum() / pair[0].seconds.sum() / (pair[1].tokens.sum() / pair[1].seconds.sum())
    num_tags = len(set(pair[0].tag.tolist()))
    for each in (2, 3, 5):
        add(f"pico, {each} of each tag", each * num_tags, lambda rng, e=each: (some(pair, rng, e, 0), true))
    for count in (10, 20, 40):
        add("pico, as they come", count, lambda rng, n=count: (some(pair, rng, None, n), true))
    together = []
    for sessions in (40, 20, 10):
        held = [coverage(lambda rng, n=sessions: of_sessions(rng, n), samples, turns=turns) for turns in (TURNS, 1)]
        shown = zip(("drawn by session", "drawn by request"), held, strict=True)
        cells = [table_cell("sessions", sessions), table_cell("requests", TURNS * sessions)]
        together.append([*cells, *(table_cell(name, share, digits=3) for name, share in shown)])
    equal = []
    for many in (2, 5, 10):
        rng = np.random.default_rng(7)
        told = [float(np.mean([calls_one_slower(rng, count, many) for _ in range(samples)])) for count in (10, 40)]
        cells = [
            table_cell(f"of {count} requests", share, digits=2) for count, share in zip((10, 40), told, strict=True)
        ]
        equal.append([table_cell("policies", many), *cells])
    in_rounds = []
    for count in (40, 160):
        for spread in (0.03, 0.1):
            rng, cells = (
                np.random.default_rng(7),
                [table_cell("requests", count), table_cell("apart", spread, digits=2)],
            )
            for rounds in (2, 3, 5):
                held = [holds_of_rounds(rng, count, rounds, spread) for _ in range(samples // 4)]
                cells.append(table_cell(f"{rounds} rounds", float(np.mean(held)), digits=2))
            in_rounds.append(cells)
    apart = [
        errors(np.random.default_rng(7), count, servers, load, samples)
        for servers in (1, 8)
        for load in (0.3, 0.7, 0.9)
        for count in (100, 300)
    ]
    seeds = max(samples // 10, 10)
    runs = [served(requests, rate, seeds) for requests, rate in ((60, 100), (300, 25), (300, 100), (300, 400))]
    tables = [
        table("95% intervals that hold the true speed-up", rows),
        table("the same of sessions, whose turns are alike", together),
        table("samples in which one of equally fast policies is called slower", equal),
        table("intervals of run that hold the true speed-up, of rounds whose pace is apart", in_rounds),
        table("intervals of the errors of validate that hold the true one", apart),
        table("intervals of simulate that hold the mean over seeds", runs),
    ]
    print_tables(console_of_output(), [one.grid() for one in tables])


if __name__ == "__main__":
    main()
