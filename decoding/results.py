"""What a world answers for one request: what was drafted, or a verifier's verdict on what is pending."""

from typing import NamedTuple


class Drafted(NamedTuple):
    """What a world drafted for one request: tokens, the place behind each, and how many of them were modelled."""

    tokens: list[int]
    places: list[int]
    num_modelled: int = 0


class Judged(NamedTuple):
    """What a world's verifier said of one request's pending tokens.

    Attributes:
        num_accepted: leading judged tokens that stay, escalated ones among them.
        own_token: the token the verifier writes behind them.
        own_place: the place behind `own_token`.
        tvd: per judged token up to and including the first refused one.
        num_modelled: decisions (judged tokens and the own token) that were modelled rather than replayed or run.
        escalated: indices of the tokens that stay without this verifier behind them, ascending, < `num_accepted`.
    """

    num_accepted: int
    own_token: int
    own_place: int
    tvd: tuple[float, ...] = ()
    num_modelled: int = 0
    escalated: tuple[int, ...] = ()
