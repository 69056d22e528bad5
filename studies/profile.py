"""What `paceline profile` does: measure this machine's seconds for the operations of a pool.

Operations are watched while prompts are decoded, or on a forced pool a recording's requests.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from math import ceil
from pathlib import Path
from typing import Any

import torch

from ..base.errors import ArgumentError, check_least, check_within, counted
from ..base.files import pool_path, processor
from ..base.terminal import in_words
from ..decoding.pool import Pool
from ..policies.by_name import PolicySpec
from ..policies.chain_text import default_policies
from ..reports.tables import Grid, Printed, table
from ..runtime.forced import ForcedPool, ForcedProbedWorld, forced_recording
from ..runtime.pools.members import LoadedMembers, loaded_pool
from ..runtime.pools.pool import ModelPool
from ..runtime.profiling.forwards import ShapeGrid, measure_forwards, memory_floor
from ..runtime.profiling.operations import MakePolicy, MeasuredMembers, Operations, measure_members, measure_operations
from ..runtime.profiling.probe import Journal, ProbedWorld, check_probed
from ..runtime.prompts import PROMPTS_FILE, Prompt, prompts_of
from ..sim.contexts import TrieTables
from ..traces.contexts.on_disk import read_trace
from ..traces.meta import GREEDY, Sampling
from ..traces.profile import (
    ENDING,
    MOST_SPREAD,
    BesideForwards,
    Profile,
    ProfiledMember,
    ProfileMeta,
    forwards_of,
    profiles_folder,
    write_profile,
)
from .agree import synthetic_cost
from .decode import load_models
from .profile_check import (
    MOST_DRIFT,
    check_runnable,
    device_name,
    forwards_here,
    journal_of,
    kept_for_another,
    left_of,
    watched_chains,
)

# Requests that run at a time while operations are watched are fewer.
_MOST_REQUESTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedRequests:
    """The requests to decode."""

    prompts: tuple[Prompt, ...]  # at least one
    tags: frozenset[str]  # that policies may name: of all requests, even if fewer are decoded
    sampling: Sampling  # how tokens are chosen
    world: ProbedWorld | None = None  # to decode in; None: an ordinary one


def watched_requests(
    models: ModelPool | ForcedPool,
    pool: ModelPool | ForcedPool | Path | str | None,
    prompts: Path | str | Sequence[Prompt | str] | None,
    recording: Path | str | None,
    sampling: Sampling | None,
) -> WatchedRequests:
    """The requests to decode with these models; arguments are as of `profile`.

    Raises:
        ArgumentError: no prompts, one that leaves no room for an answer, or no recording of as many models as a forced
            pool has; either where it is not used, or other sampling than the recording's.
    """
    if isinstance(models, ForcedPool):
        return _recording(models, prompts, recording, sampling)
    if recording is not None:
        raise ArgumentError(f"`recording` is for a forced pool, whose models decide nothing, got {str(recording)!r}")
    found = _prompts(pool, prompts)
    for prompt in found:  # it must leave room for an answer, and have a token to continue from
        count = len(models.encode(prompt.text))
        if not 1 <= count < models.context_tokens:
            raise ArgumentError(
                f"`prompts` must have 1 to {models.context_tokens - 1} tokens, as pool {models.name} has a context of "
                f"{models.context_tokens}, got request {prompt.request_id} of {count}"
            )
    tags = frozenset(prompt.tag for prompt in found)
    return WatchedRequests(prompts=found, tags=tags, sampling=sampling or GREEDY)


def _prompts(
    pool: ModelPool | ForcedPool | Path | str | None, prompts: Path | str | Sequence[Prompt | str] | None
) -> tuple[Prompt, ...]:
    """The prompts given, or those beside the pool; raises ArgumentError if there are none."""
    if prompts is not None:
        return prompts_of(Path(prompts) if isinstance(prompts, str) else prompts)
    if isinstance(pool, ModelPool | ForcedPool):
        raise ArgumentError("`prompts` must be given with models that are loaded already")
    place = pool_path(pool)
    beside = (place if place.is_dir() else place.parent) / PROMPTS_FILE
    if not beside.is_file():
        raise ArgumentError(f"`prompts` must be given: {beside} does not exist")
    return prompts_of(beside)


def _recording(
    models: ForcedPool,
    prompts: Path | str | Sequence[Prompt | str] | None,
    recording: Path | str | None,
    sampling: Sampling | None,
) -> WatchedRequests:
    """A recording's requests in turn, sampled as recorded."""
    if prompts is not None:
        raise ArgumentError("`prompts` must be left out with a forced pool, whose requests are those of `recording`")
    if recording is None:
        raise ArgumentError(f"`recording` must be given with forced pool {models.name}: it decides what is accepted")
    forced = forced_recording(read_trace(Path(recording)), models)
    mode = forced.meta.sampling
    if sampling not in (None, mode):
        raise ArgumentError(
            f"`sampling` must be that of the recording, {mode.words_with_seed}, got {sampling.words_with_seed}"
        )
    again = [forced.requests[place % len(forced.requests)] for place in range(_MOST_REQUESTS)]
    requests = {str(place): replace(request, request_id=str(place)) for place, request in enumerate(again)}
    tables = TrieTables(replace(forced, requests=tuple(requests.values())))
    world = ForcedProbedWorld(pool=models, sampling=mode)
    world.follow(tables.world(synthetic_cost(forced.meta.model_names), seed=0, strict=False))
    world.take(requests, eos=frozenset(forced.meta.eos_token_ids))
    texts = tuple(Prompt(request_id=name, tag=request.tag, text=name) for name, request in requests.items())
    tags = frozenset(request.tag for request in forced.requests)
    return WatchedRequests(prompts=texts, tags=tags, sampling=mode, world=world)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Profiled(Printed):
    """A profile that was measured; prints as `paceline profile` does."""

    profile: Profile
    out: Path  # file that holds it
    floor: str | None = None  # the target's forwards compared with the limit of its GPU's memory; None on a CPU

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/profiles.md)."""
        meta = self.profile.meta.model_dump(mode="json")
        return {"out": str(self.out), "floor": self.floor, "meta": meta, "shapes": self.to_dicts()}

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each measured shape."""
        return [shape._asdict() for shape in self.profile.shapes]

    def tables(self) -> Sequence[Grid]:
        meta = self.profile.meta
        members = [self._member_row(member) for member in meta.members]
        operations = [
            _operation_row(f"{words} by {member.name}", beside)
            for member in meta.members
            for words, beside in (
                ("draft", member.drafting),
                ("draft with a stop", member.stopping),
                ("verify", member.verifying),
            )
            if beside is not None
        ]
        operations.append(_operation_row("lookup", meta.lookup))
        batches = sorted({batch for known in meta.decide_s.values() for batch in known.batches})
        policies = [
            {"policy": name} | {f"{batch} running": f"{known.each_s(batch) * 1e6:.1f}" for batch in batches}
            for name, known in meta.decide_s.items()
        ]
        pool = f"{'FORCED ' if meta.forced else ''}pool {meta.pool}"
        title = f"{pool} on {meta.hardware}: {counted(len(self.profile.shapes), 'shape')} of forwards"
        return [
            table(members, texts=("forward",), title=title),
            table(operations, title="beside forwards"),
            table(policies, title="deciding and learning, us a step of a request"),
        ]

    def lines(self) -> Sequence[str]:
        meta = self.profile.meta
        lines = [f"left out, as memory is short: {words}" for words in meta.left_out]
        lines.append(f"drift while measuring: {meta.drift:.1%}")
        unsteady = ", ".join(self.profile.unsteady())
        if unsteady:
            lines.append(
                f"seconds of {unsteady} vary by more than {MOST_SPREAD:.0%} from one time to the next (spread): "
                "something else keeps the machine busy; do not trust them, and profile a quiet machine"
            )
        found_by = "here" if self.out.parent == profiles_folder() else self.out
        if self.floor is not None:
            lines.append(self.floor)
        lines.append(f"{self.out} written; --cost {found_by} uses it")
        return lines

    def _member_row(self, member: ProfiledMember) -> dict[str, str]:
        shapes = {shape[1:4]: shape for shape in self.profile.of(member.name)}
        (rows, new, _), most = min(shapes), max(one[0] for one in shapes)
        widest = max(shapes, key=lambda one: one[0] * one[1])
        error = member.smooth.held_out_error
        return {
            "member": member.name,
            "forward": member.forward,
            f"ms, {rows} x {new}": f"{shapes[min(shapes)].seconds * 1e3:.3f}",
            f"ms, {most} x {new}": f"{shapes[(most, *min(shapes)[1:])].seconds * 1e3:.3f}",
            "ms, widest": f"{shapes[widest].seconds * 1e3:.2f} ({widest[0]} x {widest[1]})",
            "spread": f"{self.profile.spread(member.name):.1%}",
            "after 10 ms": f"+{forwards_of(self.profile, member).reload_s(rows * new, 0.01) * 1e3:.3f}",
            "smooth error": "-" if error is None else f"{error:.1%}",
        }


