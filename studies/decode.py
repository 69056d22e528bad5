"""Decode prompts with the models of a pool, under one policy or several in turn: what `paceline run` does."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import Any

from ..base.errors import ArgumentError, check_least, counted
from ..base.files import pool_path
from ..base.terminal import Progress, tell
from ..decoding.legal_steps import Policy
from ..decoding.pool import Pool
from ..decoding.rollouts import Rollouts, rollouts_of
from ..decoding.seen import start_of
from ..decoding.session import READER
from ..policies.about import about_of, check_tags
from ..reports.comparison import start_words
from ..reports.intervals import Interval
from ..reports.page import Pictured
from ..reports.panels import AnyPanel, Section, acceptance_by_level, kept_by_position, ranking, seconds_by_member
from ..reports.resampled import RequestShares, Resampled
from ..reports.run_table import prefix_lines, quality_table, run_table
from ..reports.summary import Summary, summarise_run
from ..reports.tables import Grid, table
from ..runs.log import RunLog, with_quality, write_run_log
from ..runtime.ahead import check_has_use
from ..runtime.decode import Alone, Output, text_qualities
from ..runtime.decode import decode as decode_prompts
from ..runtime.forced import ForcedPool
from ..runtime.forward_kinds import SHARED_KINDS, ForwardKind
from ..runtime.pools.members import LoadedMembers, loaded_pool
from ..runtime.pools.pool import ModelPool
from ..runtime.pools.pool_file import is_forced_pool
from ..runtime.prompts import Prompt, first_of, prompts_of
from ..runtime.refusals import refuse_oracle
from ..runtime.sandbox import ProcessLimits, check_can_run
from ..runtime.tasks import Score, Scorer, score_lines, scores_json
from ..runtime.threads import Memory
from ..traces.meta import GREEDY
from ..traces.recording import sessions_of
from .options import RunOptions, checked, takes
from .setting import NamedPolicy, PoliciesGiven, PolicyGiven, ahead_remarks, batch_remarks, named_policies, named_policy


def load_pool(
    pool: ModelPool | Path | str | None = None,
    *,
    threads: int = 1,
    devices: Mapping[str, str] | None = None,
    debug: bool = False,
    forward: ForwardKind = "auto",
    chat: bool = False,
) -> ModelPool:
    """The models of a pool.

    Args:
        pool: a pool.toml or its folder, or models that are loaded already; None is the shipped pool.
        threads: CPU threads of torch from here on, >= 1; not changed with loaded models.
        devices: of members by name, in place of those of the file; none with loaded models.
        debug: print how the models will run, and which product multiplies which weight.
        forward: how models run, see `forward_choice.choose_forward`.
        chat: render prompts as questions of a dialogue, by the tokenizer's chat template; not with loaded models.

    Raises:
        PoolFileError, ArgumentError: as `ModelPool.load`; ArgumentError also for devices or a chat of loaded models.
    """
    if isinstance(pool, ModelPool) and devices:
        raise ArgumentError("`devices` is for a pool that is loaded, and these models are on their devices already")
    if isinstance(pool, ModelPool) and chat and pool.chat is None:
        raise ArgumentError("`chat` is for a pool that is loaded, and these models were loaded without a chat template")
    models = pool if isinstance(pool, ModelPool) else _loaded(pool, threads, devices, chat)
    if models.ranks is not None:
        tell(f"{models.ranks.num_ranks} processes run the pool together, all models by their own modules")
    if debug:
        _tell_how_they_run(models, forward)
    return models


def is_forced(pool: ModelPool | ForcedPool | Path | str | None) -> bool:
    """Whether the models are, or will be, those of a forced pool; raises PoolFileError for a file that is no pool's."""
    return isinstance(pool, ForcedPool) or (isinstance(pool, Path | str) and is_forced_pool(pool_path(pool)))


