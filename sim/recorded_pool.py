"""The pool a recording was made from, as policies see it."""

from ..decoding.pool import Member, Pool
from ..decoding.prompt_lookup import LookupRule
from ..traces.meta import NgramInfo
from ..traces.recording import Recording


def recorded_pool(recording: Recording) -> Pool:
    """Members in level order: prompt lookup where it can be replayed, then the models, smallest first."""
    about = recording.about
    free = (Member(name=name, model_free=True) for name in about.lookups)
    drafters = (
        Member(name=name, drafts_only=about.drafts_only, from_features=name == about.from_features)
        for name in about.models[:-1]
    )
    return Pool((*free, *drafters, Member(name=about.target)))


def recorded_rule(ngram: NgramInfo) -> LookupRule:
    """How a recording's prompt lookup finds what to copy."""
    return LookupRule(max_match=ngram.max_match, min_match=ngram.min_match, occurrence=ngram.occurrence)
