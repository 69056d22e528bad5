"""Build a server, and run it until SIGTERM or Ctrl-C: what `paceline serve` does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from socket import socket
from threading import Event

import torch

from ..base.errors import ArgumentError, counted, repeated
from ..base.files import pool_path, processor
from ..base.terminal import Progress
from ..decoding.legal_steps import Policy
from ..policies.about import about_of
from ..policies.combined import OnlyLossless
from ..runtime.caches import total_bytes
from ..runtime.pools.chat_template import ChatTemplate, read_chat_template
from ..runtime.pools.members import loaded_pool
from ..runtime.pools.pool import ModelPool
from ..runtime.pools.pool_file import PoolFileError, read_pool_file
from ..runtime.refusals import refuse_oracle
from ..sim.serving.limits import Admission, EngineLimits, KvLimits
from ..studies.decode import load_pool
from ..studies.setting import OUR_POLICIES, NamedPolicy, named_policy
from ..traces.meta import Sampling
from .app import Service, make_app
from .engine import End, Job, LiveEngine, LiveReplica
from .follow import Following
from .listening import allow_many, run_app
from .meters import Meters
from .options import Address, EngineOptions, FollowOptions, RecordingOptions, RequestLimits
from .record import TrafficRecorder

BLOCK_TOKENS = 16
_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPool:
    """Which models are served, under which policies, with which limits.

    Attributes:
        pool: models, or where they are; None is the shipped pool.
        policies: as texts, all different; the first one is for requests that name none.
        lossless: reject a policy that may commit other text than the target's.
        engine: what runs at a time.
        threads: CPU threads of torch, >= 1.
        devices: of members by name, in place of those of the pool file.
        debug: check every cache at every step.

    Raises:
        ArgumentError: no policy, or a repeated one.
    """

    pool: ModelPool | Path | str | None = None
    policies: Sequence[str] = ("plain",)
    lossless: bool = False
    engine: EngineOptions = field(default_factory=EngineOptions)
    threads: int = 1
    devices: Mapping[str, str] | None = None
    debug: bool = False

    def __post_init__(self) -> None:
        if not self.policies:
            raise ArgumentError("`policies` must name at least one policy, got none")
        if twice := repeated(self.policies):
            raise ArgumentError(f"`policies` must differ, got {twice[0]} twice")


def make_service(
    asked: ServedPool,
    limits: RequestLimits,
    recording: RecordingOptions | None = None,
    follow: FollowOptions | None = None,
) -> Service:
    """Load the models, warm each policy up, and return a service whose engine is ready.

    Raises:
        ValueError: a pool or a policy that cannot be served; nothing runs then.
        PolicyError: a policy broke the contract when it was tried.
    """
    models = load_pool(asked.pool, threads=asked.threads, devices=asked.devices)
    if models.feature_level is not None:
        reader = models.members[models.feature_level].name
        raise ArgumentError(f"`pool` must not have a member that reads the target's states to be served, got {reader}")
    if models.ranks is not None:
        raise ArgumentError('`pool` must not be split over processes to be served, got tp_plan = "auto"')
    following = _following(asked, models, recording, follow)
    named = {text: named_policy(text) for text in asked.policies}
    bounds, meters = _engine_limits(models, asked), Meters(models.name)
    replicas = {name: partial(_replica_of, models, policy, bounds, meters, asked) for name, policy in named.items()}
    for policy in named.values():
        refuse_oracle(policy.made_by, policy.name)
    engine = LiveEngine(replicas, threads=asked.threads)
    engine.start()
    try:
        with Progress("warming up", len(named), unit="policies") as progress:
            for name in named:
                _warm_up(engine, models, name)
                progress.advance()
        meters.forget()
    except BaseException:
        engine.stop()
        raise
    exact = {
        name for name, one in named.items() if _is_exact(one.admitted(loaded_pool(models), lossless=asked.lossless))
    }
    template = _chat_template(asked.pool)
    recorder = None
    if recording is not None and recording.record is not None:
        recorder = TrafficRecorder(recording, asked.policies, bounds, served=_served(models, asked))
    return Service(
        models,
        template=template,
        policies=asked.policies,
        exact=exact,
        engine=engine,
        meters=meters,
        recorder=recorder,
        following=following,
        num_running=asked.engine.max_batch * len(named),
        limits=limits,
    )


def _served(models: ModelPool, asked: ServedPool) -> str:
    """The server in one line, for readers of its recording."""
    devices = {str(member.model.device) for member in models.members if member.model is not None}
    on = f"{', '.join(sorted(devices))} of {processor()}, {counted(asked.threads, 'thread')}"
    return f"pool {models.name} on {on}, under {', '.join(asked.policies)}"


def _following(
    asked: ServedPool, models: ModelPool, recording: RecordingOptions | None, follow: FollowOptions | None
) -> Following | None:
    if follow is None or follow.follow is None:
        return None
    follow.check_recorded(recording)
    assert recording is not None
    assert recording.record is not None
    return Following(recording.record, asked.policies, loaded_pool(models), follow)


def _replica_of(
    models: ModelPool, named: NamedPolicy, limits: EngineLimits, meters: Meters, asked: ServedPool
) -> LiveReplica:
    pool = loaded_pool(models)
    policy = named.admitted(pool, lossless=asked.lossless)
    recorder = meters.recorder(named.name, pool.names, limits.kv[models.target.name].num_blocks)
    return LiveReplica(models, named.name, policy, limits, recorder=recorder, stepped=meters.stepped, debug=asked.debug)


def _is_exact(policy: Policy) -> bool:
    """Whether the target judges all that a policy commits, by its own rule; of foreign ones only if that is checked."""
    about = about_of(policy)
    is_ours = type(policy).__module__.startswith(OUR_POLICIES)
    return isinstance(policy, OnlyLossless) or (is_ours and about is not None and about.lossless)


def _engine_limits(models: ModelPool, asked: ServedPool) -> EngineLimits:
    """The limits of the engine; raises ArgumentError for blocks that some device has no memory for."""
    engine = asked.engine
    blocks = engine.kv_blocks or engine.max_batch * -(-models.context_tokens // BLOCK_TOKENS)
    limits = KvLimits(num_blocks=blocks, block_tokens=BLOCK_TOKENS, prefix_cache=False)
    needed: dict[torch.device, int] = {}
    for member in models.members:
        if member.model is not None:
            device = member.model.device
            held = limits.num_tokens * member.kv_bytes_per_token * len(asked.policies)
            needed[device] = needed.get(device, 0) + held
    for device, num_bytes in needed.items():
        if num_bytes > (total := total_bytes(device)):
            raise ArgumentError(
                f"`kv_blocks` {blocks:,} take {num_bytes:,} bytes of keys and values on {device}, which has {total:,}; "
                "give fewer, or a smaller max_batch"
            )
    return EngineLimits(
        max_num_seqs=engine.max_batch,
        token_budget=engine.token_budget,
        kv={member.name: limits for member in models.members if member.model is not None},
        admission=Admission.whole_prompt,
        max_model_len={models.target.name: models.context_tokens},
    )


def _warm_up(engine: LiveEngine, models: ModelPool, policy: str) -> None:
    """Serve one short answer, so that a step of a policy that the engine lacks raises before a client waits."""
    ended, found = Event(), list[End]()

    def deliver(_: Job, __: Sequence[int], end: End | None) -> None:
        if end is not None:
            found.append(end)
            ended.set()

    prompt = tuple(models.encode("Once upon a time")) or (0,)
    greedy, most = Sampling(mode="greedy"), min(_WARM_UP_TOKENS, models.context_tokens - len(prompt))
    engine.submit(
        Job(
            request_id="warm-up", policy=policy, prompt=prompt, max_tokens=most, sampling=greedy, noise_name="0",
            eos=frozenset(), ending=None, deliver=deliver,
        )
    )  # fmt: skip
    ended.wait()
    if found[0].error:
        raise ArgumentError(f"`policies` {policy} cannot be served: {found[0].error}")


def _chat_template(pool: ModelPool | Path | str | None) -> ChatTemplate | None:
    """Of the pool's tokenizer; None where it has none."""
    if isinstance(pool, ModelPool):
        return pool.chat
    file, content = read_pool_file(pool_path(pool))
    try:
        return read_chat_template(file, content.tokenizer)
    except PoolFileError:
        return None


def serve(
    asked: ServedPool,
    limits: RequestLimits,
    listening: socket,
    address: Address,
    recording: RecordingOptions | None = None,
    follow: FollowOptions | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; running answers then have `drain_s` seconds to end.

    `listening` is the socket of the address (`listening.bound_socket`).

    Raises:
        ValueError: as `make_service`; one line.
    """
    allow_many()
    service = make_service(asked, limits, recording, follow)
    run_app(make_app(service, api_key=address.api_key), listening, address, f"serving {service.listed()['id']}")
