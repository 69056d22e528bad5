"""What a drafter from the target's states says at depths beyond 1, as a trie keeps it.

Letters: E further depths, Q contexts, C children, M models, O = M - 1 others, W writers (`Writers`), V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...traces.meta import Sampling
from ...traces.tries.features.views import NO_TOKEN, FeatureViews
from ...traces.tries.stored_resolution import ENTROPIES, LOG_PROBS, UNITS
from ...traces.tries.trie import Ints
from ..next_token_views import Views, total_variation, view
from .contexts import Floats32
from .feature_tree import depths_known


@dataclass(frozen=True, slots=True, kw_only=True)
class FurtherViews:
    """Views of Q contexts, unrounded; where a depth reaches into what the target has read, tokens are -1.

    Attributes:
        known: `[E, Q]` whether there is a view.
        depths: `[E]` what each depth says, as of one model.
        tvd: `[E O, Q]` distance to each other model, all of one depth side by side.
    """

    known: NDArray[np.bool_]
    depths: tuple[Views, ...]
    tvd: Floats32

    @property
    def next_token(self) -> Ints:
        """`[E, Q]`."""
        return self._rows("next_token", NO_TOKEN).astype(np.int32)

    def log_prob_of(self, context: Ints, token: Ints) -> Floats32:
        """`[E, C]` log-probability of a token after a context; 0 where there is no view."""
        rows = [each.log_prob_of(context, token)[0] for each in self.depths]
        given: Floats32 = np.where(self.known[:, context], np.array(rows).reshape(len(rows), len(token)), 0.0)
        return given.astype(np.float32)

    def num_near_ties(self, among: NDArray[np.bool_]) -> int:
        """Choices among some contexts whose two best scores nearly tie."""
        return int((self._rows("near_tie", 0) * among).sum())

    def columns(self, own_log_prob: Floats32) -> dict[str, NDArray[Any]]:
        """The columns of `FeatureViews`, rounded; `own_log_prob` is `[E, Q]`."""
        times = len(self.tvd) // max(1, len(self.depths))
        return {
            "next_token": self.next_token,
            "next_log_prob": LOG_PROBS.round(self._rows("next_log_prob", 0)),
            "top_log_prob": LOG_PROBS.round(self._rows("top_log_prob", 0)),
            "gap": UNITS.round(self._rows("gap", 0)),
            "entropy": ENTROPIES.round(self._rows("entropy", 0)),
            "own_log_prob": LOG_PROBS.round(own_log_prob),
            "tvd": UNITS.round(np.where(self.known.repeat(times, axis=0), self.tvd, 0)),
        }

    def _rows(self, name: str, unknown: float) -> NDArray[Any]:
        rows = np.array([getattr(each, name)[0] for each in self.depths]).reshape(self.known.shape)
        return np.where(self.known, rows, unknown)


def further_views(
    logits: Sequence[Tensor],
    seen: Views,
    reader: int,
    depth: Ints,
    *,
    sampling: Sampling,
    noise: NDArray[np.float32] | None,
) -> FurtherViews:
    """Views at further depths.

    Args:
        logits: `[E]` of each depth, `[Q, V]`; of no account where the target has read all.
        seen: of all models, the drafter at depth 1.
        reader: index of the drafter.
        depth: `[Q]` tokens after the prompt.
        sampling: as of `next_token_views.view`.
        noise: likewise.
    """
    known = depths_known(depth, len(logits) + 1)
    others = [index for index in range(len(seen.next_token)) if index != reader]
    probs = seen.log_probs.exp()
    found, distances = [], []
    for row, there in zip(logits, known, strict=True):
        at = torch.from_numpy(there).to(row.device)
        said = view([torch.where(at[:, None], row, torch.zeros_like(row))], sampling=sampling, noise=noise)
        found.append(said)
        own = said.log_probs[0].exp().to(probs.device)
        distances += [total_variation(own, probs[other]).cpu().numpy() for other in others]
    shape = (len(distances), len(depth))
    return FurtherViews(known=known, depths=tuple(found), tvd=np.array(distances, dtype=np.float32).reshape(shape))


def written_by(seen: Views, further: FurtherViews | None, reader: int | None) -> Ints:
    """`[W, Q]` what each writer writes, of all models: the drafter's further depths after its first one."""
    if further is None or reader is None:
        return seen.next_token
    at = reader + 1
    return np.concatenate([seen.next_token[:at], further.next_token, seen.next_token[at:]])


def feature_views(columns: Sequence[dict[str, NDArray[Any]]]) -> FeatureViews | None:
    """Those of a whole trie, from `FurtherViews.columns` of its parts; None without further depths."""
    if not columns or not len(columns[0]["next_token"]):
        return None
    return FeatureViews(**{name: np.concatenate([part[name] for part in columns], axis=-1) for name in columns[0]})
