"""Where along an answer rounding may have turned a choice over: what `agree` says of a difference."""

from ...traces.meta import Sampling
from ..pools.loaded_members import LoadedMembers
from ..recording.tree_forward import TreeForward, causal_mask
from ..sampling.coupled_noise import RequestNoise
from .on_trunk import near_ties


def near_ties_after(
    pool: LoadedMembers,
    prompt: tuple[int, ...],
    answer: list[int],
    *,
    first: int,
    sampling: Sampling,
    noise: RequestNoise | None,
) -> list[tuple[str, int]]:
    """Members and output positions, from `first` on, of the near ties along an answer.

    Args:
        pool: the models; those with a tokenizer of their own are not asked.
        prompt: at least one token.
        answer: the tokens written after it.
        first: output position of the first choice that is looked at, at most the length of the answer.
        sampling: greedy or coupled.
        noise: of the request if coupled, None if greedy.
    """
    text = [*prompt, *answer]
    count = len(answer) - first + 1
    rows = None if noise is None else noise.rows(list(range(first, len(answer) + 1)))
    found = []
    for member in pool.members:
        if member.model is None or member.tokenizer is not None:
            continue
        forward = TreeForward(member.model, capacity=len(text))
        logits = forward.append(text, range(len(text)), causal_mask(0, len(text)), num_logits=count)
        ties = near_ties(logits, sampling, rows).nonzero().flatten().tolist()
        found += [(member.name, first + place) for place in ties]
    return sorted(found, key=lambda tie: tie[1])
