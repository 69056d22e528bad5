"""Hypothesis strategies for what policies work on: pools, requests, chains and legal steps."""

from hypothesis import strategies as st
from paceline.decoding.session import Session
from paceline.policies import Commit, Draft, Member, Pool, Verify
from paceline.policies.check import EOS, VOCABULARY

MODELS = ("draft", "mid", "slim", "large", "target")


@st.composite
def pools(draw, least=1):
    """Up to five models, sometimes with prompt lookup below them."""
    count = draw(st.integers(least, len(MODELS)))
    free = (Member(name="ngram", model_free=True),) if draw(st.booleans()) else ()
    return Pool(free + tuple(Member(name=name) for name in MODELS[-count:]))


def starts(pool):
    """How a request may begin: as engines do, with a draft, or as the member that drafts first says."""
    levels = len(pool.members)
    uniform = st.sampled_from([None, (True,) * levels, (False,) * levels])
    return uniform | st.tuples(*[st.booleans()] * levels)


@st.composite
def sessions(draw, pool, request_id="r0"):
    """A request that has not begun."""
    prompt = draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6))
    budget = draw(st.integers(1, 14))
    return Session(
        pool=pool,
        request_id=request_id,
        tag="",
        prompt=tuple(prompt),
        budget=budget,
        eos=frozenset({EOS}),
        prefill_before=draw(starts(pool)),
    )


@st.composite
def chains(draw, pool):
    """A chain over some members of the pool, in notation."""
    below = draw(st.lists(st.sampled_from(pool.names[:-1]), unique=True)) if len(pool.names) > 1 else []
    below.sort(key=pool.level)
    parts = [f"{name}:{draw(st.integers(1, 5))}" for name in below]
    return "/".join([*parts, pool.target])


def legal_steps(session, *, commits=True):
    """Every kind of step the contract allows now, written from the contract and not from the session's own check."""
    pool = session.pool
    pending = len(session.tokens)
    ended = pending > 0 and session.tokens[-1] in session.eos
    room = 0 if ended else session.budget - len(session.emitted) - pending
    steps = [Draft(name, tokens) for name in pool.names[:-1] for tokens in (1, 2, 5) if room > 0]
    for level, member in enumerate(pool.members):
        is_target = level == pool.target_level
        has_work = any(judge < level for judge in session.judges)
        if not member.model_free and (is_target or pending == 0 or has_work):
            steps.append(Verify(member.name))
    if commits:
        steps += [Commit(count) for count in {1, pending} if 1 <= count <= pending]
    return steps


def all_steps(pool):
    """Steps of every kind, legal at some time or never."""
    names = [*pool.names, "nobody"]
    drafts = [Draft(name, tokens) for name in names for tokens in (1, 2, 5)]
    return [*drafts, *(Verify(name) for name in names), *(Commit(count) for count in range(1, 20))]
