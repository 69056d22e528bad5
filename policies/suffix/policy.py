"""Suffix decoding: the draft is what most often followed the newest tokens, in this request's text and earlier answers.

SuffixDecoding (Oliaro et al. 2024, arXiv:2411.04975), as vLLM and Arctic Inference have it. A suffix of p tokens of
the text is looked up in an index of this request's own prompt and answer, and in one of earlier answers. From there
tokens are added one by one, always the most frequent one; with C(token) its share among all that follow, a token has

    D(token) = D(the one before it) C(token),    SCORE = sum of D

and drafting ends after alpha p tokens, or where D falls below a threshold. The suffix and the index of most score win.
With a model to fall back on (their hybrid) it drafts instead where the score is below a threshold.

Ours: what is verified is a line and not a tree; the indices are suffix automata, whose links are suffix trees, so that
p has no bound; and an answer is known to others once its request is done, up to the last round, whose tokens no policy
is shown.
"""

from dataclasses import replace

from ...arguments import check_within
from ...decoding.contract import MOST_TOKENS, ONE_STEP, Draft, Outcome, Step, Verify
from ...decoding.observation import Observation
from ...decoding.pool import Pool
from ..about import About, Observable
from ..parts.default_members import drafter_of, lookup_member
from ..parts.drafted_blocks import DraftedBlocks
from .request_texts import RequestTexts
from .speculation import SpeculationRule


class Suffix(DraftedBlocks):
    """Copy what most often followed the newest tokens, here or in earlier answers; else plain decoding, or a model.

    Args:
        pool: must hold a model-free member, which copies what it is told here.
        draft: a model that drafts where the score is below `score`; None decodes plainly where nothing matches.
        window: tokens the model drafts, >= 1.
        score: least score of a copy where there is a model, >= 0.
        factor: alpha, > 0: tokens copied by token that matches, at most.
        least: threshold of D, 0 to 1.
        most: longest copy, >= 1.
        store: tokens of earlier answers that are kept, 0 or >= 2; between half of them and all.

    Raises:
        ValueError: no model-free member, a draft that is no model below the target, or an option out of range.
    """

    about = About(
        paper="SuffixDecoding, arXiv:2411.04975",
        lossless=True,
        members="a model-free member",
        observes=frozenset({Observable.text}),
    )

    def __init__(
        self,
        pool: Pool,
        *,
        draft: str | None = None,
        window: int = 4,
        score: float = 1.5,
        factor: float = 1.0,
        least: float = 0.1,
        most: int = 16,
        store: int = 65_536,
    ) -> None:
        lookup = lookup_member(pool, "suffix")
        check_within("window", window, ONE_STEP)
        check_within("score", score, "[0, inf)")
        check_within("factor", factor, "(0, inf)")
        check_within("least", least, "[0, 1]")
        check_within("most", most, ONE_STEP)
        if store != 0:
            check_within("store", store, f"[2, {MOST_TOKENS:,}]")
        super().__init__(Draft(lookup, most), Verify(pool.target))
        self._model = None if draft is None else Draft(drafter_of(pool, draft), window)
        if self._model is not None and pool.is_model_free(self._model.model):
            raise ValueError(f"draft must be a model, got {draft!r}, which is model-free")
        self.most_pending = most if self._model is None else max(most, window)
        self._least_score = score if self._model is not None else 0.0
        self._rule = SpeculationRule(factor=factor, least_prob=least, most=most)
        self._texts = RequestTexts(store)

    def block(self, seen: Observation) -> Step:
        """The copy of most score; without one the model, or the target alone."""
        text = self._texts.read(seen)
        places = (text.repeated, *self._texts.elsewhere(text))
        found = max((self._rule.best_of(*place) for place in places), key=lambda each: each.score)
        if not found.tokens or found.score < self._least_score:
            return self._verify if self._model is None else self._model
        return replace(self._draft, tokens=len(found.tokens), copy=found.tokens)

    def learn(self, outcome: Outcome) -> None:
        """What a request that is done has answered is there for others."""
        self._texts.learn(outcome)
