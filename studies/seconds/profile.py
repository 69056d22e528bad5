"""Measure what this machine takes for the operations of a pool: what `paceline profile` does."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ...arguments import ArgumentError, check_least, check_within
from ...counted import counted
from ...decoding.policy import Policy
from ...decoding.pool import Pool
from ...machine import processor
from ...policies.default_policies import default_policies
from ...policies.spec import PolicySpec
from ...profiles.forwards import forwards_of
from ...profiles.meta import BesideForwards, ProfiledMember, ProfileMeta
from ...profiles.profile import ENDING, Profile, profiles_folder, write_profile
from ...reports.tables.grid import Grid, table
from ...reports.tables.printed import Printed
from ...runtime.forced.forced_pool import ForcedPool
from ...runtime.pools.loaded_members import LoadedMembers, loaded_pool
from ...runtime.pools.pool import ModelPool
from ...runtime.profiling.forward_shapes import Grid as ShapeGrid
from ...runtime.profiling.forward_shapes import measure_forwards
from ...runtime.profiling.journal import Journal
from ...runtime.profiling.members import MeasuredMembers, measure_members
from ...runtime.profiling.memory_floor import memory_floor
from ...runtime.profiling.operations import Operations, measure_operations
from ...runtime.profiling.probe import check_probed
from ...runtime.prompts import Prompt
from ...traces.meta import Sampling
from ..pool import load_models
from .freshness import device_name
from .runnable_policies import check_runnable
from .unfinished import journal_of
from .watched_chains import watched_chains
from .watched_requests import WatchedRequests, watched_requests

# A machine whose seconds change by more than this while they are measured does not hold still.
MOST_DRIFT = 0.1


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Profiled(Printed):
    """A profile that was made; prints as `paceline profile` does.

    Attributes:
        profile: what was measured.
        out: file that holds it.
        floor: the target's forwards against what its GPU's memory allows; None on a CPU.
    """

    profile: Profile
    out: Path
    floor: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/profiles.md)."""
        shapes = [shape._asdict() for shape in self.profile.shapes]
        meta = self.profile.meta.model_dump(mode="json")
        return {"out": str(self.out), "floor": self.floor, "meta": meta, "shapes": shapes}

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each measured shape."""
        return [shape._asdict() for shape in self.profile.shapes]

    def tables(self) -> Sequence[Grid]:
        """Members, then operations."""
        meta = self.profile.meta
        members = [self._member_row(member) for member in meta.members]
        operations = [
            _operation_row(f"{kind} by {member.name}", member.beside(kind))
            for member in meta.members
            for kind in ("draft", "verify")
        ]
        operations.append(_operation_row("lookup", meta.lookup))
        pool = f"{'FORCED ' if meta.forced else ''}pool {meta.pool}"
        title = f"{pool} on {meta.hardware}: {counted(len(self.profile.shapes), 'shape')} of forwards"
        return [
            table(members, texts=("forward",), title=title),
            table(operations, title="beside forwards"),
        ]

    def lines(self) -> Sequence[str]:
        """What to know of it, and where it is."""
        meta = self.profile.meta
        lines = [f"left out, as memory is short: {words}" for words in meta.left_out]
        lines.append(f"drift while measuring: {meta.drift:.1%}")
        quickest, slowest = (pick(meta.decide_s, key=meta.decide_s.__getitem__) for pick in (min, max))
        least, most = (f"{meta.decide_s[name] * 1e6:.0f} us ({name})" for name in (quickest, slowest))
        lines.append(f"policies take {least} to {most} a step")
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
        spread = sorted(shape.spread for shape in shapes.values())[len(shapes) // 2]
        return {
            "member": member.name,
            "forward": member.forward,
            f"ms, {rows} x {new}": f"{shapes[min(shapes)].seconds * 1e3:.3f}",
            f"ms, {most} x {new}": f"{shapes[(most, *min(shapes)[1:])].seconds * 1e3:.3f}",
            "ms, widest": f"{shapes[widest].seconds * 1e3:.2f} ({widest[0]} x {widest[1]})",
            "spread": f"{spread:.1%}",
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
    restart: bool = False,
) -> Profiled:
    """Measure forwards by shape, and what operations and policies take besides.

    Args:
        pool: models, or where they are; None is the shipped pool (`load_models`).
        prompts: some to decode for the operations; None takes those that lie beside the pool. None with a forced pool.
        recording: what decides on a forced pool, of as many models as it has; None with all others.
        out: file to write, NAME.profile; None keeps it where `cost="here"` finds it.
        sampling: how tokens are chosen; greedy if None, or as the recording says.
        grid: shapes of forwards.
        repeats: times each shape is measured, >= 3.
        policies: whose own seconds are measured, besides the default ones.
        most_drift: largest change of seconds while they are measured, as a share, 0 to 10.
        threads: CPU threads of torch, where a pool is loaded.
        debug: say beforehand how models run.
        restart: measure everything, also what an interrupted profile has measured within the last hour.

    Raises:
        ValueError: prompts or a policy that cannot be used, fewer repeats, or a machine whose seconds drift by
            more; nothing is written then.
    """
    _check_arguments(out, repeats, most_drift)
    models = load_models(pool, threads=threads, debug=debug)
    check_probed(models)
    watched = watched_requests(models, pool, prompts, recording, sampling)
    members = loaded_pool(models)
    chains = _built(watched_chains(members), members, watched)
    timed = _built([*default_policies(members), *policies], members, watched)
    forwards = {
        member.name: models.forward(level, "auto", share_weights=True)
        for level, member in enumerate(models.members)
        if member.model is not None
    }
    shapes = grid or ShapeGrid()
    journal = journal_of(models, forwards, shapes, most_drift=most_drift, restart=restart)
    even = measure_forwards(forwards, shapes, longest=models.context_tokens, repeats=repeats, journal=journal)
    _refuse_drift(even.drift, most_drift, journal)
    measured = measure_members(models, forwards, even, shapes)
    operations = measure_operations(
        models, watched.prompts, measured, chains, timed, watched.sampling, world=watched.world
    )
    made = Profile(meta=_meta(models, measured, operations, watched.sampling), shapes=even.shapes)
    path = _place(made.meta) if out is None else Path(out)
    write_profile(made, path)
    journal.forget()
    return Profiled(profile=made, out=path, floor=_floor(models, made))


def _check_arguments(out: Path | str | None, repeats: int, most_drift: float) -> None:
    check_within("`most_drift`", most_drift, "[0, 10]")
    check_least("`repeats`", repeats, 3)
    if out is not None and Path(out).suffix != ENDING:
        raise ArgumentError(f"`out` must end in {ENDING}, by which a cost is known for a profile, got {str(out)!r}")


def _floor(models: LoadedMembers, made: Profile) -> str | None:
    target = models.target
    if target.model is None or target.model.device.type != "cuda":
        return None
    shapes = made.of(target.name)
    return memory_floor(target).said_of(shapes) if any(shape.new_tokens == 1 for shape in shapes) else None


def _refuse_drift(drift: float, most_drift: float, journal: Journal) -> None:
    """Raise ArgumentError where seconds changed by too much; what was measured is of no use to anybody then."""
    if drift > most_drift:
        journal.forget()
        raise ArgumentError(
            f"seconds must drift by `most_drift` {most_drift:.0%} at most while they are measured, got {drift:.0%}: "
            "something else keeps this machine busy; try again when it is quiet"
        )


def _operation_row(name: str, beside: BesideForwards) -> dict[str, str]:
    return {
        "operation": name,
        "us once": f"{beside.per_op_s * 1e6:.0f}",
        "us a forward": f"{beside.per_forward_s * 1e6:.1f}",
        "us a row": f"{beside.per_row_s * 1e6:.1f}",
        "us a token": f"{beside.per_token_s * 1e6:.1f}",
    }


def _built(names: Iterable[str], pool: Pool, watched: WatchedRequests) -> dict[str, Policy]:
    """Policies by name; raises ValueError for one that cannot be made, or cannot be run on what is watched."""
    built = {name: PolicySpec.parse(name).build(pool) for name in dict.fromkeys(names)}
    forced = watched.world is not None
    where = "the recording" if forced else "the prompts"
    for name, policy in built.items():
        check_runnable(policy, name, forced=forced, tags=watched.tags, where=where)
    return built


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


def _place(meta: ProfileMeta) -> Path:
    return profiles_folder() / f"{meta.pool}-{meta.measured_at:%Y%m%dT%H%M%S}{ENDING}"
