"""When a verifier takes over from the drafter: the deferral rules of speculative cascades."""

from dataclasses import dataclass
from typing import Any, ClassVar

from ...arguments import check_within
from .facts import Facts

KINDS = ("chow", "diff", "opt", "token")


@dataclass(frozen=True, slots=True)
class Deferral:
    """Keep the drafter's token where the cascade would not defer to the verifier. Lossy.

    Speculative cascades (Narasimhan et al., Faster Cascades via Speculative Decoding, arXiv:2405.19261). The drafter's
    token stays where

    - `chow`: draft_top_prob >= 1 - eps: the drafter is sure. The verifier's distribution plays no part.
    - `diff`: draft_top_prob >= top_prob - eps: the verifier is hardly surer.
    - `opt`: draft_top_prob >= top_prob - eps x tvd: as `diff`, where the price of deferring is what it costs to have
      drafts refused, the total variation distance.
    - `token`: target_prob >= (1 - eps) x top_prob: the verifier finds this very token good enough, in proportion to
      its best one (the paper's third token-specific rule; its first compares the drafter's probability of the token,
      its second the verifier's, with top_prob - eps).

    Where the cascade defers, its text is the verifier's: the token stays if the verifier writes it too (`same`), as in
    plain speculation. Under rejection sampling `same` is the most probable token, so what is kept there leans towards
    it; the paper draws from norm(max(0, ...)) of the mixed distribution instead.

    Attributes:
        kind: one of `KINDS`.
        eps: 0 to 1; at 0 `token` keeps ties for the best only.
    """

    kind: str
    eps: float
    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        check_within("eps", self.eps, "[0, 1]")

    @property
    def needs_target_prob(self) -> bool:
        """Only `token` asks for the verifier's probability of the token."""
        return self.kind == "token"

    def accepts(self, facts: Facts) -> Any:  # noqa: ANN401 - a bool, or an array of them
        """Whether the token stays."""
        if self.kind == "chow":
            keeps = facts.draft_top_prob >= 1.0 - self.eps
        elif self.kind == "diff":
            keeps = facts.draft_top_prob >= facts.top_prob - self.eps
        elif self.kind == "opt":
            keeps = facts.draft_top_prob >= facts.top_prob - self.eps * facts.tvd
        else:
            keeps = facts.target_prob >= (1.0 - self.eps) * facts.top_prob
        return facts.same | keeps
