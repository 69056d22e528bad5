"""The formats by name: the one list that the command line, the detector and the tests go through."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..rounds.rounds import RoundsRequest
from ..rounds.trust import Form
from . import eagle_timed, frontier, positions, spec_bench, vllm_detailed
from .learned import Learned
from .reading.fields import Fields
from .totals import (
    llamacpp_log,
    llamacpp_timings,
    sglang_bench,
    sglang_meta,
    trtllm,
    vllm_bench,
    vllm_log,
    vllm_metrics,
    vllm_summary,
)


class Reader(Protocol):
    """The module of a format."""

    @property
    def KEYS(self) -> Sequence[str]:  # noqa: N802 - constants of a module
        """What tells its files, for error messages."""
        ...

    @property
    def NOTES(self) -> Sequence[str]:  # noqa: N802 - constants of a module
        """What becomes exact and what stays unknown."""
        ...

    def read(self, files: Sequence[Path], learned: Learned) -> Iterator[RoundsRequest]:
        """The requests of files, in a generator or all at once; raises TraceFormatError."""
        ...


class ObjectReader(Reader, Protocol):
    """The module of a format whose files hold JSON objects."""

    def sees(self, found: Fields) -> bool:
        """Whether an object could be of such a file."""
        ...


class LineReader(Reader, Protocol):
    """The module of a format whose files are text."""

    def sees_line(self, line: str) -> bool:
        """Whether a line could be of such a file."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One foreign format.

    Attributes:
        name: as the command line calls it.
        words: what its files are, in words.
        form: what they usually know.
        by_line: whether a line that is bad can be skipped.
        objects: reads it, if its files hold JSON objects.
        lines: reads it, if its files are text.
    """

    name: str
    words: str
    form: Form = "rounds"
    by_line: bool = False
    objects: ObjectReader | None = None
    lines: LineReader | None = None

    @property
    def reader(self) -> Reader:
        """Its module."""
        found = self.objects or self.lines
        assert found is not None
        return found


FORMATS = (
    Format(name="eagle-timed", words="EAGLE answer files with step times", objects=eagle_timed),
    Format(name="spec-bench", words="spec-bench answer files", by_line=True, objects=spec_bench),
    Format(name="vllm-detailed", words="vLLM per-request speculative metrics", by_line=True, objects=vllm_detailed),
    Format(name="positions", words="tokens emitted from every position", by_line=True, objects=positions),
    Format(name="frontier", words="a Frontier acceptance trace", objects=frontier),
    Format(
        name="vllm-summary",
        words="vLLM per-request acceptance histograms",
        form="histograms",
        by_line=True,
        objects=vllm_summary,
    ),
    Format(
        name="sglang-meta",
        words="SGLang responses with meta_info",
        form="histograms",
        by_line=True,
        objects=sglang_meta,
    ),
    Format(
        name="trtllm",
        words="TensorRT-LLM responses with acceptance statistics",
        form="histograms",
        by_line=True,
        objects=trtllm,
    ),
    Format(
        name="llamacpp-timings",
        words="llama.cpp responses with timings",
        form="request means",
        by_line=True,
        objects=llamacpp_timings,
    ),
    Format(name="llamacpp-log", words="a log of llama.cpp's server", form="request means", lines=llamacpp_log),
    Format(name="vllm-metrics", words="vLLM's Prometheus counters", form="rates", lines=vllm_metrics),
    Format(name="vllm-log", words="a log of vLLM's server", form="rates", lines=vllm_log),
    Format(name="vllm-bench", words="a result of vllm bench serve", form="rates", objects=vllm_bench),
    Format(name="sglang-bench", words="a result of SGLang's bench_serving", form="mean", objects=sglang_bench),
)


def format_names() -> tuple[str, ...]:
    """Names of all formats."""
    return tuple(known.name for known in FORMATS)


def format_named(name: str) -> Format:
    """The format of that name; raises ValueError."""
    for known in FORMATS:
        if known.name == name:
            return known
    raise ValueError(f"format must be one of {', '.join(format_names())}, got {name!r}")


def format_keys() -> str:
    """What tells the files of every format, for error messages."""
    return "; ".join(f"{known.name}: {', '.join(known.reader.KEYS)}" for known in FORMATS)
