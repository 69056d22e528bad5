"""Measured seconds of forwards, interpolated."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence

from ...traces.meta import CostTable
from .base import LOOKUP_S, CostRangeError, DraftTerms


class Profile:
    """Seconds of one model's forwards by new tokens, measured; interpolated linearly.

    Beyond the measured range it refuses, or, told to extrapolate, continues its last segment upwards, never below the
    last measured value, and holds the first measured value downwards.

    Args:
        points: new tokens, strictly increasing.
        seconds: one for each point.
        whose: the model, for errors.
        extrapolate: answer beyond the measured range.

    Attributes:
        least: fewest new tokens that were measured.
        extrapolated: whether it has had to.
    """

    def __init__(self, points: Sequence[int], seconds: Sequence[float], *, whose: str, extrapolate: bool) -> None:
        self._points = points
        self._seconds = seconds
        self._whose = whose
        self._extrapolate = extrapolate
        self.least = points[0]
        self.extrapolated = False

    def seconds(self, new_tokens: int) -> float:
        """Seconds of a forward. Raises CostRangeError beyond the measured range, unless it extrapolates."""
        points = self._points
        if not points[0] <= new_tokens <= points[-1]:
            if not self._extrapolate:
                measured = f"{points[0]} to {points[-1]}" if len(points) > 1 else f"{points[0]}"
                raise CostRangeError(
                    f"{self._whose} was measured for {measured} new tokens a forward, asked for {new_tokens}; "
                    "use a smaller batch or window, another cost, or --extrapolate"
                )
            self.extrapolated = True
        return interpolated(points, self._seconds.__getitem__, new_tokens)


def interpolated(points: Sequence[int], value_at: Callable[[int], float], where: int) -> float:
    """Linear between points; before the first its value holds, after the last the last segment goes on if it rises.

    Args:
        points: strictly increasing.
        value_at: at a point, by its index.
        where: any number.
    """
    if where < points[0]:
        return value_at(0)
    if where > points[-1]:
        last = value_at(-1)
        if len(points) == 1:
            return last
        slope = (last - value_at(-2)) / (points[-1] - points[-2])
        return last + max(0.0, slope) * (where - points[-1])
    right = bisect_left(points, where)
    upper = value_at(right)
    if points[right] == where:
        return upper
    lower = value_at(right - 1)
    return lower + (where - points[right - 1]) / (points[right] - points[right - 1]) * (upper - lower)


class TableCost:
    """Seconds by new tokens per forward, measured; interpolated linearly.

    The table holds seconds by the *sum* of new tokens over the batch, measured at contexts of about 128 tokens: what a
    longer context adds is not in it.

    Args:
        name: of the device.
        tables: model to table.
        extrapolate: answer beyond the measured range; see `Profile`.

    Raises:
        CostRangeError: by `forward_s`, beyond the measured range or for a model without a table.
    """

    def __init__(self, name: str, tables: Mapping[str, CostTable], *, extrapolate: bool = False) -> None:
        self.name = name
        self.lookup_s = LOOKUP_S
        self._profiles = {
            model: Profile(table.new_tokens, table.seconds, whose=f"cost {name}: {model}", extrapolate=extrapolate)
            for model, table in tables.items()
        }
        self._known: dict[str, dict[int, float]] = {model: {} for model in tables}

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        """Seconds of one forward; see `CostModel`."""
        try:
            return self._known[model][new_tokens]
        except KeyError:
            profile = self._profiles.get(model)
            if profile is None:
                raise no_figures(self.name, model, self._profiles) from None
            seconds = profile.seconds(new_tokens)
            self._known[model][new_tokens] = seconds
            return seconds

    def draft_terms(self, model: str) -> DraftTerms | None:
        """See `CostModel`: drafts cost their forwards."""
        return None

    def notes(self) -> tuple[str, ...]:
        """See `CostModel`."""
        beyond = extrapolation_notes([model for model, profile in self._profiles.items() if profile.extrapolated])
        return (*beyond, "measured by new tokens only: a longer context costs no more")


def no_figures(name: str, model: str, known: Iterable[str]) -> CostRangeError:
    """What to raise for a model that a cost has no figures of."""
    return CostRangeError(f"cost {name}: no table for model {model!r}; it has {', '.join(known)}")


def extrapolation_notes(models: Sequence[str]) -> tuple[str, ...]:
    """What `notes` says of models that were asked beyond what was measured."""
    return (f"seconds beyond what was measured: {', '.join(models)}",) if models else ()
