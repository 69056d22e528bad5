"""The options of `specrouter`, checked once, and the numbers that it was tuned by: a record each."""

from dataclasses import dataclass

from ...base.errors import check_within
from ...decoding.steps import MOST_TOKENS, ONE_STEP

SHARES = (
    "least_missed",
    "first_rate",
    "fewer_misses",
    "copy_risk",
    "copy_chance",
    "early",
    "early_in_step",
    "trial_share",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConstants:
    """What the options leave open; `dataclasses.replace` makes others. Tokens and rounds are counts, all above 0.

    Raises ValueError for a share or a chance that is not above 0 and at most 1.
    """

    # standard errors by which rates are raised before chains of a tag are compared, for every root of the logarithm of
    # the tokens that the tag's best known pair counts for
    optimism: float = 0.5
    pair_memory: float = 512.0  # tokens that the agreement of a pair reaches back
    # tokens of which both are known, before `similarity=auto` believes that SimScore says how many are accepted
    simscore_tokens: int = 64
    least_variance: float = 0.02  # of a verdict where rates are raised: a few may all be alike
    least_missed: float = 0.005  # share of its tokens that a member is hoped to miss at least
    tag_tokens: float = 16.0  # tokens that what all tags know of a pair counts for in one of them
    ease_tokens: float = 4.0  # evidence, in variances of a verdict, that a tag being as hard as all together counts for
    most_ease: float = 4.0  # of a tag, log-odds either way
    guess_tokens: float = 8.0  # tokens that a guess counts for before a pair met
    # agreement of the smallest member, the one that copies where there is one, with the target, before anything was
    # seen
    first_rate: float = 0.5
    fewer_misses: float = 0.5  # what a member is guessed to miss of the tokens that the next smaller one misses
    hazard: float = 0.05  # of any drafted token before anything was seen, -ln of its survival
    hazard_of_doubt: float = 0.25  # the same for every nat of -ln of its drafter's probability
    hazard_weight: float = 2.0  # curvature that these two starts count for
    hazard_step: float = 0.5  # of the logarithm of either at one verdict, at most
    hazard_memory: float = 512.0  # judged tokens that a hazard reaches back
    # of a copied token after a match of one token, the chance to be wrong before anything was seen; half of that for
    # every doubling of the match
    copy_risk: float = 0.75
    copy_memory: float = 256.0  # tokens that the rate of copied ones reaches back
    copy_tokens: float = 6.0  # tokens that what all tags know of that, or its start, counts for
    copy_chance: float = 0.05  # that all of a candidate's tokens are right, from which on it is not followed
    ladder_tokens: int = 4  # that the smallest member drafts in the warm-up
    together: int = 4  # requests that run, from which on `select=auto` has them share a chain
    patience: int = 32  # rounds for which a tag goes on in step when fewer run, before it looks for a chain of its own
    early: float = 1 / 3  # of the rounds that a tag has seen, the share that a selection holds for
    # of the option `hysteresis`, the share that holds for a tag's own chain, where what is little known has the benefit
    # of its doubt already
    tag_hysteresis: float = 0.125
    # of the rounds that every request in step has seen, the share that a selection holds for
    early_in_step: float = 0.125
    rows_changed: float = 0.25  # of the requests that run, the share by which they change for a selection not to wait
    rounds_memory: int = 128  # rounds of requests that what copies bring in step reaches back
    # of the seconds of decoding so far, what trials in step may have taken, beside those of one token
    trial_share: float = 0.0025
    trial_doubt: float = 1.0  # standard errors by which rates are raised to see what a trial in step may find
    trial_rows: int = 4  # requests that play a trial
    seconds_memory: int = 16  # forwards of a width that the mean of their seconds reaches back
    seconds_moved: float = 0.05  # share by which such a mean moves before seconds are read anew

    def __post_init__(self) -> None:
        for name in SHARES:
            check_within(name, getattr(self, name), "(0, 1]")


CONSTANTS = RouterConstants()


CHOICES = {
    "form": ("nested", "filter"),
    "select": ("auto", "request", "batch"),
    "stop": ("confidence", "window"),
    "similarity": ("auto", "simscore", "argmax"),
}
# What `without` leaves out, to see what it is worth.
COPIES = ("lookups", "answers")  # what "copies" stands for
INGREDIENTS = ("copies", *COPIES, "optimism", "ease", "evidence")
EXPLORE, PROBE, FORM, STORE = 64, 16, "nested", 65_536  # where these options are left open


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterOptions:
    """What a user may set; what each means and its default stand in `SpecRouter`.

    Raises ValueError for an option out of range, or one that has no effect beside another. What `costs` name is checked
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
        left_out = set(self._left_out)
        if left_out.issuperset(COPIES) or ("copies" in left_out and not left_out.isdisjoint(COPIES)):
            raise ValueError(f"without must name copies alone for lookups and answers, got {self.without!r}")
        self._refuse_ignored()

    def _refuse_ignored(self) -> None:
        """An option that would change nothing says so."""
        for name in ("explore", "probe") if self.select == "request" else ("form",) if self.select == "batch" else ():
            if getattr(self, name) is not None:
                raise ValueError(f"{name} has no effect with select={self.select}, got {name}={getattr(self, name)}")
        if self.select == "batch" and not self.takes("optimism"):
            raise ValueError("without=optimism has no effect with select=batch")
        if self.store is not None and not self.takes("answers"):
            raise ValueError(f"store has no effect with without={self.without}, got store={self.store}")

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
        return ingredient not in self._left_out and not (ingredient in COPIES and "copies" in self._left_out)

    @property
    def _left_out(self) -> list[str]:
        return self.without.split("+") if self.without else []
