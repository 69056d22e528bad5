"""What policies keep by request goes with the request."""

import pickle

import pytest
from paceline.policies import make_policy

from ..lossless.recordings import recording, replayed
from .loads import compute_bound


@pytest.mark.parametrize("text", ["goodput", "slo", "autotune", "off-under-load,at=4", "off-under-load,table=1:3/4:0"])
def test_nothing_of_a_finished_request_is_kept(text):
    tables = recording(0.7, requests=9, tokens=20)
    policy = make_policy(text, tables.pool)
    replayed(tables, compute_bound(), policy, batch=4)
    kept = pickle.dumps(policy)
    ids = [request.request_id.encode() for request in tables.trace.requests]
    assert len(ids) == 9
    assert not [one for one in ids if one in kept]
