"""The main job under load: one workload served under one policy."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from pydantic import with_config

from ...interrupts import held_interrupts
from ...progress import Progress
from ...reports.serving.over_seeds import SeedRow
from ...reports.serving.report import ServingReport
from ...reports.tables.grid import Grid
from ...reports.tables.printed import Printed
from ...runs.serving.log import ServingLog
from ...runs.serving.store import write_serving
from ...sim.serving.simulate import INTERRUPTED
from ...traces.recording import Recording
from ..comparing.setting import STRICT, check_kinds
from ..named_policies import PolicyGiven, named_policy
from .broken_workload import BrokenWorkloadError
from .metrics import measured_run
from .serving_run import Watched, check_policy, serving_run
from .setting import ServingOptions, ServingSetting, serving_setting


@with_config(STRICT)
class Asked(ServingOptions):
    """Further keywords of `simulate`."""

    rate: float | None
    workload: str | Path
    cluster: str | Path
    out: str | Path | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Simulated(Printed):
    """One served run; prints as `paceline metrics` prints its folder.

    Attributes:
        log: all that happened.
        report: its figures.
    """

    log: ServingLog
    report: ServingReport

    @property
    def interrupted(self) -> bool:
        """Whether it was stopped by Ctrl-C, or an order to end."""
        return self.log.meta.stopped == INTERRUPTED

    def write(self, path: str | Path) -> None:
        """Write the folder of the run, which `metrics` reads; raises ValueError if it exists."""
        write_serving(self.log, Path(path))

    def tables(self) -> Sequence[Grid]:
        """Those of the report."""
        return self.report.tables()

    def lines(self) -> Sequence[str]:
        """Those of the report."""
        return self.report.lines()

    def to_json(self) -> dict[str, Any]:
        """See `ServingReport`."""
        return self.report.to_json()

    def to_dicts(self) -> list[dict[str, Any]]:
        """See `ServingReport`."""
        return self.report.to_dicts()


def simulate(
    workload: str | Path,
    policy: PolicyGiven | None = None,
    recording: Recording | str | Path | None = None,
    *,
    cluster: str | Path,
    rate: float | None = None,
    out: str | Path | None = None,
    **options: Unpack[ServingOptions],
) -> Simulated:
    """Serve a workload under a policy: latencies, throughput, goodput, memory, acceptance.

    Ctrl-C stops the run; what was simulated until then is returned, and written, marked partial. A row of the workload
    that cannot be read or served ends the run as well: what came before it is written, and is the error's `run`.

    Args:
        workload: a file of requests, or a generator's text; see `paceline.traces.workloads.open_workload`.
        policy: of the replicas that have none of their own, as `compare` takes it.
        recording: that acceptance is drawn from, request by request; None: the one that comes with the package.
        cluster: a TOML file (docs/cluster.md), or a device of the sheet, as "h100": one replica on it.
        rate: mean arrivals per second that the workload is scaled to, > 0; None: its own.
        out: new folder for the run.
        options: `time_scale`, `limit`, `max_prompt_tokens`, `max_output_tokens`, `zero_tokens` and `tag` change the
            workload as in `open_workload`. `horizon_s`: the run is stopped then. `slo`: longest times for goodput, by
            name (`ttft`, `tpot`, `e2e`, `queue`), seconds, or by class of request and name, as of `metrics`.
            `cost`: of all replicas, in place of the cluster's own.
            `scale`, `tensor_parallel`, `extrapolate`, `models`, `on`, `measured_on`, `shift_acceptance`, `decide_s`,
            `allow_foreign_profile`, `strict`, `lossless` as of `compare`. `seed`: of all that is drawn.

    Raises:
        BrokenWorkloadError: a row of the workload ended the run.
        ValueError: an argument, a cluster or a policy that will not do, in one line.
        CostRangeError: seconds that the cost does not know.
        PolicyError: a policy that broke the contract.
    """
    check_kinds({**options, "rate": rate, "workload": workload, "cluster": cluster, "out": out}, Asked)
    setting = serving_setting(recording, workload, cluster, options)
    named = None if policy is None else named_policy(policy)
    seed = setting.replay.seed
    tables = setting.tables(seed)
    check_policy(setting, named, tables)
    opened = setting.opened(rate, seed)
    setting.check_classes(opened)
    with held_interrupts() as interrupts, Progress("serving", opened.about.num_requests, unit="requests") as progress:
        watched = Watched(interrupts=interrupts, on_ended=progress.advance)
        try:
            log, _ = serving_run(setting, named, opened, tables, rate=rate, seed=seed, watched=watched)
        except BrokenWorkloadError as broken:
            broken.run = _simulated(broken.log, setting, out)
            raise
        return _simulated(log, setting, out)


def _simulated(log: ServingLog, setting: ServingSetting, out: str | Path | None) -> Simulated:
    """A run with its figures, written if it is to be."""
    if out is not None:
        write_serving(log, Path(out))
    row = SeedRow(runs=(measured_run(log, "the run" if out is None else str(out), setting.promised),))
    return Simulated(log=log, report=ServingReport(rows=(row,), promised=setting.promised))
