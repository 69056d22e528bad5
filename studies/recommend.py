"""From a recording to a decision: how many tokens to draft at which number of running requests, or none at all.

Every draft length is replayed at every batch, on one half of the requests to choose and on the other half to report.
Where requests and cost do not decide, it says what to measure; the setting is for the other numbers. Letters: K tokens
drafted in a round, B running requests.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..base.errors import ArgumentError, as_options, check_within
from ..base.files import DEFAULT_RECORDING
from ..base.terminal import Progress
from ..reports.comparison import Sweep
from ..reports.ledger import LedgerLine, RecommendationLedger
from ..reports.recommendation import AtBatch, DraftLength, Recommendation, replayed_candidates
from ..sim.cost.engines import DEFAULT_ENGINE
from ..traces.recording import Recording
from ..traces.rounds.rounds import TREES
from ..traces.shapes import head_called
from .compare import num_replayed, swept
from .engine_settings import (
    ENGINES,
    KINDS,
    MODEL,
    NEED_PATH,
    NGRAM,
    EngineSettings,
    engine_drafter,
    sets_schedules,
    settings,
)
from .grids import CODE_OF, inputs_of, texts_in
from .options import DraftLengthOptions, RecommendOptions, SweepOptions, checked, shared, takes
from .setting import Setting, setting_of
from .tune import sampled, split_recording

COMPARED = ("vllm", "transformers", "sglang")  # engines whose prompt lookup docs/pools-and-recordings.md has
LONGEST, USUAL = 32, 8  # largest K tried: at most, and by default
MEASURE = (
    "measure your server: paceline observe URL --prompts FILE --workload SPEC --out plain; with the drafter on, the "
    "same with --drafter D --out drafts, and again at twice the rate with --out busier; then paceline validate "
    "--observed busier --calibrate plain --calibrate drafts --cluster CLUSTER --write-cost FILE.json, and give --cost "
    "FILE.json here"
)


@takes(RecommendOptions)
def recommend(
    recording: Recording | str | Path | None = None,
    **options: Any,  # noqa: ANN401 - see `RecommendOptions`
) -> Recommendation:
    """Which draft length is best at which number of running requests, with its uncertainty, and what to paste.

    Args:
        recording: that is replayed, as `open_recording` returns it, or its path; None: the default one.
        options: see `RecommendOptions`.

    Raises:
        ValueError: a bad argument, in one line; a recording without a drafter.
        CostRangeError: seconds unknown to the cost.
    """
    asked = checked(RecommendOptions, options)
    check_lengths(asked)
    setting = setting_of(recording, asked)
    engine, _ = version_of(asked, setting)  # raises before the long runs
    drafter = drafter_of(setting.recording, asked.drafter)
    present = present_of(setting.recording, drafter, asked.present)
    halves = halves_of(setting.recording, asked)
    batches = _batches(asked, halves)
    lengths = lengths_of(setting.recording, drafter, asked.most, present)
    chains = [f"{drafter}:{length}/{setting.recording.about.target}" for length in lengths]
    # The halves have the shapes already.
    parts = checked(SweepOptions, {**shared(SweepOptions, asked, but=["models"]), "batches": batches})
    total = len(halves) * len(batches) * num_replayed(setting, len(chains) + 1)
    with Progress("replaying", total, unit="policies") as progress:
        tuned, others = (swept(half, chains, parts, within=progress) for half in halves)
    found = tuple(_at(batch, tuned, others, present) for batch in batches)
    compared = tuple(others.comparisons[batch] for batch in batches)
    bare = setting.priced().bound_only
    told = [] if bare else [each for each in found if not each.open_between]
    if found[0].open_between and ENGINES[engine].alone:
        told = []  # it never runs the other numbers
    schedule, one_for_all = _settable(told, asked, setting, drafter, of=len(found)) if told else ({}, [])
    split = setting.tensor_parallel
    setting_found, refusal = pasted(schedule, asked, setting, drafter, split) if told else (None, None)
    if setting_found is not None:
        run = found[:1] if ENGINES[engine].alone else found
        found = (*(replace(each, set_tokens=_set_at(each.batch, schedule)) for each in run), *found[len(run) :])
    return Recommendation(
        meta={
            **others.meta,
            "remarks": [
                *others.meta["remarks"],
                *limited_by(setting.recording, drafter, asked.most),
                *sampled_of(setting.recording, asked.sample),
                *([] if setting_found is None else one_for_all),
                *_not_replayed(found),
            ],
            "requests_tuned_on": len(halves[0].requests),
            "requests": len(halves[1].requests),
        },
        drafter=drafter,
        present=present,
        batches=found,
        bare=bare,
        setting=setting_found,
        open_because=refusal,
        advice=(MEASURE,) if bare else tuple(_advice(found)),
        compared=compared,
        ledger=ledger_of("recommend", recording, vars(asked), replayed_candidates(found, compared, first=1)),
    )


def check_lengths(asked: DraftLengthOptions) -> None:
    """Raises ArgumentError for an option out of its range, or an unknown engine or weights."""
    if asked.weights is not None:
        engine_drafter(asked.weights, "weights")
    if asked.paste_into not in (None, *ENGINES):
        raise ArgumentError(f"`paste_into` must be one of {', '.join(ENGINES)}, got {asked.paste_into!r}")
    check_within("`split`", asked.split, "(0, 1)")
    check_within("`sample`", asked.sample, "[2, inf)")
    check_within("`most`", 1 if asked.most is None else asked.most, f"[1, {LONGEST}]")
    check_within("`present`", asked.present or 0, f"[0, {LONGEST}]")


def halves_of(recording: Recording, asked: DraftLengthOptions) -> tuple[Recording, Recording]:
    """(the requests to choose on, those behind the figures); raises as `split_recording`."""
    return split_recording(sampled(recording, asked.sample, asked.split_seed), asked.split, asked.split_seed)


def sampled_of(recording: Recording, most: int) -> list[str]:
    """A remark if not all requests were replayed."""
    count = len(recording.requests)
    told = f"about {most:,} of {count:,} requests were drawn and replayed; --sample takes more"
    return [] if count <= most else [told]


def _not_replayed(found: Sequence[AtBatch]) -> list[str]:
    """Remarks where K changes between distant numbers of running requests."""
    remarks = []
    for low, high in pairwise(found):
        # An engine that takes one request at a time has a K to set for the lower number alone.
        are_alike = (low.set_tokens is None) == (high.set_tokens is None)
        if low.drafted != high.drafted and are_alike and high.batch > 2 * low.batch:
            span = " to ".join(dict.fromkeys(f"{number:,}" for number in (low.batch + 1, high.batch - 1)))
            told = f"{span} running were not replayed: K = {low.drafted} is that of {low.batch:,}"
            remarks.append(f"{told}; add --batch between it and {high.batch:,}")
    return remarks


def present_of(recording: Recording, drafter: str, asked: int | None) -> int | None:
    """The present K: as given, else that of a log; None: unknown, or longer than tried."""
    known = recording.about.windows.get(drafter)
    return asked if asked is not None or known is None or known > LONGEST else known


def lengths_of(recording: Recording, drafter: str, most: int | None, present: int | None) -> tuple[int, ...]:
    """The draft lengths tried, ascending from 1: up to `most`, and the present one.

    Without `most` up to 8, of a log at most its longest, or to the present one if that is longer. Raises ArgumentError
    for one longer than any draft of the log, whose acceptance is unknown.
    """
    known = recording.about.longest.get(drafter)
    up_to = max(min(USUAL, known or USUAL), present or 1) if most is None else most
    lengths = tuple(sorted({*range(1, up_to + 1), present or 1}))
    if known is not None and lengths[-1] > known:
        name = "present" if lengths[-1] == present else "most"
        raise ArgumentError(
            f"`{name}` must be at most {known}, the longest draft of {drafter} in {recording.about.name}, got "
            f"{lengths[-1]}: what a longer one keeps is not known; let the server draft {lengths[-1]}, and import that"
        )
    return lengths


def limited_by(recording: Recording, drafter: str, most: int | None) -> list[str]:
    """A remark if the log's drafts are shorter than the usual tried ones, and none was given."""
    known = recording.about.longest.get(drafter, USUAL)
    if most is not None or known >= USUAL:
        return []
    return [f"K up to {known}, the longest draft of the log: what a longer one keeps is not known"]


