"""Whether a profile still fits: what is measured again for it, and what is said of it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from paceline.runtime.profiling.forwards import reference_grid, reference_times
from paceline.studies.profile import Profiled
from paceline.studies.profile_check import Freshness, MemberPace, device_name
from paceline.traces.profile import AfterAway

from ..profiles.profiles import made_profile
from ..tiny_models import tiny_pool_of_four


def test_a_few_shapes_of_the_profile_are_measured_again():
    grid = reference_grid(made_profile().shapes)
    assert (grid.rows, grid.new_tokens, grid.context_tokens) == ((1, 2), (1, 3, 9), (50,))
    slow = [shape._replace(seconds=0.1) for shape in made_profile().shapes]
    assert reference_grid(slow).new_tokens == (1,)


def test_a_few_forwards_after_times_away_are_measured_again():
    def cells(seconds):
        return [
            AfterAway(new_tokens=count, away_s=away_s, seconds=seconds, spread=0.01)
            for count in (1, 2, 6, 40)
            for away_s in (0.0, 0.0005, 0.001, 0.004, 0.02)
        ]

    assert reference_times({"a": cells(1e-4)}) == ([1, 6], [0.0005, 0.001, 0.004, 0.02])
    assert reference_times(dict.fromkeys("abcd", cells(2e-3))) == ([1, 6], [0.0005, 0.001, 0.004])
    assert reference_times({"a": cells(2.0)}) == ([1], [0.001])


@pytest.mark.parametrize(("ratio", "fits"), [(1.0, True), (1.09, True), (1.11, False), (0.92, True), (0.9, False)])
def test_slower_and_faster_alike_are_a_change(ratio, fits):
    pace = MemberPace(ratio=ratio, limit=0.1)
    assert pace.fits == fits
    both = {"a": pace, "b": MemberPace(ratio=1.0, limit=0.1)}, {"b": MemberPace(ratio=1.0, limit=0.1)}
    for members, after_away in (both, both[::-1]):
        assert Freshness(age_s=1.0, members=members, after_away=after_away).fits == fits


def test_only_members_that_changed_are_named_the_worst_first():
    members = {name: MemberPace(ratio=ratio, limit=0.1) for name, ratio in (("a", 1.2), ("b", 1.01), ("c", 1.31))}
    after_away = {"b": MemberPace(ratio=1.25, limit=0.1), "c": MemberPace(ratio=1.0, limit=0.1)}
    assert Freshness(age_s=3480.0, members=members, after_away=after_away).line == (
        "the profile no longer fits: c's forwards take 1.31 times, b's forwards after times away take 1.25 times, a's "
        "forwards take 1.20 times as long as 58 min ago; profile again"
    )
    fitting = {"b": members["b"]}
    assert Freshness(age_s=60.0, members=fitting, after_away=fitting).line == (
        "the profile fits: forwards take 1.01 times, after times away 1.01 times as long as 60 s ago"
    )
    two = fitting | {"a": MemberPace(ratio=0.95, limit=0.1)}
    assert Freshness(age_s=60.0, members=two, after_away=fitting).line == (
        "the profile fits: forwards take 0.95 to 1.01 times, after times away 1.01 times as long as 60 s ago"
    )


def test_seconds_that_varied_too_much_say_nothing():
    steady, wild = MemberPace(ratio=1.01, limit=0.1), MemberPace(ratio=1.02, limit=7.0)
    assert [pace.verdict for pace in (steady, wild, MemberPace(ratio=9.0, limit=7.0))] == ["yes", "cannot tell", "no"]
    one = Freshness(age_s=60.0, members={"a": steady, "b": wild, "c": steady}, after_away={"c": wild, "a": steady})
    assert one.line == (
        "whether the profile fits cannot be told of b, c, whose seconds varied too much; a fits: forwards take 1.01 "
        "times, after times away 1.01 times as long as 60 s ago"
    )
    none = Freshness(age_s=60.0, members={"a": wild}, after_away={"a": steady})
    assert none.line == "whether the profile fits cannot be told of a, whose seconds varied too much"


@pytest.mark.parametrize(("spread", "told"), [(0.2, 0), (0.3, 1)])
def test_a_profile_of_a_busy_machine_says_so(spread, told):
    quiet = made_profile()
    busy = replace(quiet, shapes=tuple(shape._replace(spread=spread) for shape in quiet.shapes))
    lines = Profiled(profile=busy, out=Path("a.profile")).lines()
    assert sum("vary by more than 25% from one time to the next" in line for line in lines) == told


def test_members_elsewhere_than_the_target_are_a_part_of_the_device():
    on = {"draft": "cuda:1", "mid": "cpu", "target": "cpu"}
    members = [SimpleNamespace(name=name, model=SimpleNamespace(device=torch.device(at))) for name, at in on.items()]
    lookup = SimpleNamespace(name="ngram", model=None)
    assert device_name(SimpleNamespace(members=[lookup, *members], target=members[-1])) == "cpu, draft on cuda:1"
    assert device_name(tiny_pool_of_four()) == "cpu"
