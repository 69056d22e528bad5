"""How well the fallback predicts what is hidden from it, and how long it takes to fit.

python benchmarks/fallback.py [--eagle ANSWERS.jsonl.gz]
"""

import argparse
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
from difficult_texts import difficult_rounds, difficult_texts
from paceline.policies import make_policy
from paceline.policies.speed import round_tokens
from paceline.reports import summarise_run
from paceline.runs.log import RunLog
from paceline.shipped import shipped
from paceline.sim import Scenario, TableCost, simulate
from paceline.sim.hazard import Hazard
from paceline.sim.replay_tables import tables_of
from paceline.traces import read_trace
from paceline.traces.importers import read_recording
from paceline.traces.meta import CostTable
from paceline.traces.rounds.meta import DrafterInfo, RoundsMeta
from paceline.traces.rounds.recording import RoundsRecording
from paceline.traces.rounds.rounds import Rounds, RoundsRequest
from paceline.traces.tries.recording import TrieRecording
from rich.console import Console
from rich.table import Table

SHORT, LONG = 3, 8
SHORTER = ((8, 1), (8, 3), (8, 5), (5, 3))  # (logged window, asked for)
SEEDS = range(8)
SUBTASKS = ("translation", "summarization", "qa", "math_reasoning", "rag")
OTHERS = "MT-Bench"
EAGLE = "specbench_yukiki/vicuna-7b-v1.3-eagle-float16-temperature-0.0.jsonl.gz"


def replay(recording: TrieRecording | RoundsRecording, drafter: str, window: int, seed: int = 0) -> RunLog:
    tables = tables_of(recording)
    names = tables.pool.names
    chain = f"{drafter}:{window}/{names[-1]}"
    flat = {name: CostTable(new_tokens=(1, 4096), seconds=(1.0, 1.0)) for name in names}
    scenario = Scenario(tables=tables, cost=TableCost("flat", flat), seed=seed)
    return simulate(scenario, make_policy(chain, tables.pool), chain)


def cut(log: RunLog, drafter: str, *, by_start: bool, most: int) -> RoundsRecording:
    """A run as an engine's log would tell it, drafts cut to `most` tokens."""
    rounds = log.rounds()
    prefills = np.bincount(log.steps["request"], log.steps["prefill"], minlength=len(log.requests["request_id"]))
    records = []
    for index, request_id in enumerate(log.requests["request_id"].tolist()):
        own = rounds["request"] == index
        emitted, accepted, drafted = (rounds[name][own] for name in ("emitted", "accepted", "drafted"))
        found = Rounds(
            start=(np.cumsum(emitted) - emitted + prefills[index]).astype(np.int32),
            accepted=np.minimum(accepted, most).astype(np.int32),
            drafted=np.minimum(drafted, most).astype(np.int32),
        )
        length = int(log.requests["emitted_tokens"][index])
        records.append(RoundsRequest(request_id=request_id, tag="", num_tokens={"": length}, rounds={drafter: found}))
    info = DrafterInfo(name=drafter, by_start=by_start, window=most, prefilled=bool(prefills.any()))
    return RoundsRecording(meta=RoundsMeta(name="cut", source="run log", drafters=(info,)), requests=tuple(records))


def hidden_windows() -> Table:
    """Rounds of at most 3 drafted tokens predict those of 8."""
    title = f"Windows above {SHORT} hidden, tokens per round at {LONG} (means of {len(SEEDS)} seeds)"
    columns = (
        "drafter",
        "read as",
        "ran with",
        "truth",
        "i.i.d.",
        "fallback",
        "i.i.d. off",
        "fallback off",
        "exact share",
    )
    table = Table(*columns, title=title)
    pico = read_trace(shipped("recordings", "pico.trace"))
    for by_start in (True, False):
        for ran_with in (SHORT, LONG):
            for drafter in [model.name for model in pico.meta.models[:-1]]:
                truth = summarise_run(replay(pico, drafter, LONG)).acceptance_length
                recording = cut(replay(pico, drafter, ran_with), drafter, by_start=by_start, most=SHORT)
                runs = [summarise_run(replay(recording, drafter, LONG, seed)) for seed in SEEDS]
                fallback = np.mean([run.acceptance_length for run in runs])
                independent = round_tokens(rate([one.rounds[drafter] for one in recording.requests], SHORT), LONG)
                table.add_row(
                    drafter,
                    "by start" if by_start else "by token",
                    str(ran_with),
                    f"{truth:.3f}",
                    f"{independent:.3f}",
                    f"{fallback:.3f}",
                    f"{independent / truth - 1:+.1%}",
                    f"{fallback / truth - 1:+.1%}",
                    f"{np.mean([run.exact_share for run in runs]):.2f}",
                )
    return table