def ledger_of(
    call: str, recording: Recording | str | Path | None, asked: Mapping[str, Any], candidates: tuple[LedgerLine, ...]
) -> RecommendationLedger:
    """The ledger of a call, with hashes of the files that its texts name.

    An opened recording has no path: it must be given again to run a candidate again.
    """
    where = DEFAULT_RECORDING if recording is None else recording if isinstance(recording, str | Path) else None
    said: Mapping[str, Any] = json.loads(json.dumps({"call": call, "recording": where, **asked}, default=str))
    hashes = inputs_of(texts_in([said, [one.policy for one in candidates]]))
    return RecommendationLedger(
        asked=said, inputs={text: one for text, one in hashes.items() if text != CODE_OF}, candidates=candidates
    )


def drafter_of(recording: Recording, asked: str | None) -> str:
    """The member that drafts: as given, else the smallest model, else prompt lookup; raises ArgumentError if none."""
    about = recording.about
    known = [*about.lookups, *(model for model in about.models if model != about.target)]
    if asked is not None:
        if asked not in known:
            raise ArgumentError(f"`drafter` must be one of {', '.join(known) or 'none'}, got {asked!r}")
        return asked
    models = [model for model in about.models if model != about.target]
    if not known:
        raise ArgumentError(f"`recording` must have a member that drafts, got {about.name}, of {about.target} alone")
    return (models or known)[0]


