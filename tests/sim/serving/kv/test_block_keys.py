"""Keys are equal where ids say that texts are, and nowhere else."""

from hypothesis import given
from hypothesis import strategies as st
from paceline.sim.serving.memory import BlockKeys, first_key
from paceline.traces.workloads.arrival import Arrival

NUM_KEYS = 20


@st.composite
def sizes(draw):
    """(unit_tokens, block_tokens), of which one divides the other."""
    small = draw(st.integers(1, 6))
    large = small * draw(st.integers(1, 4))
    return draw(st.sampled_from([(small, large), (large, small)]))


@st.composite
def prompts(draw, unit_tokens):
    """(text up to each unit that has an id, prompt_tokens); the last unit may be partial, and then without an id."""
    units = tuple(draw(st.lists(st.integers(0, 1), min_size=1, max_size=8)))
    last = draw(st.integers(1, unit_tokens))
    texts = [(units[: n + 1], last if n + 1 == len(units) else unit_tokens) for n in range(len(units))]
    known = len(units) - (last < unit_tokens and draw(st.booleans()))
    return texts[:known], (len(units) - 1) * unit_tokens + last


@st.composite
def cases(draw):
    unit_tokens, block_tokens = draw(sizes())
    return unit_tokens, block_tokens, draw(prompts(unit_tokens)), draw(prompts(unit_tokens))


def num_known(keys):
    """Blocks that others may share."""
    return sum(key >= 0 for key in keys)


@given(cases())
def test_keys_are_equal_where_ids_are(case):
    unit_tokens, block_tokens, *both = case
    ids = {text: number for number, text in enumerate({text for texts, _ in both for text in texts})}
    keys = [
        BlockKeys(tuple(ids[text] for text in texts), unit_tokens, block_tokens, prompt_tokens, serial)[:NUM_KEYS]
        for serial, (texts, prompt_tokens) in enumerate(both)
    ]
    for place in range(NUM_KEYS):
        end = (place + 1) * block_tokens
        unit = -(-end // unit_tokens) - 1
        known = [end <= prompt_tokens and unit < len(texts) for texts, prompt_tokens in both]
        same = all(known) and both[0][0][unit] == both[1][0][unit]
        assert (keys[0][: place + 1] == keys[1][: place + 1]) == same
        assert [of_one[place] >= 0 for of_one in keys] == known
    assert all(len(set(of_one[place:])) == NUM_KEYS - place for of_one in keys for place in [num_known(of_one)])


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1))
def test_keys_do_not_depend_on_what_was_asked_before(ranges):
    asked = BlockKeys((7, 9), 8, 2, 15, 3)
    for start, stop in ranges:
        assert asked[start:stop] == BlockKeys((7, 9), 8, 2, 15, 3)[:30][start:stop]


def test_private_keys_differ_between_requests_and_from_ids():
    many = [BlockKeys((), 0, 16, 100, serial)[:50] for serial in range(50)]
    assert len({key for keys in many for key in keys}) == 2500
    assert max(max(keys) for keys in many) < 0


def test_keys_of_the_prompt_are_those_that_others_may_share():
    assert BlockKeys((4, 5, 6), 8, 4, 19, 0).of_prompt().tolist() == [4, 4, 5, 5]
    assert len(BlockKeys((4, 5, 6), 8, 16, 24, 0).of_prompt()) == 1
    assert BlockKeys((), 0, 16, 24, 0).of_prompt().tolist() == []
    assert BlockKeys((2**62,), 8, 2, 8, 2**20).of_prompt().tolist() == [2**62] * 4


def test_a_block_of_several_units_is_told_by_all_of_them():
    both, others = (BlockKeys(ids, 8, 16, 32, 0).of_prompt() for ids in ((4, 5, 6, 7), (3, 5, 6, 7)))
    assert both == BlockKeys((4, 5, 6, 7), 8, 16, 32, 1).of_prompt()
    assert both[0] != others[0]
    assert both[1] == others[1]
    assert min(both) >= 0
    first = Arrival("q", 0, 32, 1, blocks=(4, 5, 6, 7))
    assert first_key(first, 8, 16) == both[0]