def profile(
    pool: ModelPool | ForcedPool | Path | str | None = None,
    prompts: Path | str | Sequence[Prompt | str] | None = None,
    *,
    recording: Path | str | None = None,
    out: Path | str | None = None,
    sampling: Sampling | None = None,
    grid: ShapeGrid | None = None,
    repeats: int = 3,
    policies: Sequence[str] = (),
    most_drift: float = MOST_DRIFT,
    threads: int = 1,
    debug: bool = False,
    chat: bool = False,
    restart: bool = False,
) -> Profiled:
    """Measure forwards by shape, and further seconds of operations and policies.

    Args:
        pool: models, or where they are; None is the shipped pool (`load_models`).
        prompts: some to decode for the operations; None takes those beside the pool. None with a forced pool.
        recording: what decides on a forced pool, of as many models as it has; None with all others.
        out: file to write, NAME.profile; None keeps it where `cost="here"` finds it.
        sampling: how tokens are chosen; greedy if None, or as recorded.
        grid: shapes of forwards.
        repeats: times each shape is measured, >= 3.
        policies: whose own seconds are measured, in addition to the default ones.
        most_drift: largest change of seconds while they are measured, as a share, 0 to 10.
        threads: CPU threads of torch, if a pool is loaded.
        debug: first say how models run.
        chat: render prompts as questions of a dialogue, by the chat template of the tokenizer; not with a forced pool.
        restart: measure everything, even what an interrupted or refused profile measured within the last hour.

    Raises:
        ValueError: prompts or a policy that cannot be used, fewer repeats, or a machine whose seconds drift by
            more; no profile is written then, but what was measured is kept for an hour.
    """
    _check_arguments(out, repeats, most_drift)
    models = load_models(pool, threads=threads, debug=debug, chat=chat)
    check_probed(models)
    watched = watched_requests(models, pool, prompts, recording, sampling)
    members = loaded_pool(models)
    chains = _built(watched_chains(members), members, watched)
    timed = _timed(chains, _built(default_policies(members), members, watched), _built(policies, members, watched))
    forwards = forwards_here(models)
    shapes = grid or ShapeGrid()
    journal = journal_of(models, forwards, shapes, most_drift=most_drift, restart=restart)
    with kept_for_another(journal):
        even = measure_forwards(forwards, shapes, longest=models.context_tokens, repeats=repeats, journal=journal)
        _refuse_drift(even.drift, most_drift, journal)
        measured = measure_members(models, forwards, even, shapes)
        operations = measure_operations(
            models, watched.prompts, measured, chains, timed, watched.sampling, world=watched.world
        )
    made = Profile(meta=_meta(models, measured, operations, watched.sampling), shapes=even.shapes)
    usual = profiles_folder() / f"{made.meta.pool}-{made.meta.measured_at:%Y%m%dT%H%M%S}{ENDING}"
    path = usual if out is None else Path(out)
    write_profile(made, path)
    journal.forget()
    return Profiled(profile=made, out=path, floor=_floor(models, made))