def _batches(asked: RecommendOptions, halves: tuple[Recording, Recording]) -> tuple[int, ...]:
    most = min(len(half.requests) for half in halves)
    if asked.batches is None:
        return tuple(2**power for power in range(most.bit_length()))
    batches = tuple(asked.batches)
    wrong = [batch for batch in batches if not 1 <= batch <= most]
    if wrong or list(batches) != sorted(set(batches)):
        rule = f"must ascend from 1 or more to at most {most}, the requests of a half"
        raise ArgumentError(f"`batches` {rule}, got {', '.join(map(str, batches))}")
    return batches


def _at(batch: int, tuned: Sweep, others: Sweep, present: int | None) -> AtBatch:
    chosen_on, told_on = tuned.comparisons[batch], others.comparisons[batch]
    windows = {chain: next(iter(found.values())) for chain, found in others.chains.items()}
    ranked = chosen_on.ranked()
    candidates = tuple(
        DraftLength.of(told_on, row, windows.get(row.policy, 0), tuned_on=chosen_on) for row in told_on.ranked()
    )
    best = windows.get(ranked[0].policy, 0)
    return AtBatch.of(batch, chosen_on, candidates=candidates, chosen=best, windows=windows, present=present)


def schedule_of(found: Sequence[AtBatch]) -> dict[int, int]:
    """K by running requests, where it changes; from a single request on, whatever the least number replayed."""
    schedule: dict[int, int] = {}
    for each in found:
        if not schedule or list(schedule.values())[-1] != each.chosen:
            schedule[each.batch if schedule else 1] = each.chosen
    return schedule


def _set_at(batch: int, schedule: Mapping[int, int]) -> int:
    """K at a number of running requests."""
    return [length for start, length in schedule.items() if start <= batch][-1]


def version_of(asked: DraftLengthOptions, setting: Setting) -> tuple[str, str | None]:
    """(engine whose setting is pasted, its version, as given, in the log or of the seconds; None: unknown).

    Raises ArgumentError for a bad version.
    """
    about = setting.recording.about
    of_seconds, _, release = (setting.engine or "").partition("-")  # as in vllm-0.9
    named = (asked.paste_into or "", of_seconds, (about.source or "").partition("-")[0], DEFAULT_ENGINE)
    engine = next(name for name in named if name in ENGINES)
    version = asked.engine_version or about.software.get(engine) or (release if engine == of_seconds else "") or None
    if version is not None:
        sets_schedules(engine, version)
    return engine, version


def one_k_because(asked: DraftLengthOptions, setting: Setting, drafter: str) -> str:
    """Why what is pasted sets one K, whatever the running requests; "" if it can follow them."""
    (engine, version), about = version_of(asked, setting), setting.recording.about
    rules, weights = ENGINES[engine], _weights(asked, setting, drafter, engine)
    kind = NGRAM if drafter in about.lookups else MODEL
    fixed = rules.fixed.get(kind if weights is None else engine_drafter(weights, "weights").kind)
    if fixed is not None:
        return f"{rules.title} sets no K by running requests ({fixed})"
    if version is None or sets_schedules(engine, version):
        return ""
    return f"{rules.title} {version} is older than {rules.version}, where K by running requests was read"


def _weights(asked: DraftLengthOptions, setting: Setting, drafter: str, engine: str) -> str | None:
    """What drafts there, as stated, else by the log of this very engine; None: unknown."""
    about = setting.recording.about
    is_its_log = drafter not in about.lookups and (about.source or "").partition("-")[0] == engine
    return asked.weights or (about.drafts_by if is_its_log else "") or None


