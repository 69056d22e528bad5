"""An import while it runs: the user's options, and what its reader has found so far and must report.

Skipped lines leave no trace in it. Rounds of a request are made here from the steps of a log.

Letters: R rounds of one drafter in one request.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from copy import copy
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ...base.errors import ArgumentError, as_options, check_within
from ..errors import TraceFormatError
from ..meta import MOST, NAME_PATTERN, ModelInfo, NgramInfo, check_title
from ..rounds.rounds import TRUST, UNKNOWN_DRAFTED, DrafterInfo, Form, Rounds, RoundsRequest, StatedAcceptance
from ..shifted import keyed_generator
from .reading import Fields, read_objects, the_one

DRAFTER = "drafter"  # the only drafter of a log that does not name it
MOST_REQUESTS = 1_000_000
MOST_WINDOW = 1024  # tokens of a draft, in logs of all requests together


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests that a log does not name."""

    requests: int  # how many, 1 to a million
    output_tokens: int  # of each answer, >= 1
    prompt_tokens: int = 0  # of each prompt, 0 if unknown

    def __post_init__(self) -> None:
        bounds = {"requests": (1, MOST_REQUESTS), "output_tokens": (1, MOST), "prompt_tokens": (0, MOST)}
        for name, (least, most) in bounds.items():
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be in [{least}, {most}], got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """Options of an import."""

    name: str = "imported"  # of the recording, one line
    target: str = "target"  # name of the model that verifies
    # a file (its path, or its name alone) or a method, as the files call it -> the drafter's name
    names: Mapping[str, str] = field(default_factory=dict)
    # drafters, by their new names, that read tokens only, so that a round is evidence for every position that it
    # drafted, in any round
    token_drafters: frozenset[str] = frozenset()
    # drafter -> most tokens it drafts in a round, 1 to 2^31 - 1
    windows: Mapping[str, int] = field(default_factory=dict)
    # drafter -> whether the target's prefill had emitted a token before its first round, where the format does not
    # settle it; otherwise the first verification doubled as prefill
    prefilled: Mapping[str, bool] = field(default_factory=dict)
    models: tuple[ModelInfo, ...] = ()  # shapes for cost models
    # whether lines that break their format are skipped and counted, in formats of lines
    skip_bad_lines: bool = False
    # how prompt lookup finds what to copy, where the ids of all texts are known; None: the default
    lookup: NgramInfo | None = None
    load: Load | None = None  # the requests of a log that does not list any; None: the log lists them
    line: int | None = None  # first line of the result to import in a file of several, from 1; None: it holds one
    seed: int | None = None  # of draws for what the log counts without saying where it was; None: 0

    def __post_init__(self) -> None:
        check_title(self.name)
        for whose, name in (*(("a drafter's", name) for name in self.names.values()), ("the target's", self.target)):
            if not re.fullmatch(NAME_PATTERN, name):
                raise ValueError(f"{whose} name must match {NAME_PATTERN}, got {name!r}")
        for name, window in self.windows.items():
            if not 1 <= window <= MOST:
                raise ValueError(f"the window of {name} must be in [1, {MOST}], got {window}")
        if self.line is not None:
            check_within("`line`", self.line, f"[1, {MOST}]")

    def key_of_file(self, path: Path) -> str | None:
        """The key of `names` for this file: its path, or its name alone; None if it has none."""
        return next((key for key in (str(path), path.name) if key in self.names), None)

    def refuse_unused(self, used: Set[str], drafters: tuple[str, ...]) -> None:
        """Raise ArgumentError for an option that named nothing, or a drafter that another one had named."""
        for key in self.names:
            if key not in used:
                rule = "must name a file or a method of the files, and one that no other key names"
                raise ArgumentError(f"`names` {rule}, got {key!r}")
        for argument in ("token_drafters", "windows", "prefilled"):
            unknown = sorted(name for name in getattr(self, argument) if name not in drafters)
            if unknown:
                known = ", ".join(drafters) or "none"
                raise ArgumentError(f"`{argument}` must name a drafter of {known}, got {unknown[0]!r}")

    def refuse_idle(self, mattered: Set[str]) -> None:
        """Raise ArgumentError for an option without effect: one that is not in `mattered`."""
        for argument, rule in (
            ("seed", "nothing of this log is drawn"),
            ("load", "this log names its requests"),
            ("line", "files of this format are taken whole"),
            ("lookup", "this log has no token ids to look up"),
        ):
            if getattr(self, argument) is not None and argument not in mattered:
                raise ArgumentError(f"`{argument}` must be left out: {rule}")


