"""The environment of Gymnasium: its contract, what is observed and rewarded, and what is refused."""

import subprocess
import sys

import numpy as np
import paceline
import pytest
from gymnasium.utils.env_checker import check_env
from paceline.base.errors import ArgumentError
from paceline.policies import RoundChoice, make_policy
from paceline.policies.check import check_policy
from paceline.sim import Replay
from paceline.sim.gym import ReplayEnv

from ..unit_cost import UnitCost
from .rounds.small_rounds import one_request, recording_of, sequential
from .tries.small_traces import easy_cost, request_of, trace_of

CHAINS = ["target", "draft:1..4/target"]
# The drafter is right but for the token after 1.
VIEWS = {(): (1, 1), (1,): (9, 2), (1, 2): (3, 3), (1, 2, 3): (4, 4), (1, 9): (3, 3)}


def by_hand(**rest):
    trace = trace_of(request_of(VIEWS, budget=4))
    return ReplayEnv(trace, UnitCost(), chains=["target", "draft:2/target"], **rest)


@pytest.mark.parametrize("reward", ["saved", "speed-up"])
def test_the_checker_of_gymnasium_has_nothing_to_say(reward):
    check_env(ReplayEnv("pico", chains=CHAINS, reward=reward), skip_render_check=True)


def test_rewards_and_what_is_observed_by_hand():
    env = by_hand()
    seen, info = env.reset(options={"request_id": "r0"})
    assert seen.tolist() == [-1, -1, -1, -1, -1, 0.25]
    assert info == {"request_id": "r0", "tag": "a", "alone_s": 1.0}
    seen, reward, terminated, truncated, info = env.step(np.int64(1))  # two forwards draft 9 3, one refuses 9
    assert seen.tolist() == [0, -1, -1, -1, 1, 0.5]
    assert (reward, terminated, truncated) == (1 - 3, False, False)
    assert info == {"seconds": 3.0, "num_emitted": 1, "saved": -2.0, "speed-up": 1 / 3}
    seen, reward, terminated, truncated, info = env.step(np.int64(0))
    assert seen.tolist() == [-1, 0, -1, -1, 0, 0.75]
    assert (reward, info["speed-up"]) == (0, 1)
    seen, reward, terminated, truncated, info = env.step(np.int64(0))
    assert seen.tolist() == [-1, -1, 0, -1, 0, 1]
    assert (terminated, truncated) == (True, False)


def test_the_other_reward_is_the_speed_of_the_round():
    env = by_hand(reward="speed-up")
    env.reset()
    assert env.step(np.int64(1))[1] == 1 / 3


@pytest.mark.parametrize("chain", range(5))
def test_one_chain_throughout_takes_the_seconds_of_that_chain(chain):
    env, replay = ReplayEnv("pico", chains=CHAINS), Replay("pico")
    policy = make_policy(env.chains[chain], replay.pool)
    for request_id in list(replay.requests)[:20]:
        seen = replay.reset(request_id)
        before = replay.seconds
        while not replay.done:
            replay.step(policy.decide(seen))
        _, info = env.reset(options={"request_id": request_id})
        seconds = saved = 0.0
        terminated = False
        while not terminated:
            _, reward, terminated, truncated, told = env.step(np.int64(chain))
            seconds += told["seconds"]
            saved += reward
            assert not truncated
        assert seconds == pytest.approx(replay.seconds - before)
        rest = seen.num_emitted - 1
        assert saved == pytest.approx(rest - seconds / info["alone_s"], abs=1e-9)  # what is saved in all


def test_a_choice_made_in_training_is_the_same_in_a_run():
    """What a policy is shown in `compare` is what the environment showed."""

    def choose(numbers):
        shown.append(numbers)
        return 0 if numbers[0] == 0 else 3 if numbers[0] < 1 else 4

    env = ReplayEnv("pico", chains=CHAINS)
    shown, trained = [], []
    for request_id in env.requests:
        numbers, _ = env.reset(options={"request_id": request_id})
        terminated = False
        while not terminated:
            trained.append(numbers)
            numbers, _, terminated, _, _ = env.step(np.int64(choose(tuple(numbers.tolist()))))
    shown.clear()
    paceline.compare("pico", {"chosen": lambda pool: RoundChoice(pool, env.chains, choose)})
    assert np.array_equal(np.array(shown, np.float32), np.array(trained))


