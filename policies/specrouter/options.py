"""The options of `specrouter`, checked once, and its tuned numbers: a record each."""

from dataclasses import dataclass

from ...base.errors import check_within
from ...decoding.steps import MOST_TOKENS, ONE_STEP


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConstants:
    """Tuned numbers that are no options. Tokens and rounds are counts, all above 0; shares and chances at most 1."""

    # standard errors by which rates are raised before chains of a tag are compared, per square root of the logarithm of
    # the most tokens of any pair of the tag
    optimism: float = 0.5
    pair_memory: float = 512.0  # tokens that a pair's agreement reaches back
    # tokens with a verdict and a SimScore before `similarity=auto` may use SimScore
    simscore_tokens: int = 64
    simscore_trial: int = 512  # such tokens from which on a SimScore that does not predict acceptance is read no more
    least_variance: float = 0.02  # of a verdict where rates are raised: a few may all be the same
    least_missed: float = 0.005  # least share of rejected tokens in raised rates
    tag_tokens: float = 16.0  # weight, in tokens, of a pair's rate of all tags in that of one
    ease_tokens: float = 4.0  # weight, in variances of a verdict, of the prior that a tag is as hard as all
    most_ease: float = 4.0  # bound of a tag's, log-odds, either sign
    guess_tokens: float = 8.0  # weight, in tokens, of the guess for a pair
    # prior agreement of the smallest member (if there is a model-free one, this) with the target
    first_rate: float = 0.5
    fewer_misses: float = 0.5  # guessed rejections of a member, as a share of the next smaller one's
    hazard: float = 0.05  # prior, of any drafted token, -ln of its survival
    hazard_of_doubt: float = 0.25  # prior, per nat of -ln of its drafter's probability
    hazard_weight: float = 2.0  # weight of these two priors, curvature
    hazard_step: float = 0.5  # most change of either's logarithm at one verdict
    hazard_memory: float = 512.0  # judged tokens that a hazard reaches back
    # prior chance that a copied token is wrong after a match of one token; half of that for every doubling of the match
    copy_risk: float = 0.75
    copy_memory: float = 256.0  # tokens that the rate of copies reaches back
    copy_tokens: float = 6.0  # weight, in tokens, of all tags' rate or the prior
    copy_chance: float = 0.05  # that all of a candidate's tokens are right; below it no more are copied
    ladder_tokens: int = 4  # drafted by the smallest member in the warm-up
    together: int = 4  # running requests from which on `select=auto` shares a chain
    patience: int = 32  # rounds that a tag remains in step when fewer run, before it gets a chain of its own
    early: float = 1 / 3  # of the rounds that a tag has seen, the share that a selection holds for
    # of the option `hysteresis`, the share that holds for a tag's own chain, as raised rates favour little-known pairs
    # already
    tag_hysteresis: float = 0.125
    # of the rounds that every request in step has seen, the share that a selection holds for
    early_in_step: float = 0.125
    rows_changed: float = 0.25  # change of the running requests, as a share, that causes a selection at once
    rounds_memory: int = 128  # rounds of requests that the means of copies in step reach back
    # of the seconds of decoding so far, the most that trials in step may take, in addition to one token's seconds
    trial_share: float = 0.0025
    trial_doubt: float = 1.0  # standard errors by which rates are raised to find a trial in step
    trial_rows: int = 4  # requests of a trial
    seconds_memory: int = 16  # forwards that the mean seconds of a width reach back
    seconds_moved: float = 0.05  # share by which such a mean moves before it is read again


CONSTANTS = RouterConstants()


CHOICES = {
    "select": ("auto", "request", "batch"),
    "stop": ("confidence", "window"),
    "similarity": ("auto", "simscore", "argmax"),
}
# Ingredients that `without` may leave out, to measure their worth.
COPIES = ("lookups", "answers")  # "copies" means these
INGREDIENTS = ("copies", *COPIES, "optimism", "ease", "evidence")
EXPLORE, PROBE, STORE = 64, 16, 65_536  # defaults for None


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterOptions:
    """The options; `SpecRouter` has their meanings and defaults.

    Raises ValueError for an option out of range, or one that has no effect beside another. What `costs` name is checked
    where the pool is known.
    """

    every: int
    most: int
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
            if value not in (*others, last):
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
        self._check_effects()

    def _check_effects(self) -> None:
        """Raise ValueError for an option without effect."""
        for name in ("explore", "probe"):
            if self.select == "request" and getattr(self, name) is not None:
                raise ValueError(f"{name} has no effect with select={self.select}, got {name}={getattr(self, name)}")
        if self.select == "batch" and not self.takes("optimism"):
            raise ValueError("without=optimism has no effect with select=batch")
        if self.store is not None and not self.takes("answers"):
            raise ValueError(f"store has no effect with without={self.without}, got store={self.store}")

    @property
    def explores(self) -> int:
        """`explore`, or its default."""
        return EXPLORE if self.explore is None else self.explore

    @property
    def probes(self) -> int:
        """`probe`, or its default."""
        return PROBE if self.probe is None else self.probe

    @property
    def stores(self) -> int:
        """`store`, or its default."""
        return STORE if self.store is None else self.store

    def takes(self, ingredient: str) -> bool:
        """Whether an ingredient is not left out."""
        return ingredient not in self._left_out and not (ingredient in COPIES and "copies" in self._left_out)

    @property
    def _left_out(self) -> list[str]:
        return self.without.split("+") if self.without else []
