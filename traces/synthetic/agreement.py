"""Where members write the target's token along the trunk of a synthetic recording.

Letters: R requests, T trunk tokens, S members below the target, K lengths of runs.
"""

import numpy as np
from numpy.typing import NDArray

from ..tries.trie import Floats
from .runs import first_rate, surviving
from .spec import SyntheticSpec


def trunk_agreement(spec: SyntheticSpec, rng: np.random.Generator) -> NDArray[np.bool_]:
    """`[S, R, T + 1]` whether each member writes the target's token.

    A context has a difficulty per member, uniform in [0, 1); a member agrees where it is below its rate. The
    difficulties stay from one context to the next with probability `autocorrelation`, else they are drawn afresh:
    one for all members with probability `shared_difficulty`, or the member's own. So each member's agreement is a
    two-state Markov chain with the asked rate and lag-1 correlation. With `run_decay` the rate falls along a run.
    """
    shape = (spec.requests, spec.tokens + 1)
    members = (len(spec.models) - 1, *shape)
    shared = rng.random(shape)
    fresh = np.where(rng.random(members) < spec.shared_difficulty, shared, rng.random(members))
    renewed = rng.random(shape) >= spec.autocorrelation
    renewed[:, 0] = True
    latest = np.maximum.accumulate(np.where(renewed, np.arange(shape[1]), 0), axis=1)
    difficulty = np.take_along_axis(fresh, np.broadcast_to(latest, members), axis=2)
    if spec.run_decay:
        return _along_runs(spec, difficulty, rng)
    agrees: NDArray[np.bool_] = difficulty < np.array(spec.acceptance)[:, None, None]
    return agrees


def _along_runs(spec: SyntheticSpec, difficulty: Floats, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Agreement that falls with every token agreed on; requests begin in the middle of a run, as any context does."""
    firsts = np.array([first_rate(rate, spec.run_decay) for rate in spec.acceptance])
    run = np.stack([_run_so_far(first, spec, rng) for first in firsts])
    agrees = np.empty(difficulty.shape, dtype=np.bool_)
    for position in range(difficulty.shape[2]):
        rate = firsts[:, None] * (1.0 - spec.run_decay) ** run
        agrees[..., position] = difficulty[..., position] < rate
        run = np.where(agrees[..., position], run + 1, 0)
    return agrees


def _run_so_far(first: float, spec: SyntheticSpec, rng: np.random.Generator) -> NDArray[np.intp]:
    """`[R]` tokens that a member has agreed on before a context taken at random: k with the share of runs >= k."""
    shares = surviving(first, spec.run_decay)
    return np.searchsorted(np.cumsum(shares / shares.sum()), rng.random(spec.requests), side="right")
