"""Seconds of a server's forwards and drafts, fitted to what its clients measured.

The simulator serves the requests of each run, and gives for each the seconds to its first token and from there to its
end. Both are nearly linear in the terms of a cost as long as the same requests share the same steps, so the terms are
found by Gauss-Newton steps in the logarithm of simulated over observed seconds: a run of the simulator for each term
gives the derivatives, least squares without negative terms the next step. Squares are weighted again at each step so
that their sum is one of sizes, and a few outliers do not dominate (iteratively reweighted least squares, Holland and
Welsch 1977); no time counts more for being steep (bounded influence, Krasker and Welsch 1982). The same derivatives
give each term's uncertainty (a sandwich estimate over groups of requests that share steps, Liang and Zeger 1986), and
which terms the runs cannot separate. Letters: N observed times, T terms.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import inf
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import ArgumentError, counted
from ..base.terminal import Progress
from ..reports.intervals import t_quantile
from ..runs.observed import ObservedRequest
from ..runs.serving import ServingLog
from ..sim.cost.base import DraftTerms
from ..sim.cost.files import CostLine, DrafterFigures, Figures, FileCost
from ..traces.meta import LEAST_SECONDS
from ..traces.workloads.arrival import PS_PER_S
from .observed_runs import DRAFTER, TARGET, Replayable, ReplayedRequests, Replayer

Floats = NDArray[np.float64]
_LEAST_S = 1e-9  # least start value of a term in a search


class Term(NamedTuple):
    """A field of a cost, of one member."""

    member: str
    field: str

    def __str__(self) -> str:
        return f"{self.member}.{self.field}"


# All of `CORE` are fitted; of `MORE` the one that leaves the least misfit, then the next, while one is needed.
CORE: Final = (Term(TARGET, "intercept_s"), Term(TARGET, "per_new_token_s"), Term(DRAFTER, "per_token_s"))
MORE: Final = (Term(TARGET, "per_kv_token_s"), Term(DRAFTER, "per_round_s"), Term(TARGET, "per_row_s"))
# What must differ more between runs, or within one, to identify a term.
WOULD_TELL: Final = {
    "intercept_s": "other numbers of requests at a time",
    "per_new_token_s": "prompts of other lengths",
    "per_token_s": "a run without the drafter",
    "per_kv_token_s": "much longer prompts or answers",
    "per_round_s": "another draft length",
    "per_row_s": "other numbers of requests at a time",
}
# Shares of the observed seconds: a term is identified if its interval is narrower on either side. A term that is not
# needed is about 0 if its interval is narrow, else unknown.
CORE_TOLD, MORE_TOLD = 0.1, 0.05
_APART = 1e-3  # share of a term's effect, squared, that the others must leave unexplained
# By which a term is moved for a derivative, relative to itself plus its value if it alone explained all seconds: much
# at first, while requests are in other steps than observed; in the end so little that no request changes steps.
_MOVED: Final = (0.3, 0.03, 1e-5)
_GROWN: Final = _MOVED[:2]  # with one term more
_POLISH: Final = (0.1, 0.01, 1e-3, 1e-5)  # of the terms that are kept
_TUNED = 1.345 * 1.4826  # times the median size of errors: beyond it an error weighs less than its square
_LEAST_ERROR = 5e-3  # that is distinguished from none: the simulator ends answers about so precisely
_MOST_STEPS = 5  # with derivatives by moves of one size
_STOPS = 1e-3  # relative change of the terms below which steps end
_EXACT = 1e-3  # misfit below which the search ends
_BETTER = 0.02  # relative gain in the misfit that a further term is worth
_GROUPS = 10  # of each run, of requests one after another, whose errors depend on each other


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedTerm:
    """The estimate of a term."""

    term: Term
    seconds: float  # >= 0
    # ends of a 95% interval, >= 0, as if groups of requests did not depend on each other
    low: float
    high: float
    share: float  # of the observed seconds, about


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedSeconds:
    """The result of a fit."""

    runs: tuple[str, ...]  # that it was fitted to
    target: str  # the member that the target's terms are for
    draft_lengths: tuple[int, ...]  # tokens a round, of the runs that drafted; each once
    terms: tuple[FittedTerm, ...]  # of the cost; all others are 0
    untold: tuple[str, ...]  # what the runs cannot identify, and what would, a line each
    # mean size of the natural logarithm of simulated over observed times, over TTFT and the time from there to the end
    # of each request; 0.1 is about 10%
    misfit: float
    tried: int  # runs of the simulator

    @property
    def figures(self) -> dict[str, dict[str, float]]:
        """The terms by member and field, as in a FILE.json."""
        found: dict[str, dict[str, float]] = {}
        for one in self.terms:
            member = self.target if one.term.member == TARGET else one.term.member
            found.setdefault(member, {})[one.term.field] = max(one.seconds, LEAST_SECONDS)
        return found

    @property
    def contents(self) -> dict[str, dict[str, Any]]:
        """The content of a FILE.json: the figures, and the lengths of drafts behind a drafter's figures."""
        lengths = {"draft_lengths": list(self.draft_lengths)}
        return {member: dict(of) if member == self.target else of | lengths for member, of in self.figures.items()}

    @property
    def cost(self) -> FileCost:
        """The terms as a cost for the simulator."""
        return _cost_of(f"calibrated on {', '.join(self.runs)}", self.figures, self.target)

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/observing.md)."""
        terms = [
            {"member": self.target if one.term.member == TARGET else one.term.member, "field": one.term.field}
            | {
                "seconds": one.seconds,
                "low": one.low,
                "high": None if one.high == inf else one.high,
                "share": one.share,
            }
            for one in self.terms
        ]
        return {
            "runs": list(self.runs),
            "draft_lengths": list(self.draft_lengths),
            "misfit": self.misfit,
            "tried": self.tried,
            "cost": self.figures,
            "terms": terms,
            "cannot_tell": list(self.untold),
        }

    def lines(self) -> list[str]:
        """What was fitted, its uncertainty and what is not identified, in words."""
        told = "; ".join(f"{_said(one, self.target)}" for one in self.terms)
        off = f"there simulated times are off by {self.misfit:.1%} on average"
        return [f"calibrated on {', '.join(self.runs)}: {told}; {off}", *self.untold]


def _said(one: FittedTerm, target: str) -> str:
    factor, unit = (1e3, "ms") if one.seconds >= 1e-4 else (1e6, "us")
    member = target if one.term.member == TARGET else one.term.member
    low, high = (f"{factor * end:.4g}" for end in (one.low, one.high))
    return f"{member}.{one.term.field} {factor * one.seconds:.4g} {unit} ({low} to {high})"


def _cost_of(name: str, figures: dict[str, dict[str, float]], target: str) -> FileCost:
    made: dict[str, Figures] = {target: CostLine.model_validate(figures[target])}
    for member, of in figures.items():
        if member != target:
            terms = DraftTerms(of.get("per_round_s", 0.0), of.get("per_token_s", 0.0))
            made[member] = DrafterFigures(terms=terms, forwards=None)
    return FileCost(name, made)


def calibrate(
    runs: Sequence[Replayable], replayer_of: Callable[[Replayable], Replayer], target: str = TARGET
) -> FittedSeconds:
    """Fit the seconds of a server to runs of it, at least one; those of the replayers' clusters are not used.

    `replayer_of` makes the cluster that serves a run; `target` is its name in the cost. Raises ArgumentError for fewer
    observed times than terms.
    """
    fit = _Fit(runs, [replayer_of(run) for run in runs])
    with Progress("calibrating", fit.most, unit="runs of the simulator", at_most=True) as progress:
        fit.on_run = lambda: progress.advance_to(fit.tried, total=fit.most)
        found = fit.fitted()
    return replace(found, target=target)


class _Found(NamedTuple):
    values: Floats  # `[T]` >= 0
    errors: Floats  # `[N]` logarithms of simulated over observed times
    slopes: Floats  # `[N, T]` how these change with each term

    @property
    def misfit(self) -> float:
        return float(np.abs(self.errors).mean())

    @property
    def steepness(self) -> Floats:
        """`[N]` >= 1: how many times as fast as a term a time changes, in shares of both, where that is faster.

        A request that comes during a step waits for its end, after up to hundreds of steps that are all longer: the
        wait is a sawtooth of the term, whose slopes say nothing of its trend.
        """
        steepest: Floats = np.maximum(1.0, np.abs(self.slopes * self.values).max(axis=1))
        return steepest

    @property
    def bounded(self) -> Floats:
        """`[N, T]` the slopes, none steeper than a term itself."""
        slopes: Floats = self.slopes / self.steepness[:, None]
        return slopes


class _Grown(NamedTuple):
    found: _Found
    width: float  # half the term's 95% interval, as a share of the seconds
    other: Term | None  # that is hardest to separate from it
    is_needed: bool  # its interval is above 0, and the misfit is smaller


class _Fit:
    """The state of one fit; mutated by `fitted`."""

    def __init__(self, runs: Sequence[Replayable], replayers: Sequence[Replayer]) -> None:
        self._runs, self._replayers = runs, replayers
        self._lengths = tuple(sorted({run.drafts.tokens for run in runs if run.drafts.tokens}))
        self._observed = np.concatenate([observed_ps(run.requests.requests).ravel() for run in runs])
        self._timed = self._observed > 0
        self._is_first = (np.arange(len(self._observed)) % 2 == 0)[self._timed]  # `[N]` times to first tokens
        self._num_times = int(self._timed.sum())
        groups = [_groups_of(run) + _GROUPS * place for place, run in enumerate(runs)]
        self._groups = np.concatenate(groups)[self._timed]
        self._begin, self._alone = _begin(runs), _alone(runs)
        self._more = [term for term in MORE if term.member == TARGET or len(self._lengths) > 1]
        self._core = [term for term in CORE if self._lengths or term.member == TARGET]
        self.tried = 0
        self.most = self._most_in_all()  # runs of the simulator, by what is known so far
        self.on_run: Callable[[], None] = lambda: None

    def _most_in_all(self) -> int:
        """Runs if no search ends early: the first, two for each further term each time that one is added, the last."""
        core, more = len(self._core), len(self._more)
        grown = sum(2 * (more - added) * _most_runs(core + added + 1, _GROWN) for added in range(more))
        return _most_runs(core, _MOVED) + grown + _most_runs(core + more, _POLISH)

    def fitted(self) -> FittedSeconds:
        terms = self._core
        if self._num_times < len(terms):
            raise ArgumentError(
                f"`calibrate` has {counted(self._num_times, 'observed time')} for {len(terms)} terms "
                f"({', '.join(map(str, terms))}): observe more requests"
            )
        found = self._searched(terms, np.array([self._begin[term] for term in terms]), _MOVED)
        untold = [_one_length(self._lengths[0])] if len(self._lengths) == 1 else []
        left = list(self._more)
        while left and self._num_times > len(terms) + 1:
            tried = {term: self._grown(terms, found, term) for term in left}
            needed = [term for term, one in tried.items() if one.is_needed]
            if not needed:
                untold += [_cannot_tell(term, one.other) for term, one in tried.items() if not one.width <= MORE_TOLD]
                break
            best = min(needed, key=lambda term: tried[term].found.misfit)
            terms, found = [*terms, best], tried[best].found
            left.remove(best)
        self.most = self.tried + _most_runs(len(terms), _POLISH)
        found = self._searched(terms, found.values, _POLISH)
        fitted = []
        for place, (width, other) in enumerate(self._sureness(terms, found)):
            effect = float(np.abs(found.bounded[:, place]).mean())
            if not width <= CORE_TOLD:
                untold.append(_cannot_tell(terms[place], other))
            value, either = float(found.values[place]), width / effect if effect else inf
            fitted.append(
                FittedTerm(
                    term=terms[place],
                    seconds=value,
                    low=max(0.0, value - either),
                    high=value + either,
                    share=value * effect,
                )
            )
        return FittedSeconds(
            runs=tuple(run.name for run in self._runs),
            target=TARGET,
            draft_lengths=self._lengths,
            terms=tuple(fitted),
            untold=tuple(untold),
            misfit=found.misfit,
            tried=self.tried,
        )

    def _grown(self, terms: Sequence[Term], found: _Found, term: Term) -> "_Grown":
        grown = [*terms, term]
        halved = found.values.copy()
        # Without `term` this one absorbs its seconds: a search that starts there may not leave it.
        absorbing = Term(DRAFTER, "per_token_s") if term.member == DRAFTER else Term(TARGET, "intercept_s")
        halved[terms.index(absorbing)] /= 2
        begins = (np.append(found.values, 0.0), np.append(halved, self._alone[term] / 2))
        better = min((self._searched(grown, begin, _GROWN) for begin in begins), key=lambda one: self._loss(one.errors))
        width, other = self._sureness(grown, better)[-1]
        share = float(better.values[-1] * np.abs(better.bounded[:, -1]).mean())
        is_needed = share > width and better.misfit < found.misfit * (1 - _BETTER)
        return _Grown(better, width, other, is_needed)

    def _searched(self, terms: Sequence[Term], begin: Floats, moves: Sequence[float]) -> _Found:
        """The best result of full steps: the misfit may have to rise where requests change steps."""
        latest = self.tried + _most_runs(len(terms), moves)
        best, least = begin, self._errors(terms, begin)
        for moved in moves:
            values, errors = best, least
            for _ in range(_MOST_STEPS):
                if np.abs(least).mean() < _EXACT:
                    break
                before, values = values, _solved(self._at(terms, values, errors, moved), self._weights(errors))
                errors = self._errors(terms, values)
                if self._loss(errors) < self._loss(least):
                    best, least = values, errors
                if np.abs(values - before).sum() <= _STOPS * np.abs(values).sum():
                    break
        found = self._at(terms, best, least)
        self.most -= latest - self.tried
        return found

    def _at(self, terms: Sequence[Term], values: Floats, errors: Floats, moved: float = _MOVED[-1]) -> _Found:
        slopes = []
        for place, term in enumerate(terms):
            other = values.copy()
            other[place] += moved * max(values[place], self._alone[term] / 2)
            slopes.append((self._errors(terms, other) - errors) / (other[place] - values[place]))
        return _Found(values, errors, np.stack(slopes, axis=1))

    def _errors(self, terms: Sequence[Term], values: Floats) -> Floats:
        figures: dict[str, dict[str, float]] = {}
        for term, value in zip(terms, values.tolist(), strict=True):
            figures.setdefault(term.member, {})[term.field] = max(value, LEAST_SECONDS)
        cost = _cost_of("calibration", figures, TARGET)
        simulated = []
        for run, replayer in zip(self._runs, self._replayers, strict=True):
            simulated.append(simulated_ps(run.requests, replayer.priced(cost).served(run.requests)).ravel())
        self.tried += 1
        self.on_run()
        both = np.maximum(np.concatenate(simulated), 1.0)[self._timed] / self._observed[self._timed]
        errors: Floats = np.log(both)
        return errors

    def _scales(self, errors: Floats) -> Floats:
        """`[N]` the usual size of errors, by kind: a client's delay matters more for times to first tokens."""
        size = np.abs(errors)
        of_kinds = [max(_LEAST_ERROR, float(np.median(size[kind])) if kind.any() else 0.0) for kind in self._kinds()]
        scales: Floats = np.where(self._is_first, of_kinds[0], of_kinds[1])
        return scales

    def _kinds(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        return self._is_first, ~self._is_first

    def _weights(self, errors: Floats) -> Floats:
        """`[N]` weights of squares (Huber 1964): equal up to the usual size of errors, and less beyond it."""
        scales = self._scales(errors)
        weights: Floats = 1 / (scales * np.maximum(np.abs(errors), _TUNED * scales))
        return weights

    def _loss(self, errors: Floats) -> float:
        """What a search minimises: sizes of errors, with equal weight of both kinds."""
        size = np.abs(errors)
        return sum(float(np.log(_LEAST_ERROR + size[kind].mean())) for kind in self._kinds() if kind.any())

    def _sureness(self, terms: Sequence[Term], found: _Found) -> list[tuple[float, Term | None]]:
        """Of each term: half its 95% interval as a share of the seconds; the term hardest to separate from it."""
        names, groups = np.unique(self._groups, return_inverse=True)
        free = len(names) - len(terms)
        effects = np.abs(found.bounded).mean(axis=0)
        told = (effects > 0) & (free > 0)  # as many terms as groups leave no errors to tell by
        scaled = found.bounded / np.where(told, effects, 1.0)  # of terms as shares of the seconds
        weights = self._weights(found.errors)
        inner = np.linalg.pinv(scaled.T @ (weights[:, None] * scaled), rcond=1e-10)
        pulls = np.zeros((len(names), len(terms)))
        np.add.at(pulls, groups, (weights * found.errors / found.steepness)[:, None] * scaled)
        spread = inner @ (pulls.T @ pulls) @ inner * (len(names) / max(1, free))
        sigmas = t_quantile(max(1, free))
        sure: list[tuple[float, Term | None]] = []
        for place in range(len(terms)):
            rest = np.delete(scaled, place, axis=1)
            left, other = 1.0, None
            if rest.shape[1]:
                fit = np.linalg.lstsq(rest, scaled[:, place], rcond=None)[0]
                unexplained = scaled[:, place] - rest @ fit
                left = float((unexplained**2).sum() / max((scaled[:, place] ** 2).sum(), 1e-300))
                other = [one for one in terms if one != terms[place]][int(np.abs(fit).argmax())]
            width = sigmas * float(np.sqrt(max(0.0, spread[place, place])))
            sure.append((width if told[place] and left > _APART else inf, other))
        return sure


def _most_runs(terms: int, moves: Sequence[float]) -> int:
    """Runs of the simulator in a search, if no step is the last of its moves: a step has one for each term, and one."""
    return 1 + len(moves) * _MOST_STEPS * (terms + 1) + terms


def _solved(found: _Found, weights: Floats) -> Floats:
    """`[T]` >= 0: the terms with the least weighted squares of errors, if errors were linear in them.

    Exact: every choice of terms that are 0 is tried, since there are few.
    """
    root = np.sqrt(weights) / found.steepness
    scale = np.maximum(np.abs(found.slopes).mean(axis=0), 1e-300)
    matrix = root[:, None] * (found.slopes / scale)
    wanted = root * (found.slopes @ found.values - found.errors)
    best, least = found.values, inf
    count = len(found.values)
    for size in range(1, count + 1):
        for places in map(list, combinations(range(count), size)):
            solved = np.linalg.lstsq(matrix[:, places], wanted, rcond=None)[0]
            squares = float(((matrix[:, places] @ solved - wanted) ** 2).sum())
            if (solved >= 0).all() and squares < least:
                best, least = np.zeros(count), squares
                best[places] = solved / scale[places]
    return best


def _cannot_tell(term: Term, other: Term | None) -> str:
    of = "" if other is None else f" from {other}"
    return f"these runs cannot tell {term}{of}: observe also {WOULD_TELL[term.field]}"


def _one_length(tokens: int) -> str:
    each = Term(DRAFTER, "per_token_s")
    return (
        f"these runs cannot tell {Term(DRAFTER, 'per_round_s')} from {each}, as all drafts have {tokens}: all of a "
        f"draft's seconds are in {each}, which makes other lengths a guess; observe also {WOULD_TELL['per_round_s']}"
    )


def observed_ps(requests: Sequence[ObservedRequest]) -> Floats:
    """`[R, 2]` picoseconds of each request, in their order: to its first token, and from there to its end."""
    return np.array(
        [
            (one.outputs_at_ps[0] - one.sent_at_ps, (one.ended_at_ps or 0) - one.outputs_at_ps[0])
            for one in requests
            if one.outputs_at_ps
        ],
        dtype=np.float64,
    )


def simulated_ps(requests: ReplayedRequests, served: ServingLog) -> Floats:
    """`[R, 2]` as `observed_ps`."""
    rows, columns = requests.rows_of(served), served.requests
    first, ended = columns["first_token_at_ps"][rows], columns["ended_at_ps"][rows]
    return np.stack([first - columns["arrived_at_ps"][rows], ended - first], axis=1).astype(np.float64)


def _groups_of(run: Replayable) -> NDArray[np.int64]:
    """`[2 R]` the group of each time of `observed_ps`, 0 to `_GROUPS` - 1; both of a request are in one."""
    count = len(observed_ps(run.requests.requests))
    return np.repeat(np.arange(count) * _GROUPS // max(1, count), 2)


def _rounds_s(run: Replayable) -> list[float]:
    """Seconds of a round, or a plain step, the mean of each answer with any."""
    counts = run.drafts.rounds or [(one.output_tokens or 0) - 1 for one in run.requests.requests]
    times = observed_ps(run.requests.requests)[:, 1] / PS_PER_S
    return [float(seconds) / count for seconds, count in zip(times, counts, strict=True) if count and seconds > 0]


def _begin(runs: Sequence[Replayable]) -> dict[Term, float]:
    """The start of the search: a step takes the least round, a token of a prompt its share of the least TTFT."""
    shares = [
        float(first) / PS_PER_S / (one.prompt_tokens or 1)
        for run in runs
        for one, (first, _) in zip(run.requests.requests, observed_ps(run.requests.requests), strict=True)
    ]
    plain = [seconds for run in runs if not run.drafts.tokens for seconds in _rounds_s(run)]
    drafting = [(run.drafts.tokens, seconds) for run in runs if run.drafts.tokens for seconds in _rounds_s(run)]
    least = min(plain, default=min((seconds for _, seconds in drafting), default=median(shares)))
    step_s = max(_LEAST_S, least)
    over = median([(seconds - step_s) / tokens for tokens, seconds in drafting]) if drafting else 0.0
    return {
        Term(TARGET, "intercept_s"): step_s,
        Term(TARGET, "per_new_token_s"): max(_LEAST_S, min(shares)),
        Term(DRAFTER, "per_token_s"): max(step_s / 20, over),
    }


def _alone(runs: Sequence[Replayable]) -> dict[Term, float]:
    """Each term's approximate value if it alone explained all seconds of a step."""
    step_s = _begin(runs)[Term(TARGET, "intercept_s")]
    prompts = [one.prompt_tokens or 1 for run in runs for one in run.requests.requests]
    tokens = max([1, *(run.drafts.tokens for run in runs)])
    return {
        Term(TARGET, "intercept_s"): step_s,
        Term(TARGET, "per_new_token_s"): step_s / median(prompts),
        Term(TARGET, "per_kv_token_s"): step_s / median(prompts),
        Term(TARGET, "per_row_s"): step_s,
        Term(DRAFTER, "per_token_s"): step_s / tokens,
        Term(DRAFTER, "per_round_s"): step_s,
    }
