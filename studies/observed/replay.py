"""An observed run served anew in the simulator: the same requests, when they were sent, as long as they were."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...arguments import ArgumentError
from ...counted import counted
from ...interrupts import held_interrupts
from ...runs.observed.meta import ObservedRun
from ...runs.observed.request import ObservedRequest
from ...runs.serving.log import ServingLog
from ...sim.cost.base import CostModel
from ...sim.replay_tables import ReplayTables
from ...traces.recording import Recording
from ...traces.workloads.arrival import Arrival, WorkloadAbout
from ..named_policies import NamedPolicy, named_policy
from ..serving.serving_run import Watched, check_policy, serving_run
from ..serving.setting import ServingOptions, ServingSetting, serving_setting

PLAIN = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRequests:
    """The requests of an observed run that can be served anew; implements `Workload`.

    Attributes:
        name: of the run.
        requests: that finished, by the time at which they were sent.
        left_out: failed and unfinished ones, and those without a token.
    """

    name: str
    requests: tuple[ObservedRequest, ...]
    left_out: int

    @property
    def about(self) -> WorkloadAbout:
        """See `Workload`."""
        notes = (f"{counted(self.left_out, 'observed request')} did not finish: not replayed",) if self.left_out else ()
        count = len(self.requests)
        return WorkloadAbout(
            name=self.name,
            files=(),
            format="observed",
            unit_tokens=0,
            num_requests=count,
            notes=notes,
            num_arrivals=count,
        )

    def __iter__(self) -> Iterator[Arrival]:
        """See `Workload`; the first arrives at 0."""
        began_ps = self.requests[0].sent_at_ps
        for one in self.requests:
            assert one.prompt_tokens is not None
            assert one.output_tokens is not None
            yield Arrival(one.request_id, one.sent_at_ps - began_ps, one.prompt_tokens, one.output_tokens)

    def rows_of(self, other: ServingLog) -> Sequence[int]:
        """Rows of a serving log that hold these requests, in their order."""
        rows = {name: row for row, name in enumerate(other.requests["request_id"].tolist())}
        return [rows[one.request_id] for one in self.requests]


def replayed_requests(run: ObservedRun, name: str) -> ReplayedRequests:
    """Those that can be served anew.

    Args:
        run: that was observed.
        name: of its folder, for messages.

    Raises:
        ArgumentError: a finished request whose tokens nobody counted, or none that finished.
    """
    finished = run.finished
    for one in finished:
        for field in ("prompt_tokens", "output_tokens"):
            if getattr(one, field) is None:
                raise ArgumentError(
                    f"{name}: request {one.request_id}: {field} must be known to be replayed, the server told none; "
                    "observe with --usage or --count-tokens"
                )
    kept = tuple(one for one in finished if one.output_tokens and one.outputs_at_ps)
    if not kept:
        raise ArgumentError(f"{name}: must hold a request that finished with a token, has none")
    return ReplayedRequests(name=name, requests=kept, left_out=len(run.requests) - len(kept))


class Replayer:
    """Serves observed requests on a cluster, at any seconds. Final.

    Args:
        cluster: a TOML file, or a device of the sheet.
        policy: as `simulate` takes it; None: plain, unless every replica has its own.
        recording: that acceptance is drawn from; None: the shipped one.
        cost: as `simulate` takes it; None: the cluster's own.
        seed: of all that is drawn.

    Raises:
        ValueError: what `simulate` refuses.
    """

    def __init__(
        self,
        cluster: str | Path,
        policy: str | None,
        recording: Recording | str | Path | None,
        *,
        cost: str | None,
        seed: int,
    ) -> None:
        options = ServingOptions(cost=cost, seed=seed)
        self._setting: ServingSetting = serving_setting(recording, "observed", cluster, options)
        own = all(replica.policy is not None for replica in self._setting.cluster.replicas)
        asked = PLAIN if policy is None and not own else policy
        self._policy: NamedPolicy | None = None if asked is None else named_policy(asked)
        self._tables: ReplayTables = self._setting.tables(seed)
        self._seed = seed
        check_policy(self._setting, self._policy, self._tables)

    @property
    def target(self) -> str:
        """The target's name."""
        return self._setting.recording.about.target

    @property
    def cluster_name(self) -> str:
        """As it is shown."""
        return self._setting.cluster.name

    @property
    def cost_names(self) -> str:
        """The costs of all replicas, as they are shown."""
        return ", ".join(dict.fromkeys(replica.cost_name for replica in self._setting.cluster.replicas))

    def priced(self, cost: CostModel) -> "Replayer":
        """The same at other seconds, of all replicas."""
        found = object.__new__(Replayer)
        vars(found).update(vars(self))
        cluster = self._setting.cluster
        replicas = tuple(replace(one, cost=cost, cost_name=cost.name) for one in cluster.replicas)
        found._setting = replace(self._setting, cluster=replace(cluster, replicas=replicas))
        return found

    def served(self, requests: ReplayedRequests) -> ServingLog:
        """One run; raises ValueError and CostRangeError as `simulate`, KeyboardInterrupt if it is interrupted."""
        with held_interrupts() as interrupts:
            watched = Watched(interrupts=interrupts, on_ended=lambda: None)
            setting = replace(self._setting, workload=requests.name)
            log, _ = serving_run(
                setting, self._policy, requests, self._tables, rate=None, seed=self._seed, watched=watched
            )
            if interrupts.heard():
                raise KeyboardInterrupt
        return log
