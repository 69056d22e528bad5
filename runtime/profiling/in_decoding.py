"""How much longer forwards took in decoding than what was measured of them on their own foresees."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, median

from ...profiles.forward_terms import MOST_JUDGED, InDecoding, Longer
from ...profiles.forwards import ForwardsInDecoding
from ...profiles.weights_read import WeightsRead
from .probe import ProbedOp

# Forwards that a mean must rest on, and how many times the median one may take that nothing else on the machine
# interrupted.
_LEAST_SEEN, _INTERRUPTED = 25, 3.0

# By new tokens, seconds foreseen and measured.
_Seen = dict[int, list[tuple[float, float]]]


def longer_in_decoding(
    ops: Sequence[ProbedOp], known: Sequence[ForwardsInDecoding | None], names: Sequence[str], read: WeightsRead
) -> dict[str, InDecoding]:
    """By member, from operations that were watched; forwards that read a prompt are left out.

    Args:
        ops: in order.
        known: by level, what is foreseen; None for a member without a model.
        names: by level.
        read: of no forward yet; mutated.
    """
    seen: dict[tuple[str, bool], _Seen] = defaultdict(lambda: defaultdict(list))
    for op in ops:
        for place, (level, shape, ended_s, seconds) in enumerate(op.forwards):
            member = known[level]
            if member is None:
                continue
            foreseen_s = member.seconds(shape, first=not place)
            if not place:
                foreseen_s += member.reloads_s(shape.new_tokens, read.away(names[level], ended_s - seconds))
            read.note(names[level], ended_s)
            if shape.longest <= MOST_JUDGED:
                seen[names[level], not place][shape.new_tokens].append((foreseen_s, seconds))
    return {
        name: InDecoding(first=_longer(seen[name, True]), later=_longer(seen[name, False]))
        for name, member in zip(names, known, strict=True)
        if member is not None
    }


def _longer(seen: _Seen) -> Longer:
    """Means over forwards of so many tokens, those of about as many together where few were seen."""
    tokens, longer = [], []
    group: list[tuple[int, float]] = []
    for new_tokens in sorted(seen):
        ratio = median(seconds / foreseen_s for foreseen_s, seconds in seen[new_tokens])
        group += [
            (new_tokens, seconds - foreseen_s)
            for foreseen_s, seconds in seen[new_tokens]
            if seconds <= _INTERRUPTED * ratio * foreseen_s
        ]
        if len(group) >= _LEAST_SEEN:
            tokens.append(round(fmean(count for count, _ in group)))
            longer.append(fmean(seconds for _, seconds in group))
            group = []
    return Longer(new_tokens=tuple(tokens), longer_s=tuple(longer))
