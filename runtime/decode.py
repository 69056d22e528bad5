"""Decode prompts with real models under a policy: the runtime's counterpart of `sim.simulate`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from math import isfinite
from typing import Literal

import numpy as np

from ..arguments import check_least
from ..decoding.policy import Policy
from ..decoding.prefill import Start
from ..decoding.request_tokens import FinishReason
from ..decoding.rollouts.branching import Rollouts
from ..decoding.rollouts.growth import Growth, growth_of
from ..decoding.session import Session
from ..foreign_code import raised_at
from ..progress import Progress
from ..runs.log import RunLog
from ..runs.plain_pace import seconds_per_token
from ..traces.meta import Sampling
from .ahead.pace import AheadKind
from .driver import INTERRUPTED, Driver, OnCommit
from .fit import check_fit
from .forward.forward_choice import ForwardKind
from .memory import Memory
from .pools.pool import ModelPool
from .prompts import Prompt
from .run import Run, sessions_of
from .timing.plain_speed import plain_step_s
from .timing.priced_seconds import Prices
from .tokenizers.stop_strings import make_ending, text_before_stop
from .tokenizers.text_stream import TextStream
from .world import TorchWorld

OnToken = Callable[[str, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What one request was answered.

    Attributes:
        request_id: of the prompt.
        tag: of the prompt.
        tokens: committed ids after the prompt, an end-of-sequence token or the end of a stop string included; of a path
            of rollouts all from the prompt of the first path on.
        text: those tokens decoded, up to where a stop string begins.
        finish_reason: an end-of-sequence token (`eos`), the budget (`length`), a stop string (`stop`), or that the
            request failed (`error`).
        error: why it failed; empty if it did not.
        parent: of a path that left another one in rollouts, that one's request id; else empty.
        depth: tokens of answer that both share; 0 without a parent.
    """

    request_id: str
    tag: str
    tokens: tuple[int, ...]
    text: str
    finish_reason: FinishReason | Literal["error"]
    error: str = ""
    parent: str = ""
    depth: int = 0


def decode(
    pool: ModelPool,
    policy: Policy,
    prompts: Sequence[Prompt],
    *,
    sampling: Sampling,
    max_new_tokens: int,
    name: str,
    batch: int = 1,
    memory: Memory | None = None,
    forward: ForwardKind = "auto",
    stop: Sequence[str] = (),
    start: Start = Start.prefill,
    on_token: OnToken | None = None,
    prices: Prices | None = None,
    debug: bool = False,
    rollouts: Rollouts | None = None,
    overlap: AheadKind = "auto",
) -> tuple[tuple[Output, ...], RunLog]:
    """Answer every prompt; up to `batch` requests share each forward.

    The log's `divergent_tokens` are 0: nobody knows here what the target alone would have written. An interrupt
    (KeyboardInterrupt) ends the run early: outputs hold the requests that ended, `log.meta["interrupted"]` is True, and
    `log.meta["interrupted_at"]` is the line of the policy's file, if it came there.

    Args:
        pool: its last member is the target.
        policy: built for `loaded_pool(pool)`; one object for all requests.
        prompts: their ids must differ.
        sampling: greedy, coupled or rejection.
        max_new_tokens: budget of each request, >= 1.
        name: of the policy, for errors and the log.
        batch: requests running at a time, >= 1.
        memory: kind of cache and its limit; slots without a limit by default.
        forward: how models run, see `forward.choose_forward`.
        stop: texts that end an answer.
        start: how requests begin, `prefill` or `draft`.
        on_token: called with request id, token and the text it adds, for every committed token; of a path of rollouts
            those after its branch.
        prices: what operations are said to take, to policy and log alike; None measures, and compares with plain
            decoding.
        debug: check the caches at every step.
        rollouts: how prompts go on as several paths; None for one answer to each.
        overlap: how members work at the same time where the policy lets them, see `TorchWorld`.

    Returns:
        Outputs in the order of `prompts`, of each its paths in the order of `Rollouts.forks`, failed requests among
        them, and the run log.

    Raises:
        ArgumentError: an id twice, a prompt that does not fit into the pool's context with its budget, a batch whose
            caches cannot fit into the machine's memory, an empty stop string, start `recorded`, or rollouts that cannot
            be or are greedy.
        PolicyError: the policy broke the contract.
    """
    check_least("`batch`", batch, 1)
    # Its caches go before the target alone is timed, which needs memory of its own.
    with TorchWorld(
        pool=pool, sampling=sampling, memory=memory, forward=forward, debug=debug, overlap=overlap
    ) as world:
        run = Run(world, policy, name=name, on_commit=_streaming(pool, on_token), prices=prices)
        sessions = sessions_of(pool, prompts, max_new_tokens, make_ending(pool.tokenizer, stop), start=start)
        growth = None if rollouts is None else growth_of(rollouts, sessions, sampling.mode)
        num_paths = 1 if rollouts is None else rollouts.num_paths
        check_fit(pool, list(islice(cycle(sessions), min(batch, len(sessions) * num_paths))), world.memory)
        interrupted_at = _drive(run.driver, sessions, batch, growth)
    interrupted = interrupted_at is not None
    plain_s = None if interrupted or prices is not None else _plain_step_s(pool, sampling, sessions, batch, forward)
    meta = run.meta(pool=pool.name, max_new_tokens=max_new_tokens, batch=batch) | _asked_of(pool)
    meta |= {"start": Start(start).value, "plain_step_s": plain_s, "interrupted": interrupted}
    meta |= {"interrupted_at": interrupted_at} if interrupted_at else {}
    meta |= {} if rollouts is None else {"rollouts": str(rollouts)}
    log = run.ledger.finish(meta, reanchored={}, divergent={})
    if plain_s is not None:
        log = run.ledger.finish(meta, reanchored={}, divergent={}, times_plain=_times_plain(log, plain_s))
    if growth is not None:
        return tuple(_path_outputs(pool, growth, stop, run.driver.failed)), log
    outputs = [_output(pool, session, stop, run.driver.failed) for session in sessions]
    return tuple(output for output in outputs if output is not None), log


