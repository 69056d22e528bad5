"""Token trees in replay: what they cost, and that nothing beyond the record is guessed."""

import pytest
from paceline.decoding.results import TREE
from paceline.decoding.rules import Ratio
from paceline.decoding.steps import Draft, PolicyError, Verify
from paceline.policies import DraftTree, Policy, make_policy, tree_shape
from paceline.reports import summarise_run
from paceline.reports.run_table import run_table
from paceline.reports.summary import rejection_rate
from paceline.runtime.recording.recorder import record
from paceline.sim.contexts import TrieTables
from paceline.sim.cost.base import DraftTerms
from paceline.sim.cost.files import CostLine, DrafterFigures, FileCost
from paceline.sim.recorded import UnrecordedTreeError, recorded_pool
from paceline.sim.simulate import Scenario, simulate
from paceline.studies.agree import synthetic_cost
from paceline.studies.record import tree_of
from paceline.traces.meta import Closure, Sampling

from ...tiny_models import random_prompts, tiny_pool_of_four
from .small_traces import with_ngram

GREEDY = Sampling(mode="greedy")


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    closure = Closure(kind="monotone", reach=5, run=3, trees=(tree_of("draft:3x2x1"),))
    out = tmp_path_factory.mktemp("trees") / "a.trace"
    return record(
        tiny_pool_of_four(), random_prompts(3, seed=3), sampling=GREEDY, closure=closure, max_new_tokens=12, out=out
    )


class Trees:
    """One shape, and no say of what it needs."""

    def __init__(self, draft, text):
        self.tree, self.verify = DraftTree(draft, tree_shape(text)), Verify("target")
        self.outcomes = []

    def decide(self, seen):
        if not seen.num_pending and seen.has_room:
            return self.tree
        for pending, parent in zip(seen.pending, seen.parents, strict=True):
            assert 0 < pending.signal.prob <= 1
            assert parent < seen.num_pending
        return self.verify

    def learn(self, outcome):
        self.outcomes.append(outcome)


def replayed(recording, policy, *, strict=True):
    cost = synthetic_cost(recording.meta.model_names)
    return simulate(Scenario(tables=TrieTables(recording), cost=cost, strict=strict), policy, "trees")


@pytest.mark.parametrize(
    "text", ["1", "3", "2x2", "3x2x1", "0+0.0+0.0.0+2", "beam=1,depth=3", "beam=2,depth=2,tokens=3"]
)
def test_trees_within_the_record_replay(recording, text):
    policy = Trees("draft", text)
    log = replayed(recording, policy)
    assert not log.requests["divergent_tokens"].any()
    for outcome in policy.outcomes:
        assert outcome.num_drafted <= tree_shape(text).most_nodes


@pytest.mark.parametrize("text", ["1", "3", "2x2", "3x2x1", "0+0.0+0.0.0+2"])
def test_a_tree_is_refused_where_it_goes_on_beyond_the_path_that_stays(recording, text):
    policy = Trees("draft", text)
    log = replayed(recording, policy)
    summary = summarise_run(log)
    target, nodes = summary.levels[-1], sum(outcome.num_drafted for outcome in policy.outcomes)
    judged = [outcome for outcome in policy.outcomes if isinstance(outcome.step, Verify)]
    refused = [outcome for outcome in judged if outcome.refused_at is not None]
    looked_at = sum(outcome.num_accepted for outcome in judged) + len(refused)
    assert (target.refused, target.judged) == (len(refused), nodes)
    assert target.trees == sum(outcome.num_judged > 0 for outcome in judged)
    assert summary.rejection_rate == len(refused) / looked_at
    assert summary.exact_share == 1
    assert summary.draft_acceptance_rate is None
    assert summary.wasted_tokens == nodes - target.accepted
    first = log.steps["request"] == 0
    assert 0 <= rejection_rate(log.steps, first) <= 1
    assert run_table(summary).rows[-1][-2:] == ("-", f"{len(refused)}")


def test_a_tree_without_branches_has_the_figures_of_a_chain(recording):
    tree = summarise_run(replayed(recording, Trees("draft", "1x1x1")))
    chain = summarise_run(replayed(recording, make_policy("draft:3/target", recorded_pool(recording))))
    assert (tree.levels[-1].trees > 0, chain.levels[-1].trees) == (True, 0)
    for name in ("rejection_rate", "exact_share", "acceptance_length", "accepted_histogram", "wasted_tokens"):
        assert getattr(tree, name) == getattr(chain, name), name
    assert [level.refused for level in tree.levels] == [level.refused for level in chain.levels]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("text", ["4", "3x3", "1x1x1x1", "beam=3,depth=2"])
def test_trees_beyond_the_record_are_an_error_and_never_guessed(recording, text, strict):
    with pytest.raises(UnrecordedTreeError, match="needs branches outside the recording; record with `trees`"):
        replayed(recording, Trees("draft", text), strict=strict)


def test_trees_of_another_drafter_are_refused(recording):
    with pytest.raises(
        PolicyError, match="holds no trees by mid; record with --trees mid:4x2x1, or let the policy name"
    ):
        replayed(recording, Trees("mid", "2"))


