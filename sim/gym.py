"""A recording as an environment of Gymnasium: choose the next chain, for reinforcement learning.

An episode is a request, a step of the environment one round, from one commit of the target to the next. Needs the extra
`gym`. Letter: K chains to choose among.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import ArgumentError, install_hint, known_are
from ..decoding.seen import Observation
from ..decoding.steps import Verify
from ..policies.chain_text import chains_in
from ..policies.round_choice import NUM_NUMBERS, RoundChoice, RoundHistory
from ..traces.recording import Recording
from .cost.base import CostModel
from .replay import Replay

try:
    import gymnasium
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"paceline.sim.gym needs {error.name}: {install_hint('gym')}", name=error.name) from error

MOST_CHAINS = 1000
SAVED, SPEED_UP = "saved", "speed-up"
REQUEST = "request_id"  # the one option of `reset`

Numbers = NDArray[np.float32]


class ReplayEnv(gymnasium.Env[Numbers, np.int64]):
    """One request of a recording an episode; an action is the chain of the next round, by its index.

    Seconds and answers are those of `Replay`, which begins each request with its prefill; nothing is rewarded for it.
    What is observed is `RoundHistory.numbers`, `[6]` from -1 to 1: acceptance of the last four rounds, the chain of the
    latest, the share of the budget that is committed. `terminated` where the answer ends; `truncated` never.

    Two rewards are known, both against the target alone, which takes u seconds a token after the first in this request
    on average. With n tokens committed in a round of s seconds:

    - `saved`: n - s/u, tokens of the target alone. Their sum over an episode is the time saved, divided by u: to
      maximise it is to minimise seconds.
    - `speed-up`: n u/s, a ratio. It compares single rounds, as a bandit does; summed over an episode it rewards many
      short rounds.

    Args:
        recording, cost: as `Replay` takes them.
        chains: K in total, in notation, also with ranges: `["target", "draft:1..8/target"]`.
        requests: ids of those to draw episodes from; None for all.
        reward: `saved` or `speed-up`.

    Attributes:
        chains: in the order of actions.
        requests: ids.

    Raises:
        ValueError: a bad argument, in one line.
    """

    def __init__(
        self,
        recording: Recording | str | Path,
        cost: CostModel | str | None = None,
        *,
        chains: Sequence[str],
        requests: Sequence[str] | None = None,
        reward: str = SAVED,
    ) -> None:
        self._replay = Replay(recording, cost, start="prefill")
        if isinstance(chains, str) or not chains:
            raise ArgumentError(f"`chains` must be a list of at least one chain, got {chains!r}")
        if reward not in (SAVED, SPEED_UP):
            raise ArgumentError(f"`reward` must be {SAVED} or {SPEED_UP}, got {reward!r}")
        pool = self._replay.pool
        found = [str(chain) for chain in chains_in(chains, pool, most=MOST_CHAINS)]
        self._choice = RoundChoice(pool, found, lambda _: self._action)
        self.chains = self._choice.chains
        self.requests = tuple(self._replay.requests) if requests is None else self._checked(requests)
        self.action_space = gymnasium.spaces.Discrete(len(self.chains))
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (NUM_NUMBERS,), np.float32)
        self._reward = reward
        self._target = Verify(pool.target)
        self._action = 0
        self._alone_s: dict[str, float | None] = {}
        self._seen: Observation | None = None
        self._history: RoundHistory | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Numbers, dict[str, Any]]:
        """Begin a request: the one that `options={"request_id": ...}` names, else one drawn evenly.

        One that ends with its first token has no round; such are drawn again.

        Returns:
            `[6]` what is observed; `request_id`, `tag` and `alone_s`, seconds a token of the target alone.

        Raises:
            ArgumentError: another option, a request that is unknown or has no round, or none with a round.
        """
        super().reset(seed=seed)
        asked = dict(options or {})
        request_id = asked.pop(REQUEST, None)
        if asked:
            raise ArgumentError(f"`options` must be {REQUEST} or none, got {next(iter(asked))!r}")
        if request_id is None:
            request_id = self._drawn()
        elif self._alone(request_id) is None:
            raise ArgumentError(f"`options` {REQUEST} must name a request with rounds; {request_id} ends at once")
        self._choice.forget(request_id)
        self._seen = self._replay.reset(request_id)
        self._history = self._choice.history(request_id)
        return self._numbers(), {
            "request_id": request_id,
            "tag": self._replay.requests[request_id],
            "alone_s": self._alone(request_id),
        }

    def step(self, action: np.int64) -> tuple[Numbers, float, bool, bool, dict[str, Any]]:
        """Play one round of the chain `action`, 0 to K - 1.

        Returns:
            `[6]` what is observed; the reward; whether the answer has ended; False; and of the round `seconds`,
            `num_emitted` and both rewards.

        Raises:
            ArgumentError: a bad action, or no episode begun.
        """
        seen = self._seen
        if seen is None or self._replay.done:
            raise ArgumentError("`step` goes with an episode that runs: call reset()")
        if not self.action_space.contains(action):
            raise ArgumentError(f"`action` must be a whole number in [0, {len(self.chains) - 1}], got {action!r}")
        self._action = int(action)
        seconds, num_emitted = 0.0, 0
        while not num_emitted:
            outcome = self._replay.step(self._choice.decide(seen))
            self._choice.learn(outcome)
            seconds += outcome.duration_s
            num_emitted = outcome.num_emitted
        alone_s = self._alone(seen.request_id)
        assert alone_s is not None
        rewards = {SAVED: num_emitted - seconds / alone_s, SPEED_UP: num_emitted * alone_s / seconds}
        told = {"seconds": seconds, "num_emitted": num_emitted, **rewards}
        return self._numbers(), rewards[self._reward], self._replay.done, False, told

    def _checked(self, requests: Sequence[str]) -> tuple[str, ...]:
        known = self._replay.requests
        if isinstance(requests, str) or not requests:
            raise ArgumentError(f"`requests` must be a list of at least one id, got {requests!r}")
        for request_id in requests:
            if request_id not in known:
                raise ArgumentError(
                    f"`requests` must be of the recording ({known_are(request_id, known)}), got {request_id!r}"
                )
        return tuple(requests)

    def _drawn(self) -> str:
        while True:  # until one has a round: draws depend on the seed alone
            request_id = self.requests[int(self.np_random.integers(len(self.requests)))]
            if self._alone(request_id) is not None:
                return request_id
            if all(self._alone_s.get(each, 0.0) is None for each in self.requests):
                raise ArgumentError("`requests` must hold one with a round; all end with their first token")

    def _alone(self, request_id: str) -> float | None:
        """Seconds a token that the target alone takes after the first; None where nothing follows it."""
        if request_id not in self._alone_s:
            replay, seconds, num_tokens = self._replay, 0.0, 0
            replay.reset(request_id)
            while not replay.done:
                outcome = replay.step(self._target)
                seconds += outcome.duration_s
                num_tokens += outcome.num_emitted
            if num_tokens and not seconds:
                raise ArgumentError(f"`cost` must give the target seconds, got none in request {request_id}")
            self._alone_s[request_id] = seconds / num_tokens if num_tokens else None
        return self._alone_s[request_id]

    def _numbers(self) -> Numbers:
        assert self._seen is not None
        assert self._history is not None
        return np.array(self._history.numbers(self._seen), np.float32)
