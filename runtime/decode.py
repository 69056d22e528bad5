"""Decode prompts with real models under a policy: the runtime's counterpart of `sim.simulate`.

`Run` is a world with a policy, loop, driver and ledger; its `Driver` admits requests and runs the loop's operations, on
the clock of this machine or by a price list. `text_qualities` measures a lossy policy's texts: the target continues the
same prompts alone, and one forward of it over each text, without cache, gives the token it would have written at every
position, and the text's probability. Letters: T tokens of an answer, V vocabulary.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from math import isfinite
from typing import Any, Literal, NamedTuple, Required, TypedDict

import numpy as np
import torch

from ..base.errors import ArgumentError, check_least, counted, raised_at
from ..base.terminal import Progress
from ..decoding.legal_steps import Policy
from ..decoding.loop import Loop
from ..decoding.request_text import Ending, FinishReason
from ..decoding.results import Results
from ..decoding.rollouts import RolloutGrowth, Rollouts, growth_of
from ..decoding.seen import Start, prefill_before
from ..decoding.session import Session
from ..policies.about import Observable, StepWatch, about_of, observed_by
from ..policies.fixed import Plain
from ..runs.log import UNKNOWN_COUNT, RunLedger, RunLog, TextQuality, same_counts, with_times_plain
from ..traces.contexts.columns import LOG_PROBS
from ..traces.meta import Sampling
from .caches import total_bytes
from .clock import PricedSeconds, Prices, TimedPolicy
from .coupled_noise import noise_of
from .forward_kinds import AheadKind, ForwardKind
from .pools.members import LoadedMembers, loaded_pool
from .pools.pool import ModelPool
from .prompts import Prompt
from .recording.together import text_logits
from .recording.views import scores
from .refusals import refuse_oracle
from .sampling import truncated
from .stop_strings import TextStream, make_ending, text_before_stop
from .tasks import Scorer
from .threads import Memory
from .timing import plain_step_s
from .tokenizers import Pieces
from .world import TorchWorld


def check_fit(pool: LoadedMembers, sessions: Sequence[Session], memory: Memory) -> None:
    """Compare the memory that the first requests may need, and prefix caches need, with the devices' total.

    On a device with a limit the runtime preempts instead, so a batch of any size is served.

    Raises:
        ArgumentError: some device has less memory.
    """
    if not sessions:
        return
    longest = max(session.num_prompt + session.budget for session in sessions)
    of_prefixes = 0 if memory.prefixes is None else memory.prefixes.num_tokens
    needed: dict[torch.device, int] = {}
    for member in pool.members:
        if member.model is not None:
            device = member.model.device
            held = (len(sessions) * longest + of_prefixes) * member.kv_bytes_per_token
            needed[device] = needed.get(device, 0) + held
    limits = memory.limits(needed)
    for device, num_bytes in needed.items():
        if device in limits:
            continue
        total = total_bytes(device)
        if num_bytes > total:
            prefixes = f" and prefix caches of {counted(of_prefixes, 'token')} each" if of_prefixes else ""
            raise ArgumentError(
                f"batch must fit into memory: {len(sessions)} requests of up to {longest} tokens{prefixes} take "
                f"{num_bytes:,} bytes of keys and values on {device}, which has {total:,}; "
                "give a KV limit to have requests preempted"
            )


OnCommit = Callable[[Session, list[int]], None]
INTERRUPTED = "interrupted"


class Driver:
    """Admits requests as others end, and runs operations until none is left.

    `on_commit` is called with every request's newly committed tokens, in order; `priced` gives seconds in place of the
    clock (None measures). The attribute `failed` holds the errors of requests that failed, by id.
    """

    def __init__(
        self,
        loop: Loop,
        world: TorchWorld,
        ledger: RunLedger,
        *,
        on_commit: OnCommit | None = None,
        priced: PricedSeconds | None = None,
    ) -> None:
        self.failed: dict[str, Exception] = {}
        self._loop = loop
        self._world = world
        self._ledger = ledger
        self._clock = priced or world.clock
        self._priced = priced
        self._on_commit = on_commit
        self._told: dict[str, int] = {}
        self._running: dict[str, Session] = {}
        self._waiting: deque[Session] = deque()
        self._batch = 0
        self._growth: RolloutGrowth | None = None

    def run(self, sessions: Sequence[Session], batch: int, growth: RolloutGrowth | None = None) -> Iterator[int]:
        """Answer every request; yields, operation by operation, how many have ended.

        Args:
            sessions: in the order in which they are admitted.
            batch: requests running at a time, >= 1.
            growth: the paths that leave them; None for none. Paths that may start come before requests that have not
                begun, as their text was read last. Paths that cannot start fail, and count as ended.
        """
        loop, clock = self._loop, self._clock
        self._batch, self._growth = batch, growth
        for session in sessions:
            self._waiting.append(session)
            if growth is not None:
                self._waiting.extend(growth.ripe(session))
        loop.load.num_waiting = len(self._waiting)
        self._admit()
        while True:
            op = loop.next_op(clock.now_s())
            if loop.finished:  # a Commit ends requests without an operation
                yield self._refill()
            elif op is None:
                return
            if op is None:
                continue
            start_s = clock.now_s()
            results: Results = op.run(self._world)
            if self._priced is not None:
                results = self._priced.priced(op, results)
            loop.finish(op, results, start_s=start_s, now_s=clock.now_s())
            # Requests that lost their memory while others ran; the loop notes those that could not run.
            for request_id in self._world.manager.evicted:
                self._ledger.note_preempted(request_id)
            self._world.manager.evicted.clear()
            yield self._refill()

    def _refill(self) -> int:
        """Pass on what was committed, and admit requests for those that ended; returns how many did."""
        if self._on_commit is not None:
            self._tell()
        grown = self._growth is not None and self._branch(self._growth)
        ended = self._take_ended()
        if ended or grown:
            self._admit()
        return ended

    def _branch(self, growth: RolloutGrowth) -> bool:
        """Put paths that may start at the front of the queue; returns whether there are any."""
        ripe = [child for session in self._running.values() for child in growth.ripe(session)]
        self._waiting.extendleft(reversed(ripe))
        self._loop.load.num_waiting += len(ripe)
        return bool(ripe)

    def give_up(self, reason: str) -> None:
        """Note every request that has not ended as failed for `reason`."""
        self._take_ended()
        for request_id in self._running:
            self._ledger.note_failed(request_id, reason, self._clock.now_s())

    def raise_failure(self) -> None:
        """Raise the error of the first request that failed, if one did.

        The driver drops the error first: a cycle through its frames would hold the run's memory until garbage
        collection.
        """
        for request_id in self.failed:
            raise self.failed.pop(request_id).with_traceback(None)

    def _admit(self) -> None:
        now_s = self._clock.now_s()
        while self._waiting and len(self._running) < self._batch:
            session = self._waiting.popleft()
            self._ledger.note_admitted(
                session.request_id, tag=session.tag, num_prompt=session.num_prompt, arrived_at_s=now_s, now_s=now_s
            )
            self._loop.load.num_waiting -= 1
            self._loop.admit(session)
            self._running[session.request_id] = session

    def _tell(self) -> None:
        assert self._on_commit is not None
        for request_id, session in self._running.items():
            told = self._told.get(request_id, 0)
            if len(session.emitted) > told:
                self._told[request_id] = len(session.emitted)
                self._on_commit(session, session.emitted[told:])

    def _take_ended(self) -> int:
        loop = self._loop
        if not (loop.finished or loop.failed):
            return 0
        ended = len(loop.finished) + len(loop.failed)
        for session in loop.finished:
            del self._running[session.request_id]
            ended += self._note_lost(session, None)
        for session, error in loop.failed:
            del self._running[session.request_id]
            self.failed[session.request_id] = error
            ended += self._note_lost(session, error)
        loop.finished.clear()
        loop.failed.clear()
        return ended

    def _note_lost(self, session: Session, error: Exception | None) -> int:
        """Note the paths that cannot start since the one they leave has ended; returns how many there are."""
        if self._growth is None:
            return 0
        lost, now_s = self._growth.ended(session, error), self._clock.now_s()
        for fork, tag, num_prompt, reason in lost:
            request_id = fork.request_id
            self._ledger.note_admitted(request_id, tag=tag, num_prompt=num_prompt, arrived_at_s=now_s, now_s=now_s)
            self._ledger.note_failed(request_id, reason, now_s)
        return len(lost)


# What policies may do only where every token is certain.
_NOT_DRAWN = {
    Observable.branches: "drafts token trees",
    Observable.votes: "lets the verdict on a token decide which member judges it next",
}


class Run:
    """A world with a policy, the loop that calls it, the loop's driver, and the ledger of both.

    Args:
        world: of the models.
        policy: built for `loaded_pool(world.pool)`; one object for all requests.
        name: of the policy, for errors and the log.
        on_commit: called with every request's newly committed tokens.
        prices: seconds of operations; None measures.

    Raises:
        ValueError: an oracle, or under rejection sampling token trees or votes.
    """

    def __init__(
        self,
        world: TorchWorld,
        policy: Policy,
        *,
        name: str,
        on_commit: OnCommit | None = None,
        prices: Prices | None = None,
    ) -> None:
        refuse_oracle(policy, name)
        for what, does in _NOT_DRAWN.items() if world.sampling.mode == "rejection" else ():
            if what in observed_by(policy):
                raise ArgumentError(f"policy {name} {does}, under greedy and coupled sampling, got rejection")
        self.world = world
        self.members = loaded_pool(world.pool)
        self.ledger = RunLedger()
        self._name = name
        self.timed = TimedPolicy(policy, StepWatch(self.members.target))
        loop = Loop(pool=self.members, policy=self.timed, name=name, world=world, ledger=self.ledger)
        priced = None if prices is None else PricedSeconds(prices, self.members.names)
        self.driver = Driver(loop, world, self.ledger, on_commit=on_commit, priced=priced)

    def meta(self, *, pool: str, max_new_tokens: int, batch: int) -> dict[str, Any]:
        """The run log's metadata so far; `pool` is the name of the models."""
        watch, rejecting = self.timed.watch, self.world.sampling.mode == "rejection"
        return {
            "world": "runtime",
            "policy": self._name,
            "pool": pool,
            "sampling": self.world.sampling.model_dump(),
            "max_new_tokens": max_new_tokens,
            "batch": batch,
            "cache": self.world.memory.cache,
            "prefix_cache": None if (size := self.world.memory.prefixes) is None else asdict(size),
            "forward": self.world.forward_names,
            "members": list(self.members.names),
            "lossless": about.lossless if (about := about_of(self.timed.wrapped)) else None,
            # Whether steps may have changed the text, or under rejection sampling its distribution.
            "lossy_steps": watch.lossy_drawn if rejecting else watch.lossy,
            "policy_s": self.timed.seconds,
            "phases": asdict(self.world.phases),
            "overlap": asdict(self.world.ahead),
            **self._sharing(),
            "processes": 1 if (ranks := self.world.pool.ranks) is None else ranks.num_ranks,
        }

    def _sharing(self) -> dict[str, Any]:
        """With prefix caches, how members attend to shared prefixes: only fused forwards can do so once."""
        memory = self.world.memory
        if memory.prefixes is None:
            return {}
        how = memory.shared_attention
        names = self.world.forward_names
        each = {name: how if kind == "fused" else kind for name, kind in names.items()}
        return {"shared_attention": each, "shared_attention_asked": how}


