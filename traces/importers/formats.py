"""The formats by name: the one list that the command line, the detector and the tests go through."""

from .format import Format
from .steps.eagle_timed import EAGLE_TIMED
from .steps.frontier import FRONTIER
from .steps.positions import POSITIONS
from .steps.spec_bench import SPEC_BENCH
from .steps.vllm_detailed import VLLM_DETAILED
from .totals.llamacpp import LLAMACPP_LOG, LLAMACPP_TIMINGS
from .totals.sglang_bench import SGLANG_BENCH
from .totals.sglang_meta import SGLANG_META
from .totals.trtllm import TRTLLM
from .totals.vllm_bench import VLLM_BENCH
from .totals.vllm_log import VLLM_LOG
from .totals.vllm_metrics import VLLM_METRICS
from .totals.vllm_summary import VLLM_SUMMARY

FORMATS: tuple[Format, ...] = (
    EAGLE_TIMED,
    SPEC_BENCH,
    VLLM_DETAILED,
    POSITIONS,
    FRONTIER,
    VLLM_SUMMARY,
    SGLANG_META,
    TRTLLM,
    LLAMACPP_TIMINGS,
    LLAMACPP_LOG,
    VLLM_METRICS,
    VLLM_LOG,
    VLLM_BENCH,
    SGLANG_BENCH,
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
    return "; ".join(f"{known.name}: {', '.join(known.keys)}" for known in FORMATS)