_MOST_DRIFT_GIVEN = 10


def _check_arguments(out: Path | str | None, repeats: int, most_drift: float) -> None:
    check_within("`most_drift`", most_drift, f"[0, {_MOST_DRIFT_GIVEN}]")
    check_least("`repeats`", repeats, 3)
    if out is not None and Path(out).suffix != ENDING:
        raise ArgumentError(f"`out` must end in {ENDING}, by which a cost is known for a profile, got {str(out)!r}")


def _floor(models: LoadedMembers, made: Profile) -> str | None:
    target = models.target
    if target.model is None or target.model.device.type != "cuda":
        return None
    shapes = made.of(target.name)
    return memory_floor(target).comparison(shapes) if any(shape.new_tokens == 1 for shape in shapes) else None


def _refuse_drift(drift: float, most_drift: float, journal: Journal) -> None:
    """Raise ArgumentError if seconds drifted too much; the journal keeps them for a larger `most_drift`."""
    if drift <= most_drift:
        return
    journal.refuse(drift)
    left_s, enough = left_of(journal), ceil(drift * 10) / 10
    way_out = ""
    if left_s > 0 and enough <= _MOST_DRIFT_GIVEN:
        way_out = (
            f"; `most_drift` {enough:.1f} accepts it, and within {in_words(left_s)} continues with what is measured, "
            "unless the machine has become slower or faster"
        )
    raise ArgumentError(
        f"seconds must drift by `most_drift` {most_drift:g} ({most_drift:.0%}) at most while they are measured, got "
        f"{drift:.0%}: something else keeps this machine busy; try again when it is quiet{way_out}"
    )


