"""Seconds of engines by hand, whose terms are taken when, and what they say of themselves."""

from dataclasses import fields, replace

import pytest
from paceline.base.errors import ArgumentError
from paceline.sim.cost.by_name import make_cost
from paceline.sim.cost.engines import EngineTerms, Residuals, Sure, engine_terms, engines
from paceline.sim.cost.roofline import RooflineCost, device_sheet
from paceline.sim.cost.what_if import Price, PricedAsCost, scaled
from paceline.sim.serving.cluster import open_cluster
from paceline.sim.serving.cluster_file import ClusterFileError
from paceline.traces import make_trace
from paceline.traces.meta import Experts, Quantised, Windowed

from ...traces.making import SPEC
from ..serving.cluster.small_pools import llamas
from .shapes import DEVICE, MODEL, seconds

HALF = EngineTerms(
    name="half",
    version="1",
    bandwidth=0.5,
    arithmetic=0.25,
    narrow=0.125,
    link=0.5,
    alike=0.0,
    step_s=2e-4,
    rereads=0.0,
    width_s=1e-8,
    reduce_s=5e-6,
    expert_layer_s=2e-5,
    bf16_expert_layer_s=3e-5,
    row_s=1e-5,
    draft_step_s=1e-4,
    draft_row_s=2e-5,
    wide_s=1e-3,
    draft_layer_s=4e-6,
    lookup_round_s=3e-4,
    lookup_layer_s=2e-6,
    lookup_row_s=5e-5,
    rounds_measured=True,
    dense=Sure(
        of="dense models on Hopper",
        of_rounds="dense models on Hopper",
        plain=Residuals(low=0.5, high=2.0),
        rounds=Residuals(low=0.5, high=3.0),
        gains=10,
        losses=1,
    ),
    mixture=Sure(
        of="mixtures of experts on Hopper",
        of_rounds="mixtures of experts on Hopper",
        plain=Residuals(low=0.25, high=4.0),
        rounds=Residuals(low=0.4, high=5.0),
        gains=10,
        losses=2,
    ),
)
LAYERS = 3 * 100 * 1e-8
STEP = LAYERS + 2e-4  # of the target
DRAFT = MODEL.model_copy(update={"name": "d"})


def cost_of(engine=HALF, *models, **options):
    return RooflineCost(DEVICE, models or (DRAFT, MODEL), engine=engine, **options)


def test_a_step_of_the_target_by_hand():
    cost = cost_of()
    assert cost.name == "round (half)"
    assert seconds(cost, 2, rows=2, held=10) == pytest.approx((4e6 + 400 * 12) / 5e10 + STEP + 2 * 1e-5)
    # Rows that are fed more than one token: a verification, or a prompt.
    few = (4e6 + 400 * 14) / 5e10 + STEP + 1e-5 + 1e-3
    assert seconds(cost, 4, held=10) == pytest.approx(few)
    assert seconds(cost, 1000, held=24) == pytest.approx(
        (2e6 * 1000 + 1200 * 1000 * 524.5) / 0.25e12 + STEP + 1e-5 + 1e-3
    )


def test_a_draft_by_hand():
    """Its forwards have seconds of their own, whatever they are fed."""
    cost = cost_of()
    for new in (3, 4):
        wanted = (4e6 + 400 * (10 + new)) / 5e10 + LAYERS + 1e-4 + 3 * 2e-5
        assert seconds(cost, new, model="d", rows=3, held=10) == pytest.approx(wanted + 3 * 4e-6)
    head = DRAFT.model_copy(update={"layers": 1})
    wanted = (4e6 + 400 * 14) / 5e10 + LAYERS / 3 + 1e-4 + 3 * 2e-5
    assert seconds(cost_of(HALF, head, MODEL), 4, model="d", rows=3, held=10) == pytest.approx(wanted)


