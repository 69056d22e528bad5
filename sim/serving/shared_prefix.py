"""Attention that reads a text which requests of a batch begin with once, and not once for each row.

Engines that do so have blocks of that text in one place, for it is in the prefix cache. vLLM calls it cascade
attention (`use_cascade_attention`): of a step in which every request that runs refers to the same first blocks, the
kernel reads those once for all rows, and then what is each row's own. Multi-level cascades (FlashInfer; Hydragen,
arXiv:2402.05099) do it for every group of rows. Rows still attend to all of it: only bytes are saved, not arithmetic.
"""

from collections.abc import Callable

from ...arguments import ArgumentError
from ..cost.base import CostModel, DraftTerms, SharingCost
from .forward_ps import in_whole_ps
from .limits import SharedPrefix


class SharedPrefixCost:
    """Seconds of forwards of which every row begins with the same text.

    Args:
        cost: of forwards.
        rule: when a text is read once.
        common_tokens: says how many tokens every row begins with and holds, >= 0; asked at each forward. With groups:
            how many tokens the rows hold together, less those that have to be read.

    Raises:
        ArgumentError: a cost that does not tell what is read from what is attended to.
    """

    def __init__(self, cost: CostModel, rule: SharedPrefix, common_tokens: Callable[[], int]) -> None:
        if not isinstance(cost, SharingCost):
            raise ArgumentError(
                "shared_prefix of a replica needs a cost that tells what is read, a device of the sheet or a FILE.json "
                f"with grids or lines; {cost.name} does not"
            )
        self.name = cost.name
        self.lookup_s = cost.lookup_s
        self._sharing = cost
        self._each = in_whole_ps(cost)
        self._rule = rule
        self._common_tokens = common_tokens

    def forward_s(self, model: str, *, num_rows: int, new_tokens: int, context_tokens: int) -> float:
        """Seconds of one forward; see `CostModel`. Never more than where each row reads the text for itself."""
        each_s = self._each.forward_s(model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens)
        spared = self._spared_tokens(num_rows)
        if not spared:
            return each_s
        read = context_tokens - spared
        assert read * (num_rows - 1) >= spared, "a row that does not hold the text it shares"
        once_s = self._sharing.shared_forward_s(
            model, num_rows=num_rows, new_tokens=new_tokens, context_tokens=context_tokens, read_tokens=read
        )
        return min(once_s, each_s)  # which is rounded by pieces of lines

    def _spared_tokens(self, num_rows: int) -> int:
        """Tokens held that a forward need not read."""
        if num_rows < self._rule.least_rows:
            return 0
        common = self._common_tokens()
        if self._rule.groups:
            return common
        return (num_rows - 1) * common if common >= self._rule.least_tokens else 0

    def draft_terms(self, model: str) -> DraftTerms | None:
        """See `CostModel`."""
        return self._each.draft_terms(model)

    def notes(self) -> tuple[str, ...]:
        """See `CostModel`."""
        return self._each.notes()
