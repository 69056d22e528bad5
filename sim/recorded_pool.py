"""The pool a recording was made from, as policies see it."""

from ..decoding.pool import Member, Pool
from ..decoding.prompt_lookup import LookupRule
from ..traces.meta import NgramInfo
from ..traces.rounds.recording import RoundsRecording
from ..traces.tries.meta import TrieMeta


def recorded_pool(meta: TrieMeta) -> Pool:
    """Members in level order: the prompt-lookup member if there is one, then the models, smallest first."""
    free = (Member(name=meta.ngram.name, model_free=True),) if meta.ngram else ()
    return Pool(free + tuple(Member(name=name) for name in meta.model_names))


def imported_pool(trace: RoundsRecording) -> Pool:
    """Members in level order: prompt lookup, drafters, target.

    Drafters only draft, since a log of rounds has no verdicts of theirs. Prompt lookup is there if every request has
    the ids of its prompt and output, and no drafter has its name.
    """
    names, lookup = trace.meta.drafter_names, trace.meta.ngram.name
    looks_up = all(request.prompt and request.output for request in trace.requests)
    looks_up = looks_up and lookup not in (*names, trace.meta.target)
    free = (Member(name=lookup, model_free=True),) if looks_up else ()
    drafters = tuple(Member(name=name, drafts_only=True) for name in names)
    return Pool((*free, *drafters, Member(name=trace.meta.target)))


def recorded_rule(ngram: NgramInfo) -> LookupRule:
    """How a recording's prompt lookup finds what to copy."""
    return LookupRule(max_match=ngram.max_match, min_match=ngram.min_match, occurrence=ngram.occurrence)
