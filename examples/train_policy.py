"""Learns which draft window to play from the rounds before, on one half of a recording, and compares on the other half.

The environment is `paceline.sim.gym.ReplayEnv`, from the extra `gym`. What is learnt is a table, the window by how the
last two rounds went. It is written as a policy file, `trained.py` in the current folder, which every command takes.

`examples/train_policy.out` beside this file is what it prints at 100 columns.
"""

from collections import defaultdict
from dataclasses import replace
from inspect import getsource
from math import inf
from pathlib import Path
from random import Random

import paceline
from paceline.policies import make_policy
from paceline.reports.intervals import mean_interval
from paceline.sim import Replay
from paceline.sim.gym import ReplayEnv

RECORDING = "pico"
CHAINS = ["target", "draft:1..10/target"]
SWEEPS, EXPLORE = 60, 0.5  # rounds over the requests; share of windows that are tried at random
POLICY = '''"""Written by examples/train_policy.py: the window of each round, by how the last two went."""

from paceline.policies import RoundChoice

CHAINS = {chains!r}
CHOICES = {choices!r}


{went}

class Trained(RoundChoice):
    """A table that was learnt; where it says nothing, the chain that was best on the whole."""

    def __init__(self, pool):
        super().__init__(pool, CHAINS, self.choose)

    def choose(self, numbers):
        return CHOICES.get((went(numbers[0]), went(numbers[1])), {otherwise!r})
'''


def went(share: float) -> str:
    """How a round went by the share of its draft that was accepted: none was judged, nothing, a part of it, or all."""
    return "none" if share < 0 else "all" if share == 1 else "part" if share else "nothing"


def main() -> None:
    recording = paceline.open_recording(RECORDING)
    train, test = (replace(recording, requests=recording.requests[first::2]) for first in (0, 1))
    choices, otherwise, chains = learnt(ReplayEnv(train, chains=CHAINS))
    told = {"chains": chains, "choices": choices, "otherwise": otherwise, "went": getsource(went)}
    Path("trained.py").write_text(POLICY.format(**told), encoding="utf-8")
    for context, choice in sorted(choices.items()):
        print(f"{'/'.join(context):>16}: {chains[choice]}")
    fixed = [chain for chain in chains if chain != "target"]
    print(paceline.compare(test, ["trained.py:Trained", "adaptive", *fixed]))
    for other in ("adaptive", paceline.compare(train, fixed).best):
        print(difference(test, "trained.py:Trained", other))


def learnt(env: ReplayEnv) -> tuple[dict[tuple[str, str], int], int, tuple[str, ...]]:
    """The best chain by context, the best one on the whole, and the chains.

    To write N tokens in the least time, the best chain of a context has the largest n - v s, with n tokens and s
    seconds of its rounds there (s in parts of the target's seconds a token), and v the speed that is reached: a token
    that is not written now is written at v (Dinkelbach 1967). Chains that were not tried yet come first.
    """
    rng, speed = Random(0), 1.0
    sums = defaultdict(lambda: [[0.0, 0.0, 0] for _ in env.chains])  # tokens, seconds and rounds, by context and chain
    for _ in range(SWEEPS):
        tokens = seconds = 0.0
        for request_id in env.requests:
            numbers, info = env.reset(options={"request_id": request_id})
            terminated = False
            while not terminated:
                context = went(numbers[0]), went(numbers[1])
                greedy = best_of(sums[context], speed)
                explores = rng.random() < EXPLORE
                action = rng.randrange(len(env.chains)) if explores else greedy
                numbers, _, terminated, _, told = env.step(action)
                for key in (context, None):
                    cell = sums[key][action]
                    cell[0] += told["num_emitted"]
                    cell[1] += told["seconds"] / info["alone_s"]
                    cell[2] += 1
                if not explores:
                    tokens += told["num_emitted"]
                    seconds += told["seconds"] / info["alone_s"]
        if seconds:
            speed = tokens / seconds
    best = {context: best_of(cells, speed, untried=-inf) for context, cells in sums.items()}
    return best, best.pop(None), env.chains


def best_of(cells: list[list[float]], speed: float, *, untried: float = inf) -> int:
    values = [(tokens - speed * seconds) / rounds if rounds else untried for tokens, seconds, rounds in cells]
    return values.index(max(values))


def difference(recording: object, ours: str, theirs: str) -> str:
    """In the mean of requests' speed-ups, with its 95% interval over requests."""
    gains = [a - b for a, b in zip(speed_ups(recording, ours), speed_ups(recording, theirs), strict=True)]
    mean = mean_interval(gains)
    return f"{ours} against {theirs}: {mean.mean:+.3f} ± {mean.half_width:.3f} in the mean of {len(gains)} requests"


def speed_ups(recording: object, name: str) -> list[float]:
    replay = Replay(recording)
    seconds = {}
    for each in (name, "target"):
        policy = make_policy(each, replay.pool)
        for request_id in replay.requests:
            before, seen = replay.seconds, replay.reset(request_id)
            while not replay.done:
                policy.learn(replay.step(policy.decide(seen)))
            seconds[each, request_id] = replay.seconds - before
    return [seconds["target", request_id] / seconds[name, request_id] for request_id in replay.requests]


if __name__ == "__main__":
    main()
