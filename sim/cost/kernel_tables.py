"""Tables of measured kernels, as aiconfigurator publishes them in Parquet: by device, operation, engine and version.

A folder of one device holds OPERATION/ENGINE/VERSION/TABLE.parquet: matrix products, attention, experts, all-reduces.
Columns have the kernel and its size; `latency` is in milliseconds.
"""

import re
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ...base.errors import ArgumentError
from ...traces.errors import TraceFormatError
from .base import LOADED_ADVICE, CostRangeError
from .files import interpolated

TABLES = "*/*/*/*.parquet"  # OPERATION/ENGINE/VERSION/TABLE in a folder of one device
KERNELS = "kernels:"  # prefix of names of costs by tables
_FOLDER = "a folder of one device that holds gemm/ENGINE/VERSION/gemm_perf.parquet, as aiconfigurator's data/h100_sxm"
RANGE_ADVICE = "use a smaller batch or window, another cost, or `extrapolate`"


class KernelTable(NamedTuple):
    """One kind of table."""

    folder: str
    name: str
    points: tuple[str, ...]  # columns of the size, >= 1; seconds are read along the last one
    # Bounds of the fastest row of a kernel, in milliseconds, ten times beyond what was published: in other units a
    # table is not within them.
    fastest_ms: tuple[float, float] = (1e-4, 1.0)


GEMM = KernelTable("gemm", "gemm_perf", ("n", "k", "m"))
PROMPTS = KernelTable("attention", "context_attention_perf", ("batch_size", "isl"))
DECODING = KernelTable("attention", "generation_attention_perf", ("batch_size", "step"))
EXPERTS = KernelTable("moe", "moe_perf", ("num_tokens",), (1e-3, 300.0))
REDUCE = KernelTable("comm", "custom_allreduce_perf", ("message_size",))
QUANTISING = KernelTable("quantize", "computescale_perf", ("k", "m"), (0.0, 0.1))  # a difference of kernels, >= 0
# Columns that older tables lack, and the value of all their rows.
_OLDER = {"window_size": 0}
# No product of the least size keeps a device busy for so long: above it the host was measured.
_HOST_S = 2e-5


class Curve:
    """Seconds of one kernel along the last column of its points, linear between measured ones.

    Beyond these it raises CostRangeError or, with `extrapolate`, continues as `interpolated` does and notes it in
    `beyond`.
    """

    def __init__(
        self, told: str, along: str, points: Sequence[int], seconds: Sequence[float], extrapolate: bool
    ) -> None:
        self.points, self.beyond = points, False
        self._told, self._along, self._seconds, self._extrapolate = told, along, seconds, extrapolate

    def at(self, where: float) -> float:
        """Seconds at a point; raises CostRangeError beyond those measured."""
        if not self.points[0] <= where <= self.points[-1]:
            self.refuse(where)
        return self.on(where)

    def on(self, where: float) -> float:
        """Seconds, also extrapolated, which is not noted."""
        return interpolated(self.points, self._seconds.__getitem__, where)

    def refuse(self, where: float, along: str = "", points: Sequence[int] = ()) -> None:
        """Raise CostRangeError, unless it extrapolates; for its own points or for others."""
        self.beyond, points = True, points or self.points
        if not self._extrapolate:
            measured = f"{along or self._along} {points[0]:,} to {points[-1]:,}"
            told = f"{self._told} was measured for {measured}, asked for {where:,.0f}"
            raise CostRangeError(told, RANGE_ADVICE, LOADED_ADVICE)


