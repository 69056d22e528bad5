"""`paceline compare`: policies side by side on one recording."""

from functools import partial
from pathlib import Path
from typing import Any

import typer

from ..base.options import given, opt
from ..reports.ledger import Again
from ..sim.simulate import MOST_BATCH
from ..studies.compare import MOST_CELLS
from ..studies.compare import compare as compare_policies
from ..studies.compare import sweep as sweep_chains
from ..studies.options import (
    LoadOptions,
    LogOptions,
    MixOptions,
    OrdersOptions,
    PartsOptions,
    PlacementOptions,
    PrefixOptions,
    ReplayOptions,
    SeedsOptions,
    WhyOptions,
)
from ..studies.setting import open_recording
from .options import (
    FindRateOption,
    FromOption,
    GivenClusterOption,
    GivenWorkloadOption,
    PoliciesOption,
    RatesOption,
    TraceOption,
)
from .output import (
    FigureOption,
    HtmlOption,
    JsonOption,
    check_figure_path,
    check_html_path,
    check_json_path,
    finished_first,
    refuse_beside,
    refuse_without,
    show,
    show_again,
)


def compare(
    *,
    context: typer.Context,
    trace: TraceOption = None,
    from_: FromOption = None,
    policy: PoliciesOption = None,
    replay: ReplayOptions,
    batch: str = opt("1", "Requests running at a time; of a sweep also several, as in 1,4,16.", metavar="N"),
    repeats: SeedsOptions,
    reorder: OrdersOptions,
    mix: MixOptions,
    detail: bool = opt(False, "Also what the first table leaves out: further figures, and by member."),
    parts: PartsOptions,
    asks: WhyOptions,
    sweep: list[str] | None = opt(
        None,
        f"Chains with ranges of windows, draft:1..12/target or draft:1..9:2/mid:4..8/target, instead of "
        f"policies; repeatable, {MOST_CELLS:,} chains x batches at most.",
        metavar="CHAIN",
    ),
    placement: PlacementOptions,
    prefixes: PrefixOptions,
    figure: FigureOption = None,
    html: HtmlOption = None,
    json: JsonOption = None,
    kept: LogOptions,
    load: LoadOptions,
    workload: GivenWorkloadOption = None,
    rate: RatesOption = None,
    find_rate: FindRateOption = None,
    cluster: GivenClusterOption = None,
) -> None:
    """Compare policies on one recording: speed-up over the target alone, acceptance, seconds by model.

    With --workload: policies that serve requests as they arrive, a row for each rate and policy.
    """
    if from_ is not None:
        show_again(context, json, from_, _compared_again)
        return
    written = _checked(kept, replay.cost, figure=figure, html=html, json=json)
    under = {**vars(replay), **vars(repeats)}
    beside, more = {**vars(prefixes), **vars(parts), **vars(placement)}, vars(kept) | vars(asks)
    if workload is not None:
        refuse_beside("--workload", **beside, **vars(mix), batch=batch != "1", **given(reorder))
        from .serving import show_found_rates, show_under_load  # noqa: PLC0415 - takes as long as all imports above

        under |= {**vars(load), "chains": sweep, "workload": workload, "cluster": cluster}
        if find_rate is None:
            show_under_load(trace, policy, under | more, rate=rate, detail=detail, **written)
            return
        refuse_beside("--find-rate", detail=detail, figure=figure, **more)
        show_found_rates(trace, policy, under, find_rate=find_rate, rate=rate, html=html, json=json)
        return
    refuse_without("`workload`", **given(load), rate=rate, find_rate=find_rate, cluster=cluster)
    if sweep:
        refuse_beside("--sweep", policy=policy, detail=detail, **beside, **more, on=replay.on, **given(reorder))
        show(found=sweep_chains(open_recording(trace), sweep, batches=batches(batch), **under, **vars(mix)), **written)
        return
    if len(sizes := batches(batch)) > 1:
        raise ValueError(f"--batch takes several numbers with --sweep only, got {batch!r}")
    under |= {**beside, **vars(mix), **vars(reorder), **more}
    with finished_first(lambda it: show(found=it, tables=partial(it.tables, detail=detail), **written)) as showing:
        showing(compare_policies(open_recording(trace), policy, batch=sizes[0], **under))


def _checked(
    kept: LogOptions, cost: str | Path | None, *, figure: Path | None, html: Path | None, json: Path | None
) -> dict[str, Any]:
    """Where to write, as arguments of `show`."""
    check_json_path(json, kept.log, figure, cost)
    check_figure_path(figure, kept.log)
    check_html_path("--html", html, kept.log, figure, json)
    return {"figure": figure, "html": html, "json": json}


def _compared_again(candidate: str) -> Again:
    from ..studies.recommend_again import compare_again  # noqa: PLC0415 - imports what serves, too

    return compare_again(candidate)


def batches(text: str) -> tuple[int, ...]:
    """The comma-separated batches of `--batch`; raises ValueError with the part that is no batch."""
    parts = text.split(",")
    for part in parts:
        if not (part.isascii() and part.isdecimal() and len(part) <= 7 and 1 <= int(part) <= MOST_BATCH):
            raise ValueError(f"--batch must be a whole number from 1 to {MOST_BATCH:,}, got {part!r}")
    return tuple(int(part) for part in parts)
