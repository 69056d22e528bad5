"""Mean acceptance lengths by K, the tokens that a step drafts: a measured table, as a recording.

As CSV it has columns for K (`k`, `num_speculative_tokens`, ...) and for the length (`acceptance_length`, `al`, ...); as
JSON it is an object `{"1": 1.78, "2": 2.38}`, a list of objects with two such keys, or objects of those by name; or it
is the YAML of InferenceX's `golden_al_distribution` (model, thinking mode, K: length). A length counts the target's own
token.

A drafter of chains writes the same first tokens of a draft for any K, so the share of drafts that keep token K is
length(K) - length(K - 1). Between two K of the table lengths are linear, before the first one every token is kept with
one probability. Measured lengths are noisy, and shares cannot rise: the nearest ones that do not are taken (pool
adjacent violators, Ayer et al. 1955); missing a length by more than a twentieth is an error. Letter: W the window.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import TraceFormatError
from ..rounds.rounds import RoundsRequest
from .format import Format, described
from .importing import MOST_WINDOW, Ongoing
from .reading import Fields, placed_lines, read_objects, text_lines
from .totals import StatedLog, constant_hazard, hazards_of_shares

_KS = ("k", "num_speculative_tokens", "num_spec_tokens", "speculative_num_steps", "draft_length", "max_draft_len")
_LENGTHS = ("acceptance_length", "mean_acceptance_length", "accept_length", "accept_len", "al", "golden_al")
_MOST_DEPTH = 8  # of names around a curve
_MISS = 0.05  # of a length
_FITTED = "lengths by K as fitted, since shares of drafts cannot rise with depth: {}"
_BETWEEN = "the table has K = {}: lengths between are on a line, before the first at one rate"
_LEAF = re.compile(r"( *)(?:\"([^\"]*)\"|([^\s:#\"'][^:#\"']*)) *:(?: +([^#]*?))? *(?:#.*)?")

Curve = dict[int, float]


def _sees(found: Fields) -> bool:
    known = {*_KS, *_LENGTHS}
    return (_is_row(found.values) and all(key.lower() in known for key in found.values)) or _is_table(found.values)


def _is_table(values: Mapping[str, Any], depth: int = 0) -> bool:
    """Whether an object holds only lengths by K, perhaps under names."""
    named = {key: value for key, value in values.items() if not key.startswith("_")}
    if any(not isinstance(value, dict) for value in named.values()):
        return all(_is_k(key) and type(value) in (int, float) for key, value in named.items())
    return bool(named) and depth < _MOST_DEPTH and all(_is_table(value, depth + 1) for value in named.values())


def _is_k(key: str) -> bool:
    return key.isascii() and key.isdigit() and len(key) < 5


def _is_row(values: Mapping[str, Any]) -> bool:
    keys = {key.lower() for key in values}
    return bool(keys & {*_KS}) and bool(keys & {*_LENGTHS})


def _sees_line(line: str) -> bool:
    columns = {cell.strip().lower() for cell in line.split(",")}
    return (
        bool(columns & {*_KS} and columns & {*_LENGTHS})
        or re.fullmatch(r" +[0-9]{1,4}: [0-9]\.[0-9]+\s*", line) is not None
    )


def _read(files: Sequence[Path], ongoing: Ongoing) -> Iterator[RoundsRequest]:
    log = StatedLog(files, ongoing)
    fields, curves = log.fields, _of_file(log.path)
    if len(curves) != 1:
        told = ", ".join(curves) or "none"
        raise fields.error("curves", "must be one, of lengths by K: keep it alone in the file", told)
    (curve,) = curves.values()
    if not curve:
        raise fields.error("curves", "must have a row, of a K and its length", "none")
    window = max(curve)
    shares = _shares(fields, ongoing, curve)
    if len(curve) == 1:
        ongoing.findings.forms.add("mean")
    yield from log.requests(
        None, tuple(min(hazard, 1.0) for hazard in hazards_of_shares(shares, shares)), window=window
    )


def _shares(fields: Fields, ongoing: Ongoing, curve: Curve) -> NDArray[np.float64]:
    """`[W]` shares of drafts that keep each token; raises TraceFormatError for lengths that no shares come near."""
    ks = sorted(curve)
    parts, before = [], (0, 1.0)
    for k in ks:
        if not 1 <= curve[k] <= k + 1:
            raise fields.error(f"K = {k}", f"must have a length in [1, {k + 1}]", curve[k])
        places, more = k - before[0], curve[k] - before[1]
        if before[0]:
            parts.append(np.full(places, more / places))
        else:
            parts.append(constant_hazard(more, np.array([k])) ** np.arange(1, k + 1))
        before = k, curve[k]
    shares = _falling(np.concatenate(parts))
    fitted = 1 + np.cumsum(shares)
    missed = {k: float(fitted[k - 1]) for k in ks if abs(fitted[k - 1] - curve[k]) >= 0.005}
    for k, length in missed.items():
        if abs(length - curve[k]) > _MISS * curve[k]:
            rule = f"must be near {length:.2f}: drafts cannot keep later tokens more often than earlier ones"
            raise fields.error(f"K = {k}", rule, curve[k])
    if missed:
        ongoing.findings.remark(
            _FITTED.format(", ".join(f"K = {k} {curve[k]:.2f} as {length:.2f}" for k, length in missed.items()))
        )
    if ks != [*range(1, max(ks) + 1)]:
        ongoing.findings.remark(_BETWEEN.format(", ".join(map(str, ks))))
    return shares


def _falling(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest numbers in [0, 1] that do not rise."""
    blocks: list[tuple[float, int]] = []
    for value in values.tolist():
        mean, size = value, 1
        while blocks and blocks[-1][0] < mean:
            other, others = blocks.pop()
            mean, size = (mean * size + other * others) / (size + others), size + others
        blocks.append((mean, size))
    level = np.repeat(np.array([mean for mean, _ in blocks], np.float64), [size for _, size in blocks])
    return np.clip(level, 0.0, 1.0)


