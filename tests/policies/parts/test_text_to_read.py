"""What a drafter has yet to read: of requests as they come, and of those that run."""

from hypothesis import given
from hypothesis import strategies as st
from paceline.policies.blocks import TextToRead


def test_requests_as_they_come():
    to_read = TextToRead()
    to_read.see("a", lacking=100, remaining=40)
    assert to_read.by_answer_token == 100 / 40 / 0.5, "half of a budget is used as long as nothing is known"
    to_read.see("a", lacking=1, remaining=30)
    assert to_read.by_answer_token == 100 / 40 / 0.5, "what has been read was read for the whole answer"


def test_those_that_run_if_they_lack_more():
    to_read = TextToRead()
    to_read.see("a", lacking=10, remaining=40)
    to_read.see("a", lacking=50, remaining=20)  # nobody drafted
    assert to_read.by_answer_token == 50 / 20 / 0.5


def test_answers_are_as_long_as_those_that_are_done():
    to_read = TextToRead()
    for name in range(200):
        to_read.see(str(name), lacking=10, remaining=40)
        to_read.see(str(name), lacking=10, remaining=32)
        to_read.end(str(name), 1)
    to_read.see("last", lacking=10, remaining=40)
    assert abs(to_read.by_answer_token - 10 / 40 / (9 / 40)) < 0.01


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 50), st.integers(1, 50), st.booleans()), max_size=40))
def test_sums_are_those_of_the_requests_that_run(steps):
    to_read, running = TextToRead(), {}
    for name, lacking, remaining, ends in steps:
        remaining = min(remaining, running.get(name, (0, 50))[1])
        to_read.see(name, lacking, remaining)
        running[name] = lacking, remaining
        if ends and len(running) > 1:
            to_read.end(name, 0)
            del running[name]
        lacks = sum(one for one, _ in running.values()) / sum(one for _, one in running.values())
        assert to_read.by_answer_token >= lacks
