"""Errors of the fallback's predictions of hidden data, and the time to fit it.

python benchmarks/fallback.py [--eagle ANSWERS.jsonl.gz]
"""

import os
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from time import perf_counter

import numpy as np
from paceline.base.files import shipped
from paceline.policies.about import round_tokens
from paceline.reports import Summary, summarise_run
from paceline.sim.hazard import Hazard
from paceline.traces import read_trace
from paceline.traces.contexts.recording import TrieRecording
from paceline.traces.importers import read_recording
from paceline.traces.rounds.recording import RoundsRecording
from paceline.traces.rounds.rounds import Rounds
from paceline_laboratory.findings import Cell, table_cell
from shared.engine_logs import cut, difficult_rounds, difficult_texts, keeping, replay, rounds_taken, synthetic_log
from shared.report import parser_of, show

SHORT, LONG = 3, 8
SHORTER = ((8, 1), (8, 3), (8, 5), (5, 3))  # (logged window, asked for)
SEEDS = range(8)
SUBTASKS = ("translation", "summarization", "qa", "math_reasoning", "rag")
OTHERS = "MT-Bench"
EAGLE = "specbench_yukiki/vicuna-7b-v1.3-eagle-float16-temperature-0.0.jsonl.gz"


def of_drafter(drafter: str, by_start: bool) -> list[Cell]:
    return [table_cell("drafter", drafter), table_cell("read as", "by start" if by_start else "by token")]


def of_fallback(truth: float, runs: Sequence[Summary]) -> tuple[Cell, Cell, Cell]:
    """Its mean prediction, the error of that, and the recorded share."""
    fallback = float(np.mean([run.acceptance_length for run in runs]))
    exact = float(np.mean([run.exact_share for run in runs]))
    return (
        table_cell("fallback", fallback, digits=3),
        table_cell("off", f"{fallback / truth - 1:+.1%}"),
        table_cell("exact share", exact, digits=2),
    )


def replays(recording: TrieRecording | RoundsRecording, drafter: str, window: int) -> list[Summary]:
    return [summarise_run(replay(recording, drafter, window, seed)) for seed in SEEDS]


def hidden_windows(pico: TrieRecording) -> Iterator[list[Cell]]:
    """Predict rounds of 8 drafted tokens from those of at most 3."""
    for by_start, ran_with, drafter in product((True, False), (SHORT, LONG), drafters_of(pico)):
        truth = summarise_run(replay(pico, drafter, LONG)).acceptance_length
        recording = cut(replay(pico, drafter, ran_with), drafter, by_start=by_start, most=SHORT)
        independent = round_tokens(rate([one.rounds[drafter] for one in recording.requests], SHORT), LONG)
        fallback, off, exact = of_fallback(truth, replays(recording, drafter, LONG))
        yield [
            *of_drafter(drafter, by_start),
            table_cell("ran with", ran_with),
            table_cell("truth", truth, digits=3),
            table_cell("i.i.d.", independent, digits=3),
            fallback,
            table_cell("i.i.d. off", f"{independent / truth - 1:+.1%}"),
            table_cell("fallback off", off.value),
            exact,
        ]


def shorter_windows(pico: TrieRecording) -> Iterator[list[Cell]]:
    """Predict shorter windows from logs of one window, without hidden data."""
    for by_start, drafter, (logged, asked) in product((True, False), drafters_of(pico), SHORTER):
        recording = cut(replay(pico, drafter, logged), drafter, by_start=by_start, most=logged)
        truth = summarise_run(replay(pico, drafter, asked)).acceptance_length
        yield [
            *of_drafter(drafter, by_start),
            table_cell("logged", logged),
            table_cell("asked", asked),
            table_cell("truth", truth, digits=3),
            *of_fallback(truth, replays(recording, drafter, asked)),
        ]


def losing_the_thread() -> Iterator[list[Cell]]:
    """A synthetic drafter whose acceptance falls with depth, over texts with long easy or difficult parts."""
    for persistence in (0.0, 0.5, 0.8):
        texts = difficult_texts(persistence)
        recording = difficult_rounds(texts, LONG)
        for asked in (1, 3, 5):
            steps = sum(len(request.rounds["draft"].start) for request in difficult_rounds(texts, asked).requests)
            truth = texts.size / steps
            yield [
                table_cell("persistence", persistence, digits=1),
                table_cell("found", Hazard(recording).fit(0).persistence, digits=2),
                table_cell("asked", asked),
                table_cell("truth", truth, digits=3),
                *of_fallback(truth, replays(recording, "draft", asked))[:2],
            ]


def drafters_of(recording: TrieRecording) -> list[str]:
    """Every model below the target."""
    return [model.name for model in recording.meta.models[:-1]]