def _asked_of(pool: ModelPool) -> dict[str, object]:
    """How prompts were put, which weights were fetched, and what of the target's generation config is left off."""
    off = {"left_off": dict(pool.left_off)} if pool.left_off else {}
    return {"chat": pool.chat is not None, "fetched": dict(pool.fetched), **off}


def whole(ran: tuple[tuple[Output, ...], RunLog]) -> tuple[tuple[Output, ...], RunLog]:
    """What `decode` gave; raises KeyboardInterrupt if it was interrupted, for those to whom half a run is of no use."""
    if ran[1].meta["interrupted"]:
        raise KeyboardInterrupt
    return ran


def _drive(driver: Driver, sessions: Sequence[Session], batch: int, growth: Growth | None) -> str | None:
    """Answer all; returns None, or if it was interrupted where in a user's code, "" if in none."""
    total = len(sessions) if growth is None else growth.num_paths
    with Progress("decoding", total, unit="requests") as progress:
        try:
            for num_ended in driver.run(sessions, batch, growth):
                if num_ended:
                    progress.advance(num_ended)
        except KeyboardInterrupt as interrupt:
            driver.give_up(INTERRUPTED)
            return raised_at(interrupt, installed=False) or ""
    return None


def _streaming(pool: ModelPool, on_token: OnToken | None) -> OnCommit | None:
    """Hands committed tokens on one by one, each with the text it completes."""
    if on_token is None:
        return None
    streams: dict[str, TextStream] = {}

    def on_commit(session: Session, tokens: list[int]) -> None:
        stream = streams.setdefault(session.request_id, TextStream(pool.tokenizer))
        for index, token in enumerate(tokens, start=1):
            text = stream.push(token)
            if session.done and index == len(tokens):
                text += stream.rest()
            on_token(session.request_id, token, text)

    return on_commit


def _plain_step_s(
    pool: ModelPool, sampling: Sampling, sessions: Sequence[Session], batch: int, forward: ForwardKind
) -> float | None:
    """Seconds of a step of the target alone at this batch, in the middle of an answer; None if there is none."""
    if not sessions:
        return None
    middle = sum(session.num_prompt + len(session.emitted) // 2 for session in sessions) // len(sessions)
    try:
        seconds = plain_step_s(pool, sampling, min(batch, len(sessions)), middle, forward=forward)
    except KeyboardInterrupt:  # every request is answered; only this measure is missing
        return None
    return seconds if isfinite(seconds) else None


def _times_plain(log: RunLog, plain_s: float) -> dict[str, float]:
    """Seconds per token over those of the target alone, of each request that anything was drafted for."""
    speculated = set(log.requests["request_id"][np.unique(log.steps["request"][log.steps["drafted"] > 0])])
    taken = seconds_per_token(log)
    return {request_id: seconds / plain_s for request_id, seconds in taken.items() if request_id in speculated}


def _path_outputs(
    pool: ModelPool, growth: Growth, stop: Sequence[str], failed: Mapping[str, Exception]
) -> Iterator[Output]:
    """Of all paths that ended or could not start, prompt by prompt; a path's answer starts at its prompt's end."""
    for request_id, fork in growth.paths():
        parent, depth = ("", 0) if fork is None else (fork.parent_id, fork.depth)
        session, lost = growth.sessions.get(request_id), growth.lost.get(request_id)
        if session is not None:
            output = _output(pool, session, stop, failed, shared=session.prompt[session.num_prompt - depth :])
            if output is not None:
                yield replace(output, parent=parent, depth=depth)
        elif lost is not None:
            yield Output(
                request_id=request_id,
                tag=lost.tag,
                tokens=(),
                text="",
                finish_reason="error",
                error=lost.reason,
                parent=parent,
                depth=depth,
            )


def _output(
    pool: ModelPool,
    session: Session,
    stop: Sequence[str],
    failed: Mapping[str, Exception],
    *,
    shared: tuple[int, ...] = (),
) -> Output | None:
    """None for a request that was interrupted; `shared` is what of its prompt belongs to the answer."""
    error = failed.get(session.request_id)
    reason = session.finish_reason
    if error is None and reason is None:
        return None
    tokens = [*shared, *session.emitted]
    text = pool.decode(tokens)
    return Output(
        request_id=session.request_id,
        tag=session.tag,
        tokens=tuple(tokens),
        text=text_before_stop(text, stop) if reason == "stop" else text,
        finish_reason="error" if reason is None else reason,
        error="" if error is None else str(error),
    )
