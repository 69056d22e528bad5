"""Decode prompts with real models under a policy: the runtime's counterpart of `sim.simulate`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from ..policies.contract import Policy
from ..policies.loop import Loop
from ..policies.session import Session
from ..traces.meta import Sampling
from ..traces.run_ledger import RunLedger
from ..traces.run_log import RunLog
from .clock import Clock
from .loaded_pool import loaded_pool
from .pool import ModelPool
from .progress import progress_bar
from .prompts import Prompt
from .world import TransformersWorld


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What one request was answered.

    Attributes:
        request_id: of the prompt.
        tag: of the prompt.
        tokens: committed ids behind the prompt, the end-of-sequence token included.
        text: those tokens decoded.
    """

    request_id: str
    tag: str
    tokens: tuple[int, ...]
    text: str


def decode(
    pool: ModelPool,
    policy: Policy,
    prompts: Sequence[Prompt],
    *,
    sampling: Sampling,
    max_new_tokens: int,
    name: str,
    batch: int = 1,
    debug: bool = False,
    show_progress: bool = True,
) -> tuple[tuple[Output, ...], RunLog]:
    """Answer every prompt; `batch` requests run at a time, their forwards one after another.

    The log's `divergent_tokens` are 0: nobody knows here what the target alone would have written.

    Args:
        pool: its last member is the target.
        policy: built for `loaded_pool(pool)`; one object for all requests.
        prompts: their ids must differ.
        sampling: greedy or coupled.
        max_new_tokens: budget of each request, >= 1.
        name: of the policy, for errors and the log.
        batch: requests that take turns, >= 1.
        debug: check the caches at every step.
        show_progress: draw a bar where stderr is a terminal.

    Returns:
        Outputs in the order of `prompts`, and the run log.

    Raises:
        ValueError: an id twice, or a prompt that does not fit into the pool's context with its budget.
        PolicyError: the policy broke the contract.
        NonFiniteLogitsError: a model returned NaN or infinity.
    """
    if batch < 1:
        raise ValueError(f"batch must be >= 1, got {batch}")
    members = loaded_pool(pool)
    clock = Clock(member.model.device for member in pool.members if member.model is not None)
    world = TransformersWorld(pool=pool, sampling=sampling, clock=clock, debug=debug)
    ledger = RunLedger()
    loop = Loop(pool=members, policy=policy, name=name, world=world, ledger=ledger)
    sessions = [_session(pool, loop, prompt, max_new_tokens) for prompt in prompts]
    _check_ids(sessions)
    with progress_bar(shown=show_progress) as bar:
        task = bar.add_task("decoding", total=len(sessions))
        for num_finished in _run(loop, world, ledger, clock, sessions, batch):
            bar.advance(task, num_finished)
    outputs = tuple(
        Output(
            request_id=session.request_id,
            tag=session.tag,
            tokens=tuple(session.emitted),
            text=pool.decode(session.emitted),
        )
        for session in sessions
    )
    meta = {
        "world": "runtime",
        "policy": name,
        "pool": pool.name,
        "sampling": sampling.model_dump(),
        "max_new_tokens": max_new_tokens,
        "batch": batch,
        "members": list(members.names),
    }
    return outputs, ledger.finish(meta, reanchored={}, divergent={})


def _run(
    loop: Loop, world: TransformersWorld, ledger: RunLedger, clock: Clock, sessions: Iterable[Session], batch: int
) -> Iterator[int]:
    """Drive the loop until every session is done; yields how many finished, operation by operation."""
    waiting = iter(sessions)
    idle = batch
    while True:
        now_s = clock.now_s()
        for session in islice(waiting, idle):
            ledger.note_admitted(
                session.request_id, tag=session.tag, num_prompt=session.num_prompt, arrived_at_s=now_s, now_s=now_s
            )
            loop.admit(session)
        op = loop.next_op(now_s)
        if op is not None:
            start_s = clock.now_s()
            results = world.execute(op)
            loop.finish(op, results, start_s=start_s, now_s=clock.now_s())
        elif not loop.finished:  # a Commit finishes requests without an operation
            return
        idle = len(loop.finished)
        loop.finished.clear()
        yield idle


def _session(pool: ModelPool, loop: Loop, prompt: Prompt, max_new_tokens: int) -> Session:
    tokens = tuple(pool.encode(prompt.text))
    if len(tokens) + max_new_tokens > pool.context_tokens:
        raise ValueError(
            f"request {prompt.request_id}: prompt of {len(tokens)} tokens and max_new_tokens {max_new_tokens} must fit "
            f"into the pool's context of {pool.context_tokens} tokens"
        )
    return Session(
        pool=loop.pool,
        request_id=prompt.request_id,
        tag=prompt.tag,
        prompt=tokens,
        budget=max_new_tokens,
        eos=pool.eos_token_id,
    )


def _check_ids(sessions: Sequence[Session]) -> None:
    seen: set[str] = set()
    for session in sessions:
        if session.request_id in seen:
            raise ValueError(f"request ids must be unique, got {session.request_id!r} twice")
        seen.add(session.request_id)