_POOLED = "{} files count as answers of one drafter, {}: --drafter FILE=NAME sets those of another apart"


class Drafters:
    """Drafters by name, in order of first appearance: how answers began, window, acceptance that the log states."""

    def __init__(self, options: ImportOptions) -> None:
        self._options = options
        self._found: dict[str, DrafterInfo] = {}
        self._used_keys: set[str] = set()
        self._files: dict[tuple[str, Path], None] = {}  # of servers' answers, with a drafter that no option named

    def copy(self) -> "Drafters":
        """A copy that later drafters leave alone."""
        other = Drafters(self._options)
        other._found, other._used_keys, other._files = self._found.copy(), self._used_keys.copy(), self._files.copy()
        return other

    def name(
        self, method: str, *paths: Path, by_start: bool = True, prefilled: bool = False, settled: bool = False
    ) -> str:
        """The name of a drafter that the files call `method`, or that `paths` are of; noted where new.

        Unless options differ, acceptance depends on where the round started (`by_start`), and a prefill emitted a token
        before the first round or did not (`prefilled`); options must not contradict what the format settles.
        """
        key = next((key for path in paths if (key := self._options.key_of_file(path)) is not None), method)
        name = self._options.names.get(key, method)
        self._used_keys.add(key)
        told = self._options.prefilled.get(name, prefilled)
        if settled and told != prefilled:
            known, other = ("prefill", "draft") if prefilled else ("draft", "prefill")
            raise ArgumentError(f"`prefilled` {name} must be {known}, as in every log of this format, got {other!r}")
        by_start = by_start and name not in self._options.token_drafters
        if name not in self._found:
            self._found[name] = DrafterInfo(name=name, by_start=by_start, prefilled=told)
        return name

    def of_server(self, path: Path, method: str = DRAFTER) -> str:
        """The name of the one drafter of a server's log, which does not name it and begins after a prefill."""
        if self._options.key_of_file(path) is None:
            self._files[method, path] = None
        return self.name(method, path, prefilled=True, settled=True)

    def pooled(self) -> list[str]:
        """Notes on files whose answers count as those of one drafter, though nothing says so."""
        return [_POOLED.format(n, name) for name, n in Counter(name for name, _ in self._files).items() if n > 1]

    def prefilled(self, name: str) -> bool:
        """Whether a prefill emitted a token before the first round of a drafter."""
        return self._found[name].prefilled

    def window_of(self, name: str, fields: Fields, told: int | None = None) -> int:
        """Tokens that a drafter drafts in a round, by the user or else the log; noted; raises without either."""
        window = self._options.windows.get(name, told)
        if window is None:
            rule = f"must be stated, the log does not say how many tokens a round drafts: `windows` {name}=K"
            raise fields.error("window", rule, "nothing")
        self._widen(name, window)
        return window

    def given_window(self, name: str, fields: Fields, most: int) -> int | None:
        """The user's window of a drafter whose rounds hold up to `most` tokens, None for none; noted."""
        window = self._options.windows.get(name)
        if window is not None and most > window:
            raise fields.error(name, f"must hold rounds within `windows` {name}={window}", most)
        self._widen(name, most if window is None else window)
        return window

    def state(self, name: str, fields: Fields, stated: StatedAcceptance, window: int) -> None:
        """Note a drafter's acceptance that a log states; raises TraceFormatError for an option with another window."""
        wanted = self._options.windows.get(name, window)
        if wanted != window:
            raise fields.error("window", f"must be that of `windows` {name}={wanted}", window)
        self._found[name] = self._found[name].model_copy(update={"window": window, "stated": stated})

    def seen(self) -> tuple[DrafterInfo, ...]:
        """Every drafter so far."""
        return tuple(self._found.values())

    def infos(self) -> tuple[DrafterInfo, ...]:
        """Every drafter for the recording; raises ArgumentError for an option that named nothing."""
        self._options.refuse_unused(self._used_keys, tuple(self._found))
        return tuple(self._found.values())

    def _widen(self, name: str, window: int) -> None:
        """Widen a drafter's window to `window`; one that never drafted keeps None."""
        if window > (self._found[name].window or 0):
            self._found[name] = self._found[name].model_copy(update={"window": window})


Part = TypeVar("Part")
Told = TypeVar("Told")