def test_requests_are_drawn_by_the_seed_from_those_that_are_named():
    env = ReplayEnv("pico", chains=CHAINS)
    some = env.requests[3:6]
    env = ReplayEnv("pico", chains=CHAINS, requests=some)

    def drawn(seed):
        return [env.reset(seed=seed if first else None)[1]["request_id"] for first in [True] + [False] * 20]

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)
    assert set(drawn(3)) == set(some)


def test_imported_rounds_make_episodes_as_well():
    recorded = recording_of(one_request({"": 9}, {"feature": sequential([True, True, False, True] * 2, 4)}))
    check_env(ReplayEnv(recorded, UnitCost(), chains=["target", "feature:2..4:2/target"]), skip_render_check=True)


def test_a_request_without_a_round_is_no_episode():
    short, long = request_of({(): (1, 1)}, budget=1, request_id="short"), request_of(VIEWS, budget=4, request_id="long")
    trace = trace_of(short, long)
    env = ReplayEnv(trace, easy_cost(trace), chains=["target"])
    assert {env.reset(seed=seed)[1]["request_id"] for seed in range(9)} == {"long"}
    with pytest.raises(ArgumentError, match="`options` request_id must name a request with rounds; short ends at once"):
        env.reset(options={"request_id": "short"})
    env = ReplayEnv(trace, easy_cost(trace), chains=["target"], requests=["short"])
    with pytest.raises(ArgumentError, match="`requests` must hold one with a round; all end with their first token"):
        env.reset()


def stepped(action, *, begun=True):
    env = by_hand()
    if begun:
        env.reset()
    env.step(action)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: ReplayEnv("pico", chains=[]), r"`chains` must be a list of at least one chain, got \[\]"),
        (lambda: ReplayEnv("pico", chains="target"), "`chains` must be a list of at least one chain, got 'target'"),
        (lambda: ReplayEnv("pico", chains=["draft/target"]), "'draft' needs a window"),
        (lambda: ReplayEnv("pico", chains=CHAINS, reward="speed"), "`reward` must be saved or speed-up, got 'speed'"),
        (lambda: ReplayEnv("pico", chains=CHAINS, requests=[]), r"`requests` must be a list of at least one id, got"),
        (lambda: ReplayEnv("pico", chains=CHAINS, requests=["x"]), "`requests` must be of the recording .*, got 'x'"),
        (lambda: by_hand().reset(options={"request": "r0"}), "`options` must be request_id or none, got 'request'"),
        (lambda: by_hand().reset(options={"request_id": "r"}), "`request_id` must be a request of by hand"),
        (lambda: stepped(np.int64(2)), r"`action` must be a whole number in \[0, 1\], got"),
        (lambda: stepped(0.5), r"`action` must be a whole number in \[0, 1\], got 0.5"),
        (lambda: stepped(np.int64(0), begun=False), r"`step` goes with an episode that runs: call reset\(\)"),
    ],
)
def test_bad_arguments_are_named(make, why):
    with pytest.raises(ValueError, match=why) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_choice_keeps_the_contract_of_policies():
    assert check_policy(lambda pool: RoundChoice(pool, ["target", "draft:4/target"], lambda _: 1), name="one").lossless


@pytest.mark.parametrize(
    ("chains", "choice", "why"),
    [
        (["target"], 1, r"a choice must be an index in \[0, 0\], got 1"),
        (["target", "target"], 0, "`chains` must differ, got target twice"),
        ("target", 0, "`chains` must be a list of at least one chain"),
    ],
)
def test_wrong_choices_are_refused(chains, choice, why):
    with pytest.raises(Exception, match=why):
        check_policy(lambda pool: RoundChoice(pool, chains, lambda _: choice), name="wrong")


def test_without_gymnasium_one_line_says_what_to_install():
    code = "import sys; sys.modules['gymnasium'] = None; import paceline, paceline.sim; paceline.sim.Replay('pico')\n"
    run = subprocess.run(
        [sys.executable, "-c", code + "import paceline.sim.gym"], capture_output=True, encoding="utf-8", check=False
    )
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith("ModuleNotFoundError: paceline.sim.gym needs gymnasium: ")
    assert "pip install" in run.stderr.splitlines()[-1]
    assert "gym" in run.stderr.splitlines()[-1].partition("pip install")[2]
