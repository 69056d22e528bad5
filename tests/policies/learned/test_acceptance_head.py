"""A head survives its file; a file that is not sound is refused by field, rule and value."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.pool import Member, Pool
from paceline.policies.check import check_pool
from paceline.policies.learned import moved, read_head

HEAD = Path(__file__).parent / "head.json"


def spoiled(tmp_path, **changes):
    """The head's file with other values; None takes a key away."""
    table = json.loads(HEAD.read_text(encoding="utf-8")) | changes
    file = tmp_path / "spoiled.json"
    file.write_text(json.dumps({key: value for key, value in table.items() if value is not None}), encoding="utf-8")
    return file


def test_a_head_survives_its_file(tmp_path):
    head = read_head(str(HEAD))
    file = tmp_path / "again.json"
    file.write_text(head.to_json(), encoding="utf-8")
    assert read_head(str(file)) == head
    assert head.to_json() == HEAD.read_text(encoding="utf-8")


WEIGHTS = {"prob": 1, "root_entropy": 1, "gap": 1, "place": 1, "agreement": 1}


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"format": "other"}, "format must be paceline-acceptance-head, version 1, got 'other', version 1"),
        ({"version": 2}, "format must be paceline-acceptance-head, version 1, got .*, version 2"),
        ({"start": None}, "the file must have the keys format, version, drafter, .*, got no start"),
        ({"more": 1}, "the file must have the keys .* and no others, got 'more'"),
        ({"start": 1.5}, r"start must be in \[0, 1\], got 1.5"),
        ({"bias": "x"}, "bias must be a finite number, got 'x'"),
        ({"bias": 60}, r"bias must be in \[-50, 50\], got 60"),
        ({"bias": 49.8, "weights": WEIGHTS}, r"bias must be in \[-50, 50\], got 50.8"),
        ({"weights": {**WEIGHTS, "gap": 51}}, r"gap must be in \[-50, 50\], got 51.0"),
        ({"weights": {"gap": 1}}, "weights must have the keys prob, .*, got no prob"),
        ({"weights": [1]}, "weights must be an object, got a list"),
        ({"num_tokens": 0}, "num_tokens must be a whole number >= 1, got 0"),
        ({"num_tokens": True}, "num_tokens must be a whole number >= 1, got True"),
        ({"members": "draft"}, "members must be a list of texts, got a text"),
        ({"drafter": 3}, "drafter must be a text, got a number"),
        ({"held_out": {}}, "held_out must have the keys num_rows, .*, got no num_rows"),
    ],
)
def test_a_file_that_is_not_sound_is_refused(tmp_path, changes, rule):
    file = spoiled(tmp_path, **changes)
    with pytest.raises(ValueError, match=f"head {file}: {rule}"):
        read_head(str(file))


@pytest.mark.parametrize(
    ("text", "rule"), [("{", "must be JSON, got"), ("[]", "the file must be an object, got a list")]
)
def test_what_is_no_table_is_refused(tmp_path, text, rule):
    file = tmp_path / "broken.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=rule):
        read_head(str(file))


def test_other_members_are_refused():
    pool = Pool((Member(name="small"), Member(name="target")))
    with pytest.raises(
        ValueError, match="fitted to draft before target in recording pico, got a pool of small, target"
    ):
        read_head(str(HEAD)).drafter_in(pool)
    assert read_head(str(HEAD)).drafter_in(check_pool()) == "draft"


def test_a_head_of_several_pools_tells_of_the_smallest_model_of_any():
    head = replace(read_head(str(HEAD)), drafter=None, target=None, members=())
    pool = Pool((Member(name="copies", model_free=True), Member(name="small"), Member(name="large")))
    assert head.drafter_in(pool) == "small"
    with pytest.raises(ValueError, match="no model below its target"):
        head.drafter_in(Pool((Member(name="large"),)))


def test_a_head_of_several_pools_survives_its_file(tmp_path):
    head = replace(read_head(str(HEAD)), drafter=None, target=None, members=())
    file = tmp_path / "shared.json"
    file.write_text(head.to_json(), encoding="utf-8")
    assert read_head(str(file)) == head
    file.write_text(replace(head, target="target").to_json(), encoding="utf-8")
    with pytest.raises(ValueError, match="target must be null where drafter is, and nowhere else, got 'target'"):
        read_head(str(file))


@given(st.floats(0.0, 1.0), st.integers(1, 20), st.data())
def test_agreement_moves_towards_the_round_and_stays_a_share(agreement, num_judged, data):
    accepted = data.draw(st.integers(0, num_judged))
    after, share = moved(agreement, accepted, num_judged), accepted / num_judged
    assert min(agreement, share) - 1e-12 <= after <= max(agreement, share) + 1e-12
