"""A draft loop captured whole: all its forwards and choices, and one wait for the device.

How tokens are chosen and kept where the logits are: nothing here waits for the device.

The same arithmetic as `executor.sampler.SameToken` and `state.request_state.signals`. Letters: N contexts, R rows, Q
tokens of a row, V vocabulary.

Captures functions when they are first needed, as far as there is memory, and says where it did not.

What a captured step reads, and where it goes.

Letters: B requests, R rows and Q tokens of a bucket, V vocabulary.

Greedy and coupled sampling only: rejection sampling draws on the host.

Letters: B requests, R rows and Q tokens of a bucket, n tokens of the loop, V vocabulary.

A verification captured whole: the forward, the verifier's own tokens, and how many judged tokens equal them.

Greedy and coupled sampling, and lossless rules only: other verdicts take chance or arithmetic of the host.

Letters: B requests, R rows and Q tokens of a bucket, K judged tokens of one request, N = sum of K + 1 contexts, V
vocabulary.

A model's forwards as captured functions, one for each bucket of rows, tokens and slots.

Letters: T new tokens of all requests, N of them kept, R rows and Q tokens of a bucket, V vocabulary.
"""

import sys
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, Protocol
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..traces.meta import Sampling
from .caches import KVShape, MemberKV, Placement
from .recording.views import entropies, gaps
from .sampling import truncated
from .static_memory import (
    MOST_ROW_TOKENS,
    MOST_TOKENS,
    Bucket,
    Capture,
    Captured,
    Run,
    StaticInputs,
    StaticMemory,
    StaticSlotCache,
    bucket_of,
    power_of_two,
)