@dataclass(slots=True, kw_only=True)
class Findings:
    """Filled while files are read."""

    counts: Counter[str] = field(default_factory=Counter)  # words of a note -> how often it happened
    remarks: list[str] = field(default_factory=list)  # notes that are not counted
    # what the log holds of its requests; the recording is as good as the worst of them
    forms: set[Form] = field(default_factory=set)
    # options of `ImportOptions` that had an effect, of those that need not have one
    mattered: set[str] = field(default_factory=set)
    model: str = ""  # that the first response names

    def copy(self) -> "Findings":
        """A copy that later findings leave alone."""
        return Findings(**{each.name: copy(getattr(self, each.name)) for each in fields(self)})

    def note(self, words: str, times: int = 1) -> None:
        """Count something that readers of the recording must know."""
        if times:
            self.counts[words] += times

    def remark(self, words: str) -> None:
        """Note something once."""
        if words not in self.remarks:
            self.remarks.append(words)

    def form(self, usual: Form) -> Form:
        """What the recording holds: as found, or `usual` of its format."""
        return max(self.forms, key=[*TRUST].index, default=usual)

    def notes(self) -> tuple[str, ...]:
        """Counted notes with their counts, and the remarks."""
        return (*(f"{times:,} {words}" for words, times in self.counts.items()), *self.remarks)


class Ongoing:
    """Filled by a reader while it runs, complete after its last request."""

    def __init__(self, options: ImportOptions) -> None:
        self.options = options
        self.drafters = Drafters(options)
        self.findings = Findings()
        self._ids: set[str] = set()
        self._new_ids: list[str] = []
        self._first_bad: dict[Path, TraceFormatError] = {}
        self._num_bad = 0

    def each(self, path: Path, parse: Callable[[Fields], Iterable[Told]]) -> Iterator[Told]:
        """The results of `parse` for every object of a file; one that breaks a rule is skipped if options say so."""
        return self.each_of(path, read_objects(path, partial(self._refuse, path)), parse)

    def each_of(self, path: Path, parts: Iterable[Part], parse: Callable[[Part], Iterable[Told]]) -> Iterator[Told]:
        """As `each`, for parts of a file that can be parsed only once all of it was read."""
        any_sound = False
        for part in parts:
            drafters, findings = self.drafters.copy(), self.findings.copy()
            self._new_ids.clear()
            try:
                parsed = list(parse(part))
            except TraceFormatError as error:
                self._refuse(path, error)
                self.drafters, self.findings = drafters, findings
                self._ids.difference_update(self._new_ids)  # not copied: there are as many as requests
                continue
            any_sound = True
            yield from parsed
        first = self._first_bad.get(path)
        if first is not None and not any_sound:
            raise TraceFormatError(first.path, first.field, f"{first.rule} (all lines are bad)", first.value)

    def _refuse(self, path: Path, error: TraceFormatError) -> None:
        """Raise the error of a file's line, or count the line as skipped."""
        if not self.options.skip_bad_lines:
            raise error
        self._first_bad.setdefault(path, error)
        self._num_bad += 1

    def the_one(self, path: Path, results: Iterable[Fields]) -> Fields:
        """The result of a file that holds one, or that on the line of the option; raises TraceFormatError."""
        if self.options.line is not None:
            self.findings.mattered.add("line")
        return the_one(path, results, self.options.line)

    def request(self, fields: Fields, field: str, request_id: str) -> None:
        """Note the id of a request; raises TraceFormatError if it is empty or repeated."""
        if not request_id:
            raise fields.error(field, "must not be empty", request_id)
        if request_id in self._ids:
            raise fields.error(field, "must be unique", request_id)
        self._ids.add(request_id)
        self._new_ids.append(request_id)

    def begin_file(self) -> None:
        """Allow ids of the files before again: each file has its own ids, which the recording does not use."""
        self._ids.clear()

    def generator(self, request_id: str) -> np.random.Generator:
        """Random numbers for what the log does not say about a request, the same whatever else is imported."""
        self.findings.mattered.add("seed")
        return keyed_generator(f"import/{self.options.seed or 0}/{request_id}")

    def notes(self) -> tuple[str, ...]:
        """Notes on what was found and skipped; a recording keeps them, so they name options of the command."""
        if not self._num_bad:
            return self.findings.notes()
        counted = "1 bad line was" if self._num_bad == 1 else f"{self._num_bad:,} bad lines were"
        first = next(iter(self._first_bad.values()))
        told = TraceFormatError(first.path, first.field, as_options(first.rule, rule=True), first.value)
        return (*self.findings.notes(), f"{counted} skipped (--skip-bad-lines); the first: {told}")


_CUT = "rounds reached beyond the end of their text; they are cut there, and censored"


def starts_of(emitted: NDArray[np.int64]) -> NDArray[np.int64]:
    """`[R]` tokens emitted before each round of a log of consecutive rounds."""
    return np.cumsum(emitted) - emitted


