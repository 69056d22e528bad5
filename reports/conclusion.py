"""The last line of a comparison, in words: which policy is best, whether that is certain, and why another loses.

Every clause is computed from the rows. Seconds per token part by member: where most is added to those of the best
policy, by the target or below it, is the reason that another loses, and what these seconds bought is told beside it.
"""

from collections.abc import Collection, Iterator, Sequence

from .side_by_side import SideBySide
from .summary import Summary

CLOSE = 0.1  # shares that are nearer to each other than this do not explain anything
LEANS = 0.1  # share of seconds by which a policy leans on a member more than twice as much as the best does


def conclusion(comparison: SideBySide, *, ruled_out: Collection[str] = ()) -> str:
    """One line.

    Args:
        comparison: at least one row is not ruled out.
        ruled_out: policies that cannot be chosen, such as oracles.
    """
    best, tied, slower = _standing(comparison, ruled_out)
    clauses = [best_in_words(comparison, ruled_out=ruled_out)]
    if _is_lossy(best):
        clauses += _best_lossless(comparison, [row for row in comparison.ranked() if row.policy not in ruled_out])
    return "; ".join([*clauses, *_reason(comparison, best, tied, slower)])


def best_in_words(comparison: SideBySide, *, ruled_out: Collection[str] = ()) -> str:
    """Which policy is best, and which cannot be told apart from it; arguments as of `conclusion`."""
    best, tied, _ = _standing(comparison, ruled_out)
    return "; ".join([f"best: {_named(comparison, best)}{_lossy(best)}", *_ties(comparison, best, tied)])


def _standing(comparison: SideBySide, ruled_out: Collection[str]) -> tuple[Summary, list[Summary], list[Summary]]:
    """(the fastest row, those that cannot be told apart from it, the slower ones), each fastest first."""
    best, *others = [row for row in comparison.ranked() if row.policy not in ruled_out]
    tied = [row for row in others if not told_apart(comparison, best, row)]
    return best, tied, [row for row in others if row not in tied]


def told_apart(comparison: SideBySide, best: Summary, other: Summary) -> bool:
    """Whether `other` is slower for certain: the 95% intervals do not meet; a policy without chance has no width."""
    return _ends(comparison, other)[1] < _ends(comparison, best)[0]


def _ends(comparison: SideBySide, row: Summary) -> tuple[float, float]:
    interval = comparison.output_tokens_per_s_interval(row)
    return (row.output_tokens_per_s, row.output_tokens_per_s) if interval is None else interval.bounds


def _named(comparison: SideBySide, row: Summary, *, before: str = ", ", after: str = "") -> str:
    speed_up = comparison.speed_up(row)
    speed = f"{comparison.output_tokens_per_s(row):,.1f} tokens/s" if speed_up is None else f"{speed_up:.2f}x"
    return f"{row.policy}{before}{speed}{after}"


def _is_lossy(row: Summary) -> bool:
    return row.quality is not None and row.quality.lossy


def _lossy(row: Summary) -> str:
    if row.quality is None or not row.quality.lossy:
        return ""
    known = row.quality.divergences_per_1000
    return " (lossy)" if known is None else f" (lossy, {known:.1f} divergences per 1,000 tokens)"


def _best_lossless(comparison: SideBySide, ranked: Sequence[Summary]) -> Iterator[str]:
    lossless = next((row for row in ranked if not _is_lossy(row)), None)
    if lossless is not None:
        yield f"best of the lossless: {_named(comparison, lossless)}"


def _ties(comparison: SideBySide, best: Summary, tied: Sequence[Summary]) -> Iterator[str]:
    if tied:
        names = ", ".join(_named(comparison, row, before=" (", after=")") for row in tied)
        chance = any(comparison.output_tokens_per_s_interval(row) is not None for row in (best, *tied))
        yield f"{names} cannot be told apart from it: {'the intervals overlap' if chance else 'equally fast'}"


def _reason(comparison: SideBySide, best: Summary, tied: Sequence[Summary], slower: Sequence[Summary]) -> Iterator[str]:
    """Why others lose: all where the target alone is best, those that rely on a member it spares, or the next."""
    if not slower:
        return
    if not tied and not _drafts(best) and _drafts(slower[0]):
        said = "drafting does not pay here: in {}, the fastest of the others, "
        reasons = [(slower[0], said)]
    else:
        reasons = [*_spared_members(best, tied, slower), (slower[0], "next is {}: ")]
    for loser, said in reasons:
        why = _why(best, loser)
        if why:
            yield said.format(_named(comparison, loser, before=" (", after=")")) + why
            return


def _drafts(row: Summary) -> bool:
    return any(level.drafted for level in row.levels)


