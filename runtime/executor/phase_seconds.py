"""Where the seconds of decoding go."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Phases:
    """Seconds by kind of work; mutated by whoever does it.

    Attributes:
        forward_s: inside models.
        placing_s: slots and masks of their caches.
        sampling_s: from logits to tokens, verdicts and distances.
    """

    forward_s: float = 0.0
    placing_s: float = 0.0
    sampling_s: float = 0.0