class KernelTables:
    """The tables of one engine on one device, read on demand.

    Of several kernels for one figure the fastest counts, and of several versions the newest with rows of it.

    Args:
        folder: of a device.
        engine: whose tables.
        extrapolate: continue beyond measured points.

    Raises:
        ArgumentError: a folder without tables, or without those of the engine; also by `curves`, for missing rows.
        TraceFormatError: by `curves`, a file that is not Parquet, lacks a column, has a bad figure, latencies in other
            units, or rows of another device.
    """

    def __init__(self, folder: Path, engine: str, *, extrapolate: bool = False) -> None:
        self.folder, self.engine, self.extrapolate = folder, engine, extrapolate
        self.versions: dict[str, None] = {}  # of the tables used
        self._device = ""  # of all tables read
        self._read: dict[tuple[Path, tuple[str, ...]], pa.Table] = {}
        self._found: dict[tuple[str, str], dict[tuple[int, ...], Curve]] = {}
        asked = f"`cost` {KERNELS}{folder}"
        if not folder.is_dir():
            raise ArgumentError(f"{asked} must name {_FOLDER}: there is no such folder")
        known = sorted({path.parents[1].name for path in folder.glob(f"{GEMM.folder}/*/*/{GEMM.name}.parquet")})
        if not known:
            devices = sorted({path.parent.name for path in folder.glob(f"**/{GEMM.folder}") if path.is_dir()})
            rule = (
                f"; it holds devices, name one of them: {', '.join(devices)}" if devices else ": it holds no such file"
            )
            raise ArgumentError(f"{asked} must name {_FOLDER}{rule}")
        if engine not in known:
            raise ArgumentError(f"{asked} has tables of {', '.join(known)}, got `engine` {engine}")

    @property
    def hardware(self) -> str:
        """The device's name by its driver."""
        self._table(self._newest_first(GEMM)[0], GEMM, ())
        return self._device

    @property
    def beyond(self) -> tuple[str, ...]:
        """Tables used beyond their measured points."""
        found = (name for (name, _), curves in self._found.items() if any(each.beyond for each in curves.values()))
        return tuple(dict.fromkeys(found))

    def curves(self, table: KernelTable, keys: Mapping[str, Any]) -> dict[tuple[int, ...], Curve]:
        """The curves of one kernel, given by `keys` of columns, by all its points except the last."""
        words = ", ".join(f"{key} {value}" for key, value in keys.items())
        if (table.name, words) in self._found:
            return self._found[table.name, words]
        paths, lacks = self._newest_first(table), ""
        for path in paths:
            held, here = self._table(path, table, tuple(keys)), ""
            for key, value in keys.items():
                if key not in held.column_names and value == _OLDER[key]:
                    continue
                known = held[key].unique().to_pylist()
                try:
                    held = held.filter(pc.equal(held[key], value))
                except pa.ArrowException:
                    raise TraceFormatError(path, key, f"must be as {value!r}", str(held[key].type)) from None
                if not len(held):
                    has = ", ".join(map(str, sorted(known, key=lambda one: (str(type(one)), one))))
                    here = f"{path}: no rows of {key} {value} among those of {words}; it has {has}"
                    break
            if not here:
                self.versions[path.parent.name] = None
                told = f"{path.parent.parent.name} {path.parent.name} {table.name} of {words}"
                return self._found.setdefault((table.name, words), self._curves(path, table, held, told))
            lacks = lacks or here
        raise ArgumentError(lacks or f"{self.folder}: no {table.folder}/{self.engine}/VERSION/{table.name}.parquet")

    def _newest_first(self, table: KernelTable) -> list[Path]:
        found = self.folder.glob(f"{table.folder}/{self.engine}/*/{table.name}.parquet")
        return sorted(found, key=lambda path: _order(path.parent.name), reverse=True)

    def _table(self, path: Path, table: KernelTable, keys: tuple[str, ...]) -> pa.Table:
        """The needed columns, checked; read once per file."""
        if (path, keys) in self._read:
            return self._read[path, keys]
        with path.open("rb") as file:
            if file.read(40).startswith(b"version https://git-lfs"):
                raise TraceFormatError(
                    path, "content", "must be Parquet; `git lfs pull` fetches it", "a Git LFS pointer"
                )
        try:
            schema = pq.read_schema(path)
            older = [each for each in keys if each in _OLDER and each not in schema.names]
            wanted = [each for each in (*keys, *table.points, "latency", "device") if each not in older]
            for column in wanted:
                if column not in schema.names:
                    raise TraceFormatError(path, "columns", f"must have {column}", ", ".join(schema.names))
            held = pq.read_table(path, columns=wanted)
        except (pa.ArrowException, OSError) as error:
            raise TraceFormatError(path, "content", "must be Parquet", str(error).partition("\n")[0]) from None
        for column in table.points:
            if not pa.types.is_integer(schema.field(column).type) or held[column].null_count:
                raise TraceFormatError(path, column, "must be whole numbers", str(schema.field(column).type))
            if len(held) and (least := pc.min(held[column]).as_py()) < 1:
                raise TraceFormatError(path, column, "must be >= 1", least)
        for device in map(str, held["device"].unique().to_pylist()):
            if (self._device or device) != device:
                raise TraceFormatError(path, "device", f"must be {self._device!r}, as in other rows", device)
            self._device = device
        held = held.drop_columns(["device"])
        return self._read.setdefault((path, keys), held)

    def _curves(self, path: Path, table: KernelTable, held: pa.Table, told: str) -> dict[tuple[int, ...], Curve]:
        points = np.array([held[name].to_numpy() for name in table.points])
        try:
            seconds: NDArray[np.float64] = held["latency"].to_numpy().astype(np.float64) / 1e3
        except ValueError:
            raise TraceFormatError(path, "latency", "must be numbers", str(held["latency"].type)) from None
        low_ms, high_ms = table.fastest_ms
        wrong = ~(np.isfinite(seconds) & ((seconds > 0) if low_ms else (seconds >= 0)))
        if wrong.any():
            rule = f"must be milliseconds {'above 0' if low_ms else '>= 0'}"
            raise TraceFormatError(path, "latency", rule, held["latency"].to_pylist()[wrong.argmax()])
        if not low_ms <= (least_ms := float(seconds.min()) * 1e3) <= high_ms:
            rule = f"must be milliseconds, {low_ms:g} to {high_ms:g} of the fastest row of {told.rpartition(' of ')[2]}"
            raise TraceFormatError(path, "latency", rule, least_ms)
        if table is GEMM and seconds.min() > _HOST_S:
            least = f"{seconds.min() * 1e6:.0f} microseconds"
            raise ArgumentError(
                f"{path}: products of {told.rpartition(' of ')[2]} took {least} at the least, which the host takes and "
                "no kernel; use other weights, another `engine` or cost"
            )
        best: dict[tuple[int, ...], dict[int, float]] = {}
        for point, second in zip(points.T.tolist(), seconds.tolist(), strict=True):
            of = best.setdefault(tuple(point[:-1]), {})
            of[point[-1]] = min(second, of.get(point[-1], inf))
        found = {}
        for key, of in best.items():
            where = "".join(f", {name} {value}" for name, value in zip(table.points, key, strict=False))
            at = sorted(of)
            found[key] = Curve(told + where, table.points[-1], at, [of[each] for each in at], self.extrapolate)
        return found


def _order(version: str) -> tuple[int, ...]:
    """Newer is larger; a release candidate is older than its release."""
    found = [int(each) for each in re.findall(r"-?\d+", version.replace("rc", " -1 "))]
    return (*found, *[0] * (10 - len(found)))
