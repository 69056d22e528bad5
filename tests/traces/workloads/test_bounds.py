"""Sizes that nobody can run are refused by a stated bound, before memory is taken: every key of every generator."""

import resource
import tracemalloc

import pytest
from paceline.base.errors import ArgumentError
from paceline.traces.workloads import open_workload
from paceline.traces.workloads.arrival import requests_of
from paceline.traces.workloads.generated import KINDS
from paceline.traces.workloads.sharing import SESSION_KINDS

PLAIN = {"rate": "2", "requests": "3", "prompt": "5", "output": "7"}
SOUND = {kind: PLAIN | ({"cv": "2"} if kind == "gamma" else {}) for kind in KINDS}
TOOLS = {"steps": "3", "prompt": "5", "output": "7", "observation": "9", "system": "4", "sessions": "2", "unit": "16"}
SOUND |= {
    "tree-rollouts": {"branch": "2@0/2@3", "prompt": "5", "output": "9", "sessions": "2", "unit": "16"},
    "persistent-agent": {"turns": "3", "prompt": "5", "output": "7", "system": "4", "sessions": "2", "unit": "16"},
    "shared-workers": {"workers": "2", "rounds": "2", "prompt": "5", "output": "7", "sessions": "2", "unit": "16"},
    "react": TOOLS,
    "rewoo": TOOLS,
}
HUGE = ("2147483647", "2147483648", "99999999999999999999", "1000000000", "100000000")
DRAWN = ("geometric:{}", "lognormal:{}:1", "1..{}")
LENGTHS = {"prompt", "output", "observation", "turns", "steps"}
UNBOUNDED = {"unit", "rate", "cv"}  # none of them takes memory


def text_of(kind, options):
    return f"{kind}:{','.join(f'{key}={value}' for key, value in options.items())}"


def cases():
    for kind, options in SOUND.items():
        for key in options:
            if key not in UNBOUNDED:
                forms = ("{}@0",) if key == "branch" else ("{}", *(DRAWN if key in LENGTHS else ()))
                yield from ((kind, key, form.format(size)) for form in forms for size in HUGE)


def test_the_table_knows_all_kinds():
    assert set(SOUND) == {*KINDS, *SESSION_KINDS}
    for kind, options in SOUND.items():
        assert sum(1 for arrival in open_workload(text_of(kind, options)) for _ in requests_of(arrival)) >= 2


@pytest.mark.parametrize(("kind", "key", "value"), [*cases()])
def test_a_huge_size_is_refused_before_memory_is_taken(kind, key, value):
    tracemalloc.start()
    try:
        with pytest.raises(ArgumentError, match=rf"{key}|sessions must have at most"):
            next(iter(open_workload(text_of(kind, SOUND[kind] | {key: value}))))
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "text",
    [
        "poisson:rate=1000000,seconds=1000000,prompt=5,output=5",
        "react:steps=3,prompt=5,output=7,observation=9,rate=1000000,seconds=1000000",
        "react:steps=9999,prompt=5,output=7,observation=9,sessions=10000000",
        "shared-workers:workers=5000,rounds=5000,prompt=5,output=5,sessions=1",
        "tree-rollouts:branch=10000@0,prompt=1000000,output=5,sessions=1",
        "persistent-agent:turns=10000,prompt=10000000,output=10000000,sessions=1",
        "persistent-agent:turns=2,prompt=10000000,output=10,unit=1,sessions=1",
        "persistent-agent:turns=geometric:10000,prompt=1,output=1,sessions=200",
        "shared-workers:workers=2,rounds=2,prompt=3000000,output=3000000,unit=1,sessions=1",
    ],
)
def test_sizes_that_are_huge_together_are_refused(text):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ArgumentError, match=r"must (have|give) at most (10,000|10,000,000|4,000,000) "):
        sum(1 for _ in open_workload(text))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kilobytes


def test_a_generator_of_seconds_may_end_by_its_requests():
    assert len(list(open_workload("constant:rate=1000000,seconds=1000000,requests=3,prompt=5,output=5"))) == 3