def rate(rounds: list[Rounds], window: int) -> float:
    """Accepted over judged tokens in a log of drafts of `window` tokens."""
    accepted = np.concatenate([one.accepted for one in rounds])
    return float(np.minimum(accepted, window).sum() / np.minimum(accepted + 1, window).sum())


def unseen_requests(recording: RoundsRecording) -> Iterator[np.ndarray]:
    """Rounds by request, with each half of the requests predicted from the other."""
    for seed in SEEDS:
        first = np.random.default_rng(seed).random(len(recording.requests)) < 0.5
        taken = np.zeros(len(first))
        for hidden in (first, ~first):
            part = keeping(recording, lambda index, number, hidden=hidden: np.full(number, not hidden[index]))
            taken += np.where(hidden, rounds_taken(part, seed), 0)
        yield taken


def unseen_rounds(recording: RoundsRecording) -> Iterator[np.ndarray]:
    """Rounds by request, with half of the rounds of each hidden."""
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        yield rounds_taken(keeping(recording, lambda _, number, rng=rng: rng.random(number) < 0.5), seed)


def eagle_log(recording: RoundsRecording) -> Iterator[list[Cell]]:
    """Tokens per step: recorded, by independent acceptance, and by the fallback with part of the log hidden."""
    (drafter,) = recording.meta.drafters
    tags = np.array([one.tag if one.tag in SUBTASKS else OTHERS for one in recording.requests])
    tokens = np.array([one.length(drafter.name) for one in recording.requests])
    predicted = [np.array(list(taken)) for taken in (unseen_requests(recording), unseen_rounds(recording))]
    for name in ("all", OTHERS, *SUBTASKS):
        chosen = np.full(len(tags), fill_value=True) if name == "all" else tags == name
        rounds = [one.rounds[drafter.name] for one, own in zip(recording.requests, chosen, strict=True) if own]
        truth = tokens[chosen].sum() / sum(len(one.start) for one in rounds)
        whole, first = (round_tokens(rate(rounds, seen), drafter.window) / truth - 1 for seen in (drafter.window, 2))
        off = [tokens[chosen].sum() / taken[:, chosen].sum(axis=1) / truth - 1 for taken in predicted]
        unseen_requests_off, unseen_rounds_off = (f"{one.mean():+.1%} ± {one.std(ddof=1):.1%}" for one in off)
        yield [
            table_cell("subtask", name),
            table_cell("recorded", float(truth), digits=3),
            table_cell("i.i.d. of all", f"{whole:+.1%}"),
            table_cell("i.i.d. of first 2", f"{first:+.1%}"),
            table_cell("unseen requests", unseen_requests_off),
            table_cell("unseen rounds", unseen_rounds_off),
        ]


def eagle_beyond(recording: RoundsRecording) -> str:
    """A remark on the unknown: depths to which no round was drafted."""
    (drafter,) = recording.meta.drafters
    truth = replay(recording, drafter.name, drafter.window)
    shallow = cut(truth, drafter.name, by_start=True, most=SHORT)
    predicted = [run.acceptance_length for run in replays(shallow, drafter.name, drafter.window)]
    off = np.mean(predicted) / summarise_run(truth).acceptance_length - 1
    return f"EAGLE cut to windows of {SHORT}, predicted at {drafter.window}: off by {off:+.1%}"


def timing(requests: int) -> list[Cell]:
    hazard = Hazard(synthetic_log(requests))
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
    return [
        table_cell("requests", requests),
        table_cell("fit", f"{fitted - began:.2f} s"),
        table_cell("first draw of a request", f"{(first - fitted) / len(asked) * 1e6:.0f} µs"),
        table_cell("a draw", f"{(drawn - first) / len(asked) / 99 * 1e6:.1f} µs"),
    ]


def main() -> None:
    parser = parser_of(__doc__)
    data = os.environ.get("PACELINE_DATA")
    parser.add_argument("--eagle", type=Path, default=Path(data) / EAGLE if data else None)
    options = parser.parse_args()
    pico = read_trace(shipped("recordings", "pico.trace"))
    means = f"(means of {len(SEEDS)} seeds)"
    show(f"Windows above {SHORT} hidden, tokens per round at {LONG} {means}", hidden_windows(pico))
    show(f"Nothing hidden, asked for less than logged {means}", shorter_windows(pico))
    show(f"Agreeing less with depth, logged with {LONG} {means}", losing_the_thread())
    if options.eagle is None:
        print("no EAGLE log: give --eagle, or set PACELINE_DATA")
    else:
        eagle = read_recording("spec-bench", [options.eagle])
        off = f"off the recorded by ... (fallback: {len(SEEDS)} seeds)"
        show(f"Tokens per step of EAGLE, window {eagle.meta.drafters[0].window}; {off}", eagle_log(eagle))
        print(eagle_beyond(eagle))
    show("Seconds, texts of 200 tokens", map(timing, (480, 100_000)))


if __name__ == "__main__":
    main()
