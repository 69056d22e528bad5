"""The pool a recording was made from, as policies see it."""

from ..policies.pool import Member, Pool
from ..traces.meta import TraceMeta


def recorded_pool(meta: TraceMeta) -> Pool:
    """Members in level order: the prompt-lookup member if there is one, then the models, smallest first."""
    free = (Member(name=meta.ngram.name, model_free=True),) if meta.ngram else ()
    return Pool(free + tuple(Member(name=name) for name in meta.model_names))
