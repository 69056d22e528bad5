"""Oracles keep the contract where rounds end early, late, at once and at the budget, alone and in batches."""

from random import Random

import pytest
from paceline.policies import check_policy
from paceline.policies.check import VOCABULARY, ToyWorld, check_pool
from paceline.policies.oracles import Answer, Foreseen, Foresight, OracleChain, OracleWindow

from ..decoding.script import drive, session_of

POOL = check_pool()
MIXED = tuple(member.name in ("ngram", "draft") for member in POOL.members)  # which drafts come after the prefill
STARTS = {"prefill": None, "draft": (False,) * len(POOL.names), "mixed": MIXED}


def foresight_of(world, sessions):
    answers = {}
    for session in sessions:
        trunk = world.trunk(session)
        answers[session.request_id] = Answer(session, trunk, [0] * (len(trunk) + 1))
    foreseen = Foreseen(world, answers, drawn=False)
    return Foresight(POOL, foreseen, lambda level, new, held: 1e-3 * (level + 1))


@pytest.mark.parametrize(
    "build",
    [
        lambda: OracleWindow(POOL, most=5),
        lambda: OracleWindow(POOL, draft="ngram", most=3),
        lambda: OracleChain(POOL, most=2),
        lambda: OracleChain(POOL, most=2, levels=5),
    ],
)
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(("batch", "ends"), [(1, 0.2), (4, 0.1)])
def test_the_contract_on_toy_models(build, batch, ends, start):
    world, policy = ToyWorld(POOL, seed=3, ends=ends), build()
    sessions = toy_sessions(Random(batch), 8, start)
    planned = policy.foresee(foresight_of(world, sessions))
    _, log = drive(policy, sessions, world=world, batch=batch)
    assert [session.emitted for session in sessions] == [world.trunk(session) for session in sessions]
    if batch == 1:
        assert log.ops["duration_s"].sum() == pytest.approx(sum(planned.values()))


def test_a_check_has_no_future_to_show():
    with pytest.raises(ValueError, match="policy oracle sees ahead"):
        check_policy(OracleWindow, name="oracle")


def test_more_levels_than_the_pool_has_are_all_of_them():
    chains = [len(OracleChain(POOL, most=2, levels=levels)._tall) for levels in (len(POOL.names), 10**9)]
    assert chains[0] == chains[1] > 0


def toy_sessions(rng, count, start):
    sessions = []
    for index in range(count):
        prompt = tuple(rng.randrange(1, VOCABULARY) for _ in range(rng.randint(1, 6)))
        budget = 1 + index if index < 4 else rng.randint(1, 12)
        sessions.append(session_of(f"r{index}", prompt=prompt, budget=budget, prefill_before=STARTS[start]))
    return sessions
