"""Public checks for users' routers, costs, workloads and importers; the one for policies is `check_policy`.

Each uses the plug-in as paceline does, and raises a ValueError of one line where it breaks the contract.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from operator import index
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from ..base.by_name import NamedKind, Spec
from ..base.errors import ArgumentError, pass_interrupt, repeated, told
from ..sim.cost.base import CostModel
from ..sim.cost.by_name import COSTS, check_seconds, cost_of_class
from ..sim.serving.routers import ROUTERS, ReplicaSignals, Router, RouterError, RouterSetting
from ..traces.errors import TraceFormatError
from ..traces.importers import Format, ImportOptions, read_recording
from ..traces.importers.formats import detect
from ..traces.workloads.arrival import Arrival, requests_of
from ..traces.workloads.format import Tally
from ..traces.workloads.registered import WORKLOADS, GivesArrivals, workload_of_class
from .import_logs import import_logs
from .setting import open_recording

_SHAPES = (*product((1, 2, 8, 64), (1, 2, 5, 17), (0, 64, 1000, 8000)),)  # rows, new tokens of each, held by each
_MOST_REQUESTS = 10_000  # of a workload that are checked
_PICKS = 200  # of a router, in each cluster
_CUTS = 8  # of a file


class PluginError(ValueError):
    """A plug-in broke its contract; one line."""


def _spec(kind: NamedKind[Any], maker: Callable[..., object], options: Mapping[str, Any]) -> Spec[Any]:
    return Spec(kind=kind, label=getattr(maker, "__name__", str(maker)), options=options, maker=maker)


def check_cost(
    maker: Callable[..., CostModel],
    recording: str | Path | None = "pico",
    **options: Any,  # noqa: ANN401 - of any kind
) -> None:
    """Check that a cost gives seconds of every forward, and the same ones at each call.

    Args:
        maker: the class; its constructor takes a recording first.
        recording: whose models are used.
        **options: of the constructor.

    Raises:
        ValueError: a constructor or `forward_s` that raises, no `CostModel`, seconds that are not above 0 and finite,
            or other seconds for the same forward.
    """
    spec, opened = _spec(COSTS, maker, options), open_recording(recording)
    costs = [cost_of_class(spec, opened) for _ in range(2)]
    found = [check_seconds(cost, opened.about.models, _SHAPES, spec.label) for cost in (costs[0], *costs)]
    for (model, rows, new, held), seconds in found[0].items():
        others = {other[model, rows, new, held] for other in found} - {seconds}
        if others:
            what = f"{model}, {rows} rows of {new} new tokens, {held} held"
            raise PluginError(
                f"cost {spec.label!r}: {what}: must be the same each time, got {seconds} and {min(others)}"
            )


def check_workload(
    maker: Callable[..., GivesArrivals],
    *,
    seed: int = 0,
    **options: Any,  # noqa: ANN401 - of any kind
) -> None:
    """Check that a workload gives valid requests, in order, and the same ones at each call.

    At most 10,000 arrivals are checked, each with the next ones of its session.

    Args:
        maker: the class; its constructor takes a seed first.
        seed: to draw with.
        **options: of the constructor.

    Raises:
        ValueError: a constructor or `arrivals` that raises, no request, no valid `Arrival`, decreasing times, a
            repeated id or block, blocks that do not fit, other requests at a second call, or a seed that matters
            although `drawn` is False, or conversely.
    """
    spec = _spec(WORKLOADS, maker, options)
    source = workload_of_class(spec, seed, spec.label)
    first = _requests(source.arrivals(Tally()))
    if twice := repeated([one.request_id for one in first]):
        raise PluginError(f"workload {spec.label!r}: request ids must be unique, got {twice[0]!r} twice")
    for one in first:
        if one.blocks and len(one.blocks) < one.prompt_tokens // source.unit_tokens:
            rule = f"blocks must be one for each {source.unit_tokens} tokens of the prompt, {one.prompt_tokens}"
            raise PluginError(f"workload {spec.label!r}: request {one.request_id}: {rule}, got {len(one.blocks)}")
    again, anew, other = (
        _requests(given.arrivals(Tally()))
        for given in (source, workload_of_class(spec, seed, spec.label), workload_of_class(spec, seed + 1, spec.label))
    )
    if not first == again == anew:
        raise PluginError(f"workload {spec.label!r}: must give the same requests each time, got others")
    if source.drawn == (first == other):
        rule = "give other requests, or have drawn = False" if source.drawn else "give the same, or have drawn = True"
        raise PluginError(f"workload {spec.label!r}: seed {seed + 1} must {rule}")


def _requests(arrivals: Any) -> list[Arrival]:  # noqa: ANN401 - an iterator of arrivals
    """First and following requests, without their own followers, so that they can be compared."""
    begun = islice(arrivals, _MOST_REQUESTS)
    return [one._replace(turns=None) for arrival in begun for one, _ in requests_of(arrival)]


def check_router(maker: Callable[..., Router], **options: Any) -> None:  # noqa: ANN401 - of any kind
    """Check that a router picks an existing replica, and the same one for the same input.

    Clusters of 1, 2 and 5 replicas, 200 requests each, with random loads.

    Args:
        maker: the class; its constructor takes a `RouterSetting` first.
        **options: of the constructor.

    Raises:
        ValueError: a constructor or `pick` that raises, an invalid replica, other picks from the same seed, or signals
            or prefixes read by a router that declares that it does not (`reads_signals`, `reads_prefixes`).
    """
    spec = _spec(ROUTERS, maker, options)
    for num_replicas in (1, 2, 5):
        first, again = (_picks(spec, num_replicas) for _ in range(2))
        if first != again:
            raise PluginError(f"router {spec.label!r}: must pick the same each time, {num_replicas} replicas")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """Random loads; implements `Seen`."""

    router: Router
    loads: tuple[ReplicaSignals, ...]
    prefixes: Mapping[int, int]
    snapshot: int

    @property
    def signals(self) -> tuple[ReplicaSignals, ...]:
        if not getattr(self.router, "reads_signals", True):
            raise RouterError("it reads signals, and says reads_signals = False")
        return self.loads

    @property
    def cached(self) -> Mapping[int, int]:
        if not getattr(self.router, "reads_prefixes", False):
            raise RouterError("it reads cached prefixes, and does not say reads_prefixes = True")
        return self.prefixes

    def cached_tokens(self, replica: int) -> int:
        return self.cached.get(replica, 0)


def _picks(spec: Spec[Any], num_replicas: int) -> list[int]:
    router = spec.build(RouterSetting(num_replicas=num_replicas, seed=0))
    draw = Random(num_replicas)
    picks = []
    for number in range(_PICKS):
        loads = tuple(
            ReplicaSignals(draw.randrange(9), draw.randrange(9), draw.randrange(9000), draw.random())
            for _ in range(num_replicas)
        )
        prompt = 1 + draw.randrange(4000)
        cached = {one: draw.randrange(prompt) + 1 for one in range(num_replicas) if draw.random() < 0.3}
        arrival = Arrival(f"r{number}", number * 10**9, prompt, 1 + draw.randrange(500))
        try:
            seen = _Seen(router=router, loads=loads, prefixes=cached, snapshot=number)
            picked = index(router.pick(arrival, seen))
        except BaseException as error:  # foreign code
            pass_interrupt(error)
            raise PluginError(f"router {spec.label!r}: pick raised {told(error)}") from error
        if not 0 <= picked < num_replicas:
            raise PluginError(f"router {spec.label!r}: pick must give 0 to {num_replicas - 1}, got {picked}")
        picks.append(picked)
    return picks


def check_importer(found: Format, files: Sequence[str | Path], options: ImportOptions | None = None) -> None:
    """Check that an importer reads its files to a valid recording, and rejects damaged ones by a TraceFormatError.

    Args:
        found: the format.
        files: a small example of it, plain text.
        options: of the import, if the files lack something.

    Raises:
        ValueError: files that `trace import auto` would not give to it, no valid recording, other requests at a second
            reading, or a damaged file at which it raises anything except a TraceFormatError.
    """
    places = [Path(file) for file in files]
    told_as = detect(places, [found])
    if told_as.name != found.name:
        raise PluginError(f"importer {found.name!r}: must have files that no other format tells, got {told_as.name}'s")
    with TemporaryDirectory() as folder:
        outs = [Path(folder) / f"{number}.trace" for number in range(2)]
        for out in outs:
            import_logs(places, out, options, format_name=found)
            open_recording(out)
        first, again = ([file.read_bytes() for file in sorted(out.iterdir())] for out in outs)
        if first != again:
            raise PluginError(f"importer {found.name!r}: must read the same requests each time, got others")
        for place in places:
            _check_damaged(found, place, [other for other in places if other != place], Path(folder), options)


def _check_damaged(
    found: Format, place: Path, others: Sequence[Path], folder: Path, options: ImportOptions | None
) -> None:
    """Check the file cut at several places, and with a zero byte, a word and a huge number in it."""
    whole = place.read_bytes()
    damaged = [whole[: len(whole) * part // _CUTS] for part in range(_CUTS)]
    damaged += [
        whole[:at] + what + whole[at:]
        for at in range(0, len(whole), max(1, len(whole) // _CUTS))
        for what in (b"\x00", b" x ", b"9" * 30)
    ]
    for number, content in enumerate(damaged):
        copy = folder / f"{number}-{place.name}"
        copy.write_bytes(content)
        try:
            read_recording(found, [copy, *others], options)
        except (TraceFormatError, ArgumentError):
            continue
        except BaseException as error:  # foreign code
            pass_interrupt(error)
            rule = f"must refuse a damaged {place.name} (copy {number}) by TraceFormatError"
            raise PluginError(f"importer {found.name!r}: {rule}, got {told(error)}") from error