def _operation_row(name: str, beside: BesideForwards) -> dict[str, str]:
    return {
        "operation": name,
        "us once": f"{beside.per_op_s * 1e6:.0f}",
        "us a forward": f"{beside.per_forward_s * 1e6:.1f}",
        "us a row": f"{beside.per_row_s * 1e6:.1f}",
        "us a token": f"{beside.per_token_s * 1e6:.1f}",
    }


def _timed(
    chains: Mapping[str, MakePolicy], usual: Mapping[str, MakePolicy], given: Mapping[str, MakePolicy]
) -> dict[str, MakePolicy]:
    """The policies given, and of the usual ones the first of each class that is neither among these nor a chain."""
    known = {type(make()) for make in (*chains.values(), *given.values())}
    timed: dict[str, MakePolicy] = {}
    for name, make in usual.items():
        if (kind := type(make())) not in known:
            known.add(kind)
            timed[name] = make
    return {**timed, **given}


def _built(names: Iterable[str], pool: Pool, watched: WatchedRequests) -> dict[str, MakePolicy]:
    """Makers of policies, by name; raises ValueError for one that cannot be made, or run on these requests."""
    makers: dict[str, MakePolicy] = {name: partial(PolicySpec.parse(name).build, pool) for name in dict.fromkeys(names)}
    forced = watched.world is not None
    where = "the recording" if forced else "the prompts"
    for name, make in makers.items():
        check_runnable(make(), name, forced=forced, tags=watched.tags, where=where)
    return makers


def _meta(
    models: ModelPool | ForcedPool, measured: MeasuredMembers, operations: Operations, sampling: Sampling
) -> ProfileMeta:
    return ProfileMeta(
        pool=models.name,
        forced=isinstance(models, ForcedPool),
        members=tuple(
            ProfiledMember(
                name=member.name,
                parameters=member.num_parameters,
                dtype=member.dtype,
                forward=measured.forward_names[member.name],
                smooth=measured.smooth[member.name],
                uneven=measured.uneven[member.name],
                after_away=measured.after_away[member.name],
                reload=measured.reloads[member.name],
                in_decoding=operations.in_decoding[member.name],
                drafting=operations.drafting[member.name],
                verifying=operations.verifying[member.name],
                stopping=operations.stopping.get(member.name),
                shares=measured.shares[member.name],
            )
            for member in models.members
            if member.name in measured.names
        ),
        processor=processor(),
        device=device_name(models),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        transformers=version("transformers"),
        paceline=version("paceline"),
        cache="slots",
        sampling=sampling.mode,
        products=tuple(models.product_lines("auto")),
        measured_at=datetime.now(UTC),
        drift=measured.even.drift,
        left_out=measured.even.left_out,
        lookup=operations.lookup,
        decide_s=operations.decide_s,
    )
