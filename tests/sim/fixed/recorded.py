"""Recordings of any kind for fixed chains, and rounds of a served request step by step."""

from hypothesis import strategies as st
from paceline.decoding.seen import Observation, ServerLoad
from paceline.decoding.session import Session
from paceline.decoding.steps import Draft
from paceline.sim.contexts import TrieTables
from paceline.sim.rounds import RoundsTables
from paceline.traces import TrieRecording

from ...strategies import synthetic_traces, traces
from ..rounds.small_rounds import recordings
from ..tries.small_traces import with_ngram

ALONE = ("plain", "target")


@st.composite
def ending(draw, trace):
    """A recording in which some tokens end the text, and answers end at the first of them."""
    if draw(st.booleans()):
        return trace
    written = sorted({int(token) for record in trace.requests for token in record.trie.token[1:]})
    if not written:
        return trace
    ends = tuple(draw(st.lists(st.sampled_from(written), max_size=3, unique=True)))
    return TrieRecording(meta=trace.meta.model_copy(update={"eos_token_ids": ends}), requests=trace.requests)


@st.composite
def contexts(draw):
    """Tables of a recording of contexts: its closure whole or with gaps, prompt lookup or none."""
    trace = draw(st.one_of(synthetic_traces(), traces()))
    trace = draw(ending(trace))
    return TrieTables(with_ngram(trace) if draw(st.booleans()) else trace)


@st.composite
def texts(draw, pool, *, stops=True):
    """Text of a policy that only pending tokens decide."""
    names = [name for name, member in zip(pool.names, pool.members, strict=True) if name != pool.target]
    if not names:
        return draw(st.sampled_from(ALONE))
    between = [name for name in names if pool.members[pool.level(name)].verifies]
    lowest = draw(st.sampled_from(names))
    above = sorted({name for name in between if pool.level(name) > pool.level(lowest)}, key=pool.level)
    chosen = [lowest, *(name for name in above if draw(st.booleans()))]
    chain = "/".join([*(f"{name}:{draw(st.integers(1, 5))}" for name in chosen), pool.target])
    policies = [*ALONE, chain, chain, chain]
    if pool.members[0].model_free:
        policies.append(f"ngram,tokens={draw(st.integers(1, 5))}")
    if stops:
        policies += [f"confident,below=0.5,most=4,draft={lowest}", f"svip,h=0.5,most=3,draft={lowest}"]
    return draw(st.sampled_from(policies))


def logs():
    """Tables of an engine's log."""
    return recordings(stopping=True).map(RoundsTables)


def begun(pool, answers, session_id, recorded_id, most):
    """A session after its prefill, of at most so many tokens."""
    replayed = answers.replay(session_id, recorded_id)
    session = Session(
        pool=pool,
        request_id=session_id,
        tag=replayed.tag,
        prompt=replayed.prompt,
        budget=min(replayed.budget, most),
        eos=replayed.eos,
        ending=replayed.ending,
    )
    session.place = replayed.place
    return session


def stepped(policy, pool, answers, session):
    """Of each step of a session after its prefill, what a `FixedOp` holds, and what is committed then."""
    seen = Observation(session, ServerLoad(len(pool.members)), answers.signal)
    target = pool.target_level
    while not session.done:
        step = policy.decide(seen)
        level, pending = pool.level(step.model), len(session.tokens)
        if isinstance(step, Draft):
            free = level < answers.num_free
            asked = min(step.tokens, session.room)
            row = answers.looked_up(session, step) if free else answers.drafted(session, step, level)
            outcome = session.drafted(step, level, row, duration_s=0.0, num_rows=1)
            yield (level, True, step.tokens, asked, len(row.tokens), pending, pending, 0, 0, row.num_modelled), None
        else:
            first = session.first_unjudged(level)
            row = answers.judged(session, step, level)
            outcome = session.judged(step, level, row, duration_s=0.0, num_rows=1)
            accepted, own = outcome.num_accepted, outcome.num_own
            op = (level, False, 0, 0, 0, pending, first, accepted, own, row.num_modelled)
            yield op, (outcome.num_emitted, outcome.done) if level == target else None
        policy.learn(outcome)