def test_a_round_of_copied_drafts_by_hand():
    """It takes the host's seconds, those of the target's layers and those of rows, however many tokens were found."""
    cost = cost_of(HALF, free=("ngram",))
    round_s = 3e-4 + 3 * 2e-6
    assert cost.lookups_s(4) == pytest.approx(round_s + 4 * (5e-5 + cost.lookup_s))
    assert cost.draft_terms("ngram").seconds(0, 4) == pytest.approx(cost.lookups_s(4))
    assert [end.lookups_s(1) - cost.lookup_s for end in cost.ends()] == pytest.approx(
        [factor * (round_s + 5e-5) for factor in (0.5, 3.0)]
    )
    assert cost_of(None, free=("ngram",)).lookups_s(4) == 4 * cost.lookup_s


GROUPED = MODEL.model_copy(update={"kv_bytes_per_token": 480, "kv_heads": 2})  # 20 numbers a layer for 100 of queries


def test_keys_and_values_are_read_again_by_hand():
    """By half of the four heads of queries beyond the first of a group, where a row is fed several tokens."""
    again, once = (cost_of(replace(HALF, rereads=share), DRAFT, GROUPED) for share in (0.5, 0.0))
    for new in (4, 1000):  # bound by memory, and by arithmetic
        assert seconds(again, new, held=10) - seconds(once, new, held=10) == pytest.approx(2 * 480 * 10 / 5e10)
    assert seconds(again, 3, rows=3, held=10) == seconds(once, 3, rows=3, held=10)
    # Of four devices two hold the same heads, so that half as many queries share them.
    again, once = (cost_of(replace(HALF, rereads=share), GROUPED, tensor_parallel=4) for share in (0.5, 0.0))
    wanted = 0.5 * (2.5 - 1) * 2 * 480 * 10 / 5e10 / 4
    assert seconds(again, 4, held=10) - seconds(once, 4, held=10) == pytest.approx(wanted)
    unknown = cost_of(replace(HALF, rereads=0.5), MODEL)
    assert seconds(unknown, 4, held=10) == seconds(cost_of(HALF, MODEL), 4, held=10)


def test_either_range_is_of_the_terms_that_it_names():
    """Each second of an engine is one of plain steps or one of rounds; both are longer on a slower device."""
    names = {field.name for field in fields(EngineTerms) if field.type is float} - {"rereads", "alike"}
    plain, rounds = (
        {name for name in names if getattr(slower, name) != getattr(HALF, name)}
        for slower in (HALF.plain_times(2.0), HALF.rounds_times(2.0))
    )
    assert plain | rounds == names
    assert not plain & rounds


def test_devices_that_share_a_model_by_hand():
    cost = cost_of(HALF, MODEL, tensor_parallel=4)
    reduced = 2 * (2 * 3 / 4 * 100 * 4 / 0.5e10 + 2 * 5e-6)  # two doublings
    assert seconds(cost, 1, held=10) == pytest.approx((4e6 + 400 * 11) / 5e10 / 4 + STEP + 3 * reduced + 1e-5)


def test_tokens_of_a_row_share_experts_by_hand():
    """Of the four tokens beyond the first of a row two use none of their own."""
    mixed = MODEL.model_copy(update={"experts": Experts(number=8, per_token=2, layers=2, parameters=25_000)})
    alike, apart = (cost_of(replace(HALF, alike=share), mixed) for share in (0.5, 0.0))
    expert_s = 2 * 25_000 * 4 / 5e10
    assert seconds(apart, 5) - seconds(alike, 5) == pytest.approx(expert_s * 8 * (0.75**3 - 0.75**5))
    assert seconds(apart, 6, rows=2) - seconds(alike, 6, rows=2) == pytest.approx(expert_s * 8 * (0.75**4 - 0.75**6))
    assert seconds(apart, 5, rows=5) == seconds(alike, 5, rows=5)
    assert "experts drawn uniformly, but 50% of the tokens fed to a row beyond its first" in alike.notes()[-1]


