"""`paceline recommend`: from a recording to a draft length by running requests or by load, and the setting to paste."""

from pathlib import Path

from ..base.options import given, opt
from ..reports.ledger import Recommended
from ..studies.options import DraftLengthOptions, MixOptions, ReplayOptions, SeedsOptions, ServiceLevelOptions
from ..studies.recommend import recommend as recommended
from ..studies.recommend_under_load import recommend_under_load
from ..traces.workloads.arrival import WorkloadChanges
from .errors import nothing_kept
from .options import GivenClusterOption, GivenWorkloadOption, PoliciesOption, TraceOption
from .output import (
    HtmlOption,
    JsonOption,
    check_cluster,
    check_file_path,
    check_html_path,
    check_json_path,
    refuse_beside,
    refuse_without,
    show,
)


def recommend(
    *,
    trace: TraceOption = None,
    batch: list[int] | None = opt(
        None,
        "Running requests, each with every K; repeatable. Default: 1, 2, 4, ... up to the requests of a half.",
        least=1,
    ),
    lengths: DraftLengthOptions,
    workload: GivenWorkloadOption = None,
    cluster: GivenClusterOption = None,
    levels: ServiceLevelOptions,
    policy: PoliciesOption = None,
    changes: WorkloadChanges,
    mix: MixOptions,
    replay: ReplayOptions,
    repeats: SeedsOptions,
    out: Path | None = opt(
        None,
        "Also write the ledger, recommendation.json: every candidate with its figures and one reason, for "
        "simulate --from FILE#N and compare --from FILE#N.",
    ),
    html: HtmlOption = None,
    json: JsonOption = None,
) -> None:
    """Find the best draft length at each number of running requests, and print the setting to paste.

    With --workload: of those that keep --slo at --rate, the one that serves requests fastest. Speculation switched off
    is always a candidate. The choice is made on one half of the requests and its gain is that of the other half. Where
    requests or cost do not tell drafting from none, it says what to measure in place of a setting.
    """
    check_json_path(json, trace, out)
    check_html_path("--html", html, trace, out, json)
    check_file_path("--out", out)
    options = {name: value for record in (lengths, replay, repeats) for name, value in vars(record).items()}
    if workload is None:
        refuse_without("`workload`", **given(levels), **given(changes), policies=policy, cluster=cluster)
        with nothing_kept("--sample, --seeds and --most"):
            found: Recommended = recommended(trace, batches=batch, **vars(mix), **options)
    else:
        served_on = check_cluster(cluster)
        refuse_beside("--workload", **dict.fromkeys(given(mix), True), batches=batch is not None)
        with nothing_kept("--limit, --seeds and --most"):
            found = recommend_under_load(
                trace, policy or (), workload=workload, cluster=served_on, **vars(levels), **vars(changes), **options
            )
    if out is not None:
        found.write(out)
    show(json, found, html=html)
