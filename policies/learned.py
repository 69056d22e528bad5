"""SpecDec++ and its acceptance head: how likely the target keeps a drafted token, fitted in advance.

Huang et al. 2024 (arXiv:2405.19715; docs/policies.md): the chance that a token is kept is logistic here in what a
policy sees of the token and its request (`RefusalAbove` has the formula; the bias moves with the request's acceptance
so far), and every token has the same weight. The fit (`paceline policy fit`) is Newton's method. A head's file is
JSON, with the source of its weights; no key may be missing. Letters: N rows, F columns.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import check_within
from ..base.files import kind_of_json, read_json
from ..decoding.pool import Pool
from ..decoding.rules import RefusalAbove
from ..decoding.seen import Observation
from ..decoding.steps import ONE_STEP, Draft, Outcome, Step, Verify
from .about import SIGNALS, About
from .blocks import DraftedBlocks, smallest_model

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

RIDGE = 1.0  # pulls weights towards 0, as much as one row does; keeps weights of separable rows finite
MOST_STEPS = 100
BINS = 10


def fit_logistic(rows: Floats, happened: Bools) -> Floats:
    """`[1 + F]` bias and weights of largest likelihood, less half the squared weights (the bias is free).

    From `[N, F]` rows and `[N]` outcomes; raises ValueError if all outcomes are the same, which leaves the bias
    unbounded.
    """
    if happened.all() or not happened.any():
        raise ValueError("happened must hold both values")
    design = np.column_stack([np.ones(len(rows)), rows])
    ridge = np.diag([0.0] + [RIDGE] * rows.shape[1])
    weights = np.zeros(design.shape[1])
    for _ in range(MOST_STEPS):
        chances = chances_of(rows, weights)
        slope = design.T @ (chances - happened) + ridge @ weights
        curve = (design * (chances * (1.0 - chances))[:, None]).T @ design + ridge
        step: Floats = np.linalg.solve(curve, slope)
        weights -= step
        if np.abs(step).max() < 1e-10:
            break
    return weights


def chances_of(rows: Floats, weights: Floats) -> Floats:
    """`[N]` chances of `[N, F]` rows, by `[1 + F]` bias and weights."""
    chances: Floats = 1.0 / (1.0 + np.exp(-(weights[0] + rows @ weights[1:])))
    return chances


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How well chances predict outcomes, on held-out rows."""

    num_rows: int  # N, >= 1
    share: float  # of rows in which it happened, 0 to 1
    # chance that a row in which it happened is ranked above one in which it did not, ties counting half, 0 to 1; 0.5 is
    # no skill
    auc: float
    # of ten bins of equally many rows, sorted by chance, the mean distance of the mean chance from the share in which
    # it happened, 0 to 1
    calibration_error: float


def fit_of(chances: Floats, happened: Bools) -> Fit:
    """Compare `[N]` chances with `[N]` outcomes, which must have both values."""
    order = np.argsort(chances, kind="stable")
    bins = [part for part in np.array_split(order, BINS) if len(part)]
    errors = [abs(float(chances[part].mean() - happened[part].mean())) * len(part) for part in bins]
    _, place, counts = np.unique(chances, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - counts + (counts + 1) / 2)[place]
    positive = int(happened.sum())
    above = ranks[happened].sum() - positive * (positive + 1) / 2
    return Fit(
        num_rows=len(chances),
        share=float(happened.mean()),
        auc=float(above / (positive * (len(chances) - positive))),
        calibration_error=sum(errors) / len(chances),
    )


FORMAT = "paceline-acceptance-head"
# Names of the weights, in the order of the columns that they are fitted to; a stop does not use the last one.
WEIGHTS = ("prob", "root_entropy", "gap", "place", "agreement")
FORGETS = 0.2  # weight of a round in the running agreement of its request


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceHead:
    """A fitted head; raises ValueError for a number out of range."""

    # the drafter; None of a head that was fitted to several pools, which is for the smallest model of any
    drafter: str | None
    target: str | None  # the verifier; None of such a head
    members: tuple[str, ...]  # of the recording's pool, smallest first; none of such a head
    recording: str  # its name; of several, with commas between
    # of the recording's `meta.json`, which holds the hashes of its other files; of several, of their hashes
    sha256: str
    num_tokens: int  # judged tokens that the weights were fitted to
    window: int  # longest draft among them
    start: float  # running agreement of a request before its first round, 0 to 1
    bias: float  # -50 to 50, also with the weight of `agreement` added
    weights: dict[str, float]  # by the names `WEIGHTS`, each -50 to 50 but for that of `agreement`
    held_out: Fit  # on requests that it was not fitted to

    def __post_init__(self) -> None:
        check_within("start", self.start, "[0, 1]")
        for agreement in (0.0, 1.0):  # between them the bias is between theirs
            self.stop(1.0, agreement)

    def stop(self, chance: float, agreement: float) -> RefusalAbove:
        """The stop at this chance of a rejection, by the running agreement of the request, 0 to 1."""
        weights = {name: weight for name, weight in self.weights.items() if name != "agreement"}
        return RefusalAbove(chance=chance, bias=self.bias + self.weights["agreement"] * agreement, **weights)

    def drafter_in(self, pool: Pool) -> str:
        """The drafter; raises ValueError for a pool without the two models, or without a model below its target."""
        if self.drafter is None:
            return smallest_model(pool)
        if self.drafter not in pool.names[:-1] or self.target != pool.target:
            raise ValueError(
                f"head was fitted to {self.drafter} before {self.target} in recording {self.recording}, "
                f"got a pool of {', '.join(pool.names)}"
            )
        return self.drafter

    def to_json(self) -> str:
        """The file's text."""
        return json.dumps({"format": FORMAT, "version": 1, **asdict(self)}, indent=1) + "\n"


