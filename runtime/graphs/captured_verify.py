"""A verification captured whole: the forward, the verifier's own tokens, and how many judged tokens equal them.

Greedy and coupled sampling, and lossless rules only: other verdicts take chance or arithmetic of the host.

Letters: B requests, R rows and Q tokens of a bucket, K judged tokens of one request, N = sum of K + 1 contexts, V
vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...traces.meta import Sampling
from ..kv.member_kv import MemberKV
from ..sampling.truncation import truncated
from .capture import Run
from .device_sampling import accept, choose
from .feed import Feed, Noise, Placed, place
from .graph_store import GraphStore, shaped_by
from .static_inputs import StaticInputs


class JudgedTokens(NamedTuple):
    """What a verification found.

    Attributes:
        accepted: `[B]` leading judged tokens that the verifier writes itself.
        own: `[B]` the verifier's own token after them.
        finite: `[B]` whether all logits of a request are.
        rows: `[N, V]` the verifier's distributions, request after request.
    """

    accepted: list[int]
    own: list[int]
    finite: list[bool]
    rows: Tensor


class CapturedVerify:
    """Verifications by one member.

    Args:
        store: of the member.
    """

    def __init__(self, store: GraphStore) -> None:
        self._store = store

    @torch.inference_mode()
    def __call__(
        self, cache: MemberKV, feed: Feed, judged: Sequence[int], sampling: Sampling, noise: Noise | None
    ) -> JudgedTokens | None:
        """Read, and judge the last tokens of what each request reads; None, with nothing done, where not captured.

        Args:
            cache: mutated, has room; it then holds all that was read.
            feed: what is read.
            judged: `[B]` K of each request, less than it reads.
            sampling: greedy or coupled.
            noise: `[N, V]` if coupled.
        """
        placed = place(self._store, cache, feed)
        if placed is None:
            return None
        bucket = placed.bucket
        captured = self._store.captured(
            placed.memory,
            ("verify", shaped_by(sampling)),
            bucket,
            lambda inputs: self._run_over(inputs, sampling),
            num_logits=bucket.rows * bucket.tokens,
        )
        kept = _fill(captured.inputs, placed, feed, judged, noise)
        numbers, rows = captured.replay()
        read: list[list[int]] = numbers.tolist()  # waits for the device
        return JudgedTokens(
            accepted=[read[row][0] for row in placed.rows],
            own=[read[row][1] for row in placed.rows],
            finite=[bool(read[row][2]) for row in placed.rows],
            rows=rows.index_select(0, kept),
        )

    def _run_over(self, inputs: StaticInputs, sampling: Sampling) -> Run:
        """`[R, 3]` as of `accept`, and `[R Q, V]` distributions."""
        rows, width, _ = inputs.bucket
        device = inputs.cache().shape.device
        inputs.extra["spans"] = torch.zeros((2, rows), dtype=torch.long, device=device)
        if sampling.mode == "coupled":
            size = (rows * width, self._store.vocab_size)
            inputs.extra["noise"] = torch.zeros(size, dtype=torch.float32, device=device)

        def run() -> tuple[Tensor, ...]:
            starts, judged = inputs.extra["spans"]
            logits = self._store.forward(inputs.ids, inputs.first(), inputs.cache(), slice(None))
            shaped = truncated(logits, sampling)
            written, best = choose(shaped, inputs.extra.get("noise"))
            found = accept(
                inputs.ids.view(rows, width), written.view(rows, width), best.view(rows, width), starts, judged
            )
            return found, shaped

        return run


def _fill(inputs: StaticInputs, placed: Placed, feed: Feed, judged: Sequence[int], noise: Noise | None) -> Tensor:
    """Returns `[N]` where the contexts stand among the R Q."""
    device, width = inputs.ids.device, inputs.bucket.tokens
    inputs.fill(feed.ids(device), placed.placement)
    spans = np.zeros((2, inputs.bucket.rows), dtype=np.int64)
    contexts: list[int] = []
    for row, count, num_judged in zip(placed.rows, feed.counts, judged, strict=True):
        start = count - num_judged - 1
        spans[:, row] = start, num_judged
        contexts.extend(range(row * width + start, row * width + count))
    inputs.extra["spans"].copy_(torch.from_numpy(spans))
    kept = torch.tensor(contexts, device=device)
    if noise is not None:
        inputs.extra["noise"].index_copy_(0, kept, torch.from_numpy(noise).to(device))
    return kept
