"""Prompt lookup: a model-free member copies what followed an earlier occurrence of the newest tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from .steps import Draft

Occurrence = Literal["first", "last", "longest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupRule:
    """How a lookup finds what to copy."""

    max_match: int  # longest suffix to look for, >= 1; shorter ones are tried next
    min_match: int = 1  # shortest suffix to look for, 1 to `max_match`
    # which earlier occurrence of the longest suffix that has one is copied from: the `first` in the context, the
    # `last`, or the latest after which there is the `longest` stretch to copy
    occurrence: Occurrence = "last"

    def __post_init__(self) -> None:
        if not 1 <= self.min_match <= self.max_match:
            raise ValueError(f"min_match must be in [1, max_match {self.max_match}], got {self.min_match}")
        if self.occurrence not in get_args(Occurrence):
            raise ValueError(f"occurrence must be one of {', '.join(get_args(Occurrence))}, got {self.occurrence!r}")


def prompt_lookup(context: Sequence[int], *, num_tokens: int, rule: LookupRule) -> list[int]:
    """Up to `num_tokens` >= 1 tokens after an earlier occurrence of the context's longest repeated suffix.

    After Saxena 2023, "Prompt Lookup Decoding"; docs/pools-and-recordings.md lists what engines take. The context is
    prompt and everything decoded or pending, oldest first. Empty when no suffix of `min_match` tokens or more occurred
    before. An occurrence may overlap the suffix; what follows it ends where the context does.
    """
    back = list(context)
    back.reverse()
    most, best, end, place = min(rule.max_match, len(back) - 1), rule.min_match - 1, 0, 0
    far_enough = {"last": 1, "longest": num_tokens, "first": len(back)}[rule.occurrence]  # from the end of the context
    for _ in range(back.count(back[0]) - 1 if most > best else 0):  # where the suffix may end earlier, the latest first
        place = back.index(back[0], place + 1)
        match = 1
        while match < most and place + match < len(back) and back[match] == back[place + match]:
            match += 1
        if match > best:
            best, end = match, place
        elif match == best and 0 < end < far_enough:
            end = place
        if best == most and end >= far_enough:
            break
    return back[max(0, end - num_tokens) : end][::-1]


def looked_up(context: Sequence[int], *, step: Draft, room: int, rule: LookupRule) -> list[int]:
    """What a model-free member drafts: the step's own copy, or what it finds; no more than there is room."""
    if step.copy is not None:
        return list(step.copy[:room])
    return prompt_lookup(context, num_tokens=min(step.tokens, room), rule=rule)