def after_prefill(emitted: NDArray[np.int64], length: int) -> tuple[NDArray[np.int64], int]:
    """(`[R]` tokens emitted before each round, tokens of the text) of a log that begins after a prefill.

    For each step such a log counts the token that the step before it sampled (for the first one the prefill), and not
    the one that the step samples itself. So a round starts one position after its step, and the token that the last
    step sampled is not in the text, unless that step has no other.
    """
    start = starts_of(emitted) + 1
    return start, max(length, int(start[-1]) + 1) if len(start) else length


def rounds_at(
    ongoing: Ongoing,
    name: str,
    fields: Fields,
    start: NDArray[np.int64],
    accepted: NDArray[np.int64],
    *,
    length: int,
    drafted: NDArray[np.int64] | None = None,
    draft_s: NDArray[np.float64] | None = None,
    verify_s: NDArray[np.float64] | None = None,
    placed: NDArray[np.bool_] | None = None,
) -> Rounds:
    """Rounds of one request, cut where the text ends; each array is `[R]`.

    `start` counts tokens emitted before the round, all below `length`, that of the text; `drafted` is None if the log
    does not say, and `placed` marks rounds whose place the log does not say.
    """
    if length > MOST:
        raise fields.error(name, f"must add up to at most {MOST} tokens", length)
    most = int((accepted if drafted is None else drafted).max(initial=0))
    window = ongoing.drafters.given_window(name, fields, most)
    if drafted is None:
        drafted = np.full(len(accepted), UNKNOWN_DRAFTED if window is None else window)
    cut = start + accepted > length
    if cut.any():
        ongoing.findings.note(_CUT, int(cut.sum()))
        accepted = np.where(cut, length - start, accepted)
        drafted = np.where(cut, accepted, drafted)
    return Rounds(
        start=start.astype(np.int32),
        accepted=accepted.astype(np.int32),
        drafted=drafted.astype(np.int32),
        draft_s=draft_s,
        verify_s=verify_s,
        placed=placed,
    )


def check_drafted(fields: Fields, accepted: NDArray[np.int64], drafted: NDArray[np.int64]) -> None:
    """Raise TraceFormatError unless `[R]` counts of accepted and drafted tokens fit each other."""
    if len(drafted) != len(accepted):
        raise fields.error("drafted", f"must hold one entry for each of the {len(accepted)} steps", len(drafted))
    if (accepted > drafted).any():
        step = int(np.argmax(accepted > drafted))
        raise fields.error(
            f"accepted, step {step}", f"must be at most the {drafted[step]} drafted", int(accepted[step])
        )


_ALL_KEPT = (
    "nothing that {} drafted was ever refused{}, which is unlikely: some engines count only what was kept whole "
    "(llama.cpp on hybrid models), or the text was a copy"
)
_WHOLE = 1 - 1e-9  # bound of a probability found by halving
_NO_DRAFTS = "nothing in these files shows drafts: every answer is taken to be the target's alone"


class KeptTokens:
    """Counts requests as they are read. Final."""

    def __init__(self) -> None:
        # By drafter: accepted tokens, whether any was rejected, and counts of rounds whose drafts are not known.
        self._tokens, self._refused = Counter[str](), set[str]()
        self._silent: dict[str, set[int]] = {}
        self._any_request = False

    def see(self, request: RoundsRequest) -> None:
        """Count a request's rounds."""
        self._any_request = True
        for name, rounds in request.rounds.items():
            self._tokens[name] += int(rounds.accepted.sum())
            silent = rounds.drafted == UNKNOWN_DRAFTED
            if np.any(~silent & (rounds.drafted != rounds.accepted)):
                self._refused.add(name)
            self._silent.setdefault(name, set()).update(rounds.accepted[silent].tolist())

    def remarks(self, drafters: Iterable[DrafterInfo]) -> list[str]:
        """Remarks on a recording with these drafters, after all requests."""
        drafters = list(drafters)
        if self._any_request and not drafters:
            return [_NO_DRAFTS]
        found = []
        for drafter in drafters:
            name, silent, tokens = drafter.name, self._silent.get(drafter.name), self._tokens[drafter.name]
            whole = max(silent or (0,)) if drafter.window is None else drafter.window
            if drafter.stated is not None:
                found += [_ALL_KEPT.format(name, "")] if min(drafter.stated.hazards) >= _WHOLE else []
            elif tokens and name not in self._refused and not (silent and min(silent) < whole):
                found.append(_ALL_KEPT.format(name, f" ({tokens:,} tokens)"))
        return found
