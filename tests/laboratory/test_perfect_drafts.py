"""Drafts that write the target's own text in other tokens."""

from paceline_laboratory.shared import Tally, add_drafts


class Pairs:
    """The other vocabulary has a token for every two of the target's; a draft is spelled with `wrong` at its end."""

    def __init__(self, wrong=None):
        self.wrong = wrong

    def to_other(self, text):
        return [tuple(text[place : place + 2]) for place in range(0, len(text), 2)]

    def drafted(self, before, draft):
        tokens = [token for pair in draft for token in pair]
        return tokens if self.wrong is None else [*tokens[:-1], self.wrong]


def test_all_of_a_draft_counts_where_the_tokens_begin_alike():
    tally = Tally()
    add_drafts(tally, Pairs(), list(range(8)), range(1, 8), num_tokens=1)
    assert tally.counted == [2, 2, 2]  # odd cuts part a pair
    assert tally.spelled_share == 1.0
    assert len(tally.reading_s) == len(tally.spelling_s) == 3
    assert tally.counted_a_draft == 2


def test_what_is_spelled_otherwise_counts_and_is_told():
    tally = Tally()
    add_drafts(tally, Pairs(wrong=-1), list(range(8)), range(2, 7, 2), num_tokens=1)
    assert tally.spelled_share == 0.5
    assert Tally().spelled_share == 0.0
