"""What an importer must tell of what it read: what happened how often, how much was known, which options mattered."""

from collections import Counter
from dataclasses import dataclass, field

from ..rounds.trust import FORMS, Form


@dataclass(slots=True, kw_only=True)
class Findings:
    """Filled along the way.

    Attributes:
        counts: words of a note -> how often it happened.
        remarks: notes that are not counted.
        forms: what the log knows of its requests; the recording is as good as the worst of them.
        mattered: options of the command line that had an effect, of those that may have none.
    """

    counts: Counter[str] = field(default_factory=Counter)
    remarks: list[str] = field(default_factory=list)
    forms: set[Form] = field(default_factory=set)
    mattered: set[str] = field(default_factory=set)

    def copy(self) -> "Findings":
        """The same, which later findings leave alone."""
        return Findings(
            counts=self.counts.copy(),
            remarks=self.remarks.copy(),
            forms=self.forms.copy(),
            mattered=self.mattered.copy(),
        )

    def note(self, words: str, times: int = 1) -> None:
        """Count something that every reader of the recording must know."""
        if times:
            self.counts[words] += times

    def remark(self, words: str) -> None:
        """Note something once."""
        if words not in self.remarks:
            self.remarks.append(words)

    def form(self, usual: Form) -> Form:
        """What the recording knows: as found, or `usual` of its format."""
        return max(self.forms, key=FORMS.index, default=usual)

    def notes(self) -> tuple[str, ...]:
        """What happened how often, and the remarks."""
        return (*(f"{times:,} {words}" for words, times in self.counts.items()), *self.remarks)