def load_models(
    pool: ModelPool | ForcedPool | Path | str | None = None,
    *,
    threads: int = 1,
    debug: bool = False,
    chat: bool = False,
) -> ModelPool | ForcedPool:
    """As `load_pool`, for forced pools too; these make their models, and have no chat."""
    if chat and is_forced(pool):
        raise ArgumentError("`chat` must be left out with a forced pool, which reads no text")
    if isinstance(pool, ForcedPool):
        models = pool
    elif isinstance(pool, Path | str) and is_forced(pool):
        with Progress(f"making the models of {pool}"):
            models = ForcedPool.load(pool_path(pool), threads=threads)
    else:
        return load_pool(pool, threads=threads, debug=debug, chat=chat)
    if debug:
        _tell_how_they_run(models, "auto")
    return models


def _tell_how_they_run(models: LoadedMembers, forward: ForwardKind) -> None:
    runs = (f"{name}: {runs}" for name, runs in models.forward_names(forward).items())
    tell(f"forwards of {', '.join(runs)}")
    for line in models.product_lines(forward):
        tell(f"product of {line} tokens")


def _loaded(pool: Path | str | None, threads: int, devices: Mapping[str, str] | None, chat: bool) -> ModelPool:
    path = pool_path(pool)
    with Progress(f"loading {path}"):
        return ModelPool.load(path, threads=threads, devices=devices, chat=chat)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Decoded(Pictured):
    """Answers of real models, with their seconds; prints as `paceline run --out` does."""

    outputs: tuple[Output, ...]  # of the requests that ended, failed ones among them, in the order of the prompts
    log: RunLog
    num_requests: int  # that were requested
    # whether scoring answers and measuring a lossy policy's texts was interrupted
    quality_interrupted: bool = False
    # by request id, of answers to prompts with a right one
    scores: Mapping[str, Score] = field(default_factory=dict)

    @property
    def failed(self) -> tuple[Output, ...]:
        """Requests that have no answer."""
        return tuple(output for output in self.outputs if output.error)

    @property
    def summary(self) -> Summary | None:
        """The figures of the run; None if no request was answered."""
        return summarise_run(self.log) if len(self.failed) < len(self.outputs) else None

    def tables(self) -> Sequence[Grid]:
        summary, meta = self.summary, self.log.meta
        if summary is None:
            return []
        remarks = [*batch_remarks(meta["batch"], self.num_requests, of="run"), *ahead_remarks(meta.get("overlap"))]
        return [run_table(summary, remarks, start=start_words(meta))]

    def lines(self) -> Sequence[str]:
        """Hits of prefix caches, and members that still read them row by row; answers are in `outputs`."""
        how: Mapping[str, str] = self.log.meta.get("shared_attention", {})
        apart = [f"{name} ({kind})" for name, kind in how.items() if kind not in SHARED_KINDS]
        asked = apart and self.log.meta["shared_attention_asked"] == "on"
        told = [f"attention over what rows share is computed row by row in {', '.join(apart)}"] if asked else []
        summary = self.summary
        return [*([] if summary is None else prefix_lines(summary)), *told, *self.score_lines()]

    def sections(self) -> Sequence[Section]:
        return [Section(topic="acceptance", tables=tuple(self.tables()), panels=tuple(_panels_of([self])))]

    def answer(self) -> Sequence[str]:
        """The figures in words, then `lines`."""
        return [*(grid.title for grid in self.tables()), *self.lines()]

    def configuration(self) -> Mapping[str, Any]:
        return self.log.meta

    def partial(self) -> str:
        ended = f"{len(self.outputs):,} of {counted(self.num_requests, 'request')} ended"
        return ended if self.log.meta["interrupted"] else ""

    def headline(self) -> str:
        meta = self.log.meta
        return f"pool {meta['pool']}, {meta['policy']}, {counted(self.num_requests, 'prompt')}, batch {meta['batch']}"

    def score_lines(self) -> Sequence[str]:
        """How many answers are right, in all and by tag, and how tests failed; empty without scores."""
        return score_lines(self.scores.values())

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/runtime.md): `meta`, `summary`, `scores` and `outputs`."""
        summary = self.summary
        return {
            "meta": self.log.meta,
            "summary": None if summary is None else asdict(summary),
            "scores": scores_json(self.scores.values()),
            "outputs": self.to_dicts(),
        }

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each output; columns as in docs/runtime.md, `outputs[]`."""
        return [{**asdict(output), **self._scored(output)} for output in self.outputs]

    def _scored(self, output: Output) -> dict[str, Any]:
        score = self.scores.get(output.request_id)
        return {"right": None, "failure": None} if score is None else {"right": score.right, "failure": score.failure}

    def write(self, folder: Path) -> None:
        """Write the run log and outputs.jsonl into a new folder, whole or not at all; raises as `write_run_log`."""
        lines = "".join(json.dumps(row) + "\n" for row in self.to_dicts())
        write_run_log(self.log, folder, extra={"outputs.jsonl": lines})


