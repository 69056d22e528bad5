"""What a forward's seconds depend on, beside the model."""

from typing import NamedTuple


class BatchShape(NamedTuple):
    """The rows of one forward.

    Attributes:
        num_rows: requests, >= 1.
        new_tokens: fed, over all rows.
        longest: tokens fed of the row with the most; the others are padded to it where rows look at each other.
        num_slots: of the row that holds the most when the forward is done; all rows look at so many.
        apart: whether the rows do not stand side by side in the cache, so that keys and values are gathered.
    """

    num_rows: int
    new_tokens: int
    longest: int
    num_slots: int
    apart: bool = False

    @property
    def padding(self) -> int:
        """Tokens by which rows are filled up to the longest."""
        return self.num_rows * self.longest - self.new_tokens
