"""The blocks of an agent's prompts, written whole or as what changed since the prompt before; kept as runs of ids."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from ..sessions import Runs, runs_of
from .format import Reading, whole
from .objects import count_of, ids_of

LOCAL_BITS = 24  # of ids that count within their session; above them stand its line and its file
_LINE_BITS, _FILE_BITS = 24, 14


def id_offset(reading: Reading, line: int, scope: object) -> int:
    """What is added to the ids of a session, so that those of other sessions are others.

    Raises:
        TraceFormatError: a scope that is not known, or more lines or files than ids leave room for.
    """
    if scope == "global":
        return 0
    if scope != "local":
        raise reading.error(line, "hash_id_scope", "must be local or global", scope)
    if line >> _LINE_BITS or reading.number >> _FILE_BITS:
        raise reading.error(line, "hash_id_scope", f"local ids leave room for {2**_LINE_BITS:,} sessions", line)
    return (reading.number << _LINE_BITS | line) << LOCAL_BITS


def runs_of_prompt(
    reading: Reading, line: int, where: str, found: Mapping[str, Any], before: Runs, *, unit: int, offset: int
) -> tuple[int, Runs]:
    """(blocks kept of the prompt before, runs of the others) of a request.

    Args:
        reading: of the file.
        line: of the session.
        where: names the request within it, a dot at the end.
        found: the request: `hash_ids`, or `reuse_prev`, `new_runs` and `n_blocks`; its `in` is a count.
        before: runs of the prompt before, with their offset.
        unit: tokens of a block.
        offset: of ids.

    Raises:
        TraceFormatError: blocks that contradict each other or the length of the prompt.
    """
    if "hash_ids" in found:
        ids = ids_of(reading, line, f"{where}hash_ids", found["hash_ids"])
        _check_scope(reading, line, f"{where}hash_ids", max(ids, default=0), offset)
        kept = _common(before, ids, offset)
        new = runs_of(offset + number for number in ids[kept:])
        _check_count(reading, line, f"{where}hash_ids", found["in"], len(ids), unit)
        return kept, new
    kept = count_of(reading, line, f"{where}reuse_prev", found["reuse_prev"])
    if kept > length(before):
        rule = f"must be at most the blocks of the prompt before, {length(before)}"
        raise reading.error(line, f"{where}reuse_prev", rule, kept)
    new = _given_runs(reading, line, f"{where}new_runs", found["new_runs"], offset)
    blocks = count_of(reading, line, f"{where}n_blocks", found["n_blocks"])
    if kept + length(new) != blocks:
        rule = f"must be those of reuse_prev and new_runs, {kept + length(new)}"
        raise reading.error(line, f"{where}n_blocks", rule, blocks)
    _check_count(reading, line, f"{where}n_blocks", found["in"], blocks, unit)
    _check_once(reading, line, where, (*head_of(before, kept), *new), offset)
    return kept, new


def length(runs: Runs) -> int:
    """Blocks in runs."""
    return sum([last - first + 1 for first, last in runs])


def head_of(runs: Runs, count: int) -> Runs:
    """The first `count` blocks of runs."""
    kept: list[tuple[int, int]] = []
    for first, last in runs:
        if count <= 0:
            break
        kept.append((first, min(last, first + count - 1)))
        count -= last - first + 1
    return tuple(kept)


def _common(before: Runs, ids: Sequence[int], offset: int) -> int:
    """How many of the first ids are those of the prompt before."""
    count = 0
    for first, last in before:
        wanted = range(first - offset, min(last - offset + 1, first - offset + len(ids) - count))
        if tuple(wanted) != tuple(ids[count : count + len(wanted)]):
            return count + next(place for place, one in enumerate(wanted) if one != ids[count + place])
        count += len(wanted)
    return count


def _given_runs(reading: Reading, line: int, field: str, value: object, offset: int) -> Runs:
    """Runs as a file has them, `[[first, last], ...]`."""
    runs: list[tuple[int, int]] = []
    for place, run in enumerate(value if isinstance(value, list) else [value]):
        sound = isinstance(run, list) and len(run) == 2 and all(whole(end, 0, 2**62) for end in run)
        if not sound or run[0] > run[1]:
            rule = "must be [first, last], two whole numbers, the first not above the last"
            raise reading.error(line, f"{field}[{place}]", rule, run)
        _check_scope(reading, line, f"{field}[{place}]", run[1], offset)
        runs.append((run[0] + offset, run[1] + offset))
    return tuple(runs)


def _check_scope(reading: Reading, line: int, field: str, highest: int, offset: int) -> None:
    if offset and highest >> LOCAL_BITS:
        raise reading.error(line, field, f"ids of a local scope must be below {2**LOCAL_BITS:,}", highest)


def _check_count(reading: Reading, line: int, field: str, tokens: int, blocks: int, unit: int) -> None:
    if blocks not in (tokens // unit, -(-tokens // unit)):
        rule = f"must be one for each {unit} tokens of in, {tokens}, whether the last is full or begun"
        raise reading.error(line, field, rule, blocks)


def _check_once(reading: Reading, line: int, where: str, runs: Runs, offset: int) -> None:
    """Raise TraceFormatError for an id that stands in a prompt twice."""
    for (_, last), (first, _) in pairwise(sorted(runs)):
        if first <= last:
            rule = "must not hold an id twice: it stands for all the text before it"
            raise reading.error(line, f"{where}new_runs", rule, first - offset)
