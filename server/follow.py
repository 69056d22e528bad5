"""`serve --follow`: try another served policy if a simulation of the latest traffic predicts that it is faster.

Each period, what was recorded is simulated under every served policy. If one is predicted to be faster than the policy
that is followed, it is tried: requests that name no policy come in pairs, in order of arrival, and a hash of the first
one's id says which of the two is answered under the candidate. Both arms have half of the requests and, as the engine
gives replicas that wait equal shares of the machine's time, half of the machine: other shares would compare batches of
other sizes. The number of pairs is fixed first: when all are answered, the candidate is kept if the 95% interval of its
measured gain lies above 1, and rolled back otherwise. A failure changes nothing.
"""

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from itertools import pairwise
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import ArgumentError, counted, one_line_of
from ..base.files import write_whole
from ..base.terminal import tell
from ..decoding.pool import Pool
from ..policies.chain_text import BASELINE, parse_chain
from ..reports.intervals import Interval, mean_interval
from ..sim.serving.cluster_file import read_cluster_file
from .options import FollowOptions
from .record import WORKLOAD, Row, line_of, responses_folder

if TYPE_CHECKING:
    from .engine import End, Job

LOG, WORK = "follow.jsonl", "follow"  # beside what is recorded: the decisions, and the input of the latest simulation
LEAST_SHARE = 0.5  # of a trial's pairs, both answered: clients may leave the slower arm more often
SECTIONS = 20  # of a trial's pairs, in the order in which they ended: neighbours share batches, sections hardly
LEAST_REQUESTS = 20  # of the last period, and of recorded drafts, that are simulated
MOST_RESPONSES = 500  # of recorded drafts, the latest
PROBES = 20  # one in this many requests goes to the policy that drafts longest: only drafts show their acceptance
REST = 6  # periods in which a candidate that was rolled back is not tried again
MOST_PERIODS = 12  # of a trial, after which there is too little traffic to judge it by
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The result of simulating the latest traffic under every served policy."""

    fastest: str  # the policy with the least mean time in the system
    gain: float  # that time under the policy that is followed, over it; > 0
    tied: tuple[str, ...]  # policies that cannot be told apart from it, by the seeds or by the cost
    about: Mapping[str, Any] = field(default_factory=dict)  # of the simulation, for the log


@dataclass(slots=True, kw_only=True)
class _Trial:
    """A candidate that half of the requests are answered under."""

    policy: str
    began_at_s: float
    num_pairs: int
    num_asked: int = 0
    is_first: bool = False  # whether the candidate has the first request of the pair under way
    arms: dict[str, tuple[int, bool]] = field(default_factory=dict)  # of open requests: (pair, whether candidate)
    logs: dict[int, list[float]] = field(default_factory=dict)  # of answered ones by pair: log of the seconds a token
    failed: str = ""  # why the candidate failed

    @property
    def is_answered(self) -> bool:
        """Whether all pairs came and ended: to stop at the first ones that ended would leave out slow ones."""
        return self.num_asked == 2 * self.num_pairs and not self.arms

    @property
    def gains(self) -> list[float]:
        """Log of the gain of each pair of which both were answered, in order of arrival."""
        return [sum(logs) for _, logs in sorted(self.logs.items()) if len(logs) == 2]

    def take(self, request_id: str) -> bool:
        """Whether a request that arrives now is answered under the candidate."""
        if self.num_asked == 2 * self.num_pairs:
            return False
        pair, second = divmod(self.num_asked, 2)
        self.num_asked += 1
        if not second:
            self.is_first = _hash(request_id) % 2 == 0
        mine = self.is_first != bool(second)
        self.arms[request_id] = pair, mine
        return mine

    def note(self, pair: int, mine: bool, seconds: float) -> None:
        """A request of a pair took `seconds` a token."""
        self.logs.setdefault(pair, []).append(-log(seconds) if mine else log(seconds))


class Follower:
    """Chooses the policy of requests that name none. All methods except `look` may be called in any thread.

    Args:
        policies: that are served; the first one is followed to begin with.
        longest: the one of them that drafts longest.
        simulate: predicts, given the policy that is followed; may raise anything, which changes nothing.
        write: takes each line of the log.

    Attributes:
        current: the policy that is followed.
    """

    def __init__(
        self,
        policies: Sequence[str],
        longest: str,
        options: FollowOptions,
        simulate: Callable[[str], Prediction],
        write: Callable[[dict[str, Any]], None],
    ) -> None:
        self.current = policies[0]
        self._longest, self._options, self._simulate, self._write = longest, options, simulate, write
        self._trial: _Trial | None = None
        self._due_at_s: float | None = None  # of the next simulation; None: a period after the first look
        self._rests_until_s: dict[str, float] = {}
        self._lock = threading.Lock()

    def policy_of(self, request_id: str) -> str:
        """The policy of a request that arrives now."""
        with self._lock:
            if self._trial is not None:
                return self._trial.policy if self._trial.take(request_id) else self.current
            return self._longest if _hash(request_id) % PROBES == 0 else self.current

    def ended(self, job: "Job", end: "End") -> None:
        """An answer ended, or failed, or its client left; of several to one request the first one is measured."""
        request_id, _, choice = job.request_id.partition("/")
        with self._lock:
            trial = self._trial
            if trial is None or request_id not in trial.arms:
                return
            pair, mine = trial.arms[request_id]
            if mine and end.error:
                trial.failed = end.error
            if choice not in ("", "0"):
                return
            del trial.arms[request_id]
            if end.reason:  # else the pair gives no gain
                trial.note(pair, mine, job.e2e_s / len(job.tokens))

    def look(self, now_s: float) -> None:
        """Judge a trial that is over, or simulate and begin one, if it is time."""
        every_s = self._options.follow_every_s
        if self._trial is not None:
            self._judge(self._trial, now_s)
        elif self._due_at_s is None:
            self._due_at_s = now_s + every_s
        elif now_s >= self._due_at_s:
            self._due_at_s = now_s + every_s
            self._begin(now_s)

    def _begin(self, now_s: float) -> None:
        try:
            found = self._simulate(self.current)
        except Exception as error:  # noqa: BLE001 - whatever a simulation raises, the server continues as before
            self._note("not simulated", why=one_line_of(str(error) or type(error).__name__, 300))
            return
        told = {"fastest": found.fastest, "predicted_gain": found.gain, "tied": list(found.tied), **found.about}
        if found.fastest == self.current or self.current in found.tied or found.gain <= 1:
            self._note("simulated", then="nothing is predicted to be faster", **told)
        elif self._rests_until_s.get(found.fastest, now_s) > now_s:
            self._note("simulated", then=f"{found.fastest} was rolled back a while ago", **told)
        else:
            self._note("simulated", then=f"{found.fastest} is tried", **told)
            with self._lock:
                self._trial = _Trial(policy=found.fastest, began_at_s=now_s, num_pairs=self._options.follow_pairs)

    def _judge(self, trial: _Trial, now_s: float) -> None:
        every_s = self._options.follow_every_s
        with self._lock:
            failed, is_answered = trial.failed, trial.is_answered
            if not (failed or is_answered or now_s - trial.began_at_s > MOST_PERIODS * every_s):
                return
            self._trial, gains = None, trial.gains
        self._due_at_s = now_s + every_s
        over, told = self.current, {"pairs": len(gains), "seconds": round(now_s - trial.began_at_s, 3)}
        if not failed and is_answered and len(gains) >= LEAST_SHARE * trial.num_pairs:
            gain = measured_gain(gains)
            told |= {"measured_gain": gain.mean, "low": gain.low, "high": gain.high}
            if gain.low > 1:
                self.current = trial.policy
                self._note("kept", policy=trial.policy, over=over, **told)
                return
            why = "its interval does not lie above 1"
        else:
            why = failed or f"too few of {counted(trial.num_pairs, 'pair')} were answered"
        self._rests_until_s[trial.policy] = now_s + REST * every_s
        self._note("rolled back", policy=trial.policy, over=over, why=one_line_of(why, 300), **told)

    def _note(self, event: str, **told: object) -> None:
        self._write({"at": datetime.now(UTC).isoformat(timespec="seconds"), "event": event, **told})


def measured_gain(gains: Sequence[float]) -> Interval:
    """Geometric mean over pairs of the seconds a token, others' over the candidate's, and its 95% interval.

    `gains` are logs, `SECTIONS` of them or more; Student's t over the means of sections, the decision is taken once.
    """
    ends = [len(gains) * place // SECTIONS for place in range(SECTIONS + 1)]
    means = [sum(gains[low:high]) / (high - low) for low, high in pairwise(ends)]
    found = mean_interval(means)
    return Interval(mean=exp(found.mean), low=exp(found.low), high=exp(found.high))


def _hash(request_id: str) -> int:
    return int.from_bytes(sha256(request_id.encode()).digest()[:8])


def drafting_of(policies: Sequence[str], pool: Pool) -> tuple[str, str]:
    """The drafter of the served chains, and the chain that drafts longest.

    Raises ArgumentError unless all are `plain` and chains of one drafter: recorded rounds do not apply to others.
    """
    windows: dict[str, int] = {}
    drafters = set[str]()
    for text in policies:
        if text == BASELINE:
            continue
        try:
            chain = parse_chain(text, pool)
        except ValueError:
            chain = None
        if chain is None or len(chain.members) != 2:
            raise ArgumentError(f"`follow` goes with `policies` plain and DRAFTER:K/{pool.target}, got {text}")
        windows[text] = chain.windows[0]
        drafters.add(chain.members[0])
    if len(policies) < 2 or len(drafters) != 1:
        names = ", ".join(sorted(drafters)) or "none"
        raise ArgumentError(f"`follow` goes with two `policies` or more, of one drafter; got {names}")
    return drafters.pop(), max(windows, key=lambda text: windows[text])


class LastTraffic:
    """Simulates the served policies on what was recorded last, by `paceline compare` in a process of low priority.

    `longest` is the chain whose recorded rounds are replayed, `drafter` that of all chains.

    Raises:
        ClusterFileError: the cluster file is missing, or breaks a rule.
        ArgumentError: a table of its replicas has no cost.
    """

    def __init__(
        self, folder: Path, policies: Sequence[str], drafter: str, longest: str, options: FollowOptions
    ) -> None:
        assert options.follow is not None
        self._cluster = options.follow.resolve()
        for table in read_cluster_file(self._cluster).replicas:
            if table.cost is None:
                raise ArgumentError(f"`follow` {options.follow} must name a `cost`: seconds that were fitted here")
        self._folder, self._policies, self._drafter, self._longest = folder, policies, drafter, longest
        self._every_s = options.follow_every_s
        self._running: subprocess.Popen[str] | None = None
        self._closed = False

    def __call__(self, current: str) -> Prediction:
        """Raises ValueError where too little was recorded, or a command fails, with its message."""
        work = self._folder / WORK
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        arrivals = _latest(self._folder / WORKLOAD, self._of_last_period)
        rounds = _latest(self._folder / responses_folder(self._longest), lambda rows: rows[-MOST_RESPONSES:])
        for rows, what in ((arrivals, "arrivals of the last period"), (rounds, f"answers under {self._longest}")):
            if len(rows) < LEAST_REQUESTS:
                raise ValueError(f"{len(rows)} recorded {what}, at least {LEAST_REQUESTS} are needed")
        write_whole(work / "workload.jsonl", "".join(map(line_of, arrivals)))
        write_whole(work / "rounds.jsonl", "".join(map(line_of, rounds)))
        trace, predicted = str(work / "served.trace"), work / "predicted.json"
        names = ("--drafter", f"rounds.jsonl={self._drafter}", "--token-drafter", self._drafter)
        self._run("trace", "import", "auto", str(work / "rounds.jsonl"), *names, "--out", trace)
        policies = [part for policy in self._policies for part in ("--policy", policy)]
        where = ("--workload", str(work / "workload.jsonl"), "--cluster", str(self._cluster))
        self._run("compare", "--trace", trace, *where, *policies, "--json", str(predicted))
        told = json.loads(predicted.read_text(encoding="utf-8"))
        best, gains = told["best"][0], {row["policy"]: row["gain"] for row in told["rows"]}
        return Prediction(
            fastest=best["policy"],
            gain=gains[best["policy"]] / gains[current],
            tied=(*best["tied"], *best["tied_by_cost"]),
            about={"arrivals": len(arrivals), "answers": len(rounds)},
        )

    def _of_last_period(self, rows: list[Row]) -> list[Row]:
        return [row for row in rows if row["arrives_s"] > rows[-1]["arrives_s"] - self._every_s]

    def close(self) -> None:
        """End what runs, and run nothing more."""
        self._closed = True
        if self._running is not None:
            self._running.terminate()

    def _run(self, *arguments: str) -> None:
        if self._closed:
            raise ValueError("the server is shutting down")
        command = ["nice", "-n", "19", sys.executable, "-m", "paceline", *arguments]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as self._running:
            _, said = self._running.communicate()
        if self._running.returncode:
            raise ValueError(f"{arguments[0]}: {one_line_of(said.strip(), 300)}")


def _latest(folder: Path, chosen: Callable[[list[Row]], list[Row]]) -> list[Row]:
    """The rows that `chosen` takes of the latest numbered files; reads backwards until it leaves some rows out."""
    rows: list[Row] = []
    for file in sorted(folder.glob("*.jsonl"), reverse=True):
        rows = [*map(json.loads, file.read_text(encoding="utf-8").splitlines()), *rows]
        if len(found := chosen(rows)) < len(rows):
            return found
    return rows


class Following:
    """A follower with its thread, log and simulations in the `folder` of a recording; `close` ends them.

    Raises:
        ArgumentError: policies that cannot be followed, or a cluster without a cost.
        ClusterFileError: a cluster file that is missing or breaks a rule.
    """

    def __init__(self, folder: Path, policies: Sequence[str], pool: Pool, options: FollowOptions) -> None:
        drafter, longest = drafting_of(policies, pool)
        self._simulate = LastTraffic(folder, policies, drafter, longest, options)
        self._log, self._stopping = folder / LOG, threading.Event()
        self.follower = Follower(policies, longest, options, self._simulate, self._write)
        self._thread = threading.Thread(target=self._run, name="paceline-follower", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End, also during a simulation or a trial."""
        self._stopping.set()
        self._simulate.close()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            self.follower.look(time.monotonic())

    def _write(self, line: dict[str, Any]) -> None:
        tell(f"follow: {line['event']}: {line.get('then') or line.get('why') or line.get('policy')}")
        try:
            with self._log.open("a", encoding="utf-8") as file:
                file.write(line_of(line))
        except OSError as error:  # a full disk must not end the server
            tell(f"{self._log}: {error.strerror}; a decision is not kept")
