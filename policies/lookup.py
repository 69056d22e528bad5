"""Prompt lookup: a model-free drafter that copies what followed the last occurrence of the newest tokens.

After Saxena 2023, "Prompt Lookup Decoding"; transformers and vLLM ship the same idea as n-gram speculation.
"""

from collections.abc import Sequence


def prompt_lookup(context: Sequence[int], *, num_tokens: int, max_match: int) -> list[int]:
    """Tokens that followed the most recent earlier occurrence of the context's longest repeated suffix.

    Args:
        context: prompt and everything decoded or pending, oldest first.
        num_tokens: most tokens to return, >= 1.
        max_match: longest suffix to look for, >= 1; shorter ones down to 1 are tried next.

    Returns:
        Between 0 and `num_tokens` tokens; none when even the last token never occurred before.
    """
    size = len(context)
    tokens = list(context)
    for match in range(min(max_match, size - 1), 0, -1):
        suffix = tokens[size - match :]
        for start in range(size - match - 1, -1, -1):
            if tokens[start] == suffix[0] and tokens[start : start + match] == suffix:
                return tokens[start + match : start + match + num_tokens]
    return []