@dataclass(frozen=True, kw_only=True)
class DecodeOptions(RunOptions):
    """The keywords of `decode`; `memory` of keys and values is a slot per position without a limit if None."""

    memory: Memory | None = None


@takes(DecodeOptions)
def decode(
    pool: ModelPool | Path | str | None,
    prompts: str | Path | Sequence[Prompt | str],
    policy: PolicyGiven | NamedPolicy = "plain",
    **options: Any,  # noqa: ANN401 - see `DecodeOptions`
) -> Decoded:
    """Answer prompts with the models of a pool; the policy is the very object that the simulator drives.

    Args:
        pool: models, or where they are; None is the shipped pool (`load_pool`).
        prompts: a JSONL file by its path, or texts. A policy may name tags of prompts beyond `limit`.
        policy: a text, a spec, a class, or a function that makes it for a pool, as for `compare`, or named.
        options: see `DecodeOptions`.

    Raises:
        ValueError: a wrong policy, pool or prompt (of arguments, ArgumentError); nothing has run then.
        PolicyError: the policy broke the contract.
    """
    own = checked(DecodeOptions, options)
    begins, asked, everyone = start_of(own.start), _asked(policy), prompts_of(prompts)
    requests = first_of(everyone, own.limit)
    scorer = _scorer(requests, run_tests=own.run_tests)
    models = _models_of(pool, own)
    decider = asked.admitted(loaded_pool(models), lossless=own.lossless)
    check_has_use(own.overlap, {asked.name: decider})
    check_tags(decider, asked.name, (request.tag for request in everyone), "the prompts")
    branching = None
    if own.rollouts is not None:
        branching = _branching(own.rollouts, loaded_pool(models), decider, quality=own.quality)
    alone = Alone(
        sampling=own.sampling or GREEDY, max_new_tokens=own.max_new_tokens, batch=own.batch, memory=own.memory,
        forward=own.forward_kind, stop=(own.stop,) if isinstance(own.stop, str) else own.stop or (),
    )  # fmt: skip
    run: dict[str, Any] = {"name": asked.name, "start": begins, "debug": own.debug, "overlap": own.overlap}
    outputs, log = decode_prompts(models, decider, requests, **run, rollouts=branching, **alone)
    num_requests = len(requests) * (branching.num_paths if branching else 1)
    found = _scored(Decoded(outputs=outputs, log=log, num_requests=num_requests), requests, scorer)
    return _judged(found, models, requests, alone, scorer) if own.quality else found


def _models_of(pool: ModelPool | Path | str | None, own: DecodeOptions) -> ModelPool:
    return load_pool(
        pool, threads=own.threads, devices=own.devices, debug=own.debug, forward=own.forward_kind, chat=own.chat
    )


def _asked(given: PolicyGiven | NamedPolicy) -> NamedPolicy:
    """The policy; raises ArgumentError for an oracle, which needs a recording."""
    asked = given if isinstance(given, NamedPolicy) else named_policy(given)
    refuse_oracle(asked.made_by, asked.name)
    return asked


