"""The drafters of an import: what each is called, how its answers began, its window, and what a log states of it."""

from pathlib import Path

from ...arguments import ArgumentError
from ..rounds.meta import DrafterInfo, StatedAcceptance
from .options import ImportOptions
from .reading.fields import Fields

DRAFTER = "drafter"  # of a log that knows one and does not name it


class Drafters:
    """Drafters by name, in the order they were seen in.

    Args:
        options: what the user says of them.
    """

    def __init__(self, options: ImportOptions) -> None:
        self._options = options
        self._found: dict[str, DrafterInfo] = {}
        self._used_keys: set[str] = set()

    def copy(self) -> "Drafters":
        """The same, which later drafters leave alone."""
        other = Drafters(self._options)
        other._found, other._used_keys = self._found.copy(), self._used_keys.copy()
        return other

    def name(
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
            ArgumentError: the user says something else of what is settled.
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
        """The name of the one drafter of a server's log, which says nothing of it and begins after a prefill."""
        return self.name(method, path, prefilled=True, settled=True)

    def prefilled(self, name: str) -> bool:
        """Whether a prefill emitted a token before the first round of a drafter."""
        return self._found[name].prefilled

    def window_of(self, name: str, fields: Fields, told: int | None = None) -> int:
        """Tokens that a drafter drafts in a round, as the user or else the log says; noted.

        Raises:
            TraceFormatError: nobody says.
        """
        window = self._options.windows.get(name, told)
        if window is None:
            rule = f"must be stated, the log does not say how many tokens a round drafts: `windows` {name}=K"
            raise fields.error("window", rule, "nothing")
        self._widen(name, window)
        return window

    def given_window(self, name: str, fields: Fields, most: int) -> int | None:
        """The window that the user gave of a drafter whose rounds hold up to `most` tokens, None for none; noted.

        Raises:
            TraceFormatError: rounds hold more.
        """
        window = self._options.windows.get(name)
        if window is not None and most > window:
            raise fields.error(name, f"must hold rounds within `windows` {name}={window}", most)
        self._widen(name, most if window is None else window)
        return window

    def state(self, name: str, fields: Fields, stated: StatedAcceptance, window: int) -> None:
        """Note what a log states of a drafter; raises TraceFormatError for another window than the log's own."""
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
        """Note that rounds draft so much; a drafter that was never seen to draft anything keeps no window."""
        if window > (self._found[name].window or 0):
            self._found[name] = self._found[name].model_copy(update={"window": window})