def sessions_of(
    pool: ModelPool,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    ending: Ending | None = None,
    *,
    start: Start = Start.prefill,
) -> list[Session]:
    """The requests of prompts; raises as `pool.tokens_of`, and ValueError for a start that only a log holds."""
    members = loaded_pool(pool)
    return [
        Session(
            pool=members,
            request_id=prompt.request_id,
            tag=prompt.tag,
            prompt=tokens,
            budget=max_new_tokens,
            eos=frozenset(pool.eos_token_ids),
            ending=ending,
            prefill_before=prefill_before(start, members, what="a run of models"),
        )
        for prompt, tokens in zip(prompts, pool.tokens_of(prompts, max_new_tokens), strict=True)
    ]


OnToken = Callable[[str, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The answer to one request."""

    request_id: str
    tag: str
    # ids after the prompt (of a path: the first path's prompt), an end of sequence or of a stop string included
    tokens: tuple[int, ...]
    text: str  # those tokens decoded, up to where a stop string begins
    # an end-of-sequence token (`eos`), the budget (`length`), a stop string (`stop`), or a failure (`error`)
    finish_reason: FinishReason | Literal["error"]
    error: str = ""  # why it failed; empty if it did not
    parent: str = ""  # of a path that left another one in rollouts, that one's request id; else empty
    depth: int = 0  # tokens of answer that both share; 0 without a parent


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

    The log's `divergent_tokens` are 0: the text of the target alone is not known here. An interrupt (KeyboardInterrupt)
    ends the run early: outputs hold the requests that ended, `log.meta["interrupted"]` is True, and
    `log.meta["interrupted_at"]` is the line of the policy's file, if it came in that file.

    Args:
        pool: its last member is the target.
        policy: built for `loaded_pool(pool)`; one object for all requests.
        prompts: their ids must differ.
        sampling: greedy, coupled or rejection.
        max_new_tokens: budget of each request, >= 1.
        name: of the policy, for errors and the log.
        batch: requests running at a time, >= 1.
        memory: kind of cache and its limit; slots without a limit by default.
        forward: how models run, see `forward_choice.choose_forward`.
        stop: texts that end an answer.
        start: how requests begin, `prefill` or `draft`.
        on_token: called with request id, token and the text it adds, for every committed token; of a path of rollouts
            those after its branch.
        prices: seconds of operations, for policy and log alike; None measures, and compares with plain decoding.
        debug: check the caches at every step.
        rollouts: how prompts continue as several paths; None for one answer to each.
        overlap: how members work at the same time where the policy lets them, see `TorchWorld`.

    Returns:
        Outputs in the order of `prompts`, of each its paths in the order of `Rollouts.forks`, failed requests among
        them, and the run log.

    Raises:
        ArgumentError: a repeated id, a prompt that does not fit into the pool's context with its budget, a batch whose
            caches cannot fit into the machine's memory, an empty stop string, start `recorded`, or rollouts that are
            impossible or greedy.
        PolicyError: the policy broke the contract.
    """
    check_least("`batch`", batch, 1)
    interrupted_at = None
    # Its caches are freed before the target alone is timed, which needs memory too.
    with TorchWorld(
        pool=pool, sampling=sampling, memory=memory, forward=forward, debug=debug, overlap=overlap
    ) as world:
        run = Run(world, policy, name=name, on_commit=_streaming(pool, on_token), prices=prices)
        sessions = sessions_of(pool, prompts, max_new_tokens, make_ending(pool.tokenizer, stop), start=start)
        growth = None if rollouts is None else growth_of(rollouts, sessions, sampling.mode)
        num_paths = 1 if rollouts is None else rollouts.num_paths
        check_fit(pool, list(islice(cycle(sessions), min(batch, len(sessions) * num_paths))), world.memory)
        with Progress("decoding", len(sessions) if growth is None else growth.num_paths, unit="requests") as progress:
            try:
                for num_ended in run.driver.run(sessions, batch, growth):
                    if num_ended:
                        progress.advance(num_ended)
            except KeyboardInterrupt as interrupt:
                run.driver.give_up(INTERRUPTED)
                interrupted_at = raised_at(interrupt, installed=False) or ""
    meta = run.meta(pool=pool.name, max_new_tokens=max_new_tokens, batch=batch)
    interrupted = interrupted_at is not None
    plain_s = None if interrupted or prices is not None else _plain_step_s(pool, sampling, sessions, batch, forward)
    meta |= {
        "chat": pool.chat is not None,  # how prompts were rendered
        "fetched": dict(pool.fetched),  # weights
        **({"left_off": dict(pool.left_off)} if pool.left_off else {}),  # ignored options of the generation config
        "start": Start(start).value,
        "plain_step_s": plain_s,
        "interrupted": interrupted,
        **({"interrupted_at": interrupted_at} if interrupted_at else {}),
        **({} if rollouts is None else {"rollouts": str(rollouts)}),
    }
    log = run.ledger.finish(meta, reanchored={}, divergent={})
    if plain_s is not None:
        log = with_times_plain(log, plain_s)
    if growth is not None:
        return tuple(_path_outputs(pool, growth, stop, run.driver.failed)), log
    outputs = [_output(pool, session, stop, run.driver.failed) for session in sessions]
    return tuple(output for output in outputs if output is not None), log


def whole(ran: tuple[tuple[Output, ...], RunLog]) -> tuple[tuple[Output, ...], RunLog]:
    """The result of `decode`; raises KeyboardInterrupt if it was interrupted, for callers that need a whole run."""
    if ran[1].meta["interrupted"]:
        raise KeyboardInterrupt
    return ran


def _streaming(pool: ModelPool, on_token: OnToken | None) -> OnCommit | None:
    if on_token is None:
        return None
    streams: dict[str, TextStream] = {}
    pieces = Pieces(pool.tokenizer)

    def on_commit(session: Session, tokens: list[int]) -> None:
        stream = streams.setdefault(session.request_id, TextStream(pieces))
        for index, token in enumerate(tokens, start=1):
            text = stream.push(token)
            if session.done and index == len(tokens):
                text += stream.rest()
            on_token(session.request_id, token, text)

    return on_commit


def _plain_step_s(
    pool: ModelPool, sampling: Sampling, sessions: Sequence[Session], batch: int, forward: ForwardKind
) -> float | None:
    """Seconds of a step of the target alone at this batch, in the middle of an answer; None without requests."""
    if not sessions:
        return None
    middle = sum(session.num_prompt + len(session.emitted) // 2 for session in sessions) // len(sessions)
    try:
        seconds = plain_step_s(pool, sampling, min(batch, len(sessions)), middle, forward=forward)
    except KeyboardInterrupt:  # every request is answered; only this measure is missing
        return None
    return seconds if isfinite(seconds) else None


def _path_outputs(
    pool: ModelPool, growth: RolloutGrowth, stop: Sequence[str], failed: Mapping[str, Exception]
) -> Iterator[Output]:
    """Outputs of paths that ended or could not start, prompt by prompt; a path's answer starts at its prompt's end."""
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
    """None for a request that was interrupted; `shared` tokens at the end of its prompt belong to the answer."""
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


class Alone(TypedDict, total=False):
    """How the target writes alone: arguments of `decode`, equal to those of the run that it is compared with."""

    sampling: Required[Sampling]
    max_new_tokens: Required[int]
    batch: int
    memory: Memory | None
    forward: ForwardKind
    stop: Sequence[str]


class AnswerVerdict(NamedTuple):
    """The target's verdict on an answer."""

    log_prob: float  # sum over its tokens, nats, <= 0, each rounded as recordings are
    divergences: int  # tokens it would not have written in their contexts; -1 with rejection sampling, which draws


def text_qualities(
    pool: ModelPool,
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    alone: Alone,
    scorer: Scorer | None = None,
) -> dict[str, TextQuality]:
    """Measure the quality of every finished answer; failed ones are left out.

    With rejection sampling two texts of one prompt are two draws: where they first differ means nothing and is unknown.
    Rounding may turn a near tie, so that a token of the target's own counts as a divergence. `alone` is how the target
    writes; `scorer` is of answers, None runs no tests.

    Raises:
        KeyboardInterrupt: the user interrupted.
    """
    answered = {output.request_id: output for output in outputs if not output.error}
    asked = [prompt for prompt in prompts if prompt.request_id in answered]
    if not asked:
        return {}
    plain, scorer = Plain(loaded_pool(pool)), scorer or Scorer()
    owns, _ = whole(decode(pool, plain, asked, name="plain", **alone))
    return {
        own.request_id: _quality(pool, prompt, answered[own.request_id], own, alone["sampling"], scorer)
        for prompt, own in zip(asked, owns, strict=True)
        if not own.error
    }


def _quality(
    pool: ModelPool, prompt: Prompt, output: Output, own: Output, sampling: Sampling, scorer: Scorer
) -> TextQuality:
    context = pool.encode(prompt.text)
    tokens, trunk = list(output.tokens), list(own.tokens)
    own_verdict = verdict_on(pool, prompt.request_id, context, trunk, sampling)
    if tokens == trunk:
        verdict = own_verdict._replace(divergences=min(own_verdict.divergences, 0))
    else:
        verdict = verdict_on(pool, prompt.request_id, context, tokens, sampling)
    draws = sampling.mode == "rejection"
    same = (UNKNOWN_COUNT, UNKNOWN_COUNT) if draws else same_counts(tokens, trunk)
    return TextQuality(
        divergences=verdict.divergences,
        seen_tokens=len(tokens),
        scored_tokens=len(tokens),
        log_prob=verdict.log_prob,
        trunk_tokens=len(trunk),
        trunk_log_prob=own_verdict.log_prob,
        same_tokens=same[0],
        same_start=same[1],
        exact_start=len(tokens),
        right=_right(scorer, prompt, output),
        trunk_right=_right(scorer, prompt, own),
    )


@torch.inference_mode()
def verdict_on(
    pool: ModelPool, request_id: str, prompt: Sequence[int], tokens: Sequence[int], sampling: Sampling
) -> AnswerVerdict:
    """The target's verdict on `tokens` after `prompt`: one forward over both."""
    model = pool.target.model
    assert model is not None
    count = len(tokens)
    logits = text_logits(model, [*prompt, *tokens[:-1]], count)
    log_probs = torch.log_softmax(truncated(logits, sampling), dim=-1)
    written = torch.tensor(list(tokens), device=logits.device)
    of_tokens = LOG_PROBS.round(log_probs.gather(-1, written[:, None])[:, 0].cpu().numpy())
    if sampling.mode == "rejection":
        return AnswerVerdict(float(of_tokens.sum()), UNKNOWN_COUNT)
    noise = noise_of(sampling, request_id, logits.shape[-1])
    chosen = scores(logits, sampling, None if noise is None else noise.rows(range(count))).argmax(dim=-1).cpu().numpy()
    return AnswerVerdict(float(of_tokens.sum()), int((chosen != np.asarray(tokens)).sum()))


def _right(scorer: Scorer, prompt: Prompt, output: Output) -> int:
    """1 if the answer is the one expected, 0 if not, -1 if unknown."""
    score = scorer.score(prompt, output.text)
    return UNKNOWN_COUNT if score is None or score.right is None else int(score.right)
