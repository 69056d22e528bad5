"""Seconds of a page of `paceline report` from a cold process, and its size.

For a served run of many requests without its operations, one with them, and a comparison with --why and --by-tag.

python benchmarks/report.py [--requests 100000] [--runs 3]
"""

import tempfile
from functools import partial
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median

from paceline_laboratory.findings import table_cell
from paceline_laboratory.replays import in_turns
from shared.processes import paceline, run
from shared.report import parser_of, show

SERVED = ("simulate", "--cluster", "h100", "--policy", "draft:4/target")
KEPT = 2_000  # requests of the run with operations, which is simulated step by step
COMPARED = ("draft:4/target", "confident", "typical", "mid:4/target")


def write_inputs(folder: Path, requests: int) -> dict[str, Path]:
    inputs = {f"{requests:,} served requests": folder / "many", f"{KEPT:,} with operations": folder / "kept"}
    many, kept = inputs.values()
    run(paceline(*SERVED, "--workload", f"poisson:rate=300,requests={requests}", "--out", str(many)))
    run(paceline(*SERVED, "--workload", f"poisson:rate=300,requests={KEPT}", "--events", "--out", str(kept)))
    compared = folder / "compared.json"
    policies = [word for policy in COMPARED for word in ("--policy", policy)]
    run(paceline("compare", *policies, "--why", "--by-tag", "--json", str(compared)))
    return {**inputs, "a comparison, --why --by-tag": compared}


def processor_s(command: list[str]) -> float:
    before = getrusage(RUSAGE_CHILDREN)
    run(command)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inputs = write_inputs(folder, asked.requests)
        pages = {what: folder / f"{path.stem}.html" for what, path in inputs.items()}
        commands = {what: paceline("report", str(path), "--out", str(pages[what])) for what, path in inputs.items()}
        jobs = {what: partial(processor_s, command) for what, command in commands.items()}
        timings = in_turns(jobs, runs=asked.runs, warm_ups=1)
        rows = [
            [
                table_cell("page of", what),
                table_cell("processor s", median(timings[what]), digits=2),
                table_cell("MB", page.stat().st_size / 1e6, digits=2),
            ]
            for what, page in pages.items()
        ]
        show(f"medians of {asked.runs} processes", rows)


if __name__ == "__main__":
    main()