def _settable(
    found: Sequence[AtBatch], asked: DraftLengthOptions, setting: Setting, drafter: str, *, of: int
) -> tuple[dict[int, int], list[str]]:
    """K by running requests, or one K if that is all that can be set, with remarks.

    It is the K with the least largest loss, on the requests to choose on, over the numbers `found` of all `of`; of an
    engine that takes one request at a time that of the least number.
    """
    schedule, why = schedule_of(found), one_k_because(asked, setting, drafter)
    if len(schedule) == 1 or not why:
        return schedule, []
    engine, _ = version_of(asked, setting)
    if ENGINES[engine].alone:
        return {1: found[0].chosen}, [f"{why}: K = {found[0].chosen} is that of {found[0].batch:,} running"]

    def kept(length: int) -> list[float]:
        """By number of running requests, its speed over that of the best."""
        pairs = [(next(one for one in each.candidates if one.draft_tokens == length), each.own) for each in found]
        return [(one.tuned_on or one.tokens_per_s) / (own.tuned_on or own.tokens_per_s) for one, own in pairs]

    lengths = [one.draft_tokens for one in found[0].candidates]
    everywhere = set.intersection(*({one.draft_tokens for one in each.candidates} for each in found))
    best = max((length for length in lengths if length in everywhere), key=lambda length: min(kept(length)))
    least = min(kept(best))
    where = found[kept(best).index(least)].batch
    which = "" if of == len(found) else " of those that it is for"
    most = "less than 1%" if least > 0.995 else f"{1 - least:.0%}"
    loses = f"which loses most at {where:,} running{which}, {most}"
    return {1: best}, [f"{why}: one K for all, K = {best}, {loses}"]


def pasted(
    schedule: Mapping[int, int], asked: DraftLengthOptions, setting: Setting, drafter: str, split: int
) -> tuple[EngineSettings | None, str | None]:
    """(what to paste for K by running requests, why the engine cannot do it, if so).

    `split` are the devices over which the target was split.
    """
    (engine, version), about = version_of(asked, setting), setting.recording.about
    lookup = about.lookups.get(drafter)
    # Without one an engine looks for matches of its own length: vLLM for 5 tokens, and none shorter.
    matched = f"={lookup.max_match}" if lookup is not None and ENGINES[engine].longest_match else ""
    if lookup is not None and lookup.min_match > 1 and ENGINES[engine].shortest_match:
        matched = f"={lookup.min_match}..{lookup.max_match}"
    stated = _weights(asked, setting, drafter, engine)
    weights = stated or (f"model={drafter}" if lookup is None else f"ngram{matched}")
    # A log may not name its drafter's kind, and a head is not a model of its own, recorded or by a given shape.
    models = setting.models or ()
    shapes = models if isinstance(models, Mapping) else dict(text.split("=", 1) for text in models if "=" in text)
    is_head = head_called(shapes.get(drafter, "").partition("@")[0]) is not None
    unknown = is_head or drafter in (about.from_features, *about.unknown_kinds)
    if stated is None and unknown and any(schedule.values()):
        kinds = ", ".join(f"{kind}=PATH" if kind in NEED_PATH else kind for kind in KINDS)
        told = f"no input says what {drafter} is in an engine"
        if about.drafts_by:
            told = f"the log says {about.drafts_by} of another engine"
        return None, f"{told}: give --weights, one of {kinds}"
    # EAGLE's own code drafts trees, and its files do not say so.
    unsaid = about.source in ("spec-bench", "eagle-timed") and weights.startswith("eagle")
    if any(schedule.values()) and (unsaid or TREES.format(drafter) in about.remarks):
        how = "log chains on a server (SGLang: --speculative-eagle-topk 1)"
        return None, f"a log of trees does not say what chains of {drafter} keep: {how}"
    try:
        found = settings(engine, weights, schedule=schedule, engine_version=version)
    except ArgumentError as error:
        told = f"{engine} cannot do this: {as_options(str(error), own={'drafter': '--weights'})}"
        if "`drafter`" in str(error):
            return None, told
        pairs = ",".join(f"{start}:{length}" for start, length in schedule.items())
        again = ["paceline", "settings", "--engine", engine, "--drafter", weights, "--schedule", pairs]
        again += [] if asked.engine_version is None else ["--engine-version", asked.engine_version]
        return None, f"{told}; edit: {shlex.join(again)}"
    notes = [] if split == 1 else [f"for a target that is split over {split} devices: set that, too"]
    if lookup is not None and found.decision.most:
        lengths = " to ".join(dict.fromkeys(map(str, (lookup.min_match, lookup.max_match))))
        copied = f"what {ENGINES[engine].title} copies was not compared"
        if engine in COMPARED:
            copied = "what engines copy: docs/pools-and-recordings.md#prompt-lookup"
        notes.append(f"replayed: what follows the {lookup.occurrence} match of {lengths} tokens; {copied}")
    return replace(found, pasted=replace(found.pasted, notes=(*found.pasted.notes, *notes))), None


def _advice(found: Sequence[AtBatch]) -> list[str]:
    """What to measure if something is undecided."""
    unsettled = [each for each in found if each.open_between]
    if not unsettled:
        return []
    lines = []
    if any(not each.has_alone for each in unsettled):
        lines.append("no gain is known: import answers that the target wrote alone as well, or give another --cost")
    if any(each.open_by_cost for each in unsettled):
        lines.append(MEASURE)
    if any(not each.open_by_cost and each.has_alone for each in unsettled):
        lines.append("record more requests: these do not tell drafting from none")
    return lines
