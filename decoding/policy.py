"""The one question a policy answers about one request: what next? And what is said of a policy that fails at it.

Two verbs, `decide` and `learn`. Both worlds (sim and runtime) call them through the same loop.
"""

from collections.abc import Sequence
from typing import Protocol

from ..foreign_code import at, decides_at, pass_interrupt, said
from .contract import Outcome, PolicyError, Step, UnavailableStepError, UnknownHereError
from .observation import Observation

# Steps in a row that may leave a request as it was (a model-free drafter that finds nothing) before it is an error.
IDLE_STEPS = 8


class Policy(Protocol):
    """What a policy is. Built once per run as `MyPolicy(pool, **options)`; one object serves all requests."""

    def decide(self, seen: Observation) -> Step:
        """What next, for this request. `seen` is a live view, valid during the call only."""
        ...

    def learn(self, outcome: Outcome) -> None:
        """What came of a step, in the order the steps finished."""
        ...


def tell(policy: Policy, name: str, outcomes: Sequence[Outcome]) -> None:
    """Let a policy learn of the parts of a step; raises PolicyError for whatever it raises."""
    for outcome in outcomes:
        try:
            policy.learn(outcome)
        except BaseException as error:  # a policy is foreign code
            raise raised(name, outcome.request_id, outcome.step, "learn", error) from error


def guard_progress(policy: Policy, name: str, idle: dict[str, int], outcome: Outcome) -> None:
    """Count one more step in a row that left its request as it was, by id; raises PolicyError for too many."""
    count = idle[outcome.request_id] = idle.get(outcome.request_id, 0) + 1
    if count >= IDLE_STEPS:
        rule = f"no progress in {count} steps: nothing was drafted or judged"
        raise breach(policy, name, outcome.request_id, outcome.step, rule)


def raised(name: str, request_id: str, step: Step | None, method: str, error: BaseException) -> PolicyError:
    """What a method of the policy raised, and where; Ctrl-C is raised on."""
    pass_interrupt(error)
    return PolicyError(name, request_id, step, f"{method} raised {said(error, repr)}{at(error)}")


def breach(policy: Policy, name: str, request_id: str, step: object, found: str | BaseException) -> PolicyError:
    """What is wrong with a step; nothing was raised in the policy, so it is named by where it decides."""
    place, rule = decides_at(policy), found if isinstance(found, str) else said(found)
    kind = UnavailableStepError if isinstance(found, UnknownHereError) else PolicyError
    return kind(name, request_id, step, rule if place is None else f"{rule} (decide: {place})")
