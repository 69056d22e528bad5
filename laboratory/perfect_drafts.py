"""How much of a perfect draft survives an alignment: the drafter writes the target's own text in its own tokens."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from ..runtime.executor.foreign_drafter import num_common
from ..runtime.tokenizers.alignment import Alignment


@dataclass(slots=True, kw_only=True)
class Tally:
    """What came of the drafts of one pair of tokenizers.

    Attributes:
        counted: target tokens that counted as drafted, of each draft.
        spelled: of these, how many in all are spelled as the target spells them.
        reading_s: seconds of reading the context in the other's tokens, of each draft.
        spelling_s: seconds of spelling the draft in the target's tokens, of each draft.
    """

    counted: list[int] = field(default_factory=list)
    spelled: int = 0
    reading_s: list[float] = field(default_factory=list)
    spelling_s: list[float] = field(default_factory=list)

    @property
    def counted_a_draft(self) -> float:
        """In the mean."""
        return fmean(self.counted)

    @property
    def typical_s(self) -> tuple[float, float]:
        """Median seconds of reading a context and of spelling a draft."""
        return median(self.reading_s), median(self.spelling_s)

    @property
    def spelled_share(self) -> float:
        """Spelled as the target spells them, of all that counted; 0 to 1, 0 where none did."""
        return self.spelled / sum(self.counted) if any(self.counted) else 0.0


def add_drafts(tally: Tally, alignment: Alignment, text: Sequence[int], cuts: Iterable[int], num_tokens: int) -> None:
    """Draft `num_tokens` tokens of the other vocabulary at each cut of a text of the target's tokens."""
    written = alignment.to_other(text)
    for cut in cuts:
        begin_s = time.perf_counter()
        before = alignment.to_other(text[:cut])
        read_s = time.perf_counter()
        draft = written[len(before) : len(before) + num_tokens]
        if written[: len(before)] != before or not draft:  # the cut parts a token of the other vocabulary
            continue
        spelling_s = time.perf_counter()
        tokens = alignment.drafted(text[:cut], draft)
        tally.spelling_s.append(time.perf_counter() - spelling_s)
        tally.reading_s.append(read_s - begin_s)
        tally.counted.append(len(tokens))
        tally.spelled += num_common(tokens, text[cut:])
