"""Prompt lookup: a model-free drafter that copies what followed an earlier occurrence of the newest tokens.

After Saxena 2023, "Prompt Lookup Decoding"; transformers, vLLM and SGLang ship the same idea as n-gram speculation,
with other lengths and other occurrences (docs/pools-and-recordings.md lists their values).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from .contract import Draft

Occurrence = Literal["first", "last", "longest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupRule:
    """How a lookup finds what to copy.

    Attributes:
        max_match: longest suffix to look for, >= 1; shorter ones are tried next.
        min_match: shortest suffix to look for, 1 to `max_match`.
        occurrence: which earlier occurrence of the longest suffix that has one is copied from: the `first` in the
            context, the `last`, or the latest after which there is the `longest` stretch to copy.
    """

    max_match: int
    min_match: int = 1
    occurrence: Occurrence = "last"

    def __post_init__(self) -> None:
        if not 1 <= self.min_match <= self.max_match:
            raise ValueError(f"min_match must be in [1, max_match {self.max_match}], got {self.min_match}")
        if self.occurrence not in get_args(Occurrence):
            raise ValueError(f"occurrence must be one of {', '.join(get_args(Occurrence))}, got {self.occurrence!r}")


def prompt_lookup(context: Sequence[int], *, num_tokens: int, rule: LookupRule) -> list[int]:
    """Tokens that followed an earlier occurrence of the context's longest repeated suffix.

    Args:
        context: prompt and everything decoded or pending, oldest first.
        num_tokens: most tokens to return, >= 1.
        rule: how long a suffix, and which occurrence of it.

    Returns:
        Between 0 and `num_tokens` tokens; none when no suffix of `min_match` tokens or more occurred before. An
        occurrence may overlap the suffix itself; what follows it ends where the context does.
    """
    tokens = list(context)
    for match in range(min(rule.max_match, len(tokens) - 1), rule.min_match - 1, -1):
        end = _end_of_occurrence(tokens, match, num_tokens, rule.occurrence)
        if end is not None:
            return tokens[end : end + num_tokens]
    return []


def looked_up(context: Sequence[int], *, step: Draft, room: int, rule: LookupRule) -> list[int]:
    """What a model-free member drafts: what the step tells it to copy, or what it finds; no more than there is room."""
    if step.copy is not None:
        return list(step.copy[:room])
    return prompt_lookup(context, num_tokens=min(step.tokens, room), rule=rule)


def _end_of_occurrence(tokens: list[int], match: int, num_tokens: int, occurrence: Occurrence) -> int | None:
    """Where the chosen earlier occurrence of the last `match` tokens ends; None if there is none."""
    ends = _ends(tokens, match, forwards=occurrence == "first")
    if occurrence != "longest":
        return next(ends, None)
    end = None
    for end in ends:  # from the last on: each has more tokens after it than the one before
        if len(tokens) - end >= num_tokens:
            break
    return end


def _ends(tokens: list[int], match: int, *, forwards: bool) -> Iterator[int]:
    suffix = tokens[-match:]
    starts = range(len(tokens) - match)
    for start in starts if forwards else reversed(starts):
        if tokens[start] == suffix[0] and tokens[start : start + match] == suffix:
            yield start + match
