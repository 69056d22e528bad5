"""Any sequence of legal steps keeps the session sane; under Exact it commits what the target alone would write."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from paceline.decoding.legal_steps import check_step
from paceline.policies import Band, Commit, Draft, Ratio, Verify, Vouched
from paceline.policies.check import EOS, ToyWorld

from .strategies import all_steps, legal_steps, pools, sessions


def take(session, world, step):
    """Carry out one step, as a loop would."""
    check_step(session, step)
    if isinstance(step, Commit):
        return session.committed(step)
    level = session.pool.level(step.model)
    verify = isinstance(step, Verify)
    (row,) = (world.verify if verify else world.draft)(level, [(session, step)]).rows
    act = session.judged if verify else session.drafted
    return act(step, level, row, duration_s=0.0, num_rows=1)


def assert_sane(session):
    pending = len(session.tokens)
    assert len(session.places) == len(session.drafters) == len(session.judges) == pending
    assert all(drafter <= judge for drafter, judge in zip(session.drafters, session.judges, strict=True))
    assert pending == 0 or max(session.judges) < session.pool.target_level, "what the target judged is committed"
    assert len(session.emitted) + pending <= session.budget
    assert EOS not in [*session.emitted, *session.tokens][:-1], "nothing follows an end of sequence"
    assert session.context_tokens == len(session.prompt) + len(session.emitted) + pending
    assert not (session.done and pending)


def assert_caches_fit(session):
    """Where a token may still be written, every member has at least one token to read."""
    context = session.context_tokens
    limit = context - 1 if session.room > 0 else context
    assert all(0 <= held <= limit for held in session.cached)
    for level, member in enumerate(session.pool.members):
        if member.model_free:
            assert session.cached[level] == 0
            continue
        for step in legal_steps(session, commits=False):
            if step.model == member.name:
                new, held = session.feed(level, verify=isinstance(step, Verify))
                assert new >= 1
                assert new + held == context
                assert held <= session.cached[level]
                assert new >= (len(session.tokens) - session.first_unjudged(level) + 1) * isinstance(step, Verify)


@given(st.data())
def test_any_legal_exact_steps_commit_the_trunk(data):
    pool = data.draw(pools())
    world = ToyWorld(pool, seed=data.draw(st.integers(0, 999)), ends=data.draw(st.sampled_from([0.0, 0.1])))
    session = data.draw(sessions(pool))
    for _ in range(data.draw(st.integers(0, 40))):
        if session.done:
            break
        take(session, world, data.draw(st.sampled_from(legal_steps(session, commits=False))))
        assert_sane(session)
    while not session.done:
        take(session, world, Verify(pool.target))
    assert session.emitted == world.trunk(session)


@given(st.data())
def test_the_check_allows_just_the_legal_steps(data):
    pool = data.draw(pools())
    session = data.draw(sessions(pool))
    world = ToyWorld(pool, ends=0.1)
    for _ in range(data.draw(st.integers(0, 6))):
        if not session.done:
            take(session, world, data.draw(st.sampled_from(legal_steps(session))))
    if session.done:
        return
    legal = legal_steps(session)
    for step in all_steps(pool):
        if step in legal or (isinstance(step, Commit) and step.tokens <= len(session.tokens)):
            check_step(session, step)
        else:
            with pytest.raises(ValueError, match=r"^\w"):
                check_step(session, step)


class SessionMachine(RuleBasedStateMachine):
    """Steps of every kind, lossy ones too: the books stay straight and what was emitted stays emitted."""

    @initialize(data=st.data())
    def choose_pool(self, data):
        self.pool = data.draw(pools(least=2))
        self.begin(data)

    def begin(self, data):
        self.session = data.draw(sessions(self.pool))
        self.world = ToyWorld(self.pool, seed=data.draw(st.integers(0, 999)), ends=0.05)
        self.trunk = self.world.trunk(self.session)
        self.emitted = []
        self.lossless = True

    def step(self, step):
        session = self.session
        before = (list(session.tokens), list(session.judges), session.room)
        outcome = take(session, self.world, step)
        tokens, judges, room = before
        assert session.emitted[: len(self.emitted)] == self.emitted
        assert len(session.emitted) - len(self.emitted) == outcome.num_emitted
        assert outcome.done == session.done
        assert session.last is outcome
        self.emitted = list(session.emitted)
        if isinstance(step, Draft):
            self.check_draft(step, outcome, tokens, room)
        elif isinstance(step, Verify):
            self.check_verdict(step, outcome, tokens, judges)
        else:
            assert session.emitted[-step.tokens :] == tokens[: step.tokens]
            assert session.tokens == tokens[step.tokens :]

    def check_draft(self, step, outcome, tokens, room):
        assert outcome.num_drafted <= min(step.tokens, room)
        assert self.session.tokens[: len(tokens)] == tokens
        assert len(self.session.tokens) == len(tokens) + outcome.num_drafted

    def check_verdict(self, step, outcome, tokens, judges):
        level = self.pool.level(step.model)
        kept = len(tokens) - outcome.num_judged + outcome.num_accepted
        left = self.session.emitted[len(self.session.emitted) - outcome.num_emitted :] + self.session.tokens
        assert left[:kept] == tokens[:kept]
        assert len(left) == kept + outcome.num_own
        assert 0 <= outcome.num_accepted <= outcome.num_judged
        refused = outcome.num_accepted < outcome.num_judged
        assert outcome.refused_at == (outcome.num_accepted if refused else None)
        assert len(outcome.tvd) == outcome.num_accepted + refused
        if level != self.pool.target_level:
            kept_judges = self.session.judges[:kept]
            raised = [max(judge, level) for judge in judges[:kept]]
            left = [index for index in range(kept) if kept_judges[index] != raised[index]]
            # One endorsed by a larger member already shows no sign of it.
            assert len(left) <= outcome.num_escalated
            assert len(left) == outcome.num_escalated or any(judge >= level for judge in judges[:kept])
            assert [kept_judges[index] for index in left] == [judges[index] for index in left]
            assert self.session.judges[kept:] == [level] * outcome.num_own
            if left:
                assert self.session.first_unjudged(level) == left[0], "the same verifier may look again"
        assert outcome.num_escalated <= outcome.num_accepted
        assert not outcome.num_escalated or isinstance(step.rule, Band)
        held = self.session.num_prompt + len(self.session.emitted) + len(self.session.tokens) - outcome.num_own
        assert self.session.cached[level] == held, "what is escalated was read all the same"

    @precondition(lambda self: not self.session.done)
    @rule(data=st.data())
    def exact(self, data):
        self.step(data.draw(st.sampled_from(legal_steps(self.session, commits=False))))

    @precondition(lambda self: not self.session.done and self.session.tokens)
    @rule(data=st.data())
    def commit(self, data):
        self.step(Commit(data.draw(st.integers(1, len(self.session.tokens)))))
        self.lossless = False

    @precondition(lambda self: not self.session.done)
    @rule(data=st.data(), rule=st.sampled_from([Ratio(0.2), Ratio(1.0), Band(0.9, 0.6), Band(1.0, 0.99), Vouched(2)]))
    def lossy(self, data, rule):
        verifies = [step for step in legal_steps(self.session) if isinstance(step, Verify)]
        self.step(Verify(data.draw(st.sampled_from(verifies)).model, rule))
        self.lossless = False

    @precondition(lambda self: self.session.done)
    @rule(data=st.data())
    def next_request(self, data):
        self.begin(data)

    @invariant()
    def is_sane(self):
        assert_sane(self.session)

    @invariant()
    def caches_fit(self):
        if not self.session.done:
            assert_caches_fit(self.session)

    @invariant()
    def exact_steps_stay_on_the_trunk(self):
        if self.lossless:
            assert self.session.emitted == self.trunk[: len(self.session.emitted)]


SessionMachine.TestCase.settings = settings(stateful_step_count=30)
TestSession = SessionMachine.TestCase
