"""Each model's view at a context: its next token, its certainty, and its distance from the others.

Distributions are softmax(logits / temperature) in float32, at temperature 1 for greedy decoding, without the tokens
that top-k and top-p leave out (`runtime/sampling.py`). Scores choose the token: the logits themselves (greedy), or
truncated logits / temperature + noise (coupled sampling, see `runtime/coupled_noise.py`). Also contexts of a trie that
wait for their evaluation, and the models that may write after them.

Letters: Q contexts, V vocabulary, M models (smallest first, target last), P = M(M-1)/2 pairs of models, W writers off
the trunk (`Writers`), F ancestors off the trunk, C children.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...traces.contexts.columns import rounded
from ...traces.contexts.trie import Ints, NextLevel, NodeFacts, Writers, grow, names_of
from ...traces.meta import Closure, Sampling
from ..sampling import truncated

Floats32 = NDArray[np.float32]
NEAR_TIE = 1e-4
# Bytes of scores that are processed together: on a CPU what fits into its caches, else more.
_TOGETHER_BYTES = (256 * 2**20, 8 * 2**20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """Every model's view of Q contexts, unrounded; fields as in `NodeFacts`."""

    next_token: NDArray[np.int32]  # [M, Q]
    next_log_prob: Floats32  # [M, Q]
    top_log_prob: Floats32  # [M, Q]
    gap: Floats32  # [M, Q]
    entropy: Floats32  # [M, Q]
    tvd: Floats32  # [P, Q] pairs in the order of `TrieMeta.pairs`
    near_tie: NDArray[np.bool_]  # [M, Q] whether the two best scores differ by less than `NEAR_TIE`
    log_probs: Tensor  # [M, Q, V] the distributions, on the models' device; -inf for tokens left out

    def log_prob_of(self, context: NDArray[np.int32], token: NDArray[np.int32]) -> NDArray[np.float32]:
        """`[M, C]` log-probability every model gives to a token after a context."""
        device = self.log_probs.device
        rows, columns = (torch.as_tensor(index, dtype=torch.long, device=device) for index in (context, token))
        return _numpy(self.log_probs[:, rows, columns])

    def facts(self, own_log_prob: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
        """The arrays of `NodeFacts`, rounded; `own_log_prob` is `[M, Q]`."""
        said = {name: getattr(self, name) for name in names_of(NodeFacts) if name != "own_log_prob"}
        return rounded(said | {"own_log_prob": own_log_prob})


def _numpy(tensor: Tensor) -> NDArray[Any]:
    return tensor.cpu().numpy()


def scores(logits: Tensor, sampling: Sampling, noise: NDArray[np.float32] | None) -> Tensor:
    """`[..., V]` scores whose argmax is the next token; `noise` is `[..., V]` if coupled, None if greedy.

    Raises:
        ValueError: noise without coupled sampling or the reverse; rejection sampling, which draws tokens.
    """
    return _with_noise(truncated(logits, sampling), sampling, noise)


def _with_noise(plain: Tensor, sampling: Sampling, noise: NDArray[np.float32] | None) -> Tensor:
    if sampling.mode == "rejection":
        raise ValueError("scores choose a token if sampling is greedy or coupled, got rejection")
    if (noise is None) != (sampling.mode == "greedy"):
        raise ValueError(f"{sampling.mode} sampling takes {'a' if noise is None else 'no'} noise")
    return plain if noise is None else plain + torch.as_tensor(noise, device=plain.device)


# Below the log of every probability that is not 0 in float64.
_NEVER = -800.0


def entropies(probs: Tensor, log_probs: Tensor) -> Tensor:
    """`[...]` entropy of distributions `[..., V]`, nats, from both forms of them; 0 log 0 is 0."""
    # Not `vecdot`, which adds those of one distribution in another order.
    mean: Tensor = (probs * log_probs.clamp(min=_NEVER)).sum(dim=-1)
    return -mean


def gaps(probs: Tensor) -> Tensor:
    """`[...]` largest probability less the second largest, of distributions `[..., V]`."""
    best = probs.topk(2, dim=-1).values
    return best[..., 0] - best[..., 1]


def total_variation(probs: Tensor, other_probs: Tensor) -> Tensor:
    """`[...]` half the L1 distance of two distributions `[..., V]`, 0 to 1."""
    distance: Tensor = (probs - other_probs).abs().sum(dim=-1) / 2
    return distance.clamp(max=1.0)


def view(
    logits: Sequence[Tensor], *, sampling: Sampling, noise: NDArray[np.float32] | None, others: Tensor | None = None
) -> Views:
    """Views of Q contexts from the logits `[Q, V]` of every model, smallest first, all on one device.

    Noise is `[Q, V]` of each context's position if coupled, None if greedy. With `others`, log-probabilities `[O, Q,
    V]` of other models, distances `[M O, Q]` are to each of these instead of between pairs. Beside M x Q x V
    log-probabilities, temporaries take about `_TOGETHER_BYTES`.

    Raises:
        ValueError: noise without coupled sampling or the reverse.
    """
    count, width = logits[0].shape
    dtype = torch.float64 if logits[0].dtype == torch.float64 else torch.float32
    log_probs = torch.empty((len(logits), count, width), dtype=dtype, device=logits[0].device)
    step = max(1, _TOGETHER_BYTES[log_probs.device.type == "cpu"] // (len(logits) * width * log_probs.itemsize))
    parts = []
    for start in range(0, max(1, count), step):
        some = slice(start, start + step)
        own, beside = (None if noise is None else noise[some]), (None if others is None else others[:, some])
        parts.append(_other_fields([row[some] for row in logits], log_probs[:, some], sampling, own, beside))
    whole = {name: np.concatenate([part[name] for part in parts], axis=-1) for name in parts[0]}
    return Views(**whole, log_probs=log_probs)


def _other_fields(
    logits: Sequence[Tensor],
    log_probs: Tensor,
    sampling: Sampling,
    noise: NDArray[np.float32] | None,
    others: Tensor | None,
) -> dict[str, NDArray[Any]]:
    """The other fields of `Views`; writes the log-probabilities to `log_probs` `[M, Q, V]`."""
    plain = truncated(torch.stack(list(logits)), sampling)
    ranked = _with_noise(plain, sampling, noise)
    log_probs.copy_(torch.log_softmax(plain, dim=-1))
    best = ranked.topk(2, dim=-1)
    ahead = best.values[..., 0] - best.values[..., 1]
    chosen = best.indices[..., 0]
    if (ahead <= 0).any():  # argmax takes the first of equal scores; topk guarantees no order
        chosen = torch.where(ahead > 0, chosen, ranked.argmax(dim=-1))
    probs = plain.softmax(dim=-1)
    return {
        "next_token": _numpy(chosen).astype(np.int32),
        "next_log_prob": _numpy(log_probs.gather(-1, chosen[..., None])[..., 0]),
        "top_log_prob": _numpy(log_probs.amax(dim=-1)),
        "gap": _numpy(gaps(probs) if noise is not None else _ahead(probs, best.indices)),
        "entropy": _numpy(entropies(probs, log_probs)),
        "tvd": _pair_distances(probs) if others is None else _distances(probs, others.exp()),
        "near_tie": _numpy(ahead < NEAR_TIE),
    }


def _ahead(probs: Tensor, best: Tensor) -> Tensor:
    """As `gaps`, from the two best `[..., 2]`: the order by score is that by probability."""
    two = probs.gather(-1, best)
    return two[..., 0] - two[..., 1]


def _distances(probs: Tensor, others: Tensor) -> NDArray[np.float32]:
    """`[M O, Q]` total variation distances of `[M, Q, V]` to `[O, Q, V]` distributions."""
    return np.concatenate([_numpy(total_variation(own, others)) for own in probs])


def _pair_distances(probs: Tensor) -> NDArray[np.float32]:
    """`[P, Q]` total variation distances of all pairs of `[M, Q, V]` distributions."""
    num_models, num_contexts, _ = probs.shape
    pairs = [(low, high) for low in range(num_models) for high in range(low + 1, num_models)]
    if not pairs:
        return np.zeros((0, num_contexts), dtype=np.float32)
    return np.stack([_numpy(total_variation(probs[low], probs[high])) for low, high in pairs])


@dataclass(frozen=True, slots=True, kw_only=True)
class Contexts:
    """Contexts equally far from the trunk, not yet evaluated."""

    parent: Ints  # [Q] node
    token: Ints  # [Q] the token after the parent
    depth: Ints  # [Q] tokens after the prompt
    own_log_prob: Floats32  # [M, Q] what each model gave to the token
    further_log_prob: Floats32  # [E, Q] the same for the further depths of a drafter from the target's states
    allowance: Ints  # [W, Q] how many tokens each writer may write here (`offspring`)
    last_trunk_slot: Ints  # [Q] slot of the last token shared with the trunk
    path: Ints  # [Q, F] slots of the ancestors after that

    def __len__(self) -> int:
        return len(self.token)

    @property
    def parent_slot(self) -> Ints:
        """`[Q]` slot of the token before."""
        return self.path[:, -1] if self.path.shape[1] else self.last_trunk_slot

    def take(self, places: NDArray[np.intp]) -> "Contexts":
        """Some of them."""
        columns: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        # All except the path have contexts in their last dimension.
        taken = {name: column[..., places] for name, column in columns.items() if name != "path"}
        return Contexts(**taken, path=self.path[places])


def writers_of(closure: Closure, num_models: int, *, reader: int | None = None, depths: int = 1) -> Writers:
    """The writers off the trunk: all models below the target, in a full closure the target too."""
    return Writers.of(num_models if closure.kind == "full" else num_models - 1, reader=reader, depths=depths)


def first_allowance(closure: Closure, num_contexts: int, writers: Writers) -> Ints:
    """`[W, Q]` how many tokens each writer may write after a context of the trunk, Q of them from the prompt on."""
    allowance = np.full((len(writers), num_contexts), closure.reach, dtype=np.int32)
    allowance[_read_in_any_case(writers, np.arange(num_contexts, dtype=np.int32))] = 0
    return allowance


def offspring(
    closure: Closure, next_token: Ints, allowance: Ints, *, writers: Writers, depth: Ints, off_trunk: int
) -> NextLevel:
    """The next level: the children of Q contexts, one per context and token.

    Writers may write `allowance` `[W, Q]` tokens there, 0 where their token is on the trunk; further rows of
    `next_token` are not read. `depth` is `[Q]` tokens after the prompt, the last `off_trunk` of them off the trunk.
    """
    branches = grow(next_token[: len(allowance)], allowance, closure.run, writers)
    full = closure.kind == "full"
    allowed = np.full_like(branches.allowance, closure.reach) if full else branches.allowance.copy()
    allowed[_read_in_any_case(writers, depth[branches.parent] + np.int32(1))] = 0
    if closure.kind == "monotone":  # the target judges on the trunk only, so contexts off it are not judged
        allowed[(writers.depth > 0) & (writers.depth < off_trunk + 2)] = 0
    return replace(branches, allowance=allowed)


def _read_in_any_case(writers: Writers, depth: Ints) -> NDArray[np.bool_]:
    """`[W, C]` whether a writer's depth reaches into the prompt, which the target has read."""
    return writers.depth[:, None] > depth