def test_experts_and_narrow_weights_by_hand():
    experts = Experts(number=8, per_token=2, layers=2, parameters=25_000)
    mixed = cost_of(HALF, MODEL.model_copy(update={"experts": experts}))
    dense = cost_of(HALF, MODEL)
    read = 2 * 6 * 25_000 * 4 / 5e10  # six experts of eight are not read, in each of two layers
    assert seconds(mixed, 1) == pytest.approx(seconds(dense, 1) - read + 2 * 3e-5)
    device = replace(DEVICE, flops_per_s={"float32": 1e12, "fp8": 4e12})
    narrow = Quantised(format="fp8", parameters=600_000, bytes_per_parameter=1, arithmetic="fp8")
    cost = RooflineCost(device, (MODEL.model_copy(update={"quantised": narrow}),), engine=HALF)
    multiplied = 400_000 / 0.25e12 + 600_000 / (0.125 * 4e12)
    attended = 1200 * 1000 * 500.5 / 0.25e12
    assert seconds(cost, 1000) == pytest.approx(2 * 1000 * multiplied + attended + STEP + 1e-5 + 1e-3)


@pytest.mark.parametrize("held", [0, 90, 299, 700])
@pytest.mark.parametrize("new", [1, 4, 400])
def test_lines_by_the_tokens_held_are_the_same_seconds(new, held):
    windowed = GROUPED.model_copy(update={"windowed": Windowed(layers=2, tokens=300)})
    for cost in (cost_of(), *(cost_of(replace(HALF, rereads=0.5), DRAFT, target) for target in (GROUPED, windowed))):
        for model in ("d", "m"):
            line = cost.context_line(model, num_rows=1, new_tokens=new, context_tokens=held)
            for tokens in {held, line.start, int(min(line.end, 10_000)) - 1}:
                at = line.start_s + line.slope_s * (tokens - line.start)
                assert at == pytest.approx(seconds(cost, new, model=model, held=tokens), rel=1e-12)


def test_the_ends_are_of_rounds_alone():
    cost = cost_of()
    low, high = cost.ends()
    plain = {seconds(each, 2, rows=2, held=5) for each in (low, cost, high)}
    assert len(plain) == 1
    verified = [seconds(each, 4, held=5) - seconds(each, 1, held=8) for each in (low, cost, high)]
    assert verified == pytest.approx([0.5e-3, 1e-3, 3e-3])
    drafted = [seconds(each, 1, model="d") for each in (low, cost, high)]
    each_s = 1e-4 + 2e-5 + 3 * 4e-6
    assert [each - drafted[1] for each in drafted] == pytest.approx([-0.5 * each_s, 0, 2.0 * each_s])
    halved = scaled(cost, {"d": 0.5}, target="m").ends()
    assert [seconds(each, 1, model="d") for each in halved] == pytest.approx(
        [each / 2 for each in (drafted[0], drafted[2])]
    )
    assert cost_of(None).ends() == ()


def test_the_ends_of_the_whole_are_of_plain_steps_and_rounds():
    """A step's launches, reading, arithmetic and row, in short all that a plain step is, by one factor."""
    cost = cost_of()
    ends = cost.ends(whole=True)
    assert len(ends) == 4
    plain = [seconds(each, 2, rows=2, held=5) / seconds(cost, 2, rows=2, held=5) for each in ends]
    assert plain == pytest.approx([0.5, 0.5, 2.0, 2.0])
    verified = [seconds(each, 4, held=5) - seconds(each, 1, held=8) for each in ends]
    assert verified == pytest.approx([0.5e-3, 3e-3, 0.5e-3, 3e-3])
    assert cost_of(None).ends(whole=True) == ()


def test_members_on_several_devices_are_at_the_same_end():
    one, other = cost_of(), cost_of(None)
    both = PricedAsCost("both", {"d": Price(cost=one, model="d"), "m": Price(cost=other, model="m")})
    ends = both.ends(whole=True)
    assert [seconds(end, 1, model="d") for end in ends] == [seconds(end, 1, model="d") for end in one.ends(whole=True)]
    assert {seconds(end, 1) for end in ends} == {seconds(other, 1)}
    assert seconds(both, 1, model="d") == seconds(one, 1, model="d")


