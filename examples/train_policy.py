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
from paceline.sim.gym import ReplayEnv
from paceline.traces.recording import Recording

RECORDING = "pico"
TRAINED = "trained.py:Trained"
CHAINS = ["target", "draft:1..10/target"]
SWEEPS, EXPLORE = 60, 0.5  # passes over the requests; share of rounds that try any window
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
    """How a round went by the share of its draft that was accepted: no draft, nothing, a part, or all."""
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
    print(paceline.compare(test, [TRAINED, "adaptive", *fixed]))
    for other in ("adaptive", paceline.compare(train, fixed).best):
        print(paired(test, other))


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


def paired(recording: Recording, other: str) -> str:
    """The slower one's speed in parts of the faster one's, with its 95% interval on the same requests."""
    found = paceline.compare(recording, [TRAINED, other])
    (row,) = (row for row in found.to_json()["policies"] if row["policy"] != found.best)
    low, high = row["of_best_ci"]
    return f"{row['policy']} has {row['of_best']:.3f} ({low:.3f} to {high:.3f}) of the speed of {found.best}"


if __name__ == "__main__":
    main()