def _of_file(path: Path) -> dict[str, Curve]:
    first = next(text_lines(path), (0, ""))[1].lstrip()
    if first.startswith(("{", "[")):
        objects = list(read_objects(path))
        if all(_is_row(found.values) for found in objects):
            return {"lengths": _of_rows(objects)}
        return {name: curve for found in objects for name, curve in _curves(found, found.values)}
    if "," in first and not first.startswith("#"):
        return {"lengths": _of_rows(_csv_rows(path))}
    found = _yaml(path)
    return dict(_curves(found, found.values))


def _of_rows(rows: Sequence[Fields]) -> Curve:
    curve: Curve = {}
    for row in rows:
        keys = {key.lower(): key for key in row.values}
        for key in keys:
            if key not in (*_KS, *_LENGTHS):
                rule = f"must be one of {', '.join(_KS)} or {', '.join(_LENGTHS)}: keep the rows and columns of one run"
                raise row.error(key, rule, "another key")
        k_key, length_key = (next((keys[one] for one in known if one in keys), known[0]) for known in (_KS, _LENGTHS))
        k = row.count(k_key, least=1)
        if k in curve:
            raise row.error(k_key, "must be there once: keep the rows of one run", k)
        curve[_checked(row, k_key, k)] = row.rate(length_key, most=MOST_WINDOW + 1)
    return curve


def _curves(found: Fields, values: Mapping[str, Any], name: str = "", depth: int = 0) -> Iterator[tuple[str, Curve]]:
    """Curves of an object whose keys are K or names, without `_metadata`."""
    ks = {key: value for key, value in values.items() if _is_k(key)}
    if ks:
        if len(ks) != len(values) or any(type(value) not in (int, float) for value in ks.values()):
            raise found.error(name or "lengths", "must map each K to a length, and nothing else", ", ".join(values))
        lengths = Fields(found.place, ks, f"{name}." if name else "")
        yield (
            name or "lengths",
            {_checked(lengths, key, int(key)): lengths.rate(key, most=MOST_WINDOW + 1) for key in ks},
        )
        return
    for key, value in values.items():
        if isinstance(value, dict) and not key.startswith("_") and depth < _MOST_DEPTH:
            yield from _curves(found, value, f"{name}/{key}" if name else key, depth + 1)


def _checked(fields: Fields, key: str, k: int) -> int:
    if not 1 <= k <= MOST_WINDOW:
        raise fields.error(key, f"must be a K in [1, {MOST_WINDOW}]", k)
    return k


def _csv_rows(path: Path) -> list[Fields]:
    lines = list(placed_lines(path))
    try:
        rows = list(csv.reader([text for _, text in lines], strict=True))
    except csv.Error as error:
        raise TraceFormatError(path, "row", "must be cells with commas between", str(error)) from None
    head = [cell.strip() for cell in rows[0]]
    found: list[Fields] = []
    for (place, text), cells in zip(lines[1:], rows[1:], strict=False):
        if len(cells) != len(head):
            raise TraceFormatError(place, "row", f"must have {len(head)} cells as the head has", text.strip())
        found.append(Fields(place, {key: _number(cell.strip()) for key, cell in zip(head, cells, strict=True)}))
    return found


def _yaml(path: Path) -> Fields:
    """Read names, and numbers by K, each on a line of its own, nested by indentation."""
    top: dict[str, Any] = {}
    around: list[tuple[int, dict[str, Any]]] = [(-1, top)]
    for place, text in placed_lines(path):
        line = text.rstrip()
        if line.lstrip().startswith("#"):
            continue
        match = _LEAF.fullmatch(line)
        if match is None:
            raise TraceFormatError(place, "line", "must be NAME: or K: LENGTH", line.strip()[:80])
        indent, key, value = len(match[1]), (match[2] or match[3]).strip(), match[4]
        while around[-1][0] >= indent:
            around.pop()
        inside = around[-1][1]
        if key in inside:
            raise TraceFormatError(place, key, "must be there once", "twice")
        if value:
            inside[key] = _number(value)
        else:
            inside[key] = {}
            around.append((indent, inside[key]))
    return Fields(str(path), top)


def _number(text: str) -> int | float | str:
    """A whole number, one with a point, or the text itself."""
    if re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)
    return float(text) if re.fullmatch(r"[0-9]{1,9}\.[0-9]{1,15}", text) else text


ACCEPTANCE_BY_K = Format(**described("acceptance-by-k"), read=_read, sees=_sees, sees_line=_sees_line)