def _scorer(requests: Sequence[Prompt], *, run_tests: bool | str) -> Scorer:
    """The scorer; raises before any run if there are no tests, or none can be run."""
    if not isinstance(run_tests, bool) and run_tests != "unsandboxed":
        raise ArgumentError(f"`run_tests` must be True, False or 'unsandboxed', got {run_tests!r}")
    if not run_tests:
        return Scorer()
    tested = {prompt.request_id: prompt.tests for prompt in requests if prompt.tests is not None}
    if not tested:
        raise ArgumentError("`run_tests` needs prompts with tests of code, got none")
    for name, tests in tested.items():
        try:
            tests.head()
        except ValueError as error:
            raise ArgumentError(f"`prompts`, {name}: {error}") from None
    limits = ProcessLimits(sandbox=run_tests is True)
    check_can_run(limits)
    return Scorer(limits)


def _scored(found: Decoded, requests: Sequence[Prompt], scorer: Scorer) -> Decoded:
    """The run with scores of finished answers to prompts with a right one."""
    asked = {prompt.request_id: prompt for prompt in requests}
    scores: dict[str, Score] = {}
    try:
        with Progress("scoring", len(found.outputs), unit="answers") as progress:
            for output in found.outputs:
                prompt = asked.get(output.request_id)
                score = None if prompt is None or output.error else scorer.score(prompt, output.text)
                if score is not None:
                    scores[output.request_id] = score
                progress.advance(1)
    except KeyboardInterrupt:  # every request is answered; only this measurement is missing
        return replace(found, scores=scores, quality_interrupted=True)
    return replace(found, scores=scores)


def _branching(rollouts: Rollouts | str, members: Pool, policy: Policy, *, quality: bool) -> Rollouts:
    """The requested rollouts; raises if their texts would have to be judged, or a member cannot follow them."""
    if members.feature_level is not None:
        raise ArgumentError(f"`rollouts` do not go with {members.names[members.feature_level]}, {READER}")
    about = about_of(policy)
    if quality and (about is None or not about.lossless):
        raise ArgumentError(
            "`quality` must be False with `rollouts` by a policy that may be lossy, whose paths the target alone would "
            "branch elsewhere, got True"
        )
    return rollouts_of(rollouts)


def _judged(found: Decoded, models: ModelPool, requests: Sequence[Prompt], alone: Alone, scorer: Scorer) -> Decoded:
    """The run with the target's verdict on the texts of a lossy policy."""
    meta = found.log.meta
    if meta["interrupted"] or found.quality_interrupted or not (meta["lossy_steps"] or meta["lossless"] is False):
        return found
    try:
        qualities = text_qualities(models, requests, found.outputs, alone, scorer)
        return replace(found, log=with_quality(found.log, qualities))
    except KeyboardInterrupt:  # every request is answered; only this measurement is missing
        return replace(found, quality_interrupted=True)