def test_what_a_reader_has_to_know():
    said, of_models = cost_of().notes()
    assert "seconds fitted to half 1; in nine of ten measurements of dense models on Hopper, a token took " in said
    assert "0.50 to 2.00 times the predicted seconds (models new to the engine)" in said
    assert "what a round adds 0.50 to 3.00 times (new to the fit)" in said
    measured = replace(HALF, dense=replace(HALF.dense, new="new sources of half"))
    assert cost_of(measured).notes()[0].endswith("what a round adds 0.50 to 3.00 times (new sources of half)")
    assert of_models.startswith("drafts by d: ranges are of heads of one layer; none of a model was measured")
    assert len(cost_of(HALF, DRAFT.model_copy(update={"layers": 1}), MODEL).notes()) == 1
    copied = cost_of(replace(HALF, name="sglang"), MODEL, free=("ngram",)).notes()[-1]
    assert copied == "copies by ngram: ranges are of heads; seconds of a round are of Qwen3-8B under 0.5.9"
    assert (
        cost_of(replace(HALF, name="vllm"))
        .notes()[1]
        .startswith("drafts by d: ranges are of heads of one layer; their seconds are of two models under 0.15")
    )


def test_a_mixture_has_ranges_of_its_own_and_gains_that_were_losses_are_told():
    experts = Experts(number=8, per_token=2, layers=2, parameters=25_000)
    mixture = MODEL.model_copy(update={"experts": experts})
    cost = cost_of(replace(HALF, rounds_measured=False), DRAFT, mixture)
    said, lost, elsewhere, *_ = cost.notes()
    assert "in nine of ten measurements of mixtures of experts on Hopper, a token took " in said
    assert "0.25 to 4.00 times" in said
    assert lost == (
        "gains of mixtures of experts on Hopper are predicted too high: 2 of 10 that were measured are losses where a "
        "gain is predicted"
    )
    assert elsewhere == "no rounds of half were measured on such a device: they are taken from elsewhere"
    blackwell = replace(HALF.mixture, of="mixtures of experts on Blackwell")
    *_, elsewhere, _, _ = cost_of(replace(HALF, rounds_measured=False, mixture=blackwell), DRAFT, mixture).notes()
    assert elsewhere.endswith("they are taken from elsewhere, of mixtures of experts on Hopper")
    low, high = cost.ends()
    verified = [seconds(each, 4, held=5) - seconds(each, 1, held=8) for each in (low, cost, high)]
    added = verified[1] - 1e-3  # experts that four tokens touch beyond those of one
    assert [each - added for each in verified] == pytest.approx([0.4e-3, 1e-3, 5e-3])


@pytest.mark.parametrize(
    ("source", "engine", "device", "found"),
    [
        (None, None, "h100", "vllm"),
        ("vllm-log", None, "h200", "vllm"),
        ("sglang-metrics", None, "h100-sxm", "sglang"),
        ("trtllm-metrics", None, "b200", "trtllm"),
        ("eagle-timed", None, "h100", "vllm"),
        ("sglang-metrics", "trtllm", "h100", "trtllm"),
        ("sglang-metrics", "bare", "h100", None),
        (None, None, "a100", "vllm"),
        (None, None, "l40s", None),
    ],
)
def test_whose_terms_are_taken(source, engine, device, found):
    terms = engine_terms(engine, device, source=source)
    assert (None if terms is None else terms.name) == found


OWN = {
    **dict.fromkeys(("0.9.2", "v0.9.0", "0.9rc1", "0.8.5.post1", "0.7.3"), "vllm-0.9"),
    **dict.fromkeys(("0.10.1.1", "0.11.0", "v0.12.0", "0.13+cu129"), "vllm-0.12"),
    **dict.fromkeys(("0.14.0rc1", "0.19.1", "1.0", "0.1.dev7", "unknown", ""), "vllm"),
}


