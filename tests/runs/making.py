"""Runs made up for tests: a toy engine that tells a recorder what it does and keeps every output in plain lists."""

from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import strategies as st
from paceline.runs.observed import ObservedMeta, ObservedRequest, ObservedRun
from paceline.runs.recorder import ServingRecorder
from paceline.runs.serving import ServingAbout
from paceline.traces.workloads.arrival import Arrival

MEMBERS = ("draft", "target")
BLOCKS = {"r0": (None, 50), "r1": (40, 50)}
ABOUT = ServingAbout(policy="toy", workload="drawn", cluster="two toys", seed=3, setting={"rate": 2.5, "on": ["a"]})

END_PS = 10**13
OBSERVED = ObservedRequest(
    request_id="r", prompt_id="p", asked_tokens=4, due_at_ps=1, sent_at_ps=2, outputs_at_ps=(3, 4), ended_at_ps=5
)


def observed_run(*requests, **other):
    """Of one request, where none are given."""
    about = {"url": "http://h", "model": "m", "endpoint": "/v1/completions", "workload": "w", "prompts": "p"}
    meta = ObservedMeta(**about | {"loop": "open", "ended_at_ps": END_PS} | other)
    return ObservedRun(meta, requests or (OBSERVED,))


def told():
    """One request that finished after two tokens."""
    recorder = ServingRecorder(MEMBERS, BLOCKS)
    recorder.arrived(Arrival("a", 5, 10, 2), 0)
    recorder.scheduled(0, 6, (0, 3))
    recorder.first_token(0, 20)
    recorder.gaps(10, 0, 1, 1)
    recorder.finished(0, 30)
    return recorder


@dataclass
class Told:
    """What happened to one request, told plainly."""

    arrival: Arrival
    replica: int
    scheduled: int = -1
    outputs: list[tuple[int, int]] = field(default_factory=list)  # (when, tokens)
    ended: int = -1
    rejected: str = ""
    preempted: list[int] = field(default_factory=list)

    @property
    def emitted(self):
        return sum(tokens for _, tokens in self.outputs)

    @property
    def gaps(self):
        times = [at for at, _ in self.outputs]
        return [later - before for before, later in pairwise(times)]


@dataclass
class Played:
    recorder: ServingRecorder
    told: list[Told]
    states: list[list[tuple[int, int, int, tuple[int, int]]]]  # by replica
    ended: int
    stopped: str

    @property
    def log(self):
        return self.recorder.log(ABOUT)


@st.composite
def played(draw, most_requests=6):
    """A run of the toy: requests in steps of random lengths, some rejected, some preempted, perhaps stopped."""
    recorder = ServingRecorder(MEMBERS, BLOCKS)
    toy = _Toy(draw, recorder, Played(recorder, [], [[], []], 0, ""))
    at = 0
    for number in range(draw(st.integers(0, most_requests))):
        at += draw(st.integers(0, 5))
        toy.arrive(number, at)
    toy.serve()
    return toy.played


class _Toy:
    def __init__(self, draw, recorder, played):
        self.draw, self.recorder, self.played = draw, recorder, played
        self.stops_at = draw(st.none() | st.integers(20, 60))

    def arrive(self, number, at):
        arrival = Arrival(
            request_id=f"q{number}",
            arrives_ps=at,
            prompt_tokens=self.draw(st.integers(1, 9)),
            output_tokens=self.draw(st.integers(1, 9)),
            tag=self.draw(st.sampled_from(["", "math"])),
        )
        told = Told(arrival, self.draw(st.integers(0, 1)))
        assert self.recorder.arrived(arrival, told.replica) == number
        if self.draw(st.integers(0, 4)) == 0:
            told.ended, told.rejected = at, "too long"
            self.recorder.rejected(number, at, "too long")
        self.played.told.append(told)

    def serve(self):
        waiting = [index for index, told in enumerate(self.played.told) if not told.rejected]
        now = max((told.arrival.arrives_ps for told in self.played.told), default=0)
        while waiting and (self.stops_at is None or now <= self.stops_at):
            step = self.draw(st.integers(1, 10**6))
            self.step(waiting, now, now + step)
            now += step
            waiting = [index for index in waiting if self.played.told[index].ended < 0]
        self.played.ended = max([now if waiting else 0, *(told.ended for told in self.played.told)])
        if waiting:
            self.played.stopped = "horizon"
            self.recorder.stopped(now, "horizon")
            for index in waiting:
                self.recorder.emitted(index, self.played.told[index].emitted)

    def step(self, waiting, now, end):
        gaps = []
        for index in waiting:
            told = self.played.told[index]
            chance = self.draw(st.integers(0, 3))
            if chance == 0:
                if told.outputs:
                    told.preempted.append(now)
                    self.recorder.preempted(index, now)
                continue
            if told.scheduled < 0:
                told.scheduled = now
                self.recorder.scheduled(index, now, (0, told.arrival.prompt_tokens // 2))
            tokens = min(chance, told.arrival.output_tokens - told.emitted) if told.outputs else 1
            if told.outputs:
                gaps.append(end - told.outputs[-1][0])
                self.recorder.judged(1, tokens, tokens - 1, 1, 1)
            else:
                self.recorder.first_token(index, end)
            told.outputs.append((end, tokens))
            if told.emitted == told.arrival.output_tokens:
                told.ended = end
                self.recorder.finished(index, end)
        for gap in sorted(set(gaps)):
            self.recorder.gaps(gap, self.draw(st.integers(-3, 3)), 1, gaps.count(gap))
        for replica in (0, 1):
            self.report(replica, now)
            self.recorder.busy(replica, 1, end - now)

    def report(self, replica, now):
        state = (now, *(self.draw(st.integers(0, 9)) for _ in range(2)), (0, self.draw(st.integers(0, 50))))
        self.played.states[replica].append(state)
        self.recorder.state(replica, *state)
