"""How good a request's text is in the eyes of the target: what both worlds measure of lossy policies."""

from dataclasses import dataclass

UNKNOWN_COUNT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TextQuality:
    """One answer beside the target's own text for the same prompt, its *trunk*; the columns of a run log.

    A count is -1 where nobody knows. Log-probabilities are the target's, of the distribution that sampling draws from,
    each at least -64 nats (`stored_resolution.LOG_PROBS`).

    Attributes:
        divergences: committed tokens that the target would not have written in their very context.
        seen_tokens: committed tokens of whose context that is known.
        scored_tokens: those of them whose log-probability is known.
        log_prob: sum of these, nats, <= 0.
        trunk_tokens: of the target's own text.
        trunk_log_prob: sum over all of them, nats, <= 0.
        same_tokens: positions at which the two texts are the same.
        same_start: leading ones among them.
        exact_start: leading committed tokens whose very contexts are on record; all of them if replay never left it.
        right: 1 if the answer is right, 0 if not.
        trunk_right: the same of the target's own text.
    """

    divergences: int = UNKNOWN_COUNT
    seen_tokens: int = 0
    scored_tokens: int = 0
    log_prob: float = 0.0
    trunk_tokens: int = UNKNOWN_COUNT
    trunk_log_prob: float = 0.0
    same_tokens: int = UNKNOWN_COUNT
    same_start: int = UNKNOWN_COUNT
    exact_start: int = UNKNOWN_COUNT
    right: int = UNKNOWN_COUNT
    trunk_right: int = UNKNOWN_COUNT


def same_counts(tokens: list[int], trunk: list[int]) -> tuple[int, int]:
    """(positions at which two texts are the same, leading ones among them)."""
    same = [ours == theirs for ours, theirs in zip(tokens, trunk, strict=False)]
    return sum(same), next((index for index, alike in enumerate(same) if not alike), len(same))
