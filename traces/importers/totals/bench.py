"""What the result files of serving benchmarks have in common: how long their requests were."""

from ..reading.fields import Fields
from .stated import Lengths, even_lengths


def bench_lengths(run: Fields) -> Lengths | None:
    """Lengths of the requests: each by itself, or all alike from totals; None if the run tells of none.

    Raises:
        TraceFormatError: lists of unequal length, counts that are none.
    """
    if "output_lens" in run:
        outputs = run.counts("output_lens", least=0).tolist()
        prompts = run.counts("input_lens", least=0).tolist() if "input_lens" in run else [0] * len(outputs)
        if len(prompts) != len(outputs):
            raise run.error("input_lens", f"must hold one entry for each of the {len(outputs)} answers", len(prompts))
        return Lengths(prompts=prompts, outputs=outputs)
    requests = run.count("completed", least=0, default=0)
    tokens = run.known_count("total_output_tokens", least=0)
    if not requests or not tokens:
        return None
    return even_lengths(run, requests, tokens, run.count("total_input_tokens", least=0, default=0))
