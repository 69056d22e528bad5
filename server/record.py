"""The recording of the traffic, in forms that the rest of paceline reads: `trace import`, `--workload` and `--prompts`.

docs/serving-loop.md lists the files. For another server, behind `paceline proxy`, `proxy_record.py` writes the same and
some more.

A folder is its files in the order of their names. Each is written whole (write, then rename), so that every file can be
read whenever the server ends. A request is written once it has ended; its arrival, once every earlier one has ended
too.
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ..base.errors import ArgumentError, one_line_of, repeated
from ..base.files import as_file_name, write_whole
from ..base.terminal import tell
from ..sim.serving.limits import EngineLimits
from ..traces.workloads.arrival import PS_PER_S
from .options import RecordingOptions
from .protocol import metrics_of, usage_of

if TYPE_CHECKING:  # the proxy records without torch
    from .engine import End, Job

WORKLOAD, PROMPTS, CLUSTER = "workload", "prompts", "cluster.toml"
_MIB = 2**20
Row = dict[str, Any]


def line_of(row: Row) -> str:
    """A row as a line of its file."""
    return json.dumps(row, separators=(",", ":")) + "\n"


def responses_folder(policy: str) -> str:
    """Where responses under a policy are."""
    return f"responses-{as_file_name(policy)}"


class TrafficFiles:
    """Numbered files of rows, a folder for each kind; all methods except `close` may be called in any thread.

    Args:
        asked: where, and how much.
        beside: writes further files of a number, its argument, and returns how many bytes; called in the thread of the
            files. None: there are none.

    Raises:
        ArgumentError: a folder that exists.
        OSError: it cannot be made.
    """

    def __init__(self, asked: RecordingOptions, beside: Callable[[int], int] | None = None) -> None:
        assert asked.record is not None
        self.folder, self._asked, self._beside = asked.record, asked, beside
        try:
            self.folder.mkdir(parents=True)
        except FileExistsError:
            raise ArgumentError(f"`record` must name a new folder, got {str(self.folder)!r}") from None
        self._began_ps: int | None = None
        self._open: dict[str, int] = {}  # arrivals of requests that have not ended
        self._rows: dict[str, list[Row]] = {}  # by folder, since the latest file
        self._arrived: list[tuple[int, Row]] = []  # of requests that ended, after one that has not
        self._num_bytes, self._number = 0, 0
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="paceline-recorder", daemon=True)

    def start(self) -> None:
        """Write files from now on."""
        self._thread.start()

    def began(self, request_id: str, arrived_at_ps: int) -> None:
        """A request arrived."""
        with self._lock:
            if self._began_ps is None:
                self._began_ps = arrived_at_ps
            self._open[request_id] = arrived_at_ps

    def ended(self, request_id: str, lengths: tuple[int, int] | None, rows: Mapping[str, Row]) -> None:
        """A request ended; `lengths` are tokens of prompt and answer, None if unknown; `rows` go to their folders."""
        with self._lock:
            arrived_at_ps = self._open.pop(request_id, None)
            if arrived_at_ps is None or self.is_full:
                return
            if lengths is not None:
                assert self._began_ps is not None
                arrives_s = round((arrived_at_ps - self._began_ps) / PS_PER_S, 9)
                told = {"request_id": request_id, "prompt_tokens": lengths[0], "output_tokens": lengths[1]}
                self._arrived.append((arrived_at_ps, {"arrives_s": arrives_s, **told}))
            for folder, row in rows.items():
                self._rows.setdefault(folder, []).append(row)

    def close(self) -> None:
        """Write what is left, and end."""
        self._stopping.set()
        self._thread.join()

    @property
    def is_full(self) -> bool:
        """Whether nothing more is recorded."""
        return self._num_bytes >= self._asked.record_mib * _MIB

    def _run(self) -> None:
        while not self._stopping.wait(self._asked.record_every_s):
            self._write()
        self._write()

    def _write(self) -> None:
        """Write the next files, if there is anything new."""
        with self._lock:
            rows, self._rows = self._rows, {}
            earliest = min(self._open.values(), default=None)
            self._arrived.sort(key=lambda one: one[0])
            ready = [row for at_ps, row in self._arrived if earliest is None or at_ps < earliest]
            del self._arrived[: len(ready)]
        if ready:
            rows[WORKLOAD] = ready
        if self.is_full:
            return
        beside = 0 if self._beside is None else self._beside(self._number + 1)
        if not rows and not beside:
            return
        self._number += 1
        self._num_bytes += beside
        for folder, lines in rows.items():
            text = "".join(map(line_of, lines))
            place, name = self.folder / folder, f"{self._number:06}.jsonl"
            try:
                if place.exists():
                    write_whole(place / name, text)
                else:  # the folder appears together with its first file, as an empty one is no recording
                    begun = place.with_name(f".{folder}.part")
                    begun.mkdir(exist_ok=True)
                    write_whole(begun / name, text)
                    begun.rename(place)
            except OSError as error:  # a full disk must not end the server
                tell(f"{place}: {error.strerror}; {len(lines)} requests are not kept")
                continue
            self._num_bytes += len(text)
        if self.is_full:
            tell(f"{self.folder}: holds {self._asked.record_mib} MiB (--record-mib); nothing more is kept")


class TrafficRecorder:
    """Records the requests of a server; `began` and `ended` may be called in any thread.

    The engine's `limits` are the same under each policy; `served` is the server in one line.

    Raises:
        ArgumentError: a folder that exists, or policies whose folders would have one name.
        OSError: it cannot be made.
    """

    def __init__(self, asked: RecordingOptions, policies: Sequence[str], limits: EngineLimits, *, served: str) -> None:
        if twice := repeated(map(responses_folder, policies)):
            raise ArgumentError(f"`record` needs policies whose folders differ, got {twice[0]} for two")
        self.files, self._record_hashes = TrafficFiles(asked), asked.record_hashes
        write_whole(self.files.folder / CLUSTER, f"# {one_line_of(served, 400)}\n{_cluster(limits)}")
        self.files.start()

    def began(self, job: "Job") -> None:
        """A request arrived."""
        self.files.began(job.request_id, job.arrived_at_ps)

    def ended(self, job: "Job", end: "End") -> None:
        """A request ended, or its client left; one without a token is not recorded."""
        if not job.tokens:
            self.files.ended(job.request_id, None, {})
            return
        rows = {responses_folder(job.policy): _response(job, end)}
        if job.text and not self._record_hashes:
            rows[PROMPTS] = {"id": job.request_id, "prompt": job.text}
        self.files.ended(job.request_id, (len(job.prompt), len(job.tokens)), rows)

    def close(self) -> None:
        """Write what is left, and end."""
        self.files.close()


def _response(job: "Job", end: "End") -> Row:
    return {
        "id": job.request_id,
        "usage": usage_of(len(job.prompt), len(job.tokens)),
        "metrics": metrics_of(job.steps),
        "policy": job.policy,
        "finish_reason": end.reason or "abort",
        "sampling": job.sampling.words,
        "prompt_sha256": sha256(json.dumps(job.prompt).encode()).hexdigest(),
        "ttft_s": job.ttft_s,
        "e2e_s": job.e2e_s,
    }


def _cluster(limits: EngineLimits) -> str:
    """The server as a cluster file; `validate --calibrate` finds its seconds."""
    kv = next(iter(limits.kv.values()))
    values: Mapping[str, object] = {
        "name": '"served"',
        "device": '"h100"  # a placeholder, of which nothing counts: blocks and cost are given',
        "cost": '"fitted.json"  # beside this file; `validate --calibrate ... --write-cost` finds and writes it',
        "max_num_seqs": limits.max_num_seqs,
        "token_budget": limits.token_budget,
        "kv_blocks": kv.num_blocks,
        "block_tokens": kv.block_tokens,
        "prefix_cache": "false",
        "admission": f'"{limits.admission}"',
    }
    return "[[replicas]]\n" + "".join(f"{key} = {value}\n" for key, value in values.items())
