"""What an importer finds out while it reads: drafters, their windows, and what happened how often.

Letters: R rounds of one drafter in one request.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import TraceFormatError
from ..rounds.meta import DrafterInfo, StatedAcceptance
from ..rounds.rounds import MOST, UNKNOWN_DRAFTED, Rounds, RoundsRequest
from ..rounds.trust import FORMS, Form
from .findings import Findings
from .options import ImportOptions
from .reading.bad_lines import BadLines
from .reading.fields import Fields
from .reading.objects import read_objects

Part = TypeVar("Part")
Told = TypeVar("Told")

_CUT = "rounds reached beyond the end of their text; they are cut there, and censored"


class Learned:
    """Filled by a reader along the way, complete once its last request is out.

    Attributes:
        options: what the user said.
    """

    def __init__(self, options: ImportOptions) -> None:
        self.options = options
        self._found = Findings()
        self._ids: set[str] = set()
        self._new_ids: list[str] = []
        self._bad = BadLines(skip=options.skip_bad_lines)

    def each(self, path: Path, parse: Callable[[Fields], Iterable[Told]]) -> Iterator[Told]:
        """What `parse` makes of every object of a file; what breaks a rule is skipped whole if the user says so.

        Raises:
            TraceFormatError: the first breach, or only bad lines.
        """
        return self.each_of(path, read_objects(path, partial(self._bad.refuse, path)), parse)

    def each_of(self, path: Path, parts: Iterable[Part], parse: Callable[[Part], Iterable[Told]]) -> Iterator[Told]:
        """What `parse` makes of every part of a file, for what can be read once the whole file is known; as `each`."""
        any_sound = False
        for part in parts:
            before = self._found.copy()
            self._new_ids.clear()
            try:
                parsed = list(parse(part))
            except TraceFormatError as error:
                self._bad.refuse(path, error)
                self._found = before
                # Not copied: there are as many as requests.
                self._ids.difference_update(self._new_ids)
                continue
            any_sound = True
            yield from parsed
        self._bad.check(path, any_sound=any_sound)

    def drafter(
        self, method: str, *paths: Path, by_start: bool = True, prefilled: bool = False, settled: bool = False
    ) -> str:
        """The name of a drafter the files call `method`, or that a file stands for; noted where new.

        Args:
            method: as the files, or the importer, call it.
            paths: the files that are this drafter's alone.
            by_start: whether acceptance depends on where the round started, unless the user says that it does not.
            prefilled: whether a prefill emitted a token before the first round, unless the user says otherwise.
            settled: whether the format settles `prefilled`.

        Raises:
            ValueError: the user says something else of what is settled.
        """
        key = next((key for path in paths if (key := self.options.key_of_file(path)) is not None), method)
        name = self.options.names.get(key, method)
        self._found.used.add(key)
        self._found.by_start.setdefault(name, by_start and name not in self.options.token_drafters)
        told = self.options.prefilled.get(name, prefilled)
        if settled and told != prefilled:
            known, other = ("prefill", "draft") if prefilled else ("draft", "prefill")
            raise ValueError(f"--start {name} must be {known}, as in every log of this format, got {other!r}")
        self._found.prefilled.setdefault(name, told)
        return name

    def prefilled(self, name: str) -> bool:
        """Whether a prefill emitted a token before the first round of a drafter."""
        return self._found.prefilled[name]

    def only_file(self, files: Sequence[Path]) -> Path:
        """The one file; raises TraceFormatError if there are more, since they would be logs of other requests."""
        if len(files) > 1:
            raise TraceFormatError(files[1], "file", "must be the only one of this format", f"{len(files)} files")
        return files[0]

    def window_of(self, name: str, fields: Fields, told: int | None) -> int:
        """Tokens that a drafter drafts in a round, as the user or else the log says; noted.

        Raises:
            TraceFormatError: nobody says.
        """
        window = self.options.windows.get(name, told)
        if window is None:
            rule = f"must be stated, the log does not say how many tokens a round drafts: --window {name}=K"
            raise fields.error("window", rule, "nothing")
        self._found.windows[name] = max(self._found.windows.get(name, 0), window)
        return window

    def state(
        self, name: str, fields: Fields, hazards: tuple[float, ...], *, window: int, drafting: float = 1.0
    ) -> None:
        """Note what a log states of a drafter's acceptance; raises TraceFormatError for another --window than its own.

        Args:
            name: of the drafter.
            fields: where it stood, for errors.
            hazards: probability of agreement by depth, among rounds that got there; the last holds for deeper ones.
            window: tokens drafted in a round.
            drafting: share of the steps that draft at all.
        """
        wanted = self.options.windows.get(name, window)
        if wanted != window:
            raise fields.error("window", f"must be that of --window {name}={wanted}", window)
        self._found.windows[name] = window
        self._found.stated[name] = StatedAcceptance(hazards=hazards, drafting=drafting)

    def generator(self, request_id: str) -> np.random.Generator:
        """Random numbers for what the log does not say of a request, the same whatever else is imported."""
        self._found.drew = True
        key = f"import/{self.options.seed or 0}/{request_id}".encode(errors="surrogatepass")
        return np.random.default_rng(int.from_bytes(blake2b(key, digest_size=16).digest(), "big"))

    def know(self, form: Form) -> None:
        """Note what the log knows of a request; the recording is as good as the worst of its requests."""
        self._found.forms.add(form)

    def remark(self, words: str) -> None:
        """Note something once that every reader of the recording must know."""
        if words not in self._found.remarks:
            self._found.remarks.append(words)

    def use_load(self) -> None:
        """Note that the user's requests are taken, since the log names none."""
        self._found.used_load = True

    def saw(self, request: RoundsRequest) -> RoundsRequest:
        """The same request, once it is known whether its texts are there to be looked up in."""
        self._found.has_texts = self._found.has_texts or bool(request.prompt and request.output)
        return request

    def request(self, fields: Fields, field: str, request_id: str) -> None:
        """Note the id of a request; raises TraceFormatError if it is empty, or that of another one."""
        if not request_id:
            raise fields.error(field, "must not be empty", request_id)
        if request_id in self._ids:
            raise fields.error(field, "must be unique", request_id)
        self._ids.add(request_id)
        self._new_ids.append(request_id)

    def note(self, words: str, times: int = 1) -> None:
        """Count something that every reader of the recording must know."""
        if times:
            self._found.counts[words] += times

    def rounds(
        self,
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
        """Rounds of one request, cut where the text ends.

        Args:
            name: of the drafter.
            fields: where they stood, for errors.
            start: `[R]` tokens emitted before the round, all < length.
            accepted: `[R]` drafted tokens that stayed.
            length: of the text.
            drafted: `[R]` tokens drafted, None if the log does not say.
            draft_s: `[R]` seconds of drafting.
            verify_s: `[R]` seconds of the target's forward.
            placed: `[R]` whether the log does not say where the round stood; None if it does of all.

        Raises:
            TraceFormatError: a text beyond 32 bits, or more drafted or accepted than the window the user gave.
        """
        if length > MOST:
            raise fields.error(name, f"must add up to at most {MOST} tokens", length)
        window = self.options.windows.get(name)
        most = int((accepted if drafted is None else drafted).max(initial=0))
        if window is not None and most > window:
            raise fields.error(name, f"must hold rounds within --window {name}={window}", most)
        self._found.windows[name] = max(self._found.windows.get(name, 0), most if window is None else window)
        if drafted is None:
            drafted = np.full(len(accepted), UNKNOWN_DRAFTED if window is None else window)
        cut = start + accepted > length
        if cut.any():
            self.note(_CUT, int(cut.sum()))
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

    def drafters(self) -> tuple[DrafterInfo, ...]:
        """Every drafter seen, in the order it was seen in; raises ValueError for an option that named nothing."""
        self.options.refuse_unused(frozenset(self._found.used), tuple(self._found.by_start))
        self.options.refuse_idle(
            drew=self._found.drew, used_load=self._found.used_load, has_texts=self._found.has_texts
        )
        return tuple(
            DrafterInfo(
                name=name,
                by_start=by_start,
                window=self._found.windows.get(name) or None,
                prefilled=self._found.prefilled[name],
                stated=self._found.stated.get(name),
            )
            for name, by_start in self._found.by_start.items()
        )

    def form(self, usual: Form) -> Form:
        """What the recording knows: as noted, or `usual` of its format."""
        return max(self._found.forms, key=FORMS.index, default=usual)

    def notes(self) -> tuple[str, ...]:
        """What happened how often."""
        counted = (f"{times:,} {words}" for words, times in self._found.counts.items())
        return (*counted, *self._found.remarks, *self._bad.notes())


def starts_of(emitted: NDArray[np.int64]) -> NDArray[np.int64]:
    """`[R]` tokens emitted before each round of a log that holds them one after another."""
    return np.cumsum(emitted) - emitted


def after_prefill(emitted: NDArray[np.int64], length: int) -> tuple[NDArray[np.int64], int]:
    """(`[R]` tokens emitted before each round, tokens of the text) of a log that begins after a prefill.

    It counts for each step the token that the step before it has sampled, the prefill for the first one, and not the
    one that the step samples itself. So a round starts one position after where its step does, and what the last step
    sampled is no part of the text, unless that is all it gave: then the text has it.

    Args:
        emitted: `[R]` tokens that the log counts for each step.
        length: of the text, as the log counts it.
    """
    start = starts_of(emitted) + 1
    return start, max(length, int(start[-1]) + 1) if len(start) else length


def rounds_of_steps(
    learned: Learned,
    name: str,
    fields: Fields,
    accepted: NDArray[np.int64],
    drafted: NDArray[np.int64] | None,
    *,
    length: int,
    first: int = 0,
    placed: NDArray[np.bool_] | None = None,
) -> Rounds:
    """Rounds of a log that holds steps one after another; a step that drafted nothing is a round of nothing.

    Args:
        learned: takes note.
        name: of the drafter.
        fields: where the steps stood, for errors.
        accepted: `[S]` drafted tokens that stayed in each step.
        drafted: `[S]` tokens drafted, None if the log does not say.
        length: of the text.
        first: tokens emitted before the first step.
        placed: `[S]` steps whose place the log does not say; None if it does of all.

    Raises:
        TraceFormatError: lists of unequal length, or more accepted than drafted.
    """
    start = starts_of(accepted + 1) + first
    if drafted is None:
        return learned.rounds(name, fields, start, accepted, length=length)
    check_drafted(fields, accepted, drafted)
    return learned.rounds(name, fields, start, accepted, length=length, drafted=drafted, placed=placed)


def check_drafted(fields: Fields, accepted: NDArray[np.int64], drafted: NDArray[np.int64]) -> None:
    """Raise TraceFormatError unless `[S]` counts of accepted and drafted tokens fit each other."""
    if len(drafted) != len(accepted):
        raise fields.error("drafted", f"must hold one entry for each of the {len(accepted)} steps", len(drafted))
    if (accepted > drafted).any():
        step = int(np.argmax(accepted > drafted))
        raise fields.error(
            f"accepted, step {step}", f"must be at most the {drafted[step]} drafted", int(accepted[step])
        )
