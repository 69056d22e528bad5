"""What forwards took in decoding beyond what is foreseen comes out; a journal gives back what was noted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.decoding.results import DRAFT, VERIFY
from paceline.runtime.profiling.probe import Journal, ProbedForward, ProbedOp, longer_in_decoding
from paceline.traces.profile import (
    BatchShape,
    ForwardsInDecoding,
    InDecoding,
    Longer,
    ProfiledForwards,
    Reload,
    UnevenRows,
    WeightsRead,
)

from ...profiles.profiles import made_profile, seconds_of

PROFILE = made_profile()
RELOAD = Reload(new_tokens=(1,), away_s=(1.0,), longer_s=((0.5,),))
MORE = st.floats(-1e-4, 1e-3)
EACH = (1, 3, 5, 9)


def foreseen():
    alone = ProfiledForwards(PROFILE.of("draft"), PROFILE.meta.members[0].smooth)
    return ForwardsInDecoding(alone, UnevenRows(), RELOAD, InDecoding())


def op(kind, forwards):
    return ProbedOp(kind, 0, 1, 1, tuple(forwards), 0.0, 1, 0.0)


def longer(ops):
    return longer_in_decoding(ops, [foreseen(), None], ["draft", "ngram"], WeightsRead({}))["draft"]


@given(longer_s=st.tuples(*[MORE] * 4), later_s=MORE)
def test_means_by_new_tokens_apart_for_first_and_later_forwards(longer_s, later_s):
    ops, now_s = [], 0.0
    for each, more_s in zip(EACH, longer_s, strict=True):
        for _ in range(30):
            shape, later = BatchShape(1, each, each, 50 + each), BatchShape(1, 1, 1, 60)
            first_s = seconds_of(1, each, 50) + 0.5 * (0.25 if ops else 1.0) + more_s
            now_s += 0.25 + first_s
            first = ProbedForward(0, shape, now_s, first_s)
            now_s += seconds_of(1, 1, 59) + later_s
            ops.append(op(DRAFT, [first, ProbedForward(0, later, now_s, seconds_of(1, 1, 59) + later_s)]))
    found = longer(ops)
    assert found.first.new_tokens == EACH
    assert found.first.longer_s == pytest.approx(longer_s, abs=1e-8)
    assert found.later.longer_s == (pytest.approx(later_s, abs=1e-8),)


def test_prompts_and_forwards_that_something_interrupted_do_not_enter():
    shape, prompt = BatchShape(1, 1, 1, 51), BatchShape(1, 40, 40, 40)
    ops, now_s = [], 0.0
    for taken_s in [seconds_of(1, 1, 50) + 0.5] + [seconds_of(1, 1, 50)] * 40 + [1.0]:
        now_s += taken_s
        ops.append(op(VERIFY, [ProbedForward(0, shape, now_s, taken_s)]))
    ops.append(op(VERIFY, [ProbedForward(0, prompt, now_s + 9.0, 9.0)]))
    assert longer(ops).first.longer_s == (pytest.approx(0.0, abs=1e-9),)
    assert longer(ops).later == Longer()


def test_few_of_a_number_are_taken_with_the_next():
    ops, now_s = [], 0.0
    for place, each in enumerate((1, 2, 3) * 10):
        seconds = seconds_of(1, each, 50) + each * 1e-4 + (0.0 if place else 0.5)
        now_s += seconds
        ops.append(op(VERIFY, [ProbedForward(0, BatchShape(1, each, each, 50 + each), now_s, seconds)]))
    found = longer(ops).first
    assert found.new_tokens == (2,)
    assert found.longer_s == (pytest.approx(2e-4, rel=0.1),)


def test_a_member_that_was_seen_too_seldom_takes_what_is_foreseen():
    shape = BatchShape(1, 1, 1, 51)
    assert longer([op(VERIFY, [ProbedForward(0, shape, 1.0, 0.9)])] * 3) == InDecoding()


ABOUT = {"pool": "tiny", "threads": 1, "grid": (1, 2)}
SECONDS = {("draft", 1, 2, 0): 0.25, ("target", 1, 2, 0): 1.5}


def filled(path, count=3):
    journal = Journal(path, ABOUT)
    for number in range(count):
        journal.note(number, (1, 0), {key: value + number for key, value in SECONDS.items()})
    return journal


def test_what_was_noted_is_known_to_the_next(tmp_path):
    first = filled(tmp_path / "new" / "a.jsonl")
    again = Journal(tmp_path / "new" / "a.jsonl", ABOUT)
    assert len(again) == 3
    assert again.begun_at == first.begun_at is not None
    assert again.known(1, (1, 0)) == {key: value + 1 for key, value in SECONDS.items()}
    assert again.known(1, (2, 0)) is None
    assert again.seconds() == {key: [value, value + 1, value + 2] for key, value in SECONDS.items()}


@given(share=st.floats(0, 1))
def test_a_file_cut_short_anywhere_gives_its_whole_lines_and_grows_on(tmp_path_factory, share):
    path = tmp_path_factory.mktemp("cut") / "a.jsonl"
    filled(path)
    content = path.read_bytes()
    cut = content[: int(share * len(content))]
    path.write_bytes(cut)
    again = Journal(path, ABOUT)
    assert len(again) == max(0, cut.count(b"\n") - 1)
    again.note(7, (3, 60), SECONDS)
    third = Journal(path, ABOUT)
    assert len(third) == len(again)
    assert third.known(7, (3, 60)) == SECONDS


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]\n", b'{"about": 1}\n', b"\xff\n", b'{"about": {}, "begun_at": 3}\n']
)
def test_a_file_that_is_no_journal_is_begun_anew(tmp_path, content):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    assert len(Journal(path, ABOUT)) == 0
    filled(path)
    assert len(Journal(path, ABOUT)) == 3


def test_another_setting_a_fresh_start_and_forgetting_know_nothing(tmp_path):
    path = tmp_path / "a.jsonl"
    journal = filled(path)
    assert len(Journal(path, ABOUT | {"threads": 2})) == 0
    assert len(Journal(path, ABOUT, resume=False)) == 0
    journal.forget()
    assert (len(journal), journal.begun_at, path.exists()) == (0, None, False)


def test_a_file_that_cannot_be_written_does_not_matter(tmp_path):
    (tmp_path / "a").write_text("")
    journal = filled(tmp_path / "a" / "b.jsonl")
    assert len(journal) == 3
