"""How many tokens those who run may still write, as SGLang guesses it before it admits a request."""

from collections.abc import Iterable
from math import floor
from typing import NamedTuple

# Of SGLang 0.5: `SGLANG_INIT_NEW_TOKEN_RATIO`, `SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR`,
# `SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS`, `CLIP_MAX_NEW_TOKENS`, `SGLANG_RETRACT_DECODE_STEPS`.
FIRST_RATIO, LEAST_FACTOR, DECAY_STEPS = 0.7, 0.14, 600
MOST_TOKENS, RETRACT_STEPS = 4096, 20


class Written(NamedTuple):
    """How far an answer is.

    Attributes:
        tokens: that are out, >= 0.
        wanted: in all, >= `tokens`.
    """

    tokens: int
    wanted: int

    @property
    def left(self) -> int:
        """That may still come, as far as they are looked at."""
        return min(self.wanted - self.tokens, MOST_TOKENS)


class AdmissionEstimate:
    """`ratio` is the share of what may still come that is kept free for those who decode (`new_token_ratio`)."""

    def __init__(self) -> None:
        self.ratio = FIRST_RATIO

    def stepped(self, running: Iterable[Written], *, decoded: bool, was_short: bool) -> None:
        """A step is filled.

        Args:
            running: of all who run now.
            decoded: whether somebody decodes.
            was_short: whether somebody was put back.
        """
        answers = list(running)
        if not answers:
            self.ratio = FIRST_RATIO
        elif was_short:
            written = sum(answer.tokens for answer in answers) + RETRACT_STEPS * len(answers)
            self.ratio = min(1.0, written / (sum(answer.wanted for answer in answers) + 1))
        elif decoded:
            least = FIRST_RATIO * LEAST_FACTOR
            self.ratio = max(self.ratio - (FIRST_RATIO - least) / DECAY_STEPS, least)

    def tokens_for(self, entering: Written, decoding: Iterable[Written], reading: Iterable[Written]) -> int:
        """Beside its text, tokens that must be free for a request that may enter: for itself, and for others.

        Args:
            entering: of the request.
            decoding: of those that decode.
            reading: of those whose prefill ends with this step; as of the request itself, all of theirs counts.
        """
        kept = sum(answer.left * self.ratio for answer in decoding)
        return entering.left + floor(kept) + sum(answer.left for answer in reading) + 1
