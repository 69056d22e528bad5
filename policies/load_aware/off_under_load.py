"""Speculation by thresholds on the number of running requests, as engines ship it.

vLLM had `speculative_disable_by_batch_size` (#4592): off where that many requests run, or more. Since #32374 it has
`num_speculative_tokens_per_batch_size`: how many tokens to draft by the size of the batch, where sizes that are not
named take over from those before them. What runs counts, requests that read their prompt among them.
"""

from ...arguments import check_least
from ...decoding.contract import Outcome, Step
from ...decoding.observation import Observation
from ...decoding.policy import Policy
from ...decoding.pool import Pool
from ..about import About
from ..combined.made_of import MadeOf
from ..lossless.chain import Chain
from ..parts.default_members import drafter_of

WINDOW = 4  # tokens, of the drafter if neither a policy nor a table is given
AT = 32  # running requests, where speculation ends if nothing else is said


class OffUnderLoad(MadeOf):
    """Another policy below a number of running requests, the target alone from it on; or a window by that number.

    A round goes on as it began: thresholds are looked at when nothing is pending. Each policy learns from its own steps
    only, so that of a request which ends under another one it is not told the end.

    Args:
        pool: the members.
        policy: below the threshold; default a chain of `draft` with window 4 and the target.
        at: running requests from which on the target decodes alone, >= 1; default 32.
        table: window of `draft` by running requests, in place of both, as `1:5/16:2/64:0`: 5 tokens from 1 request on,
            2 from 16 on, none from 64 on. It begins at 1 and goes up.
        draft: the drafter; default the smallest model.

    Attributes:
        steps: (running requests, policy from there on), ascending from 1. `MadeOf` has the others.

    Raises:
        ValueError: an option out of range, options that exclude each other, or a drafter that is not below the target.
    """

    about: About | None = About(paper="the batch thresholds of vLLM", lossless=True, members="what its policy needs")

    def __init__(
        self,
        pool: Pool,
        *,
        policy: Policy | None = None,
        at: int | None = None,
        table: str | None = None,
        draft: str | None = None,
    ) -> None:
        if table is not None and (policy is not None or at is not None):
            raise ValueError("table goes without policy and at: its last window may be 0")
        if policy is not None and draft is not None:
            raise ValueError("draft goes without policy, which has drafters of its own")
        if table is not None:
            windows = _parse(table)
        else:
            at = AT if at is None else at
            check_least("at", at, 1)
            windows = [(1, WINDOW), (at, 0)] if at > 1 else [(1, 0)]
        built = {0: Chain(pool, pool.target)} | {
            window: Chain(pool, f"{drafter_of(pool, draft)}:{window}/{pool.target}") if policy is None else policy
            for _, window in windows
            if window
        }
        self.steps = tuple((first, built[window]) for first, window in windows)
        self._playing: dict[str, Policy] = {}
        super().__init__(tuple(dict.fromkeys(part for _, part in self.steps)))

    def decide(self, seen: Observation) -> Step:
        """As the policy of the load at which the round began."""
        policy, last = self._playing.get(seen.request_id), seen.last
        if policy is None or (not seen.num_pending and (last is None or last.num_emitted)):
            policy = self._playing[seen.request_id] = self._policy_at(seen.load.num_running)
        return policy.decide(seen)

    def learn(self, outcome: Outcome) -> None:
        """The policy that decided learns."""
        self._playing[outcome.request_id].learn(outcome)
        if outcome.done:
            del self._playing[outcome.request_id]

    def _policy_at(self, num_running: int) -> Policy:
        return next(policy for first, policy in reversed(self.steps) if num_running >= first)


def _parse(table: str) -> list[tuple[int, int]]:
    """(running requests, window from there on) of a text such as `1:5/16:2/64:0`."""
    steps: list[tuple[int, int]] = []
    for part in table.split("/"):
        first, colon, window = part.partition(":")
        if not colon or not all(number.isascii() and number.isdigit() for number in (first, window)):
            raise ValueError(f"table must read REQUESTS:WINDOW/..., as in 1:5/16:2/64:0, got {part!r} in {table!r}")
        steps.append((int(first), int(window)))
        if steps[0][0] != 1 or (len(steps) > 1 and steps[-2][0] >= int(first)):
            raise ValueError(f"table must begin at 1 request and go up, got {part!r} in {table!r}")
    return steps