def _spared_members(best: Summary, tied: Sequence[Summary], slower: Sequence[Summary]) -> Iterator[tuple[Summary, str]]:
    """(policy, clause to begin with) of the fastest policy that leans on a member much more than the best does.

    At most one: the slowest of them, if that member is why it loses.
    """
    found = []
    for place, member in enumerate(best.levels[:-1]):
        own = member.share_of_seconds
        leaning = [row for row in slower if row.levels[place].share_of_seconds > 2 * own + LEANS]
        if leaning and _culprit(best, leaning[0]) == place:
            users = [row for row in (best, *tied, *slower) if row.levels[place].duration_s]
            found.append((leaning[0], _begun(member.name, users, spared=users == leaning)))
    yield from sorted(found, key=lambda one: one[0].output_tokens_per_s)[:1]


def _begun(member: str, users: Sequence[Summary], *, spared: bool) -> str:
    """How a clause on a member begins; `spared`: only policies that lose use it, all those of `users`."""
    if not spared:
        return f"more of {member} does not pay: in {{}} "
    kind = "chains" if all("/" in row.policy for row in users) else "policies"
    several = f"{kind} with {member} lose here because in the fastest of them, {{}}, "
    return several if len(users) > 1 else "{} loses here because "


def _why(best: Summary, loser: Summary) -> str:
    """What the loser takes longer for; empty if that cannot be told."""
    place = _culprit(best, loser)
    if place is None:
        return ""
    if place == len(loser.levels) - 1:
        return _target_is_why(best, loser)
    return _member_is_why(best, loser, place)


def _culprit(best: Summary, loser: Summary) -> int | None:
    """Level to blame for the loser's seconds per token: the target, or of those below it the one that adds most.

    Members below the target stand in for each other, so they are weighed against it together. None where nothing is
    added, where the loser is the faster one at the first seed, of which these seconds are, or where members worked side
    by side: then one's seconds may have cost nothing.
    """
    if _side_by_side(best) or _side_by_side(loser):
        return None
    *below, target = _more_seconds(best, loser)
    if loser.output_tokens_per_s >= best.output_tokens_per_s or max(sum(below), target) <= 0:
        return None
    return len(below) if target >= sum(below) else below.index(max(below))


def _side_by_side(row: Summary) -> bool:
    """Whether members took more seconds than the run; what sums leave by rounding aside."""
    return sum(level.duration_s for level in row.levels) > row.duration_s * (1 + 1e-9)


def _more_seconds(best: Summary, loser: Summary) -> list[float]:
    """By level, seconds per token of the loser over those of the best."""
    return [
        level.duration_s / loser.output_tokens - other.duration_s / best.output_tokens
        for level, other in zip(loser.levels, best.levels, strict=True)
    ]


def _target_is_why(best: Summary, loser: Summary) -> str:
    calls, fewer = (f"{row.target_calls_per_token:.3f}" for row in (loser, best))
    if loser.target_calls_per_token > best.target_calls_per_token and calls != fewer:
        return f"the target is called {calls} times a token, in {best.policy} {fewer} times"
    own, other = (f"{1e3 * _per_call(row):.2f}" for row in (loser, best))
    return "" if own == other else f"a call of the target takes {own} ms, in {best.policy} {other} ms"


def _per_call(row: Summary) -> float:
    calls = row.target_calls_per_token * row.output_tokens
    return row.levels[-1].duration_s / calls if calls else 0.0


def _member_is_why(best: Summary, loser: Summary, place: int) -> str:
    """What a member's seconds bought: calls of the target, or where those alone would not explain it, seconds."""
    share = loser.levels[place].share_of_seconds
    takes = f"{loser.levels[place].name} takes {share:.0%} of the seconds"
    saved = 1 - loser.target_calls_per_token / best.target_calls_per_token if best.target_calls_per_token else 0.0
    if saved >= share - CLOSE:
        why = _seconds_bought(best, loser, place)
    elif saved > 0:
        shown = f"only {saved:.0%}" if saved >= 0.005 else "less than 1%"
        why = f"{takes} and saves {shown} of {best.policy}'s target calls"
    else:
        why = f"{takes} and the target is called no less often than in {best.policy}"
    kept = loser.draft_acceptance_rate
    told = kept is not None and loser.levels[-1].judged and kept < 0.5
    return f"{why}; the target keeps {kept:.0%} of what it is given" if told else why


def _seconds_bought(best: Summary, loser: Summary, place: int) -> str:
    """Milliseconds per token that the members below the target take more, and those that the target takes less."""
    *below, target = (1e3 * more for more in _more_seconds(best, loser))
    name = loser.levels[place].name
    alone = all(more <= 0 for level, more in enumerate(below) if level != place)
    takes = f"{name} takes {below[place]:.2f} ms a token more than in {best.policy}"
    if not alone:
        others = sum(more for more in below if more > 0)
        takes = f"{name} and the others below the target take {others:.2f} ms a token more than in {best.policy}"
    return (
        f"{takes} and {'save' if not alone else 'saves'} the target {f'{-target:.2f} ms' if target < 0 else 'nothing'}"
    )
