"""A breach of the contract ends the run with an error that names the policy, the request and the step."""

import pytest
from paceline.decoding.legal_steps import IDLE_STEPS
from paceline.decoding.seen import Start
from paceline.policies import Commit, ConfidenceBelow, Draft, Exact, PolicyError, Verify
from paceline.policies.check import ToyWorld

from .script import Script, drive, run, session_of

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
    "nothing": ([None], "not a step: return a Draft, a DraftTree, a Verify, a Commit or an Overlap"),
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
    shown = "None" if callable(last) else str(last)
    with pytest.raises(PolicyError, match=reason) as caught:
        run(Script(*steps), name="my-policy")
    assert str(caught.value).startswith(f"policy my-policy, request r7, step {shown}: ")


def test_an_exception_while_learning_names_the_step():
    class Forgetful(Script):
        def learn(self, outcome):
            raise KeyError("window")

    with pytest.raises(
        PolicyError, match=r"policy mine, request r7, step Draft\(.*: learn raised KeyError\('window'\)"
    ):
        run(Forgetful(Draft("draft", 2)))


def test_no_progress_is_an_error():
    """Nothing in this prompt repeats, so a lookup finds nothing."""
    with pytest.raises(
        PolicyError, match=rf"request r7, step Draft\(model='ngram'.* no progress in {IDLE_STEPS} steps"
    ):
        run(Script(*[Draft("ngram", 2)] * 99))


def test_progress_starts_the_count_of_idle_steps_anew():
    almost = [Draft("ngram", 2)] * (IDLE_STEPS - 1)
    trunk = run(Script(*[Verify("target")] * 2), budget=2, prompt=(1, 2, 3)).emitted
    assert not {1, 2, 3} & set(trunk), "else the lookup finds something"
    session = run(Script(*almost, Verify("target"), *almost, Verify("target")), budget=2)
    assert session.emitted == trunk


def test_a_verifiers_own_token_is_progress():
    """It stands between two runs of lookups that find nothing, each one step short of a standstill."""
    almost = [Draft("ngram", 2)] * (IDLE_STEPS - 1)
    steps = Script(*almost, Verify("mid"), *almost, Verify("target"), Verify("target"))
    session = run(steps, budget=2, start=Start.draft)
    assert len(session.emitted) == 2


@pytest.mark.parametrize(
    ("build", "rule"),
    [
        (lambda: Draft("draft", -1), "draft tokens must be >= 1, got -1"),
        (lambda: Verify("target", Exact), "verify rule must be a rule such as Exact"),
        (lambda: Draft("draft", 2, ConfidenceBelow), "draft stop must be a rule such as ConfidenceBelow"),
        (lambda: Draft("draft", 2.5), "draft tokens must be a whole number, got 2.5"),
        (lambda: Draft("draft", 2, 0.4), "draft stop must be a rule such as ConfidenceBelow"),
        (lambda: Draft("ngram", 2, copy=(1,)), "draft copy must have 2 ids and no stop, got 1 and stop None"),
        (
            lambda: Draft("ngram", 1, ConfidenceBelow(0.4), copy=(1,)),
            "draft copy must have 1 ids and no stop, got 1 and",
        ),
        (lambda: Draft("ngram", 2, copy=(1, -1)), r"draft copy must hold token ids, whole .* got \(1, -1\)"),
        (lambda: Draft("ngram", 1, copy=(0.5,)), "draft copy must hold token ids, whole numbers >= 0, got"),
        (lambda: Verify("target", "exact"), "verify rule must be a rule such as Exact"),
        (lambda: Commit(0), "commit tokens must be >= 1, got 0"),
        (lambda: Commit("all"), "commit tokens must be a whole number, got 'all'"),
    ],
)
def test_steps_that_mean_nothing_cannot_be_built(build, rule):
    with pytest.raises(ValueError, match=rule):
        build()


@pytest.mark.parametrize(
    ("prompt", "budget", "rule"), [((), 2, "prompt must hold"), ((1,), 0, "max_new_tokens must be")]
)
def test_a_request_needs_a_prompt_and_a_budget(prompt, budget, rule):
    with pytest.raises(ValueError, match=f"request r7: {rule}"):
        session_of("r7", prompt=prompt, budget=budget)


def test_outcomes_say_what_came_of_each_step():
    """Four drafted tokens, judged by a middle model and the target; `learn` and `seen.last` get the same record."""
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
    """Up to the end of the text, and to where the budget ends."""
    copied = tuple(range(1, 30))

    class Copies(Script):
        def decide(self, seen):
            return Verify("target") if seen.num_pending or seen.room < 2 else Draft("ngram", len(copied), copy=copied)

    session = session_of(budget=9)
    _, log = drive(Copies(), [session])
    assert log.steps["drafted"][1] == session.budget - 1
    assert session.emitted == ToyWorld(session.pool, ends=0.0).trunk(session)


class Looks(Script):
    """Follows a script and compares the last pending tokens with all of them."""

    looked_at = 0

    def decide(self, seen):
        everything = seen.pending
        for start in range(seen.num_pending + 1):
            assert seen.pending_from(start) == everything[start:]
            self.looked_at += len(everything) - start
        return super().decide(seen)


def test_the_last_pending_tokens_are_the_end_of_all():
    policy = Looks(*[Draft("draft", 4), Verify("mid"), Draft("draft", 3), Verify("target")] * 40)
    run(policy, budget=40)
    assert policy.looked_at > 0