def moved(agreement: float, num_accepted: int, num_judged: int) -> float:
    """Running agreement of a request after a round of `num_judged` >= 1 tokens up to the first rejected one."""
    return agreement + FORGETS * (num_accepted / num_judged - agreement)


def read_head(path: str) -> AcceptanceHead:
    """Read a file; raises ValueError that names it, the field, the rule and what was found."""
    try:
        found = read_json(Path(path))
    except OSError as error:
        raise ValueError(f"head {path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"head {path}: must be JSON, got {error}") from None
    try:
        return _head(found)
    except ValueError as error:
        raise ValueError(f"head {path}: {error}") from None


def _head(found: object) -> AcceptanceHead:
    names = [field.name for field in fields(AcceptanceHead)]
    table = _table("the file", found, ["format", "version", *names])
    if (table["format"], table["version"]) != (FORMAT, 1):
        raise ValueError(f"format must be {FORMAT}, version 1, got {table['format']!r}, version {table['version']!r}")
    fit = _table("held_out", table["held_out"], [field.name for field in fields(Fit)])
    weights = _table("weights", table["weights"], WEIGHTS)
    members = table["members"]
    if not isinstance(members, list) or not all(isinstance(name, str) for name in members):
        raise ValueError(f"members must be a list of texts, got {kind_of_json(members)}")
    read: dict[str, Any] = {name: _text(name, table[name]) for name in ("recording", "sha256")}
    read |= {name: None if table[name] is None else _text(name, table[name]) for name in ("drafter", "target")}
    if (read["drafter"] is None) != (read["target"] is None):
        raise ValueError(f"target must be null where drafter is, and nowhere else, got {read['target']!r}")
    read |= {name: _count(name, table[name]) for name in ("num_tokens", "window")}
    read |= {name: _number(name, table[name]) for name in ("start", "bias")}
    shares = {name: _number(f"held_out.{name}", fit[name]) for name in ("share", "auc", "calibration_error")}
    return AcceptanceHead(
        **read,
        members=tuple(members),
        weights={name: _number(f"weights.{name}", weights[name]) for name in WEIGHTS},
        held_out=Fit(num_rows=_count("held_out.num_rows", fit["num_rows"]), **shares),
    )


def _table(name: str, value: object, keys: Sequence[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object, got {kind_of_json(value)}")
    missing, unknown = [key for key in keys if key not in value], [key for key in value if key not in keys]
    if missing or unknown:
        what = f"no {missing[0]}" if missing else repr(unknown[0])
        raise ValueError(f"{name} must have the keys {', '.join(keys)} and no others, got {what}")
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text, got {kind_of_json(value)}")
    return value


def _count(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a whole number >= 1, got {value!r}")
    return value


def _number(name: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    return float(value)


FIT = "paceline policy fit specdec++ --trace TRACE --out FILE"


class SpecDec(DraftedBlocks):
    """Two levels; a draft ends where a fitted head gives a rejection in it more than a chance of `h`.

    Args:
        pool: the members; the head's drafter and target among them.
        head: file of the acceptance head, which `paceline policy fit` writes.
        h: chance of a rejection that ends a draft, 0 to 1.
        most: longest draft, >= 1.

    Attributes:
        head: as read.

    Raises:
        ValueError: no head, one that is not sound or was fitted to other members, or an option out of range.
    """

    about = About(
        paper="SpecDec++, arXiv:2405.19715",
        lossless=True,
        members="a drafter and a target that its head was fitted to",
        observes=SIGNALS,
    )

    def __init__(self, pool: Pool, *, head: str | None = None, h: float = 0.7, most: int = 16) -> None:
        if head is None:
            raise ValueError(f"head must name the file of an acceptance head, which `{FIT}` makes")
        check_within("h", h, "[0, 1]")
        check_within("most", most, ONE_STEP)
        self.head = read_head(head)
        self._h = h
        self._agreement: dict[str, float] = {}  # of requests that have had a round
        draft = Draft(self.head.drafter_in(pool), most, self.head.stop(h, self.head.start))
        super().__init__(draft, Verify(pool.target), others=())

    def block(self, seen: Observation) -> Step:
        """A draft that ends where the head expects a rejection."""
        agreement = self._agreement.get(seen.request_id)
        if agreement is None:
            return self._draft
        return Draft(self._draft.model, self._draft.tokens, self.head.stop(self._h, agreement))

    def learn(self, outcome: Outcome) -> None:
        """Note the share that was accepted."""
        request_id = outcome.request_id
        if outcome.done:
            self._agreement.pop(request_id, None)
        elif outcome.num_judged:
            before, num_seen = self._agreement.get(request_id, self.head.start), outcome.num_accepted
            num_seen += outcome.refused_at is not None
            self._agreement[request_id] = moved(before, outcome.num_accepted, num_seen)
