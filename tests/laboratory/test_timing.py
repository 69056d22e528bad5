"""Jobs that are run in turn."""

from paceline_laboratory.replays import in_turns, interleaved


def test_all_jobs_run_in_turn_and_warm_ups_are_dropped():
    ran = []
    jobs = {name: lambda name=name: (ran.append(name), len(ran))[1] for name in "ab"}
    assert in_turns(jobs, runs=2, warm_ups=1) == {"a": [3, 5], "b": [4, 6]}
    assert "".join(ran) == "ababab"
    assert set(interleaved(jobs, runs=1)) == {"a", "b"}
    assert "".join(ran) == "ababab" + "abab"