@pytest.mark.parametrize(("version", "found"), OWN.items())
def test_a_log_of_a_release_with_terms_of_its_own_takes_them(version, found):
    terms = engine_terms(None, "h100", source="vllm-log", software={"vllm": version, "torch": "2.9"})
    assert terms.name == found
    assert engine_terms("vllm", "h100", source="vllm-log", software={"vllm": version}).name == "vllm"


def test_a_release_is_named_once():
    assert engines()["vllm-0.9"]["h100"].notes(MODEL)[0].startswith("seconds fitted to vllm 0.9; ")
    assert engines()["vllm-0.12"]["h100"].notes(MODEL)[0].startswith("seconds fitted to vllm 0.11 and 0.12; ")


@pytest.mark.parametrize(
    ("engine", "device", "told"),
    [
        (
            "vlm",
            "h100",
            "`engine` must be vllm, vllm-0.12, vllm-0.9, sglang, trtllm or bare (published peaks, a lower bound; "
            "docs/fidelity.md), got 'vl",
        ),
        (
            "vllm",
            "l40s",
            "`engine` vllm has terms on h100-sxm, h100, h100-pcie, h200, gh200, h20, b200, a100-80gb, a100, "
            "a100-40gb only, got l40s; `engine` bare takes",
        ),
    ],
)
def test_an_engine_or_a_device_without_terms_is_refused_by_name(engine, device, told):
    with pytest.raises(ArgumentError) as refused:
        engine_terms(engine, device)
    assert str(refused.value).startswith(told)


def test_an_engine_goes_with_a_device():
    recording = llamas()
    assert make_cost("h100", recording, engine="sglang").name == "h100 (sglang)"
    bare = make_cost("h100", recording, engine="bare")
    assert (bare.name, bare.ends()) == ("h100", ())
    assert bare.notes()[0].startswith("published peaks: a lower bound on seconds")
    assert (
        make_cost("l40s", recording).notes()[0].startswith("published peaks of l40s, on which no engine was measured")
    )


def test_a_made_recording_on_a_device_says_that_its_shapes_are_made():
    made = make_trace(SPEC)
    told = (
        "synthetic is made, and so are the shapes of its models: these are seconds of toys; give `models`, as in "
        "`models` c=llama-3.1-8b"
    )
    assert told in make_cost("h100", made).notes()
    assert told not in make_cost("cpu", made).notes()
    given = make_cost("h100", made.with_shapes(["c=llama-3.1-8b"]), shapes_given=True)
    assert told not in given.notes()


def test_shares_that_are_given_take_the_place_of_the_fits():
    recording = llamas()
    fitted = make_cost("h100", recording)
    given = make_cost("h100", recording, efficiency={"bandwidth": 0.45})
    assert given.name == "h100 (vllm, bandwidth 0.45)"
    # Half the bandwidth: reading takes twice as long, all else as long as before.
    target = recording.about.models[-1]
    asked = {"num_rows": 1, "new_tokens": 1, "context_tokens": 0}
    _, read_s = fitted.busy_s(target, **asked)
    slower = given.forward_s(target, **asked) - fitted.forward_s(target, **asked)
    assert slower == pytest.approx(read_s * (fitted.engine.bandwidth / 0.45 - 1))
    assert any("ranges are still those of vllm's own fit" in note for note in given.notes())
    assert len(given.ends()) == 2


def test_shares_of_a_device_without_an_engine_have_no_range():
    given = make_cost("l40s", llamas(), efficiency={"flops": 0.5, "bandwidth": 0.8})
    assert (given.name, given.ends()) == ("l40s at flops 0.5, bandwidth 0.8", ())
    assert given.notes()[0] == "shares of published peaks as given (flops 0.5, bandwidth 0.8): no range is known"
    bare = make_cost("l40s", llamas())
    asked = {"num_rows": 1, "new_tokens": 64, "context_tokens": 10}
    target = llamas().about.models[-1]
    arithmetic_s, memory_s = bare.busy_s(target, **asked)
    assert given.busy_s(target, **asked) == pytest.approx((arithmetic_s / 0.5, memory_s / 0.8))