# Rounds in which each policy answers.
REPEATS = 3
INTERVAL_CELL = "95%"
INTERVAL = "over {}: median of the rounds' ratios; 95%: interval of the ratio of mean speeds over {} and rounds"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DecodedByPolicy(Pictured):
    """Runs of the same prompts, one per policy."""

    runs: tuple[Decoded, ...]  # of the first round, in the order of the policies; an interrupted one is the last
    # of whole rounds only, tokens/s by round and policy; the first is that of `runs`
    speeds: tuple[tuple[float, ...], ...] = ()
    # in the same order, tokens and seconds of each request; empty without a whole round
    shares: tuple[tuple[RequestShares, ...], ...] = ()
    asked_rounds: int = 1  # requested rounds
    sessions: Mapping[str, str] = field(default_factory=dict)  # by request, of requests with a session

    @property
    def num_rounds(self) -> int:
        """Whole rounds."""
        return len(self.speeds)

    @property
    def is_cut_short(self) -> bool:
        """Whether an interrupt left rounds out."""
        return self.num_rounds < self.asked_rounds

    def over_first(self, place: int) -> Interval | None:
        """Tokens/s of a policy over those of the first, and the 95% interval over requests or sessions, and rounds.

        None for too few requests, and for a policy that answered none.
        """
        if not self.shares:
            return None
        return self._resampled.rate_over(str(place), "0")

    @property
    def _resampled(self) -> Resampled:
        runs = {str(number): own for number, own in enumerate(zip(*self.shares, strict=True))}
        return Resampled(runs, sessions=self.sessions)

    def tables(self) -> Sequence[Grid]:
        known = [(run, run.summary) for run in self.runs]
        speeds = self._speeds()
        rows = [
            _cells(run, summary, speeds[place] if speeds else {"tokens/s": f"{summary.output_tokens_per_s:,.1f}"})
            for place, (run, summary) in enumerate(known)
            if summary is not None
        ]
        if not rows:
            return []
        quality = quality_table([summary for _, summary in known if summary is not None])
        rounds = f"; medians of {counted(self.num_rounds, 'round')}" if self.num_rounds > 1 else ""
        title = f"{counted(self.runs[0].num_requests, 'prompt')}, each policy in turn{rounds}"
        said = INTERVAL.format(self.runs[0].log.meta["policy"], self._resampled.units)
        remarks = [said] if any(INTERVAL_CELL in row for row in rows) else []
        return [table(rows, title=title, remarks=remarks), *([] if quality is None else [quality])]

    def sections(self) -> Sequence[Section]:
        """Tokens per second from the least to the most of all rounds, then as of one run."""
        names = [run.log.meta["policy"] for run in self.runs]
        drawn: list[AnyPanel] = []
        if self.speeds:
            rounds = dict(zip(names, zip(*self.speeds, strict=True), strict=True))
            figures = {name: (median(own), (min(own), max(own))) for name, own in rounds.items()}
            bars = f"bars: least to most of {counted(self.num_rounds, 'round')}"
            drawn.append(ranking("Output tokens/s", figures, bars=bars, style=",.1f"))
        tables = tuple(self.tables())
        return [
            Section(topic="policies", tables=tables[:1], panels=tuple(drawn)),
            Section(topic="acceptance", panels=tuple(_panels_of(self._fastest_first()))),
            Section(topic="quality", tables=tables[1:]),
        ]

    def _fastest_first(self) -> Sequence[Decoded]:
        """The runs by their median tokens/s; as asked before a whole round."""
        medians = [median(own) for own in zip(*self.speeds, strict=True)]
        ranked = sorted(range(len(medians)), key=lambda place: -medians[place])
        return [self.runs[place] for place in ranked] or self.runs

    def partial(self) -> str:
        return f"{self.num_rounds} of {self.asked_rounds} rounds" if self.is_cut_short else ""

    def headline(self) -> str:
        meta = self.runs[0].log.meta
        return f"pool {meta['pool']}, {counted(self.runs[0].num_requests, 'prompt')}, batch {meta['batch']}"

    def _speeds(self) -> list[dict[str, str]]:
        """Cells of each policy: its median, least and most tokens/s, and its median ratio to the first in a round."""
        cells = []
        for place, own in enumerate(zip(*self.speeds, strict=True)):
            shares = [row[place] / row[0] for row in self.speeds if row[0] > 0]
            cells.append(
                {
                    "tokens/s": f"{median(own):,.1f}",
                    "least to most": f"{min(own):,.1f} to {max(own):,.1f}",
                    f"over {self.runs[0].log.meta['policy']}": f"{median(shares):.2f}x" if shares else "-",
                }
            )
            over = self.over_first(place)
            if over is not None:
                cells[-1][INTERVAL_CELL] = f"{over.low:.2f} to {over.high:.2f}" if place else ""
        return cells

    def lines(self) -> Sequence[str]:
        return [f"{run.log.meta['policy']}: {line}" for run in self.runs for line in run.score_lines()]

    def to_json(self) -> dict[str, Any]:
        """The documented form (docs/runtime.md): `policies`, each in the form of a single one."""
        over = [self.over_first(place) for place in range(len(self.runs))]
        return {
            "policies": [run.to_json() for run in self.runs],
            "tokens_per_s": [list(row) for row in self.speeds],
            "over_first": [None if one is None else one.to_json() for one in over],
        }

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each output; columns as of one policy, after `policy`."""
        return [{"policy": run.log.meta["policy"], **row} for run in self.runs for row in run.to_dicts()]


def _panels_of(runs: Sequence[Decoded]) -> list[AnyPanel]:
    rows = [summary for run in runs if (summary := run.summary) is not None]
    return [*kept_by_position(rows), *acceptance_by_level(rows), *([seconds_by_member(rows)] if rows else [])]


def decode_each(
    pool: ModelPool | Path | str | None,
    prompts: Sequence[Prompt],
    policies: PoliciesGiven,
    own: DecodeOptions,
    *,
    repeats: int = REPEATS,
) -> DecodedByPolicy:
    """Answer the same prompts under each of several policies, two or more, with models loaded once.

    Each policy first answers one prompt, which is not kept. Policies take turns within each of `repeats` >= 1 rounds,
    so that a machine that becomes slower does so for all of them; texts and quality are of the first round. `own` are
    the keywords of `decode`; its `lossless` raises before any run.

    Raises:
        ValueError, PolicyError: as `decode`; for a policy's own arguments before any run.
    """
    asked = named_policies(policies)
    models = _models_of(pool, own)
    members = loaded_pool(models)
    for policy in asked:
        policy.admitted(members, lossless=own.lossless)
    check_least("`repeats`", repeats, 1)
    own = replace(own, devices=None, chat=False)  # the models are loaded already
    speed_only = replace(own, quality=False, run_tests=False)
    for policy in asked:
        warm = decode(models, prompts, policy, **vars(replace(speed_only, limit=1)))
        if warm.log.meta["interrupted"]:
            return DecodedByPolicy(runs=(warm,), asked_rounds=repeats)
    first: list[Decoded] = []
    for policy in asked:
        first.append(decode(models, prompts, policy, **vars(own)))
        if first[-1].log.meta["interrupted"] or first[-1].quality_interrupted:
            return DecodedByPolicy(runs=tuple(first), asked_rounds=repeats)
    figures = [_figures_of(first)]
    while len(figures) < repeats:
        again = (decode(models, prompts, policy, **vars(speed_only)) for policy in asked)
        whole = list(takewhile(lambda run: not run.log.meta["interrupted"], again))
        if len(whole) < len(asked):
            break
        figures.append(_figures_of(whole))
    speeds, shares = zip(*figures, strict=True)
    return DecodedByPolicy(
        runs=tuple(first),
        speeds=speeds,
        shares=shares,
        asked_rounds=repeats,
        sessions=sessions_of(prompts),
    )


def _figures_of(runs: Sequence[Decoded]) -> tuple[tuple[float, ...], tuple[RequestShares, ...]]:
    """Of a round: tokens/s of each policy, 0 if it finished no request, and its tokens and seconds by request."""
    speeds = tuple(0.0 if run.summary is None else run.summary.output_tokens_per_s for run in runs)
    return speeds, tuple(RequestShares.of(run.log) for run in runs)


def _cells(run: Decoded, summary: Summary, speeds: Mapping[str, str]) -> dict[str, str]:
    cells = {
        "policy": summary.policy,
        **speeds,
        "target calls /token": f"{summary.target_calls_per_token:.3f}",
        "rejection rate": f"{summary.rejection_rate:.1%}",
    }
    known = [score for score in run.scores.values() if score.right is not None]
    if known:
        cells["right answers"] = f"{sum(bool(score.right) for score in known):,} of {len(known):,}"
    return cells
