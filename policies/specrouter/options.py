"""The options of `specrouter`: one record, checked once and passed whole."""

from dataclasses import dataclass

from ...arguments import check_within
from ...decoding.contract import MOST_TOKENS, ONE_STEP

CHOICES = {
    "form": ("nested", "filter"),
    "select": ("auto", "request", "batch"),
    "stop": ("confidence", "window"),
    "similarity": ("auto", "simscore", "argmax"),
}
# What `without` leaves out, to see what it is worth.
INGREDIENTS = ("lookups", "answers", "optimism", "ease", "evidence")
EXPLORE, PROBE, FORM, STORE = 64, 16, "nested", 65_536  # where these options are left open


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterOptions:
    """What a user may set; the defaults stand in `SpecRouter`.

    Attributes:
        every: rounds of a tag, or of every request in step, between two selections, >= 1.
        most: longest window, 1 to 1,000.
        form: "nested" or "filter" prediction, by which members are found; windows are those of the nested one, see
            `search`. None: nested. Not with select=batch, which has its own.
        similarity: "simscore", "argmax", or "auto", which takes the one that says how many tokens are accepted.
        select: "request": the chain of its tag for every request; "batch": one chain for all that run, in step;
            "auto": the former while few requests run, the latter from four on.
        stop: "confidence": windows end where the next token does not pay; "window": windows as the search finds them.
        explore: in step, rounds of every request after which what is known of a pair counts half as much against
            trying it again, >= 0; 0 never tries, None: 64. Not with select=request.
        probe: in step, requests that draft to learn before anything is known, >= 0; None: 16. Not with
            select=request.
        hysteresis: predicted gain for which the members of a chain are changed, 0 to below 1; of a tag's own chain a
            share of it (`RouterConstants.tag_hysteresis`).
        without: ingredients to leave out, `+` between them: "lookups" (no copies of a request's own text), "answers"
            (none of earlier answers), "optimism" (what is little known gets no benefit of the doubt; not with
            select=batch), "ease" (a tag's pairs tell nothing of each other), "evidence" (what several
            levels kept tells of the last of them alone); "" leaves out none.
        store: tokens of earlier answers that are kept to copy from, 0 or >= 2; between half of them and all. None:
            65,536. Not with without=answers.
        costs: of a forward by member, as `draft:1/mid:3/target:10`, at every width; None measures seconds.

    Raises:
        ValueError: an option out of range, or one that has no effect beside another. What `costs` name is checked
            where the pool is known.
    """

    every: int
    most: int
    form: str | None
    similarity: str
    select: str
    stop: str
    explore: int | None
    probe: int | None
    hysteresis: float
    store: int | None
    without: str
    costs: str | None

    def __post_init__(self) -> None:
        check_within("every", self.every, ONE_STEP)
        check_within("most", self.most, "[1, 1,000]")
        for name, (*others, last) in CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in (*others, last):
                raise ValueError(f"{name} must be {', '.join(others)} or {last}, got {value!r}")
        if self.explores < 0 or self.probes < 0:
            raise ValueError(f"explore and probe must be >= 0, got explore={self.explores}, probe={self.probes}")
        check_within("hysteresis", self.hysteresis, "[0, 1)")
        if self.stores != 0:
            check_within("store", self.stores, f"[2, {MOST_TOKENS:,}]")
        for name in self._left_out:
            if name not in INGREDIENTS:
                raise ValueError(f"without must name {', '.join(INGREDIENTS[:-1])} or {INGREDIENTS[-1]}, got {name!r}")
        self._refuse_ignored()

    def _refuse_ignored(self) -> None:
        """An option that would change nothing says so."""
        for name in ("explore", "probe") if self.select == "request" else ("form",) if self.select == "batch" else ():
            if getattr(self, name) is not None:
                raise ValueError(f"{name} has no effect with select={self.select}, got {name}={getattr(self, name)}")
        if self.select == "batch" and not self.takes("optimism"):
            raise ValueError("without=optimism has no effect with select=batch")
        if self.store is not None and not self.takes("answers"):
            raise ValueError(f"store has no effect with without=answers, got store={self.store}")

    @property
    def explores(self) -> int:
        """`explore`, or what stands for it."""
        return EXPLORE if self.explore is None else self.explore

    @property
    def probes(self) -> int:
        """`probe`, or what stands for it."""
        return PROBE if self.probe is None else self.probe

    @property
    def stores(self) -> int:
        """`store`, or what stands for it."""
        return STORE if self.store is None else self.store

    def takes(self, ingredient: str) -> bool:
        """Whether an ingredient is not left out."""
        return ingredient not in self._left_out

    @property
    def _left_out(self) -> list[str]:
        return self.without.split("+") if self.without else []