def shorter_windows() -> Table:
    """Nothing hidden: logs of one window predict shorter ones."""
    title = f"Nothing hidden, asked for less than logged (means of {len(SEEDS)} seeds)"
    table = Table("drafter", "read as", "logged", "asked", "truth", "fallback", "off", "exact share", title=title)
    pico = read_trace(shipped("recordings", "pico.trace"))
    for by_start in (True, False):
        for drafter in [model.name for model in pico.meta.models[:-1]]:
            for logged, asked in SHORTER:
                recording = cut(replay(pico, drafter, logged), drafter, by_start=by_start, most=logged)
                truth = summarise_run(replay(pico, drafter, asked)).acceptance_length
                runs = [summarise_run(replay(recording, drafter, asked, seed)) for seed in SEEDS]
                fallback = np.mean([run.acceptance_length for run in runs])
                table.add_row(
                    drafter,
                    "by start" if by_start else "by token",
                    str(logged),
                    str(asked),
                    f"{truth:.3f}",
                    f"{fallback:.3f}",
                    f"{fallback / truth - 1:+.1%}",
                    f"{np.mean([run.exact_share for run in runs]):.2f}",
                )
    return table


def losing_the_thread() -> Table:
    """A made-up drafter whose acceptance falls with depth, over texts that are easy or difficult for long."""
    title = f"Agreeing less with depth, logged with {LONG} (means of {len(SEEDS)} seeds)"
    table = Table("persistence", "found", "asked", "truth", "fallback", "off", title=title)
    for persistence in (0.0, 0.5, 0.8):
        texts = difficult_texts(persistence)
        recording = difficult_rounds(texts, LONG)
        for asked in (1, 3, 5):
            steps = sum(len(request.rounds["draft"].start) for request in difficult_rounds(texts, asked).requests)
            truth = texts.size / steps
            runs = [summarise_run(replay(recording, "draft", asked, seed)) for seed in SEEDS]
            fallback = np.mean([run.acceptance_length for run in runs])
            found = Hazard(recording).persistence(0)
            table.add_row(
                f"{persistence:.1f}",
                f"{found:.2f}",
                str(asked),
                f"{truth:.3f}",
                f"{fallback:.3f}",
                f"{fallback / truth - 1:+.1%}",
            )
    return table


def rate(rounds: list[Rounds], window: int) -> float:
    """Accepted over judged, as a log of drafts of `window` tokens tells."""
    accepted = np.concatenate([one.accepted for one in rounds])
    return float(np.minimum(accepted, window).sum() / np.minimum(accepted + 1, window).sum())


def keeping(recording: RoundsRecording, kept: Callable[[int, int], np.ndarray]) -> RoundsRecording:
    """Only the rounds that `kept(index of the request, their number)` says."""
    name = recording.meta.drafters[0].name
    requests = []
    for index, one in enumerate(recording.requests):
        all_of = one.rounds[name]
        chosen = kept(index, len(all_of.start))
        columns = {column: getattr(all_of, column)[chosen] for column in ("start", "accepted", "drafted")}
        requests.append(replace(one, rounds={name: Rounds(**columns)} if chosen.any() else {}))
    return replace(recording, requests=tuple(requests))


def rounds_taken(recording: RoundsRecording, seed: int) -> np.ndarray:
    """Rounds by request, in the order of the recording, of a replay with the drafter's own window."""
    (drafter,) = recording.meta.drafters
    log = replay(recording, drafter.name, drafter.window, seed)
    taken = np.bincount(log.rounds()["request"], minlength=len(recording.requests))
    by_id = dict(zip(log.requests["request_id"].tolist(), taken.tolist(), strict=True))
    return np.array([by_id[one.request_id] for one in recording.requests])


def unseen_requests(recording: RoundsRecording) -> Iterator[np.ndarray]:
    """Rounds by request, each half of the requests predicted from the other."""
    for seed in SEEDS:
        first = np.random.default_rng(seed).random(len(recording.requests)) < 0.5
        taken = np.zeros(len(first))
        for hidden in (first, ~first):
            part = keeping(recording, lambda index, number, hidden=hidden: np.full(number, not hidden[index]))
            taken += np.where(hidden, rounds_taken(part, seed), 0)
        yield taken


def unseen_rounds(recording: RoundsRecording) -> Iterator[np.ndarray]:
    """Rounds by request, half of the rounds of each hidden."""
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        yield rounds_taken(keeping(recording, lambda _, number, rng=rng: rng.random(number) < 0.5), seed)


