"""An acceptance head: how likely the target keeps a drafted token, and the file that says so.

It is logistic in what a policy may see of the token and of its request: `decoding.rules.draft_stops.RefusalAbove` has
the formula, whose bias here also moves with how well the request went so far. A file is JSON with weights and with
where they come from; every key is read, and none may be missing.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any

from ...arguments import check_within
from ...decoding.pool import Pool
from ...decoding.rules.draft_stops import RefusalAbove
from ...strict_json import kind_of_json, read_json
from ..parts.default_members import smallest_model
from .logistic import Fit

FORMAT = "paceline-acceptance-head"
# Names of the weights, in the order of the columns that they are fitted to; the last one is no part of a stop.
WEIGHTS = ("prob", "root_entropy", "gap", "place", "agreement")
FORGETS = 0.2  # share that a round has in the running agreement of its request


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceHead:
    """A fitted head.

    Attributes:
        drafter: whose tokens it tells of; None of a head that was fitted to several pools, which tells of the smallest
            model of any.
        target: who keeps them; None of such a head.
        members: of the recording's pool, smallest first; none of such a head.
        recording: its name; of several, with commas between.
        sha256: of the recording's `meta.json`, which holds the hashes of its other files; of several, of their hashes.
        num_tokens: judged tokens that the weights were fitted to.
        window: longest draft among them.
        start: running agreement of a request before its first round, 0 to 1.
        bias: -50 to 50, also with the weight of `agreement` added.
        weights: by the names `WEIGHTS`, each -50 to 50 but for that of `agreement`.
        held_out: how it does on requests that it was not fitted to.

    Raises:
        ValueError: a number out of range.
    """

    drafter: str | None
    target: str | None
    members: tuple[str, ...]
    recording: str
    sha256: str
    num_tokens: int
    window: int
    start: float
    bias: float
    weights: dict[str, float]
    held_out: Fit

    def __post_init__(self) -> None:
        check_within("start", self.start, "[0, 1]")
        for agreement in (0.0, 1.0):  # between them the bias is between theirs
            self.stop(1.0, agreement)

    def stop(self, chance: float, agreement: float) -> RefusalAbove:
        """What ends a draft at this chance of a refusal, by the running agreement of its request, 0 to 1."""
        weights = {name: weight for name, weight in self.weights.items() if name != "agreement"}
        return RefusalAbove(chance=chance, bias=self.bias + self.weights["agreement"] * agreement, **weights)

    def drafter_in(self, pool: Pool) -> str:
        """The drafter; raises ValueError for a pool that has not the two models, or no model below its target."""
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
    """Running agreement of a request after a round with so many tokens >= 1 up to the first refused one."""
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
