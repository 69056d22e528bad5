"""The formats by name: the one list that the command line, the detector and the tests go through."""

from ...arguments import known_are
from . import bench_clients
from .format import Format
from .steps import eagle_timed, frontier, positions, spec_bench, vllm_detailed
from .totals import (
    acceptance_by_k,
    llamacpp,
    llamacpp_log,
    metrics,
    sglang_bench,
    sglang_log,
    sglang_meta,
    trtllm,
    trtllm_iterations,
    vllm_bench,
    vllm_log,
    vllm_summary,
)

FORMATS: tuple[Format, ...] = (
    eagle_timed.EAGLE_TIMED,
    spec_bench.SPEC_BENCH,
    vllm_detailed.VLLM_DETAILED,
    positions.POSITIONS,
    frontier.FRONTIER,
    vllm_summary.VLLM_SUMMARY,
    sglang_meta.SGLANG_META,
    trtllm.TRTLLM,
    llamacpp.LLAMACPP_TIMINGS,
    llamacpp_log.LLAMACPP_LOG,
    metrics.VLLM_METRICS,
    metrics.SGLANG_METRICS,
    metrics.TRTLLM_METRICS,
    metrics.LLAMACPP_METRICS,
    vllm_log.VLLM_LOG,
    vllm_bench.VLLM_BENCH,
    sglang_bench.SGLANG_BENCH,
    sglang_log.SGLANG_LOG,
    trtllm_iterations.TRTLLM_ITERATIONS,
    bench_clients.AIPERF,
    bench_clients.GUIDELLM,
    acceptance_by_k.ACCEPTANCE_BY_K,
)


def format_names() -> tuple[str, ...]:
    """Names of all formats."""
    return tuple(known.name for known in FORMATS)


def format_named(name: str) -> Format:
    """The format of that name; raises ValueError."""
    for known in FORMATS:
        if known.name == name:
            return known
    raise ValueError(f"format must be {unknown_format(name)}")


def unknown_format(name: str) -> str:
    """What the name of a format must be, and is not."""
    return f"a known one ({known_are(name, format_names(), where='docs/importing.md')}), got {name!r}"
