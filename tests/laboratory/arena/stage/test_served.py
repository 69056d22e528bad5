"""Arrivals of a recording's requests."""

import pytest
from paceline.decoding.steps import Verify
from paceline_laboratory.arena.play import served


class Looking:
    """Plain decoding that notes what was asked, and how much of the answer it saw."""

    def __init__(self, pool):
        self._step = Verify(pool.target)
        self.seen = {}

    def decide(self, seen):
        self.seen[seen.request_id] = (seen.tag, seen.prompt, tuple(seen.emitted_from(0)))
        return self._step

    def learn(self, outcome):
        pass


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_request_comes_once_and_is_answered_as_it_was_recorded(stage, seed):
    tables = stage.tables(seed)
    policy = Looking(tables.pool)
    found = served(tables, stage.cost("even"), policy, "looking", tokens_per_s=50.0, seed=seed)
    answers = {(one.tag, one.prompt): one.trie.token[one.trie.trunk[1:]].tolist() for one in tables.trace.requests}
    assert sorted((tag, prompt) for tag, prompt, _ in policy.seen.values()) == sorted(answers)
    assert found.tokens == sum(map(len, answers.values()))
    for tag, prompt, begun in policy.seen.values():
        assert list(begun) == answers[tag, prompt][: len(begun)]
