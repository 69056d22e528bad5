"""A draft loop captured whole: all its forwards and choices, and one wait for the device.

Greedy and coupled sampling only: rejection sampling draws on the host.

Letters: B requests, R rows and Q tokens of a bucket, n tokens of the loop, V vocabulary.
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
from .device_sampling import choose, said_of
from .feed import Feed, Noise, Placed, place
from .graph_store import GraphStore, shaped_by
from .static_inputs import StaticInputs

_LAST, _MOST = range(2)


class Loop(NamedTuple):
    """What is captured.

    Attributes:
        num_tokens: n, >= 1.
        sampling: greedy or coupled.
        says: whether to tell what the member says of its tokens.
    """

    num_tokens: int
    sampling: Sampling
    says: bool


class Written(NamedTuple):
    """What a loop wrote.

    Attributes:
        tokens: `[n][B]`; what is beyond a request's room means nothing.
        best: `[n][B]` the largest score, which is NaN or infinite where logits are not finite.
        said: `[n][B]` log-probability of the token, entropy, and gap of the two largest probabilities, unrounded;
            empty lists unless asked for.
        rows: `[n, R, V]` the distributions they were chosen from.
        at: `[B]` row of each request among the R.
    """

    tokens: list[list[int]]
    best: list[list[float]]
    said: list[list[list[float]]]
    rows: Tensor
    at: list[int]


class CapturedDraft:
    """Draft loops of one member.

    Args:
        store: of the member.
    """

    def __init__(self, store: GraphStore) -> None:
        self._store = store

    @torch.inference_mode()
    def __call__(
        self, cache: MemberKV, feed: Feed, most: Sequence[int], loop: Loop, noise: Noise | None
    ) -> Written | None:
        """Read, and write n tokens, one forward each; None, with nothing done, where that is not captured.

        The cache then holds what was read, and what was written but for each request's last token: whoever stopped
        before rolls it back.

        Args:
            cache: mutated; has room for what is read, and all but one of the `most` tokens.
            feed: what is read.
            most: `[B]` tokens that each request may write, >= 1.
            loop: what to do.
            noise: `[n, B, V]` if coupled.
        """
        placed = place(self._store, cache, feed, further=loop.num_tokens - 1)
        if placed is None:
            return None
        bucket = placed.bucket
        captured = self._store.captured(
            placed.memory,
            ("draft", loop.num_tokens, loop.says, shaped_by(loop.sampling)),
            bucket,
            lambda inputs: self._run_over(inputs, loop),
            num_logits=bucket.rows * (bucket.tokens + loop.num_tokens),
        )
        _fill(captured.inputs, placed, feed, most, noise)
        numbers, rows = captured.replay()
        for request_id, room in zip(feed.request_ids, most, strict=True):
            placed.memory.cache().advance(request_id, min(loop.num_tokens, room) - 1)
        at = placed.rows
        read: list[list[list[float]]] = numbers.tolist()  # waits for the device
        return Written(
            tokens=[[int(step[row][0]) for row in at] for step in read],
            best=[[step[row][1] for row in at] for step in read],
            said=[[step[row][2:] for row in at] for step in read],
            rows=rows.clone(),
            at=at,
        )

    def _run_over(self, inputs: StaticInputs, loop: Loop) -> Run:
        """`[n, R, 2 or 5]` tokens, scores and what is said of them, and `[n, R, V]` distributions."""
        rows, device = inputs.bucket.rows, inputs.cache().shape.device
        inputs.extra["ends"] = torch.zeros((2, rows), dtype=torch.long, device=device)
        if loop.sampling.mode == "coupled":
            size = (loop.num_tokens, rows, self._store.vocab_size)
            inputs.extra["noise"] = torch.zeros(size, dtype=torch.float32, device=device)

        def run() -> tuple[Tensor, ...]:
            last, most = inputs.extra["ends"]
            noise = inputs.extra.get("noise")
            read_to = inputs.positions.index_select(0, last)
            logits = self._store.forward(inputs.ids, inputs.first(), inputs.cache(), slice(None)).index_select(0, last)
            numbers, distributions = [], []
            tokens = last
            for step in range(loop.num_tokens):
                if step:
                    going = most > step
                    positions = torch.where(going, read_to + step, 0)
                    placement = inputs.next_one(positions, going)
                    logits = self._store.forward(tokens, placement, inputs.cache(), slice(None))
                shaped = truncated(logits, loop.sampling)
                tokens, best = choose(shaped, None if noise is None else noise[step])
                said = [said_of(shaped, tokens).double()] if loop.says else []
                numbers.append(torch.cat([torch.stack([tokens.double(), best.double()], dim=-1), *said], dim=-1))
                distributions.append(shaped)
            return torch.stack(numbers), torch.stack(distributions)

        return run


def _fill(inputs: StaticInputs, placed: Placed, feed: Feed, most: Sequence[int], noise: Noise | None) -> None:
    device, bucket = inputs.ids.device, inputs.bucket
    inputs.fill(feed.ids(device), placed.placement)
    ends = np.zeros((2, bucket.rows), dtype=np.int64)
    ends[_LAST] = np.arange(bucket.rows) * bucket.tokens
    ends[_LAST, placed.rows] += np.array(feed.counts) - 1
    ends[_MOST, placed.rows] = most
    inputs.extra["ends"].copy_(torch.from_numpy(ends))
    if noise is not None:
        inputs.extra["noise"][:, placed.rows] = torch.from_numpy(noise).to(device)