def eagle_log(path: Path) -> Table:
    """Tokens per step: recorded, by independent acceptance, and by the fallback where the log is hidden in part."""
    recording = read_recording("spec-bench", [path])
    (drafter,) = recording.meta.drafters
    tags = np.array([one.tag if one.tag in SUBTASKS else OTHERS for one in recording.requests])
    tokens = np.array([one.length(drafter.name) for one in recording.requests])
    predicted = [np.array(list(taken)) for taken in (unseen_requests(recording), unseen_rounds(recording))]
    title = f"Tokens per step of EAGLE, window {drafter.window}; off the recorded by ... (fallback: {len(SEEDS)} seeds)"
    table = Table(
        "subtask", "recorded", "i.i.d. of all", "i.i.d. of first 2", "unseen requests", "unseen rounds", title=title
    )
    for name in ("all", OTHERS, *SUBTASKS):
        chosen = np.full(len(tags), fill_value=True) if name == "all" else tags == name
        rounds = [one.rounds[drafter.name] for one, own in zip(recording.requests, chosen, strict=True) if own]
        truth = tokens[chosen].sum() / sum(len(one.start) for one in rounds)
        independent = [round_tokens(rate(rounds, seen), drafter.window) for seen in (drafter.window, 2)]
        fallback = [tokens[chosen].sum() / taken[:, chosen].sum(axis=1) / truth - 1 for taken in predicted]
        table.add_row(
            name,
            f"{truth:.3f}",
            *[f"{one / truth - 1:+.1%}" for one in independent],
            *[f"{off.mean():+.1%} ± {off.std(ddof=1):.1%}" for off in fallback],
        )
    return table


def eagle_beyond(path: Path) -> str:
    """What cannot be known: depths that no round was drafted to."""
    recording = read_recording("spec-bench", [path])
    (drafter,) = recording.meta.drafters
    truth = replay(recording, drafter.name, drafter.window)
    shallow = cut(truth, drafter.name, by_start=True, most=SHORT)
    predicted = [summarise_run(replay(shallow, drafter.name, drafter.window, seed)).acceptance_length for seed in SEEDS]
    off = np.mean(predicted) / summarise_run(truth).acceptance_length - 1
    return f"EAGLE cut to windows of {SHORT}, predicted at {drafter.window}: off by {off:+.1%}"


def made_up(requests: int) -> RoundsRecording:
    rng = np.random.default_rng(0)
    records = []
    for index in range(requests):
        share = 1 / (1 + np.exp(-1.0 - 0.5 * rng.standard_normal()))
        accepted = np.minimum(rng.geometric(1 - share, 200) - 1, 5)
        start = np.cumsum(accepted + 1) - accepted - 1
        inside = start < 200
        columns = (start[inside], accepted[inside], np.full(inside.sum(), 5))
        start, accepted, drafted = (column.astype(np.int32) for column in columns)
        found = Rounds(start=start, accepted=accepted, drafted=drafted)
        records.append(
            RoundsRequest(request_id=f"r{index}", tag=f"t{index % 7}", num_tokens={"": 200}, rounds={"draft": found})
        )
    info = DrafterInfo(name="draft", by_start=True, window=5)
    return RoundsRecording(meta=RoundsMeta(name="made up", source="none", drafters=(info,)), requests=tuple(records))


def timing() -> Table:
    table = Table("requests", "fit", "first draw of a request", "a draw", title="Seconds, texts of 200 tokens")
    for requests in (480, 100_000):
        hazard = Hazard(made_up(requests))
        began = perf_counter()
        hazard.fit(0)
        fitted = perf_counter()
        asked = [f"r{index}" for index in range(400)]
        for request_id in asked:
            hazard.agrees(request_id, 0, start=0, depth=0, known=0)
        first = perf_counter()
        for start in range(1, 100):
            for request_id in asked:
                hazard.agrees(request_id, 0, start=start, depth=2, known=0)
        drawn = perf_counter()
        table.add_row(
            f"{requests:,}",
            f"{fitted - began:.2f} s",
            f"{(first - fitted) / len(asked) * 1e6:.0f} µs",
            f"{(drawn - first) / len(asked) / 99 * 1e6:.1f} µs",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = os.environ.get("PACELINE_DATA")
    parser.add_argument("--eagle", type=Path, default=Path(data) / EAGLE if data else None)
    options = parser.parse_args()
    console = Console(width=118)
    console.print(hidden_windows())
    console.print(shorter_windows())
    console.print(losing_the_thread())
    if options.eagle is None:
        console.print("no EAGLE log: give --eagle, or set PACELINE_DATA")
    else:
        console.print(eagle_log(options.eagle))
        console.print(eagle_beyond(options.eagle))
    console.print(timing())


if __name__ == "__main__":
    main()