def test_a_recording_without_trees_refuses_their_policies(recording, tmp_path):
    plain = record(
        tiny_pool_of_four(),
        random_prompts(1),
        sampling=GREEDY,
        closure=Closure(kind="monotone", reach=2, run=2),
        max_new_tokens=3,
        out=tmp_path / "a.trace",
    )
    with pytest.raises(ValueError, match="needs branches of tokens, which recording a does not hold"):
        replayed(plain, make_policy("tree,shape=2", recorded_pool(plain)))


@pytest.mark.parametrize("terms", [DraftTerms(0.0, None, stop_s=0.5), DraftTerms(0.25, None), DraftTerms(0.0, 0.25)])
def test_a_cost_by_the_round_refuses_trees_and_one_of_stops_does_not(recording, terms):
    figures = {name: CostLine(intercept_s=1.0) for name in recording.meta.model_names}
    figures["draft"] = DrafterFigures(terms=terms, forwards=None if terms.per_token_s else figures["draft"])
    scenario = Scenario(tables=TrieTables(recording), cost=FileCost("f", figures))
    if terms.stop_s:
        log = simulate(scenario, Trees("draft", "2"), "trees")
        assert set(log.ops["duration_s"][log.ops["kind"] == TREE].tolist()) == {1.0}
    else:
        with pytest.raises(PolicyError, match="cost f charges drafts by draft by the round, which says nothing of"):
            simulate(scenario, Trees("draft", "2"), "trees")


def test_a_layer_is_a_forward_and_a_tree_is_judged_in_one(recording):
    policy = Trees("draft", "3x2x1")
    log = replayed(recording, policy)
    steps, ops = log.steps, log.ops
    whole = [place for place in range(len(steps["op"])) if steps["kind"][place] == 3 and steps["drafted"][place] == 15]
    assert whole
    for place in whole:
        op, judge = steps["op"][place], steps["op"][place] + 1
        assert steps["asked"][place] == 15
        assert ops["num_forwards"][op] == 3
        catch_up = ops["new_tokens"][op] - 3 - 6
        assert catch_up >= 1
        seconds = sum(0.125 * (1 + (new - 1) / 64) for new in (catch_up, 3, 6))
        assert ops["duration_s"][op] == pytest.approx(seconds)
        assert ops["num_forwards"][judge] == 1
        assert ops["new_tokens"][judge] == 16
        assert steps["judged"][place + 1] == 15


class KeepsPaths(Trees):
    """A tree, then a verdict of the middle member, then one of the target by a rule that notes what it sees."""

    lossless, needs_target_prob = False, False

    def __init__(self, draft, text):
        super().__init__(draft, text)
        self.kept, self.probs, self.told, self.facts = Verify("mid"), {}, [], []

    def decide(self, seen):
        if not seen.num_pending and seen.has_room:
            return self.tree
        if seen.parents is not None:
            paths = [()]
            for pending, parent in zip(seen.pending, seen.parents, strict=True):
                paths.append((*paths[parent + 1], pending.token))
                self.probs[seen.num_emitted, paths[-1]] = pending.signal.prob
            return self.kept
        path, told = (), [pending.signal.prob for pending in seen.pending]
        for pending, prob in zip(seen.pending, told, strict=True):
            path = *path, pending.token
            assert pending.drafter == "mid" or prob == self.probs[seen.num_emitted, path]
        self.told.append((told, len(self.facts)))
        return Verify("target", self)

    def accepts(self, facts):
        self.facts.append(facts.draft_prob)
        return facts.same


def test_a_branch_that_stays_has_its_own_probability(recording):
    policy = KeepsPaths("draft", "3x2")
    replayed(recording, policy)
    assert min(policy.facts) < 1 / 3, "some second or third branches stayed"
    for told, start in policy.told:
        judged = policy.facts[start:][: len(told)]
        assert judged[0] == told[0]


class Copies(Policy):
    """Once, a copy of one token that the target keeps by a lossy rule; else plain decoding."""

    def __init__(self, tokens):
        self.tokens, self.seen = tokens, set()

    def decide(self, seen):
        if seen.request_id in self.seen:
            return Verify("target")
        if seen.num_pending:
            self.seen.add(seen.request_id)
            return Verify("target", Ratio(1e-9))
        return Draft("ngram", 1, copy=(self.tokens[seen.request_id],))


def test_a_copy_of_a_branch_is_on_record(recording):
    tokens = {}
    for request in recording.requests:
        trie = request.trie
        written = set(trie.children().ravel().tolist())
        first = trie.trunk[1]
        tokens[request.request_id] = next(
            int(trie.token[node])
            for node in range(1, trie.num_nodes)
            if trie.parent[node] == first and node not in written
        )
    log = replayed(with_ngram(recording), Copies(tokens), strict=False)
    copied = log.steps["judged"] == 1
    assert copied.sum() == len(tokens)
    assert log.steps["accepted"][copied].all()
    assert not log.steps["modelled"][copied].any()
