"""What is drawn, how true seconds are, and the figures of an observed run."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.reports.figure import write_figure
from paceline.reports.observed import ObservedCell, observed_figures, observed_lines
from paceline.reports.observed import verdict as observed_verdict
from paceline.reports.panels import Panel, Series, by_category, series_of, validation_panels
from paceline.reports.validation import Cell, choices, repeatability, verdict
from paceline.runs.observed import ObservedMeta, ObservedRequest, ObservedRun


def cell_of(policy, batch, tag, error, measured_s=2.0):
    return Cell(
        policy=policy,
        batch=batch,
        tag=tag,
        simulated_s=measured_s * (1 + error),
        runs_s=(measured_s,),
        tpot_error=None,
        forwards_error=error,
        beside_error=0.0,
        equal=True,
        runs_equal=True,
    )


CELLS = [
    cell_of(policy, batch, tag, error)
    for policy, batch, tag, error in (
        ("plain", 1, "a", 0.1),
        ("plain", 1, "b", 0.3),
        ("plain", 1, "c", -0.1),
        ("draft:4/target", 1, "a", 0.2),
        ("plain", 4, "a", -0.5),
    )
]


def test_every_cell_is_a_point_of_its_batch():
    seconds, _ = validation_panels(CELLS)
    assert [(series.name, len(series.x)) for series in seconds.series] == [("batch 1", 4), ("batch 4", 1)]
    assert seconds.series[1].y == pytest.approx((1.0,))
    assert seconds.diagonal


def test_errors_are_medians_over_tags_of_the_policies_that_ran():
    _, errors = validation_panels(CELLS)
    assert errors.categories == ("plain", "draft:4/target")
    one, four = errors.series
    assert one.y == pytest.approx((10.0, 20.0))
    assert one.ends == (pytest.approx((-10.0, 30.0)), pytest.approx((20.0, 20.0)))
    assert (four.x, four.y) == ((0.0,), pytest.approx((-50.0,)))


def test_it_is_drawn(tmp_path):
    many = [*CELLS, *(cell_of("plain", 1, f"t{place}", 0.0, measured_s=1.0 + place) for place in range(60))]
    write_figure(validation_panels(many), tmp_path / "a.svg")
    assert (tmp_path / "a.svg").stat().st_size > 1000


def test_series_lie_over_the_same_places():
    one, two = series_of([1, 2, 4], {"one": [3.0, 2.0, 1.0], "two": iter([0.5, 0.25, 0.0])})
    assert one.x == two.x == (1.0, 2.0, 4.0)
    assert two.y == (0.5, 0.25, 0.0)


def test_each_series_has_a_value_for_every_category():
    panel = by_category("title", "s", [2, "b"], {"one": [1.0, 2.0]}, kind="scatter")
    assert panel.categories == ("2", "b")
    assert panel.series[0].x == (0.0, 1.0)
    with pytest.raises(ValueError, match="x, y and ends must be as long"):
        by_category("title", "s", ["a", "b"], {"one": [1.0]})


def panels():
    points = Series(name="one", x=(0.0, 1.0), y=(1.0, 3.0), ends=((0.5, 1.5), (2.5, 3.5)))
    bars = Series(name="two", x=(0.0, 1.0), y=(2.0, 4.0))
    both = {"x_label": "x", "y_label": "y"}
    return (
        Panel(title="lines", series=(points, bars), log_y=True, **both),
        Panel(title="bars", series=(points, bars), kind="bar", categories=("left", "right"), **both),
        Panel(title="points", series=(points,), kind="scatter", **both),
    )


@pytest.mark.parametrize("suffix", [".svg", ".png", pytest.param(".pdf", marks=pytest.mark.slow)])
def test_a_figure_is_the_same_again(tmp_path, suffix):
    files = [tmp_path / f"{name}{suffix}" for name in ("one", "two")]
    for file in files:
        write_figure(panels(), file)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert sorted(tmp_path.iterdir()) == files


def panel(**changes):
    return Panel(**{"title": "p", "x_label": "", "y_label": "", "series": panels()[0].series, **changes})


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Series(name="s", x=(1.0,), y=()), "series 's': x, y and ends must be as long, got [1, 0]"),
        (lambda: Series(name="s", x=(1.0,), y=(float("nan"),)), "series 's': numbers must be finite, got nan"),
        (lambda: panel(series=()), "panel 'p': series must hold at least one point, got none"),
        (lambda: panel(kind="bar"), "panel 'p': bars must have categories, got none"),
        (
            lambda: panel(categories=("a",)),
            "panel 'p', series 'one': x must be an index of 1 categories, got 1.0",
        ),
        (lambda: panel(log_x=True), "panel 'p', series 'one': x must be > 0 on a logarithmic axis, got 0.0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(made, said):
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        made()


def measured(policy, simulated_s, *runs_s, **given):
    return replace(cell_of(policy, 1, "a", 0.0), simulated_s=simulated_s, runs_s=runs_s, **given)


def test_one_run_says_nothing_of_others():
    assert repeatability([measured("p", 1.0, 2.0)]) is None


def test_of_two_runs_each_foretells_the_other():
    cells = [measured("p", 9.0, 1.0, 1.25), measured("q", 9.0, 2.0, 1.0, runs_equal=False)]
    found = repeatability(cells)
    # errors: p 1/1.25 and 1.25/1, q 2/1 and 1/2, each less 1
    assert found.median_error == pytest.approx((0.25 + 0.5) / 2)
    assert found.worst_error == pytest.approx(1.0)
    assert found.same_choice == 0.0  # p is best in the first, q in the second
    assert found.mean_regret == pytest.approx((0.25 + 1.0) / 2)  # p takes 1.25 where q takes 1, q 2 where p takes 1
    assert found.equal == 0.5


def test_of_three_runs_each_foretells_the_median_of_the_others():
    found = repeatability([measured("p", 9.0, 1.0, 2.0, 4.0)])
    assert found.worst_error == pytest.approx(4.0 / 1.5 - 1)
    assert found.median_error == pytest.approx(1 - 1.0 / 3.0)  # 1 of 3, 2 of 2.5 and 4 of 1.5


@given(
    seconds=st.lists(st.floats(0.1, 10), min_size=2, max_size=6),
    num_runs=st.integers(2, 4),
)
def test_a_machine_that_repeats_itself_has_no_errors_whatever_the_simulator_says(seconds, num_runs):
    cells = [
        measured(f"p{place}", 5.0, *[one] * num_runs, batch=1 + place % 2)
        for place, one in enumerate(dict.fromkeys(seconds))
    ]
    found = repeatability(cells)
    assert (found.worst_error, found.worst_regret, found.same_choice, found.equal) == (0.0, 0.0, 1.0, 1.0)


@given(runs=st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=6))
def test_a_simulator_that_is_one_of_two_runs_is_as_far_off_the_other_as_these_are_from_each_other(runs):
    """The verdict on the simulator and that on the machine are in the same terms."""
    found = repeatability([measured(f"p{place}", 5.0, *pair) for place, pair in enumerate(runs)])
    halves = [
        verdict([measured(f"p{place}", pair[told], pair[1 - told]) for place, pair in enumerate(runs)])
        for told in (0, 1)
    ]
    assert found.worst_error == max(half.worst_error for half in halves)
    assert found.same_choice == pytest.approx(sum(half.same_choice for half in halves) / 2)
    assert found.mean_regret == pytest.approx(sum(half.mean_regret for half in halves) / 2)


def test_policies_that_tie_in_simulated_seconds_are_all_the_simulators_choice():
    """As two that take the same steps: whichever of them the machine takes as the faster, the choice is the same."""
    cells = [measured("p", 1.0, 1.5), measured("q", 1.0, 1.0), measured("r", 2.0, 3.0)]
    (found,) = choices(cells)
    assert (found.simulated, found.measured, found.same) == ("p, q", "q", True)
    assert found.regret == pytest.approx(0.25)  # either, one half more
    assert verdict(cells).same_choice == 1.0
    (other,) = choices([measured("p", 1.0, 1.5), measured("q", 1.0, 1.25), measured("r", 2.0, 1.0)])
    assert (other.simulated, other.same) == ("p, q", False)


def test_no_cells_are_no_verdict():
    with pytest.raises(ValueError, match="cells must be one or more, got none"):
        verdict([])


MS = 10**9
META = ObservedMeta(
    url="http://h", model="m", endpoint="/v1/completions", workload="w", prompts="p", loop="open", ended_at_ps=900 * MS
)


def request(name, sent, outputs, ended, **other):
    times = {"due_at_ps": sent * MS - MS, "sent_at_ps": sent * MS, "outputs_at_ps": tuple(at * MS for at in outputs)}
    ended_at_ps = None if ended is None else ended * MS
    return ObservedRequest(request_id=name, prompt_id="p", asked_tokens=9, ended_at_ps=ended_at_ps, **times, **other)


RUN = (
    request("a", 100, (150, 170, 200), 210, prompt_tokens=7, output_tokens=5, finish_reason="length"),
    request("b", 120, (200,), 200, prompt_tokens=3, output_tokens=1, finish_reason="stop"),
    request("c", 130, (160, 190), 300, failed="HTTP 500: no"),
    request("d", 140, (), None),
)


def test_figures_by_hand():
    found = observed_figures(ObservedRun(META, RUN))
    assert (found.requests, found.finished, found.failed, found.unfinished) == (4, 2, 1, 1)
    assert (found.prompt_tokens, found.output_tokens, found.uncounted) == (10, 6, 0)
    assert found.ttft_s.mean == pytest.approx((0.05 + 0.08) / 2)
    assert found.tpot_s.mean == pytest.approx(0.06 / 4)  # of the one with several tokens, not chunks
    assert found.itl_s.mean == pytest.approx((0.02 + 0.03 + 0.03) / 3)
    assert found.e2e_s.mean == pytest.approx((0.11 + 0.08) / 2)
    assert found.duration_s == pytest.approx(0.11)
    assert found.output_tokens_per_s == pytest.approx(6 / 0.11)
    assert found.late_s == pytest.approx(0.001)
    assert found.finish_reasons == {"length": 1, "stop": 1}
    assert found.failures == {"HTTP 500: no": ["c"]}


def test_what_a_tokenizer_does_not_count_is_told():
    for endpoint, ending in (("/v1/completions", "is among them"), ("/v1/chat/completions", "template only on vLLM")):
        meta = META.model_copy(update={"counted_by": "tokenizer", "endpoint": endpoint})
        lines = observed_lines(ObservedRun(meta, RUN), observed_figures(ObservedRun(meta, RUN)))
        (told,) = (line for line in lines if "counted by the server's tokenizer" in line)
        assert told.endswith(ending)


def test_one_unknown_count_makes_a_sum_unknown_and_no_zero():
    run = ObservedRun(META, (*RUN, request("e", 150, (160, 170), 180, finish_reason="stop")))
    found = observed_figures(run)
    assert (found.finished, found.uncounted) == (3, 1)
    assert found.prompt_tokens is found.output_tokens is found.output_tokens_per_s is None
    assert found.tpot_s.mean == pytest.approx(0.06 / 4)
    assert found.ttft_s.mean == pytest.approx((0.05 + 0.08 + 0.01) / 3)


def test_a_run_without_requests_says_nothing():
    found = observed_figures(ObservedRun(META, ()))
    assert (found.requests, found.ttft_s, found.output_tokens, found.requests_per_s) == (0, None, None, None)


@pytest.mark.parametrize(
    ("simulated", "observed", "error", "within"),
    [(1.1, 1.0, 0.1, True), (0.8, 1.0, -0.2, False), (None, 1.0, None, False), (1.0, None, None, None)],
)
def test_a_cell_is_judged_by_its_bound(simulated, observed, error, within):
    cell = ObservedCell(name="ttft_s_mean", simulated=simulated, observed=observed, bound=0.1 + 1e-9)
    assert cell.error == (None if error is None else pytest.approx(error))
    assert cell.within is within
    beyond = "beyond: TTFT mean, ms " + ("unknown" if error is None else f"{error:+.1%}")
    assert observed_verdict([cell]).endswith(beyond) == (within is False)
