"""Seconds of a member's forwards, measured while a policy runs or stated beforehand.

Measured seconds differ between worlds and from run to run; a policy that plans with stated ones takes the same steps
everywhere. A batched operation is charged to its requests in equal shares.
"""

from math import inf, isfinite, nan

from ...arguments import check_least
from ...decoding.contract import Draft, Outcome, Verify
from ...decoding.pool import Pool
from ...decoding.trees.draft_tree import DraftTree


def counts_seconds(reward: str, costs: str | None) -> bool:
    """Whether a round is rewarded by its tokens per second (`speed`), or by its `tokens` alone.

    Raises:
        ValueError: another word, or `costs` where nothing asks for seconds.
    """
    if reward not in {"speed", "tokens"}:
        raise ValueError(f"reward must be speed or tokens, got {reward!r}")
    if reward == "tokens" and costs is not None:
        raise ValueError(f"costs are for reward=speed, got {costs!r} with reward=tokens")
    return reward == "speed"


class MemberSeconds:
    """What a draft and a verification cost a request, by member.

    Args:
        pool: the members.
        stated: costs in any unit, > 0, as `draft:1/mid:3/target:10`, of every member with weights (others cost nothing
            unless named); None measures.
        memory: steps that an average reaches back, >= 1.

    Raises:
        ValueError: a text that is no list of costs of this pool, or `memory` below 1.
    """

    def __init__(self, pool: Pool, stated: str | None = None, *, memory: int = 64) -> None:
        check_least("memory", memory, 1)
        self._stated = None if stated is None else _parse(stated, pool)
        self._kept = 1.0 - 1.0 / memory
        self._drafts: dict[str, _Line] = {}
        self._verifies: dict[str, _Line] = {}

    def charge(self, outcome: Outcome) -> float:
        """What this step cost its request, and take it in."""
        step = outcome.step
        if self._stated is not None:
            if isinstance(step, Draft):
                return outcome.num_drafted * self._stated[step.model]
            if isinstance(step, DraftTree):  # a forward for each layer
                return step.shape.depth * self._stated[step.model]
            return self._stated[step.model] if isinstance(step, Verify) else 0.0
        seconds = outcome.duration_s / outcome.num_rows
        if isinstance(step, Verify):
            self._note(self._verifies, step.model, outcome.num_judged + 1, seconds)
        elif isinstance(step, Draft) and outcome.num_drafted:
            self._note(self._drafts, step.model, outcome.num_drafted, seconds)
        return seconds

    def draft_s(self, model: str, tokens: int) -> float | None:
        """Of a draft of `tokens` >= 1 tokens, catching up included; None if `model` never drafted.

        Some drafters cost by the round rather than by the token, and drafts of several lengths tell. As long as only
        one length was seen, seconds are taken to be in proportion.
        """
        if self._stated is not None:
            return tokens * self._stated[model]
        line = self._drafts.get(model)
        return None if line is None else line.above_zero(tokens)

    def verify_s(self, model: str, width: int) -> float | None:
        """Of a verification of `width` >= 1 positions, the verifier's own among them; None if it never verified."""
        if self._stated is not None:
            return self._stated[model]
        line = self._verifies.get(model)
        return None if line is None else line.at(width)

    def _note(self, lines: dict[str, "_Line"], model: str, width: int, seconds: float) -> None:
        line = lines.get(model)
        if line is None:
            line = lines[model] = _Line(self._kept)
        line.note(width, seconds)


class _Line:
    """A least-squares line through what was measured, older points with less weight."""

    __slots__ = ("_kept", "_weight", "_x", "_xx", "_xy", "_y")

    def __init__(self, kept: float) -> None:
        self._kept = kept
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def note(self, x: float, y: float) -> None:
        kept = self._kept
        self._weight = kept * self._weight + 1.0
        self._x = kept * self._x + x
        self._y = kept * self._y + y
        self._xx = kept * self._xx + x * x
        self._xy = kept * self._xy + x * y

    def at(self, x: float) -> float:
        """The line at x, but never falling with x, and at least half the mean: few points say little of a slope."""
        mean_x, mean_y, slope = self._fitted(0.0)
        return max(mean_y + max(slope, 0.0) * (x - mean_x), 0.5 * mean_y)

    def above_zero(self, x: float) -> float:
        """The line at x, but never falling with x and never below zero at 0; through zero where all x were one."""
        mean_x, mean_y, slope = self._fitted(inf)
        return mean_y + min(max(slope, 0.0), mean_y / mean_x) * (x - mean_x)

    def _fitted(self, otherwise: float) -> tuple[float, float, float]:
        """(mean x, mean y, slope), the slope `otherwise` where all x were one."""
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        variance = self._xx / self._weight - mean_x * mean_x
        slope = (self._xy / self._weight - mean_x * mean_y) / variance if variance > 1e-6 else otherwise
        return mean_x, mean_y, slope


def _parse(text: str, pool: Pool) -> dict[str, float]:
    costs: dict[str, float] = {}
    for part in text.split("/"):
        name, _, cost = part.partition(":")
        pool.level(name)
        seconds = _number(cost)
        if not (isfinite(seconds) and seconds > 0):
            raise ValueError(f"costs must read member:number with numbers > 0, as in draft:1/target:10, got {part!r}")
        if name in costs:
            raise ValueError(f"costs must name a member once, {name} stands twice in {text!r}")
        costs[name] = seconds
    free = {member.name: 0.0 for member in pool.members if member.model_free}
    costs = {**free, **costs}
    missing = [name for name in pool.names if name not in costs]
    if missing:
        raise ValueError(f"costs must name every model of the pool, {', '.join(missing)} is missing in {text!r}")
    return costs


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return nan
