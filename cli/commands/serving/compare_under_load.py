"""`paceline compare --workload`: policies that serve requests as they arrive."""

from functools import partial
from pathlib import Path

from ....counted import counted
from ....studies.serving.compare_under_load import compare_under_load
from ...errors import Interrupted
from ...options.comparison import ComparisonAsked
from ...options.load import ServedAsked
from ...options.parsing import numbers
from ...output import check_json_path, show


def show_under_load(
    trace: Path | None,
    policy: list[str] | None,
    setting: ComparisonAsked,
    served: ServedAsked,
    *,
    detail: bool,
    json: Path | None,
    log: Path | None,
) -> None:
    """Compare and show; raises ValueError for options that will not do, Interrupted where rows are missing."""
    workload, cluster = served.workload, served.cluster
    if workload is None or cluster is None:
        raise ValueError("--workload goes with --cluster FILE or --cluster DEVICE, as in --cluster h100")
    check_json_path(json, Path(workload), Path(cluster))
    found = compare_under_load(
        trace,
        policy,
        workload=workload,
        cluster=cluster,
        rates=None if served.rate is None else numbers("--rate", served.rate),
        log=log,
        **served.options(),
        **setting.setting(),
    )
    show(json, found, partial(found.tables, detail=detail))
    if found.num_missing:
        were = "was" if found.num_missing == 1 else "were"
        raise Interrupted(f"{counted(found.num_missing, 'row')} more {were} asked for")
