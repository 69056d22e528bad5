"""Whoever works ahead, the text is what the verdicts alone make it, and caches hold what is left of it."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.legal_steps import check_step
from paceline.decoding.overlap_run import in_turns
from paceline.policies import Draft, Overlap, PolicyError, Ratio, Verify
from paceline.policies.check import EOS, ToyWorld, check_pool

from .script import Script, run
from .strategies import legal_steps, pools, sessions
from .test_session import assert_caches_fit, assert_sane
from .test_session import take as take_single


def room_of(session):
    ended = bool(session.tokens) and session.tokens[-1] in session.eos
    return 0 if ended else session.budget - len(session.emitted) - len(session.tokens)


def overlaps(session, windows=(1, 2, 4)):
    """Every Overlap that the contract allows now: members of falling level, all but the last ones of which judge."""
    pool, room = session.pool, room_of(session)
    verifiers = [name for name, member in zip(pool.names, pool.members, strict=True) if not member.model_free]
    found = []
    for count in range(1, len(pool.names) + 1):
        for chosen in combinations(reversed(verifiers), count):
            verifies = tuple(Verify(name) for name in chosen)
            if count > 1:
                found.append(Overlap(verifies))
            for name in pool.names[: pool.level(chosen[-1])] if room else ():
                found += [Overlap((*verifies, Draft(name, window))) for window in windows]
    return [step for step in found if nobody_idles(session, step, room)]


def first_unjudged(session, level):
    """Index of the first pending token that nobody at the level or above it endorses; the target judges all."""
    if level == session.pool.target_level:
        return 0
    lower = [index for index, judge in enumerate(session.judges) if judge < level]
    return lower[0] if lower else len(session.judges)


def nobody_idles(session, step, room):
    """Whether every part has a token to judge, or room to write one."""
    firsts = [first_unjudged(session, session.pool.level(part.model)) for part in step.steps]
    return room > 0 or all(first < len(session.tokens) for first in firsts)


class TextWorld(ToyWorld):
    """Toy models with caches that are texts: a member is fed what the session says, and reads what it holds."""

    def __init__(self, pool, **options):
        super().__init__(pool, **options)
        self.held = {}

    def draft(self, level, items):
        results = super().draft(level, items)
        for (session, _), row in zip(items, results.rows, strict=True):
            if row.tokens and not self._pool.members[level].model_free:
                self._feed(session, level, verify=False, more=row.tokens[:-1])
        return results

    def verify(self, level, items):
        results = super().verify(level, items)
        for session, _ in items:
            self._feed(session, level, verify=True, more=[])
        return results

    def check_ahead(self):
        pass

    def overlap(self, levels, items):
        return in_turns(self, levels, items)

    def _feed(self, session, level, *, verify, more):
        new, held = session.feed(level, verify=verify)
        context = session.tail(0)
        cache = self.held.setdefault((session.request_id, level), [])
        assert new >= 1
        assert cache[:held] == context[:held], "a cache holds another text than its session says"
        assert new + held == len(context)
        cache[:] = [*context, *more]

    def check(self, session):
        """Whether what every member holds is the text of its request, as far as the session says it holds any."""
        context = session.tail(0)
        for level in range(len(self._pool.members)):
            count = session.cached[level]
            assert self.held.get((session.request_id, level), [])[:count] == context[:count]
            assert count <= len(self.held.get((session.request_id, level), []))


def take(session, world, step):
    """Carry out one step, as a loop would; returns the outcomes."""
    if not isinstance(step, Overlap):
        return [take_single(session, world, step)]
    check_step(session, step)
    levels = tuple(session.pool.level(part.model) for part in step.steps)
    results = world.overlap(levels, [(session, step)])
    return session.overlapped(step, results.rows[0], results.parts, num_rows=1)


def any_step(data, session, *, likely=3):
    """A legal step, mostly one in which somebody works ahead."""
    ahead = overlaps(session)
    if ahead and data.draw(st.integers(0, likely)):
        return data.draw(st.sampled_from(ahead))
    return data.draw(st.sampled_from(legal_steps(session, commits=False)))


def expected(session, step, world):
    """(committed, pending with who wrote and endorses each token) after an Overlap, from its definition."""
    pool, text = session.pool, [*session.prompt, *session.emitted]
    levels = [pool.level(part.model) for part in step.steps]
    pending = list(zip(session.tokens, session.drafters, session.judges, strict=True))
    after, end = [], len(pending)
    for part, level in reversed(list(zip(step.steps, levels, strict=True))):
        if isinstance(part, Draft):
            (row,) = world.draft(level, [(session, part)]).rows
            after = [(token, level, level) for token in row.tokens]
            continue
        first = min(first_unjudged(session, level), end)
        kept, context = [], text + [token for token, *_ in pending[:first]]
        for token, drafter, judge in pending[first:end]:
            if token != world.next_token(level, context):
                break
            kept.append((token, drafter, max(judge, level)))
            context.append(token)
        own, written = world.next_token(level, context), context[len(text) :]
        has_room = session.budget - len(session.emitted) - len(written) > 0 and EOS not in written[-1:]
        goes_on = len(kept) == end - first and after and after[0][0] == own
        after = kept + ([(own, level, level)] if has_room else []) + (after[1:] if goes_on else [])
        end = first
    if levels[0] != pool.target_level:
        return [], pending[:end] + after
    count = sum(judge == levels[0] for *_, judge in after)
    return [token for token, *_ in after[:count]], after[count:]


@given(st.data())
def test_any_steps_ahead_commit_the_trunk_and_caches_hold_the_text(data):
    pool = data.draw(pools(least=2))
    world = TextWorld(pool, seed=data.draw(st.integers(0, 999)), ends=data.draw(st.sampled_from([0.0, 0.1])))
    session = data.draw(sessions(pool))
    for _ in range(data.draw(st.integers(0, 30))):
        if session.done:
            break
        take(session, world, any_step(data, session))
        assert_sane(session)
        if not session.done:
            assert_caches_fit(session)
            world.check(session)
    while not session.done:
        take(session, world, Verify(pool.target))
    assert session.emitted == world.trunk(session)


@given(st.data())
def test_what_stays_is_what_the_definition_says(data):
    pool = data.draw(pools(least=2))
    world = ToyWorld(pool, seed=data.draw(st.integers(0, 999)), ends=data.draw(st.sampled_from([0.0, 0.05])))
    session = data.draw(sessions(pool))
    for _ in range(data.draw(st.integers(0, 8))):
        if not session.done:
            take(session, world, any_step(data, session, likely=1))
    ahead = [] if session.done else overlaps(session)
    if not ahead:
        return
    step = data.draw(st.sampled_from(ahead))
    committed, pending = expected(session, step, world)
    before, room = list(session.emitted), room_of(session)
    outcomes = take(session, world, step)
    assert session.emitted == before + committed
    if not session.done:
        assert list(zip(session.tokens, session.drafters, session.judges, strict=True)) == pending
    assert [outcome.step for outcome in outcomes] == list(step.steps)
    assert sum(outcome.num_emitted for outcome in outcomes) == len(committed) == outcomes[0].num_emitted
    assert [outcome.done for outcome in outcomes] == [False] * (len(outcomes) - 1) + [session.done]
    assert session.last == outcomes[-1]
    assert all(outcome.num_drafted <= room for outcome in outcomes)


@given(st.data())
def test_the_check_allows_just_the_steps_ahead_that_the_contract_allows(data):
    pool = data.draw(pools(least=2))
    world = ToyWorld(pool, ends=0.1)
    session = data.draw(sessions(pool))
    for _ in range(data.draw(st.integers(0, 5))):
        if not session.done:
            take(session, world, any_step(data, session, likely=1))
    if session.done:
        return
    legal = set(overlaps(session))
    parts = data.draw(st.lists(st.sampled_from(pool.names), min_size=2, max_size=4))
    drafts = data.draw(st.booleans())
    steps = [Verify(name) for name in parts]
    if drafts:
        steps[-1] = Draft(parts[-1], 2)
    step = Overlap(tuple(steps))
    if step in legal:
        assert check_step(session, step) == pool.level(parts[0])
    else:
        with pytest.raises(ValueError, match=r"overlap|draft|verify|nothing"):
            check_step(session, step)


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ((Verify("target"),), "two or more"),
        ((Draft("draft", 2), Verify("target")), "must be Verify, the last one may be a Draft"),
        ((Verify("target", Ratio(0.5)), Draft("draft", 2)), "must be lossless"),
        ([Verify("target"), Draft("draft", 2)], "must be a tuple"),
    ],
)
def test_what_is_no_overlap_is_refused_when_it_is_built(steps, says):
    with pytest.raises(ValueError, match=says):
        Overlap(steps)


def test_each_part_is_learnt_of_in_order_and_the_last_one_says_done():
    ahead = Overlap((Verify("target"), Draft("slim", 3)))
    policy = Script(*[lambda seen: ahead if seen.room else Verify("target")] * 12)
    run(policy, budget=12)
    assert [type(outcome.step) for outcome in policy.learnt[:4]] == [Verify, Draft, Verify, Draft]
    assert [outcome.done for outcome in policy.learnt if outcome.done] == [True]
    assert policy.learnt[-1].done


def test_members_out_of_order_end_the_run_by_name():
    with pytest.raises(PolicyError, match="strictly falling level, got target, draft, mid"):
        run(Script(Overlap((Verify("target"), Verify("draft"), Draft("mid", 2)))))


class OneAtATime:
    """A world that has no Overlap."""

    def __init__(self, world):
        for name in ("open", "draft", "verify", "signal", "close"):
            setattr(self, name, getattr(world, name))


def test_a_world_without_overlap_refuses_it_by_name():
    world = OneAtATime(ToyWorld(check_pool()))
    with pytest.raises(PolicyError, match="no member works ahead here"):
        run(Script(Overlap((Verify("target"), Draft("mid", 2)))), world=world)
