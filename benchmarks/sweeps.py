"""The share of the processors that a sweep uses, and seconds of resuming one of which most cells exist.

The first grid is 200 runs of SpecRouter on pico, 0.3 s each; its share is processor seconds of all processes, from the
start of the command to its end, over the available processor seconds. The second is 10,000 chains, all except one of
them written before. The third is 108 chains on three recordings and three batches, one job.

python benchmarks/sweeps.py [--jobs 2]
"""

import os
import tempfile
from pathlib import Path

from paceline.runs.cells import CellFound, CellStore, key_of
from paceline.studies.grids import read_grid
from paceline.studies.sweeps import sweep_grid
from paceline_laboratory.findings import table_cell
from shared.processes import paceline, run
from shared.report import parser_of, show, verdict

BUSY = 'policies = ["specrouter"]\ncosts = ["cpu", "a100", "h100", "l40s"]\nseeds = [{seeds}]\n'
FEW = """
policies = ["draft:1..12/target"]
recordings = ["pico", "smollm2", "pico-coupled"]
options = {batch = [1, 4, 16]}
"""
MANY = 'policies = ["draft:1..100/mid:1..100/target"]\n'


def run_for(folder: Path, grid: str, *words: str) -> tuple[float, float]:
    """(seconds, processor seconds) of a sweep in a separate process."""
    return run(paceline("sweep", f"{grid}.toml", "--out", grid, *words), folder)


def write_all_but_one(folder: Path) -> None:
    os.chdir(folder)
    Path("one.toml").write_text('policies = ["draft:1/mid:1/target"]\n', encoding="utf-8")
    sweep_grid("one.toml", out="one", jobs=1)
    found = next(Path("one").rglob("cells/*/*.json"))
    store, figures = CellStore(Path("many")), CellStore(Path("one")).read(found.stem)
    assert figures is not None
    for cell in list(read_grid(Path("many.toml")).cells())[1:]:
        store.write(key_of(cell.asked), CellFound(asked=cell.asked, figures=figures.figures))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    jobs = parser.parse_args().jobs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "busy.toml").write_text(BUSY.format(seeds=", ".join(map(str, range(50)))), encoding="utf-8")
        (folder / "many.toml").write_text(MANY, encoding="utf-8")
        busy_s, cpu_s = run_for(folder, "busy", "--jobs", str(jobs))
        write_all_but_one(folder)
        many_s, many_cpu_s = run_for(folder, "many", "--jobs", "1")
        (folder / "few.toml").write_text(FEW, encoding="utf-8")
        few_s, few_cpu_s = run_for(folder, "few", "--jobs", "1")
    rows = [
        [
            table_cell("sweep", "200 runs of SpecRouter"),
            table_cell("cells", 200),
            table_cell("seconds", busy_s, "", 2),
            table_cell("of processors", cpu_s, "", 2),
            table_cell(f"share of {jobs} processors", verdict(cpu_s / busy_s / jobs, 0.9)),
        ],
        [
            table_cell("sweep", "10,000 chains, one of them not played yet"),
            table_cell("cells", 10_000),
            table_cell("seconds", many_s, "", 2),
            table_cell("of processors", many_cpu_s, "", 2),
            table_cell(f"share of {jobs} processors", ""),
        ],
        [
            table_cell("sweep", "12 windows, 3 recordings, 3 batches"),
            table_cell("cells", 108),
            table_cell("seconds", few_s, "", 2),
            table_cell("of processors", few_cpu_s, "", 2),
            table_cell(f"share of {jobs} processors", ""),
        ],
    ]
    show("sweeps, each in a process of its own", rows)


if __name__ == "__main__":
    main()