@pytest.mark.parametrize(
    ("cost", "efficiency", "told"),
    [
        ("h100", {"bandwith": 0.7}, "`efficiency` must name bandwidth or flops, got 'bandwith'"),
        ("h100", {"flops": 1.5}, "`efficiency` of flops must be in (0, 1], got 1.5"),
        ("l40s", {"flops": 0.0}, "`efficiency` of flops must be in (0, 1], got 0.0"),
        ("mine.json", {"flops": 0.5}, "`efficiency` goes with a device as `cost`, got `cost` mine.json"),
    ],
)
def test_shares_that_will_not_do_are_refused(cost, efficiency, told):
    with pytest.raises(ArgumentError) as refused:
        make_cost(cost, llamas(), efficiency=efficiency)
    assert str(refused.value).startswith(told)


def test_the_table_is_whole():
    sheet = device_sheet()
    for by_device in engines().values():
        for device, terms in by_device.items():
            assert device in sheet
            assert all(0 < share <= 1 for share in (terms.bandwidth, terms.arithmetic, terms.narrow, terms.link))
            for sure in (terms.dense, terms.mixture):
                # What rounds add may be nothing; a plain step always takes seconds.
                assert sure.plain.low > 0
                assert all(0 <= each.low <= 1 <= each.high for each in (sure.plain, sure.rounds))
                assert 0 <= sure.losses <= sure.gains


def test_engines_whose_rounds_were_measured_have_a_range_of_their_own():
    """Only where they were: on Hopper, of dense models, to whose rounds terms were fitted. Others are no surer."""
    dense = {(name, device): engines()[name][device].dense for name in engines() for device in ("h100", "h200", "b200")}
    own = {place for place, sure in dense.items() if sure.new != "new to the fit"}
    assert own == {(name, device) for name in engines().keys() - {"trtllm"} for device in ("h100", "h200")}
    (wide,) = {sure.rounds for place, sure in dense.items() if place not in own}
    for place in own:
        measured = dense[place].rounds
        assert wide.low <= measured.low
        assert measured.high < wide.high
    assert len({engines()[name]["h100"].mixture for name in engines()}) == 1


FILE = '[[replicas]]\ndevice = "{device}"\n{engine}\n[devices.mine]\nlike = "h200"\nmemory_bytes = 200e9\n'


def test_a_cluster_says_its_engine(tmp_path):
    recording = llamas()
    path = tmp_path / "cluster.toml"
    for device, engine, name in (
        ("h100", "", "h100 (vllm)"),
        ("h100", 'engine = "sglang"', "h100 (sglang)"),
        ("mine", 'engine = "trtllm"', "mine (trtllm)"),
        ("h100", 'engine = "bare"', "h100"),
    ):
        path.write_text(FILE.format(device=device, engine=engine))
        assert open_cluster(path, recording).replicas[0].cost.name == name
    path.write_text(FILE.format(device="l40s", engine='engine = "sglang"'))
    with pytest.raises(ClusterFileError, match=r"replicas\[0\].engine cannot be taken: `engine` sglang has terms on"):
        open_cluster(path, recording)
    with pytest.raises(ArgumentError, match=r"`engine` goes with a device as `cluster`; .* is to say `engine` itself"):
        open_cluster(path, recording, engine="vllm")
    with pytest.raises(ArgumentError, match=r"`tensor_parallel` goes with a device .* itself, got 2"):
        open_cluster(path, recording, tensor_parallel=2)
    assert open_cluster("h200", recording, engine="sglang").replicas[0].cost.name == "h200 (sglang)"
