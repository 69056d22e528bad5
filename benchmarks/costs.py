"""Seconds of the roofline beside those measured by the authors of Splitwise (Patel et al., arXiv:2311.18677).

Llama-2-70B and BLOOM-176B in half precision under tensor parallelism, A100 and H100; predicted / measured in ms.
That engine launched kernels one by one, and such a host cannot keep up with eight devices: its decoding of Llama took
30 ms (H100) and 45 ms (A100) with four devices and with eight. The second table therefore gives each forward at least
one constant per layer, the same in all rows; the sheet's launches are those of captured graphs.

python benchmarks/costs.py [DATA]     (default: the folder that PACELINE_DATA names)
"""

import csv
import gzip
import os
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median

from paceline.sim.cost.roofline import RooflineCost, device_sheet
from paceline.traces import ModelInfo
from paceline.traces.shapes import presets
from paceline_laboratory.findings import table_cell
from shared.report import show

SHAPES = {
    "llama2-70b": presets()["llama-2-70b"].info("target"),
    "bloom-176b": ModelInfo(
        name="target",
        parameters=176_247_271_424,
        layers=70,
        hidden_size=14336,
        kv_bytes_per_token=2 * 70 * 14336 * 2,
        dtype="float16",
    ),
}
DEVICES = {"a100-80gb": "a100-80gb", "h100-80gb": "h100-sxm"}
HOST_LAUNCH_S = 4.5e-4  # per layer, chosen after the decoding of Llama below; the host launches while devices compute
NUM_NEW = 128  # tokens of an answer in the compared rows
PREFILLS = ((512, 1), (4096, 1), (512, 8))  # (prompt tokens of a request, requests)
DECODES = ((512, 1), (4096, 1), (512, 32))

Key = tuple[str, str, int, int, int]  # model, hardware, tensor parallel, prompt tokens, requests


def measured(path: Path) -> dict[Key, tuple[float, float]]:
    """Median milliseconds of the prompt and of a token."""
    rows = defaultdict(list)
    with gzip.open(path, "rt") as file:
        for row in csv.DictReader(file):
            if row["hardware"] in DEVICES and int(row["token_size"]) == NUM_NEW:
                sizes = (int(row[name]) for name in ("tensor_parallel", "prompt_size", "batch_size"))
                rows[row["model"], row["hardware"], *sizes].append(
                    (float(row["prompt_time"]), float(row["token_time"]))
                )
    return {key: tuple(median(column) for column in zip(*times, strict=True)) for key, times in rows.items()}


def predicted(model: str, hardware: str, split: int) -> RooflineCost:
    return RooflineCost(device_sheet()[DEVICES[hardware]], (SHAPES[model],), tensor_parallel=split)


def compare(times: dict[Key, tuple[float, float]], floor_s: float, title: str) -> None:
    ratios: dict[str, list[float]] = defaultdict(list)
    rows = []
    for model, hardware, split in sorted({key[:3] for key in times}):
        cost = predicted(model, hardware, split)
        least_s = SHAPES[model].layers * floor_s
        cells = [table_cell("model", model), table_cell("device", hardware), table_cell("TP", split)]
        for part, (kind, cases) in enumerate((("prefill", PREFILLS), ("decode", DECODES))):
            for prompt, num_rows in cases:
                new, held = (prompt * num_rows, 0)
                if kind == "decode":
                    new, held = num_rows, num_rows * (prompt + NUM_NEW // 2)
                seconds = cost.forward_s("target", num_rows=num_rows, new_tokens=new, context_tokens=held)
                ours, theirs = 1e3 * max(seconds, least_s), times[model, hardware, split, prompt, num_rows][part]
                ratios[kind].append(ours / theirs)
                cells.append(table_cell(f"{kind} {num_rows}x{prompt}", f"{ours:.1f} / {theirs:.1f}"))
        rows.append(cells)
    said = [f"{kind} {min(each):.2f} to {max(each):.2f}, median {median(each):.2f}" for kind, each in ratios.items()]
    show(title, rows, f"predicted over measured: {'; '.join(said)}")


def main() -> None:
    folder = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("PACELINE_DATA", "")
    path = Path(folder) / "splitwise_perf_model" / "perf_model.csv.gz"
    if not path.exists():
        print(f"{path}: not there, so nothing is compared; give the folder of data")
        return
    times = measured(path)
    compare(times, 0.0, "the roofline")
    title = f"no less than {HOST_LAUNCH_S * 1e6:.0f} microseconds a layer, for a host that launches kernel by kernel"
    compare(times, HOST_LAUNCH_S, title)


if __name__ == "__main__":
    main()
