"""What SpecRouter learns of the target under load is what forwards took, whatever prompts were read beside."""

from hypothesis import given
from hypothesis import strategies as st
from paceline.policies.specrouter.policy import SpecRouter

from ...sim.serving.engine.served_runs import LineCost, Run, limits, pico, workloads


class Widths(LineCost):
    """By the tokens fed alone."""

    lookup_s = 1e-5

    def forward_s(self, model, *, num_rows, new_tokens, context_tokens):
        return (40 + 3 * new_tokens) / 10**6


@given(arrivals=workloads(), bounds=limits(pico()), data=st.data())
def test_seconds_go_with_the_tokens_of_the_forward(arrivals, bounds, data):
    """Budgets of a few tokens cut prompts into chunks, which share steps with the verifications of others."""
    pool, told = pico().pool, []

    def made():
        policy = SpecRouter(pool, every=data.draw(st.sampled_from([1, 8])))
        profiler = policy.scheduler.knowledge.profiler
        note = profiler.note

        def noted(level, *, new_tokens, seconds, held_tokens=0):
            if level == pool.target_level:
                told.append((new_tokens, seconds))
            note(level, new_tokens=new_tokens, seconds=seconds, held_tokens=held_tokens)

        profiler.note = noted
        return policy

    Run(arrivals, pico(), made, bounds, cost=Widths(pico())).go()
    for new_tokens, seconds in told:
        assert abs(seconds - (40 + 3 * new_tokens) / 10**6) < 1e-11
