"""`compare --on`: measured seconds on another device, and the range."""

import json

import pytest
from paceline.traces.meta import ModelInfo
from paceline.traces.rounds.store import write_rounds

from ...sim.rounds.small_rounds import one_request, recording_of, rounds_of
from ..command_line import done, refused

SHAPES = tuple(
    ModelInfo(
        name=name, parameters=size * 10**9, layers=32, hidden_size=4096, kv_bytes_per_token=10**5, dtype="bfloat16"
    )
    for name, size in (("feature", 1), ("target", 8))
)


@pytest.fixture
def log(tmp_path):
    rounds = rounds_of((0, 2, 4), (3, 4, 4), (8, 2, 4), seconds=((0.02, 0.03),) * 3)
    recording = recording_of(
        *(
            one_request({"": 11, "feature": 11}, {"feature": rounds}, request_id=f"r{n}", wall_s={"": 0.33})
            for n in range(3)
        ),
        drafters=(("feature", True, 4),),
    )
    meta = recording.meta.model_copy(update={"name": "log", "models": SHAPES})
    write_rounds(iter(recording.requests), lambda: meta, tmp_path / "log.trace")
    return tmp_path / "log.trace"


ARGS = ("--policy", "plain", "--policy", "feature:4/target", "--cost", "timed", "--on", "h200", "--measured-on", "h100")


def test_the_range_is_around_the_answer(log):
    data = json.loads(done("compare", "--trace", log, *ARGS, "--json", "-"))
    here = json.loads(done("compare", "--trace", log, *ARGS[:-4], "--json", "-"))
    assert data["meta"]["cost"] == "timed, h100 to h200"
    assert (data["on"]["measured_on"], data["on"]["device"]) == ("h100", "h200")
    for row, measured in zip(data["policies"], here["policies"], strict=True):
        ends = data["on"]["policies"][row["policy"]]
        assert measured["output_tokens_per_s"] < ends["memory"]["output_tokens_per_s"]
        assert ends["memory"]["output_tokens_per_s"] <= row["output_tokens_per_s"] * (1 + 1e-9)
        assert row["output_tokens_per_s"] < ends["all"]["output_tokens_per_s"]
        # Everything waits for memory: all of it scales as the bandwidths do.
        assert ends["all"]["output_tokens_per_s"] == pytest.approx(measured["output_tokens_per_s"] * 4.8 / 3.35)
    assert data["on"]["policies"]["plain"]["all"]["speed_up"] == 1.0


def test_the_range_is_of_the_means_over_the_same_seeds(log):
    """Chance has a part in a window that was not recorded; what scales as a whole does so at every seed."""
    words = ("--policy", "feature:3/target", "--cost", "timed", "--seeds", "6", "--extrapolate", "--json", "-")
    on = json.loads(done("compare", "--trace", log, *words, *ARGS[-4:]))
    (row,) = on["policies"]
    (measured,) = json.loads(done("compare", "--trace", log, *words))["policies"]
    assert measured["seeds"] == row["seeds"] == 6
    low, high = measured["output_tokens_per_s_ci"]
    assert low < high, "seeds differ"
    ends = on["on"]["policies"]["feature:3/target"]
    assert ends["all"]["output_tokens_per_s"] == pytest.approx(measured["output_tokens_per_s"] * 4.8 / 3.35)
    assert ends["all"]["speed_up"] == pytest.approx(measured["speed_up"])
    assert on["on"]["left_out"] == []


HASTY = """
from paceline import policies as p

class Hasty:
    def __init__(self, pool):
        self.target = pool.target

    def decide(self, seen):
        if seen.num_pending:
            return p.Verify(self.target)
        fast = seen.last is not None and seen.last.duration_s < 0.025
        return p.Draft("feature", 5 if fast else 4)

    def learn(self, outcome):
        pass
"""


def test_a_policy_that_leaves_what_was_measured_under_one_reading_is_named(log, tmp_path):
    """It asks for wide drafts where the target is fast, and seconds of a width that nobody measured are refused."""
    (tmp_path / "hasty.py").write_text(HASTY)
    words = ("compare", "--trace", log, "--policy", "hasty.py:Hasty", *ARGS)
    on = json.loads(done(*words, "--json", "-"))["on"]
    assert set(on["policies"]) == {"plain", "feature:4/target"}
    (line,) = on["left_out"]
    assert line.startswith("hasty.py:Hasty is left out, all scales: cost timed")
    assert "hasty.py:Hasty is left out, all scales:" in " ".join(done(*words).split("range")[-1].split())


def test_no_range_is_known_where_it_was_not_asked_for(log):
    assert "on" not in json.loads(done("compare", "--trace", log, "--json", "-"))


def test_a_bare_roofline_says_what_it_leaves_unused(log):
    data = json.loads(done("compare", "--trace", log, "--cost", "h200", "--json", "-"))
    assert data["meta"]["cost_notes"][0].startswith(
        "bare roofline, a lower bound: the recording holds measured seconds"
    )


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--measured-on", "h100"), "--measured-on goes with --on DEVICE, got --measured-on h100"),
        (("--on", "h200"), "--on h200 needs the device of the sheet that timed was measured on"),
        (
            ("--cost", "h100", "--on", "h200"),
            "--on is for seconds measured with the recording (timed), got --cost h100",
        ),
        (("--on", "h200", "--measured-on", "h100", "--tensor-parallel", "2"), "--tensor-parallel is for devices"),
    ],
)
def test_what_does_not_go_together_is_refused(log, args, told):
    assert told in refused("compare", "--trace", log, *args)


def test_what_a_processor_took_goes_nowhere():
    assert "--on h100 needs the device of the sheet that cpu was measured on" in refused("compare", "--on", "h100")
