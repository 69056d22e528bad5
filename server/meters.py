"""What the server counts, as a Prometheus page: vLLM's names where vLLM counts the same, and the same by member.

`paceline observe` and other people's dashboards read vLLM's names. They are those of the target, whose drafts are the
tokens that it judges; the same names with the prefix `paceline:` and a label `member` are of every level.
"""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ..runs.recorder import ServingRecorder
from ..traces.workloads.arrival import PS_PER_S, Arrival
from .engine import End, Job

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0)


class Meters:
    """Counters of one server, whose `model`'s name is a label of every series. Any thread may count."""

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self.model = model
        self._counters: list[Counter] = []
        self.running, self.waiting = (
            self._gauge(f"vllm:num_requests_{what}", f"Requests {words}.", "policy")
            for what, words in (("running", "in the batch"), ("waiting", "that wait for admission"))
        )
        self.used = self._gauge("vllm:kv_cache_usage_perc", "Share of the target's blocks in use, 0 to 1.", "policy")
        self.preemptions = self._counter("vllm:num_preemptions", "Requests preempted for lack of blocks.")
        self._prompt_tokens = self._counter("vllm:prompt_tokens", "Tokens of prompts of requests that ended.")
        self._generated = self._counter("vllm:generation_tokens", "Tokens of answers.")
        self._ended = self._counter("vllm:request_success", "Requests that ended, by reason.", "finished_reason")
        self._failed = self._counter("paceline:request_failures", "Requests that failed, or that clients left.", "why")
        self._ttft = self._seconds("vllm:time_to_first_token_seconds", "From arrival to the first token.")
        self._e2e = self._seconds("vllm:e2e_request_latency_seconds", "From arrival to the end of the answer.")
        self._tpot = self._seconds(
            "vllm:request_time_per_output_token_seconds", "From the first token to the end, over the tokens after it."
        )
        self._drafts, self._drafted, self._accepted = (
            self._counter(f"vllm:spec_decode_num_{what}", words)
            for what, words in (
                ("drafts", "Steps of the target with drafted tokens."),
                ("draft_tokens", "Drafted tokens that the target judged."),
                ("accepted_tokens", "Drafted tokens that the target kept."),
            )
        )
        by_place = "Drafted tokens that the target kept, by position."
        self._by_place = self._counter("vllm:spec_decode_num_accepted_tokens_per_pos", by_place, "position")
        self.drafted_of, self.accepted_of, self.busy_of, self.forwards_of = (
            self._counter(f"paceline:{what}", words, "policy", "member")
            for what, words in (
                ("spec_decode_num_draft_tokens", "Tokens that a member judged."),
                ("spec_decode_num_accepted_tokens", "Tokens that a member kept."),
                ("busy_seconds", "Seconds that a member ran."),
                ("forwards", "Forwards of a member."),
            )
        )

    def recorder(self, policy: str, members: Sequence[str], num_blocks: int) -> ServingRecorder:
        """A recorder for the replica of a policy; `num_blocks` are the target's."""
        return _LiveRecorder(self, policy, members, num_blocks)

    def page(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self.registry)

    def forget(self) -> None:
        """Count from 0 again: no client asked for what ran so far."""
        for counter in self._counters:
            for sample in (one for family in counter.collect() for one in family.samples):
                counter.labels(**sample.labels).reset()

    def stepped(self, drafted: int, accepted: int) -> None:
        """The target judged `drafted` tokens of a request and accepted `accepted`."""
        if not drafted:
            return
        self._drafts.labels(self.model).inc()
        self._drafted.labels(self.model).inc(drafted)
        self._accepted.labels(self.model).inc(accepted)
        for place in range(accepted):
            self._by_place.labels(self.model, str(place)).inc()

    def ended(self, job: Job, end: End) -> None:
        """A request ended."""
        model = self.model
        if not end.reason:
            self._failed.labels(model, "abort" if end.left else "error").inc()
            return
        self._prompt_tokens.labels(model).inc(len(job.prompt))
        self._generated.labels(model).inc(len(job.tokens))
        self._ended.labels(model, "length" if end.reason == "length" else "stop").inc()
        self._ttft.labels(model).observe(job.ttft_s)
        self._e2e.labels(model).observe(job.e2e_s)
        if len(job.tokens) > 1:
            self._tpot.labels(model).observe((job.e2e_s - job.ttft_s) / (len(job.tokens) - 1))

    def _counter(self, name: str, words: str, *labels: str) -> Counter:
        counter = Counter(name, words, ("model_name", *labels), registry=self.registry)
        self._counters.append(counter)
        return counter

    def _gauge(self, name: str, words: str, *labels: str) -> Gauge:
        return Gauge(name, words, ("model_name", *labels), registry=self.registry)

    def _seconds(self, name: str, words: str) -> Histogram:
        return Histogram(name, words, ("model_name",), registry=self.registry, buckets=_SECONDS)


class _LiveRecorder(ServingRecorder):
    """Counts a replica's events and keeps nothing per request: a server runs without end."""

    def __init__(self, meters: Meters, policy: str, members: Sequence[str], num_blocks: int) -> None:
        super().__init__(members, {policy: [None] * len(members)})
        self._meters, self._model, self._policy, self._num_blocks = meters, meters.model, policy, num_blocks
        self._serial = -1

    def arrived(self, arrival: Arrival, replica: int) -> int:
        self._serial += 1
        return self._serial

    def _not_kept(self, *_: object, **__: object) -> None:
        """Nothing: see the class."""

    scheduled = first_token = finished = gaps = _not_kept

    def preempted(self, serial: int, at_ps: int) -> None:
        self._meters.preemptions.labels(self._model).inc()

    def judged(self, level: int, drafted: int, accepted: int, own: int, rows: int) -> None:
        self._meters.drafted_of.labels(*self._of(level)).inc(drafted)
        self._meters.accepted_of.labels(*self._of(level)).inc(accepted)

    def state(self, replica: int, at_ps: int, running: int, waiting: int, used_blocks: Sequence[int]) -> None:
        self._meters.running.labels(self._model, self._policy).set(running)
        self._meters.waiting.labels(self._model, self._policy).set(waiting)
        self._meters.used.labels(self._model, self._policy).set(used_blocks[-1] / self._num_blocks)

    def busy(self, replica: int, level: int, duration_ps: int, forwards: int = 1) -> None:
        self._meters.busy_of.labels(*self._of(level)).inc(duration_ps / PS_PER_S)
        self._meters.forwards_of.labels(*self._of(level)).inc(forwards)

    def _of(self, level: int) -> tuple[str, str, str]:
        return self._model, self._policy, self._members[level]
