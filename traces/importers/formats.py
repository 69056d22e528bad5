"""The formats by name: the one list that the command line, the detector and the tests go through."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..imported.rounds import RoundsRequest
from . import eagle_timed, frontier, positions, spec_bench, vllm_detailed
from .learned import Learned
from .reading.fields import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One foreign format.

    Attributes:
        name: as the command line calls it.
        words: what its files are, in words.
        keys: that tell its files, for error messages.
        notes: what becomes exact and what stays unknown.
        sees: whether an object could be of such a file.
        read: the requests of files, in a generator or all at once; raises TraceFormatError.
    """

    name: str
    words: str
    keys: tuple[str, ...]
    notes: tuple[str, ...]
    sees: Callable[[Fields], bool]
    read: Callable[[Sequence[Path], Learned], Iterator[RoundsRequest]]


FORMATS = (
    Format(
        name="eagle-timed",
        words="EAGLE answer files with step times",
        keys=eagle_timed.KEYS,
        notes=eagle_timed.NOTES,
        sees=eagle_timed.sees,
        read=eagle_timed.read,
    ),
    Format(
        name="spec-bench",
        words="spec-bench answer files",
        keys=spec_bench.KEYS,
        notes=spec_bench.NOTES,
        sees=spec_bench.sees,
        read=spec_bench.read,
    ),
    Format(
        name="vllm-detailed",
        words="vLLM per-request speculative metrics",
        keys=vllm_detailed.KEYS,
        notes=vllm_detailed.NOTES,
        sees=vllm_detailed.sees,
        read=vllm_detailed.read,
    ),
    Format(
        name="positions",
        words="tokens emitted from every position",
        keys=positions.KEYS,
        notes=positions.NOTES,
        sees=positions.sees,
        read=positions.read,
    ),
    Format(
        name="frontier",
        words="a Frontier acceptance trace",
        keys=frontier.KEYS,
        notes=frontier.NOTES,
        sees=frontier.sees,
        read=frontier.read,
    ),
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