def choose(rows: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
    """`[N]` tokens and `[N]` their scores, from `[N, V]` distributions and, if coupled, `[N, V]` noise."""
    best, tokens = (rows if noise is None else rows + noise).max(dim=-1)
    return tokens, best


def said_of(rows: Tensor, tokens: Tensor) -> Tensor:
    """`[N, 3]` log-probability of each token, entropy, and gap of the two largest probabilities, unrounded."""
    log_probs = torch.log_softmax(rows, dim=-1)
    probs = log_probs.exp()
    return torch.stack([log_probs.gather(-1, tokens[:, None])[:, 0], entropies(probs), gaps(probs)], dim=-1)


def accept(ids: Tensor, written: Tensor, best: Tensor, starts: Tensor, judged: Tensor) -> Tensor:
    """`[R, 3]` how many judged tokens of each row stay, the verifier's own after them, whether logits are finite.

    A judged token stays if it and all before it are what the verifier writes.

    Args:
        ids: `[R, Q]` what was read.
        written: `[R, Q]` what the verifier writes after each of them.
        best: `[R, Q]` its scores.
        starts: `[R]` column of the context of the first judged token, which stands in the next column.
        judged: `[R]` how many tokens are judged, >= 0, all within Q.
    """
    columns = torch.arange(ids.shape[1], device=ids.device)
    after_start = columns - starts[:, None]
    # Column c says what follows the token in c, so the token in c + 1 is compared with it.
    same = written == ids.roll(-1, dims=1)
    judging = (after_start >= 0) & (after_start < judged[:, None])
    accepted = ((same & judging) | (after_start < 0)).long().cumprod(dim=1).sum(dim=1) - starts
    own = written.gather(1, (starts + accepted)[:, None])[:, 0]
    outside = (after_start < 0) | (after_start > judged[:, None])
    finite = (best.isfinite() | outside).all(dim=1)
    return torch.stack([accepted, own, finite.long()], dim=-1)


# Most that a capture may take of what a device has free, and all of a member's of a limit that is set for caches.
_MOST_OF_FREE, _MOST_OF_LIMIT = 0.5, 0.1


def shaped_by(sampling: Sampling) -> Hashable:
    """What of a sampling a captured function depends on: noise is among its inputs, and so no seed is."""
    return sampling.mode, sampling.temperature, sampling.top_k, sampling.top_p


class Forward(Protocol):
    """What is captured: a forward that neither waits for the device nor chooses shapes by what is on it."""

    @property
    def kv_shape(self) -> KVShape:
        """What the cache must hold of one token."""

    def __call__(self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Tensor | slice) -> Tensor:
        """`[N, V]` logits after the kept tokens."""


class GraphStore:
    """The static memories of one member, and what is captured over each.

    Args:
        forward: runs the model on what is in the buffers.
        capture: makes it repeatable.
        vocab_size: of its logits.
        context_tokens: longest text, >= 1.

    Attributes:
        forward, vocab_size: as given.
        reasons: why something was not captured, each once; it is called instead.
    """

    def __init__(self, forward: Forward, capture: Capture, *, vocab_size: int, context_tokens: int) -> None:
        self.forward = forward
        self.vocab_size = vocab_size
        self.reasons: list[str] = []
        self._capture = capture
        self._context_tokens = context_tokens
        self._memories: list[StaticMemory] = []

    def new_cache(self, limit_bytes: int | None) -> StaticSlotCache:
        """A cache over a memory that nobody has, with what was captured over it.

        Args:
            limit_bytes: of all caches on the device together; None for whatever it has.
        """
        free = [memory for memory in self._memories if memory.free]
        memory = free[0] if free else StaticMemory()
        # A second one is kept while it is used only.
        self._memories = [one for one in self._memories if not one.free or one is memory]
        if not free:
            self._memories.append(memory)
        cache = StaticSlotCache(
            self.forward.kv_shape, memory, context_tokens=self._context_tokens, roomy=limit_bytes is None
        )
        memory.owner = ref(cache)
        memory.limit_bytes = limit_bytes
        return cache

    def memory_of(self, cache: MemberKV) -> StaticMemory | None:
        """The static memory that a cache has; None for a cache of another kind."""
        return next((memory for memory in self._memories if memory.owner is not None and memory.owner() is cache), None)

    def captured(
        self,
        memory: StaticMemory,
        what: Hashable,
        bucket: Bucket,
        make: Callable[[StaticInputs], Run],
        *,
        num_logits: int,
    ) -> Captured:
        """The captured function of this kind and bucket, captured now if it was not.

        Args:
            memory: it runs over.
            what: it does; the key, with the bucket. What differs from call to call is an input and no part of it.
            bucket: of its inputs.
            make: the function, over the buffers it is given.
            num_logits: rows of `[V]` that it gives, for its need of memory.
        """
        found = memory.captured.get((what, bucket))
        if found is None:
            inputs = StaticInputs(bucket, memory.cache)
            replay = run = make(inputs)
            before = self._capture.used_bytes()
            # What is in the buffers now is no forward of anybody: it writes to the slots that are nobody's.
            if self._has_room(memory, bucket, num_logits):
                try:
                    replay = self._capture.capture(run)
                except RuntimeError as error:
                    self._note(f"{bucket} cannot be captured: {str(error).splitlines()[0]}")
            found = Captured(inputs=inputs, replay=replay, num_bytes=self._capture.used_bytes() - before)
            memory.captured[what, bucket] = found
        return found

    def _has_room(self, memory: StaticMemory, bucket: Bucket, num_logits: int) -> bool:
        free = self._capture.free_bytes()
        if free is None:
            return True
        # Logits, their float32 copy and what is sorted or added to them.
        needed = num_logits * self.vocab_size * 4 * 4
        if needed > _MOST_OF_FREE * free:
            self._note(f"{bucket} are not captured: that takes {needed:,} bytes, and the device has {free:,} free")
            return False
        used, limit = memory.captured_bytes, memory.limit_bytes
        if limit is not None and used + needed > _MOST_OF_LIMIT * limit:
            self._note(f"{bucket} are not captured: that makes {used + needed:,} bytes, and the KV limit is {limit:,}")
            return False
        return True

    def _note(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)
            sys.stderr.write(f"paceline: forwards of {reason}; they are called one by one\n")


Noise = NDArray[np.float32]


class Feed(NamedTuple):
    """The tokens a step reads; a cache holds what is before them.

    Attributes:
        request_ids: `[B]` different, in the order of the cache's rows.
        tokens: `[B]` of each, one at least.
    """

    request_ids: Sequence[str]
    tokens: Sequence[Sequence[int]]

    @property
    def counts(self) -> list[int]:
        """`[B]` tokens of each request."""
        return [len(tokens) for tokens in self.tokens]

    def ids(self, device: torch.device) -> Tensor:
        """All tokens, request after request."""
        return torch.from_numpy(np.array([token for tokens in self.tokens for token in tokens])).to(device)


class Placed(NamedTuple):
    """A feed that has its place.

    Attributes:
        memory, bucket: what is captured for it.
        placement: of its tokens.
        rows: `[B]` of the cache.
    """

    memory: StaticMemory
    bucket: Bucket
    placement: Placement
    rows: list[int]


def place(store: GraphStore, cache: MemberKV, feed: Feed, *, further: int = 0) -> Placed | None:
    """Place a feed in a cache that has room for it.

    None, with nothing placed, where that is not captured: in a cache of another kind, or for too many tokens.

    Args:
        store: of the member.
        cache: mutated.
        feed: what is read.
        further: tokens that each request may come to hold beyond it, in the same step.
    """
    memory, counts = store.memory_of(cache), feed.counts
    longest = power_of_two(max(counts))
    if memory is None or longest > MOST_ROW_TOKENS or longest * cache.num_rows > MOST_TOKENS:
        return None
    placement = cache.place(feed.request_ids, counts)
    bucket = bucket_of(placement, cache, further=further)
    assert bucket is not None  # as its tokens are few
    return Placed(memory, bucket, placement, [cache.rows[request_id] for request_id in feed.request_ids])


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
        _fill_draft(captured.inputs, placed, feed, most, noise)
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


def _fill_draft(inputs: StaticInputs, placed: Placed, feed: Feed, most: Sequence[int], noise: Noise | None) -> None:
    device, bucket = inputs.ids.device, inputs.bucket
    inputs.fill(feed.ids(device), placed.placement)
    ends = np.zeros((2, bucket.rows), dtype=np.int64)
    ends[_LAST] = np.arange(bucket.rows) * bucket.tokens
    ends[_LAST, placed.rows] += np.array(feed.counts) - 1
    ends[_MOST, placed.rows] = most
    inputs.extra["ends"].copy_(torch.from_numpy(ends))
    if noise is not None:
        inputs.extra["noise"][:, placed.rows] = torch.from_numpy(noise).to(device)


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
        kept = _fill_verify(captured.inputs, placed, feed, judged, noise)
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


def _fill_verify(
    inputs: StaticInputs, placed: Placed, feed: Feed, judged: Sequence[int], noise: Noise | None
) -> Tensor:
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


class GraphForward:
    """Another forward, captured; see `ModelForward`.

    Long feeds (prompts) and caches of another kind run as that forward does.

    Args:
        inner: what is captured.
        capture: how.
        vocab_size: V.
        context_tokens: positions there are, >= 1.

    Attributes:
        whole_draft, whole_verify: see `ModelForward`.
        store: what is captured, and why something is not.
    """

    name = "graphs"

    def __init__(self, inner: Forward, capture: Capture, *, vocab_size: int, context_tokens: int) -> None:
        self.store = GraphStore(inner, capture, vocab_size=vocab_size, context_tokens=context_tokens)
        self.whole_draft: CapturedDraft | None = CapturedDraft(self.store)
        self.whole_verify: CapturedVerify | None = CapturedVerify(self.store)
        self._inner = inner

    @property
    def kv_shape(self) -> KVShape:
        """What the cache must hold of one token."""
        return self._inner.kv_shape

    def slot_cache(self, *, limit_bytes: int | None = None) -> StaticSlotCache:
        """See `ModelForward`; over memory that captured functions refer to."""
        return self.store.new_cache(limit_bytes)

    @torch.inference_mode()
    def __call__(self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Tensor | slice) -> Tensor:
        """See `ModelForward`."""
        memory = self.store.memory_of(cache)
        bucket = None if memory is None else bucket_of(placement, cache)
        if memory is None or bucket is None:
            return self._inner(ids, placement, cache, keep)
        num_logits = bucket.rows * bucket.tokens
        captured = self.store.captured(memory, "forward", bucket, self._run_over, num_logits=num_logits)
        at = captured.inputs.fill(ids, placement)
        (logits,) = captured.replay()
        # A copy: the next replay of anything writes its results there.
        return logits.index_select(0, at[keep])

    def with_states(
        self, ids: Tensor, placement: Placement, cache: MemberKV, keep: Tensor | slice
    ) -> tuple[Tensor, Tensor]:
        """See `ModelForward`; a captured forward hands out logits alone."""
        raise ValueError("CUDA graphs give no hidden states")

    def _run_over(self, inputs: StaticInputs) -> Run:
        """Logits `[R Q, V]` of all tokens in the buffers."""

        def run() -> tuple[Tensor, ...]:
            return (self._inner(inputs.ids, inputs.first(), inputs.cache(), slice(None)),)

        return run
