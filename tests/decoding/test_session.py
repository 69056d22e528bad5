"""Any legal steps keep a session sane, answers end where they should, and a breach of the contract is named."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from paceline.decoding.legal_steps import IDLE_STEPS, check_step
from paceline.decoding.prompt_lookup import LookupRule, prompt_lookup
from paceline.decoding.results import Drafted, Judged
from paceline.decoding.seen import Start, prefill_before
from paceline.decoding.session import Session
from paceline.policies import Band, Commit, ConfidenceBelow, Draft, Exact, PolicyError, Ratio, Verify, Vouched
from paceline.policies.check import EOS, VOCABULARY, ToyWorld, check_pool

from .script import Script, drive, run, session_of
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
PROMPT = (1, 2, 3)


def stop_at(text):
    """An ending after the first occurrence of `text` that has a new token in it."""

    def ending(emitted, num_before):
        for kept in range(num_before + 1, len(emitted) + 1):
            if emitted[max(0, kept - len(text)) : kept] == text:
                return kept
        return None

    return ending


def cut(trunk, text):
    """`trunk` up to and including the first `text` in it, and whether it is there."""
    for kept in range(len(text), len(trunk) + 1):
        if trunk[kept - len(text) : kept] == text:
            return trunk[:kept], True
    return trunk, False


@given(st.data())
def test_an_ending_cuts_the_trunk(data):
    pool = data.draw(pools())
    world = ToyWorld(pool, seed=data.draw(st.integers(0, 999)), ends=data.draw(st.sampled_from([0.0, 0.1])))
    budget = data.draw(st.integers(1, 20))
    trunk = world.trunk(Session(pool=pool, request_id="r0", tag="", prompt=PROMPT, budget=budget, eos=frozenset({EOS})))
    start = data.draw(st.integers(0, len(trunk) - 1))
    text = data.draw(
        st.one_of(
            st.just(trunk[start : start + data.draw(st.integers(1, 3))]),
            st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=2),
        )
    )
    session = session_of(pool=pool, budget=budget, ending=stop_at(text))
    emitted = own = 0
    while not session.done:
        step = data.draw(st.sampled_from(legal_steps(session, commits=False)))
        if session.last is not None and session.last.num_drafted + session.last.num_own == 0:
            step = Verify(pool.target)
        outcome = take(session, world, step)
        assert_sane(session)
        assert outcome.done == session.done
        emitted += outcome.num_emitted
        own += outcome.num_own if step == Verify(pool.target) else 0
        assert emitted == len(session.emitted)
    expected, found = cut(trunk, text)
    assert session.emitted == expected
    assert own <= emitted
    if found:
        assert session.finish_reason == "stop"
    else:
        assert session.finish_reason == ("eos" if EOS in expected[-1:] else "length")
    assert not session.tokens
    assert all(held <= session.context_tokens for held in session.cached)


def drafted(ending, *, budget=9):
    """A request with four tokens 11 to 14 pending at the places 111 to 114."""
    session = session_of("r7", budget=budget, ending=ending)
    session.drafted(Draft("draft", 4), 1, Drafted([11, 12, 13, 14], [111, 112, 113, 114]), duration_s=0.0, num_rows=1)
    return session


def judge(session, judged):
    step = Verify("target")
    return session.judged(step, session.pool.target_level, judged, duration_s=0.0, num_rows=1)


@pytest.mark.parametrize(
    ("kept", "judged", "emitted", "place", "num_own"),
    [
        (2, Judged(3, 15, 115, (0.1, 0.1, 0.1, 0.9)), [11, 12], 112, 0),
        (2, Judged(1, 15, 115, (0.1, 0.9)), [11, 15], 115, 1),  # at the last token, the verifier's own
    ],
)
def test_a_cut_drops_all_after_it(kept, judged, emitted, place, num_own):
    seen = []
    session = drafted(lambda emitted, num_before: seen.append((list(emitted), num_before)) or kept)
    outcome = judge(session, judged)
    assert seen == [([*range(11, 11 + judged.num_accepted), 15], 0)]
    assert (session.emitted, session.place, session.finish_reason) == (emitted, place, "stop")
    assert (outcome.num_judged, outcome.num_accepted) == (4, judged.num_accepted)
    assert (outcome.num_own, outcome.num_emitted, outcome.done) == (num_own, 2, True)
    assert_sane(session)


def test_an_ending_is_asked_after_every_commit_with_what_is_new_and_a_commit_can_end_the_answer():
    seen = []
    session = drafted(lambda emitted, num_before: seen.append((len(emitted), num_before)))
    session.committed(Commit(1))
    session.committed(Commit(2))
    judge(session, Judged(1, 15, 115, (0.1,)))
    assert seen == [(1, 0), (3, 1), (5, 3)]
    assert (session.finish_reason, session.done) == (None, False)
    session = drafted(lambda emitted, num_before: 1)
    outcome = session.committed(Commit(2))
    assert (session.emitted, session.place) == ([11], 111)
    assert session.tokens == session.places == session.drafters == session.judges == []
    assert (outcome.num_emitted, outcome.done) == (1, True)


@pytest.mark.parametrize("kept", [-1, 0, 5])
def test_an_ending_lies_inside_the_new_tokens(kept):
    with pytest.raises(ValueError, match=rf"request r7: ending must keep 1 to 4 tokens, got {kept}"):
        judge(drafted(lambda emitted, num_before: kept), Judged(3, 15, 115))


@given(st.data())
def test_the_tail_is_the_end_of_the_context(data):
    session = drafted(None, budget=data.draw(st.integers(5, 9)))
    if data.draw(st.booleans()):
        session.committed(Commit(data.draw(st.integers(1, 3))))
    context = [*PROMPT, *session.emitted, *session.tokens]
    for start in range(len(context) + 2):
        assert session.tail(start) == context[start:]
    with pytest.raises(ValueError, match="start must be >= 0, got -1"):
        session.tail(-1)


CONTEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=30)
RULES = st.tuples(st.integers(1, 5), st.integers(0, 4), st.sampled_from(["first", "last", "longest"])).map(
    lambda drawn: LookupRule(min_match=drawn[0], max_match=drawn[0] + drawn[1], occurrence=drawn[2])
)


def found_by_definition(context, num_tokens, rule):
    """All earlier places of every suffix: the longest suffix wins, then the place that the rule wants."""
    places = [
        (match, start + match)
        for match in range(rule.min_match, rule.max_match + 1)
        for start in range(len(context) - match)
        if context[start : start + match] == context[len(context) - match :]
    ]
    if not places:
        return []
    longest = max(match for match, _ in places)
    ends = [end for match, end in places if match == longest]
    wanted = {
        "first": min(ends),
        "last": max(ends),
        "longest": max(ends, key=lambda end: (min(len(context) - end, num_tokens), end)),
    }
    return context[wanted[rule.occurrence] :][:num_tokens]


@given(CONTEXTS, st.integers(1, 6), RULES)
def test_lookup_finds_what_its_definition_says(context, num_tokens, rule):
    assert prompt_lookup(context, num_tokens=num_tokens, rule=rule) == found_by_definition(context, num_tokens, rule)


ILLEGAL = {
    "unknown drafter": ([Draft("nobody", 2)], "unknown model 'nobody'; this pool has ngram, draft, mid, slim, target"),
    "unknown verifier": ([Verify("nobody")], "unknown model 'nobody'"),
    "draft by the target": ([Draft("target", 2)], "the target does not draft"),
    "verify by a member without weights": ([Verify("ngram")], "ngram is model-free and cannot verify"),
    "commit of nothing": ([Commit(1)], "commit beyond pending: num_pending is 0"),
    "commit beyond pending": ([Draft("draft", 3), Commit(4)], "commit beyond pending: num_pending is 3"),
    "verify by the drafter itself": ([Draft("mid", 2), Verify("mid")], "nothing left to judge"),
    "verify by a smaller model": ([Draft("draft", 2), Verify("slim"), Verify("mid")], "nothing left to judge"),
    "verify twice": ([Draft("draft", 2), Verify("mid"), Verify("mid")], "nothing left to judge"),
    "a copy by a model": (
        [Draft("draft", 1, copy=(3,))],
        "only a model-free member copies what it is given, and draft is",
    ),
    "draft without room": ([Draft("draft", 12), Draft("draft", 1)], "no room to draft"),
    "nothing": ([None], "got None, not a step: return a Draft, a DraftTree, a Verify, a Commit or an Overlap"),
    "a text": (["target"], "not a step: return a Draft, a DraftTree, a Verify, a Commit or an Overlap"),
    "the class": ([Draft], "decide raised TypeError"),
    "empty window": ([lambda seen: Draft("draft", 0)], r"decide raised ValueError\('draft tokens must be >= 1, got 0'"),
    "empty commit": ([lambda seen: Commit(0)], r"decide raised ValueError\('commit tokens must be >= 1, got 0'"),
    "an exception": ([lambda seen: 1 / 0], r"decide raised ZeroDivisionError\('division by zero'"),
    "an unknown model asked about": ([lambda seen: seen.waiting("nobody")], "decide raised ValueError"),
}


@pytest.mark.parametrize("case", ILLEGAL)
def test_an_illegal_step_is_named(case):
    steps, reason = ILLEGAL[case]
    last = steps[-1]
    step = "" if last is None or callable(last) else f", step {last}"
    with pytest.raises(PolicyError, match=reason) as caught:
        run(Script(*steps), name="my-policy")
    assert str(caught.value).startswith(f"policy my-policy, request r7{step}: ")


def test_an_exception_while_learning_names_the_step():
    class Forgetful(Script):
        def learn(self, outcome):
            raise KeyError("window")

    told = r"policy mine, request r7, step Draft\(.*: learn raised KeyError\('window'\)"
    with pytest.raises(PolicyError, match=told):
        run(Forgetful(Draft("draft", 2)))


def test_progress_starts_the_count_of_idle_steps_anew():
    """Lookups that find nothing, each run of them a step short of a standstill, beside what is progress."""
    almost = [Draft("ngram", 2)] * (IDLE_STEPS - 1)
    trunk = run(Script(*[Verify("target")] * 2), budget=2, prompt=(1, 2, 3)).emitted
    assert not {1, 2, 3} & set(trunk), "else the lookup finds something"
    assert run(Script(*almost, Verify("target"), *almost, Verify("target")), budget=2).emitted == trunk
    steps = Script(*almost, Verify("mid"), *almost, Verify("target"), Verify("target"))
    assert len(run(steps, budget=2, start=Start.draft).emitted) == 2, "a verifier's own token is progress"
    with pytest.raises(PolicyError, match=rf"request r7, step Draft\(model='ngram'.* no progress in {IDLE_STEPS} st"):
        run(Script(*almost, *almost))


def test_outcomes_say_what_came_of_each_step():
    lasts = []
    script = Script(
        Draft("draft", 4),
        lambda seen: lasts.append(seen.last) or Verify("mid"),
        lambda seen: lasts.append(seen.last) or Verify("target"),
        lambda seen: lasts.append(seen.last) or Draft("slim", 1),
        Commit(1),
        *[Verify("target")] * 12,
    )
    session = run(script, start=Start.draft)
    drafted, by_mid, by_target, _, commit, *_, last = script.learnt
    assert lasts == [drafted, by_mid, by_target]
    assert (drafted.num_drafted, drafted.num_judged, drafted.num_emitted) == (4, 0, 0)
    assert by_mid.num_judged == 4
    assert by_mid.num_own == 1
    assert by_target.num_judged == by_mid.num_accepted + 1
    assert by_target.num_emitted == by_target.num_accepted + 1
    assert (commit.num_emitted, commit.num_judged) == (1, 0)
    assert [outcome.done for outcome in script.learnt] == [False] * (len(script.learnt) - 1) + [True]
    assert sum(outcome.num_emitted for outcome in script.learnt) == len(session.emitted)
    assert last.request_id == "r7"


def test_a_copy_is_drafted_as_it_is_and_judged_as_any_draft():
    copied = tuple(range(1, 30))

    class Copies(Script):
        def decide(self, seen):
            return Verify("target") if seen.num_pending or seen.room < 2 else Draft("ngram", len(copied), copy=copied)

    session = session_of(budget=9)
    _, log = drive(Copies(), [session])
    assert log.steps["drafted"][1] == session.budget - 1
    assert session.emitted == ToyWorld(session.pool, ends=0.0).trunk(session)


def test_the_last_pending_tokens_are_the_end_of_all():
    looked_at = 0

    class Looks(Script):
        def decide(self, seen):
            nonlocal looked_at
            everything = seen.pending
            for start in range(-seen.num_pending - 1, seen.num_pending + 1):
                assert seen.pending_from(start) == everything[start:]
                looked_at += len(everything[start:])
            return super().decide(seen)

    run(Looks(*[Draft("draft", 4), Verify("mid"), Draft("draft", 3), Verify("target")] * 40), budget=40)
    assert looked_at > 0


@pytest.mark.parametrize(
    ("build", "rule"),
    [
        (lambda: Draft("draft", -1), "draft tokens must be >= 1, got -1"),
        (lambda: Draft("draft", 2.5), "draft tokens must be a whole number, got 2.5"),
        (lambda: Draft("draft", 2, ConfidenceBelow), "draft stop must be a rule such as ConfidenceBelow"),
        (lambda: Draft("draft", 2, 0.4), "draft stop must be a rule such as ConfidenceBelow"),
        (lambda: Draft("ngram", 2, copy=(1,)), "draft copy must have 2 ids and no stop, got 1 and stop None"),
        (lambda: Draft("ngram", 1, ConfidenceBelow(0.4), copy=(1,)), "copy must have 1 ids and no stop, got 1 and"),
        (lambda: Draft("ngram", 2, copy=(1, -1)), r"draft copy must hold ids in \[0, .* got \(1, -1\)"),
        (lambda: Draft("ngram", 1, copy=(0.5,)), "an id of a draft's copy must be a whole number, got 0.5"),
        (lambda: Verify("target", Exact), "verify rule must be a rule such as Exact"),
        (lambda: Verify("target", "exact"), "verify rule must be a rule such as Exact"),
        (lambda: Commit(0), "commit tokens must be >= 1, got 0"),
        (lambda: Commit("all"), "commit tokens must be a whole number, got 'all'"),
        (lambda: LookupRule(max_match=0), r"min_match must be in \[1, max_match 0\], got 1"),
        (lambda: LookupRule(max_match=2, min_match=3), r"min_match must be in \[1, max_match 2\], got 3"),
        (lambda: LookupRule(max_match=2, occurrence="best"), "occurrence must be one of first, last, longest, got 'b"),
        (lambda: session_of("r7", prompt=(), budget=2), "request r7: prompt must hold"),
        (lambda: session_of("r7", prompt=(1,), budget=0), "request r7: max_new_tokens must be"),
        (lambda: session_of(prefill_before=(True,)), "request r0: prefill_before must have 5 values, got"),
        (lambda: prefill_before(Start.recorded, check_pool()), "`start` must be prefill or draft for this run, which"),
    ],
)
def test_what_means_nothing_cannot_be_built(build, rule):
    with pytest.raises(ValueError, match=rule):
        build()


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.int64, bool])
def test_tokens_of_a_step_become_python_integers(kind):
    """Sums with small integers of numpy wrap."""
    assert [type(step.tokens) for step in (Draft("draft", kind(1)), Commit(kind(1)))] == [int, int]
    assert Draft("draft", kind(1)) == Draft("draft", 1)
    assert [type(token) for token in Draft("ngram", 2, copy=(kind(1), 1)).copy] == [int, int]
