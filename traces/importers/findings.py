"""What a reader has found so far: everything that a line which is skipped must leave as it was."""

from collections import Counter
from copy import copy
from dataclasses import dataclass, field, fields

from ..rounds.meta import StatedAcceptance
from ..rounds.trust import Form


@dataclass(slots=True, kw_only=True)
class Findings:
    """Drafters by name, and what happened.

    Attributes:
        by_start: drafter -> whether its acceptance depends on where the round started.
        prefilled: drafter -> whether a prefill emitted a token before its first round.
        windows: drafter -> tokens it drafts in a round, 0 if none was seen to be drafted.
        stated: drafter -> what a log states of its acceptance.
        counts: words of a note -> how often it happened.
        remarks: notes that are not counted.
        used: keys of `ImportOptions.names` that named a drafter.
        forms: what the log knows of its requests.
        drew: whether anything was drawn.
        used_load: whether the log left its requests to the user.
        has_texts: whether the ids of some text are known.
    """

    by_start: dict[str, bool] = field(default_factory=dict)
    prefilled: dict[str, bool] = field(default_factory=dict)
    windows: dict[str, int] = field(default_factory=dict)
    stated: dict[str, StatedAcceptance] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    remarks: list[str] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    forms: set[Form] = field(default_factory=set)
    drew: bool = False
    used_load: bool = False
    has_texts: bool = False

    def copy(self) -> "Findings":
        """The same, which later findings leave alone."""
        return Findings(**{one.name: copy(getattr(self, one.name)) for one in fields(self)})
