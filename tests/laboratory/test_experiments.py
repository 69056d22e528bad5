"""Experiments: the frame with a small one of its own, every one on few requests, and what they share."""

import ast
import importlib
import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import install_hint
from paceline.base.files import shipped
from paceline.cli import app
from paceline.decoding.pool import Member, Pool
from paceline.decoding.results import DRAFT, VERIFY
from paceline.policies import Band, Commit, Draft, Policy, Verify, Vouched, make_policy
from paceline.policies.chain_text import parse_chain
from paceline.reports import summarise_run
from paceline.reports.figure import write_figure
from paceline.sim.recorded import recorded_pool
from paceline.traces import SyntheticSpec, make_trace
from paceline.traces.contexts.on_disk import read_trace
from paceline.traces.workloads import open_workload
from paceline_laboratory.experiments import similarity_calibration, slim_frontier
from paceline_laboratory.experiments.catalogue import Experiment, experiments
from paceline_laboratory.experiments.routing import _figures
from paceline_laboratory.experiments.sharing import (
    ATTENTION,
    CACHE,
    CACHES,
    CHAINS,
    LESS,
    LOADS,
    MORE,
    OFF,
    OPEN,
    PLAIN,
    PROMPTS_OF_GROUP,
    SHARINGS,
    THREE,
    TWO,
    SharingRuns,
    SharingServer,
    cells_table,
    in_both_worlds,
    interaction,
    interaction_table,
    served,
    shared_prompts,
    term,
)
from paceline_laboratory.findings import ExperimentSetting, Finding, Head, Rows, markdown_table, table, table_cell
from paceline_laboratory.replays import A100_COST, ALL, TimedSteps, in_turns, interleaved, three_levels, two_levels
from paceline_laboratory.replays import chain as chain_of
from paceline_laboratory.shared import Tally, add_drafts, pool_of
from tokenizers import Tokenizer

from ..cli import command_line
from ..cli.command_line import done, paceline, refused
from ..cli.untrained_pool import write_untrained_pool
from ..reports.test_figures import panels
from ..sim.tries.small_traces import replay

REPLAYED = ("acceptance-by-level", "larger-targets")


def finding(setting: ExperimentSetting) -> Finding:
    """Numbers that say what the setting was."""
    counted = (("a_b|c", 1234, 5.25), ("seed", setting.seed, None))
    rows = [
        [table_cell("who", who), table_cell("count", count), table_cell("seconds", taken, "ms", 1)]
        for who, count, taken in counted
    ]
    tables = (table("of | all", rows),)
    return Finding(question="What was asked?", tables=tables, panels=panels(), answer=f"At most {setting.limit}.")


def broken(setting: ExperimentSetting) -> Finding:
    raise ValueError(f"nothing can be\nmeasured at seed {setting.seed}")


@pytest.fixture
def known(monkeypatch):
    """A catalogue of three: one that works, one that fails, one that works with a recording only."""
    entries = {
        "works": Experiment(summary="Works.", run=finding, uses=frozenset(("pool", "trace", "seed", "threads"))),
        "fails": Experiment(summary="Fails.", run=broken, uses=frozenset(("trace", "seed"))),
        "replays": Experiment(summary="Replays.", run=finding, uses=frozenset(("trace", "seed"))),
    }
    # First the one that takes the other's name: imported between the two it would keep the patch for good.
    for module in ("paceline_laboratory.commands", "paceline_laboratory.experiments.catalogue"):
        monkeypatch.setattr(f"{module}.experiments", lambda: entries)
    monkeypatch.setattr(command_line, "command", app.command)  # as other tests may have made the commands of all others
    return entries


def test_one_experiment_as_json_with_a_figure(known, tmp_path):
    data = json.loads(done("experiment", "works", "--json", "-", "--figure", "works.svg"))
    assert data["tables"][0]["rows"] == [["a_b|c", 1234, 5.25], ["seed", 0, None]]
    assert data["panels"][1]["categories"] == ["left", "right"]
    assert set(data) == {"question", "tables", "panels", "answer"}
    assert (tmp_path / "works.svg").read_text().startswith("<?xml")


@pytest.mark.slow
def test_all_are_kept_but_the_one_that_fails(known, tmp_path):
    ran = paceline("experiment", "all", "--page", "page.md", "--figures", "pictures/all", "--json", "all.json")
    assert ran.code == 1
    lines = ran.err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["works", "fails", "replays", "paceline"]
    assert lines[1].startswith("fails: failed: nothing can be measured at seed 0 (")
    assert lines[-1] == "paceline: 1 of 3 experiments failed: fails"
    page = (tmp_path / "page.md").read_text()
    assert "![works](pictures/all/works.svg)" in page
    assert "| a\\_b\\|c | 1,234 | 5.2 |" in page
    assert "Failed when this page was made: ValueError: nothing can be measured at seed 0\n" in page
    assert "paceline experiment replays" in page
    assert sorted(path.name for path in (tmp_path / "pictures/all").iterdir()) == ["replays.svg", "works.svg"]
    told = json.loads((tmp_path / "all.json").read_text())
    assert told["fails"] == {"error": "ValueError: nothing can be\nmeasured at seed 0"}
    paceline("experiment", "all", "--page", "page.md", "--figures", "pictures/all")
    assert (tmp_path / "page.md").read_text() == page


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("sideways",), "No such command 'sideways'."),
        (("works", "--figure", "works.gif"), "--figure must end in .svg, .png or .pdf, got 'works.gif'"),
        (("works", "--figure", "nowhere/works.svg"), "nowhere/works.svg: no folder nowhere"),
        (("works", "--limit", "0"), "Invalid value for '--limit': Input should be greater than or equal to 1, got '0'"),
        (("works", "--json", "nowhere/works.json"), "nowhere/works.json: no folder nowhere"),
        (("works", "--figure", "a.svg", "--json", "./a.svg"), "--json must be a file of its own, got 'a.svg'"),
        (("all", "--figures", "f", "--page", "p", "--json", "p"), "--json must be a file of its own, got 'p'"),
        (("replays", "--pool", "p"), "--pool does not apply to replays, got p"),
        (("replays", "--threads", "2"), "--threads does not apply to replays, got 2"),
        (("fails",), "nothing can be measured at seed 0"),
        (("all", "--page", "nowhere/page.md", "--figures", "f"), "nowhere/page.md: no folder nowhere"),
        (("all", "--figures", "f"), "Missing option '--page'."),
    ],
)
def test_bad_input(known, args, said):
    assert refused("experiment", *args) == said


def test_figures_need_their_extra(known, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = f": {install_hint('figures')}"
    assert refused("experiment", "works", "--figure", "works.svg").endswith(said)
    assert done("experiment", "works").startswith("What was asked?")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Rows(title="t", columns=(Head(name="c"),), rows=((1.5,),)), "column 'c' must have digits, got 1.5"),
        (lambda: Rows(title="t", columns=(), rows=((1,),)), "table 't': a row must have 0 cells, got (1,)"),
        (lambda: ExperimentSetting(threads=0), "threads must be >= 1, got 0"),
    ],
)
def test_what_cannot_be_shown_is_refused(made, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        made()


@pytest.mark.parametrize("name", experiments())
def test_an_experiment_uses_what_it_says(name):
    """Options that have no part in it are refused, so that none is accepted and ignored."""
    experiment = experiments()[name]
    module = importlib.import_module(f"paceline_laboratory.experiments.{name.replace('-', '_')}")
    source = Path(module.__file__).read_text()
    assert module.__doc__.startswith(f"{experiment.summary}\n")
    assert experiment.summary.endswith((".", "?"))
    assert len(experiment.summary) <= 120
    assert experiment.uses
    assert ("scenario_of" in source or "setting.trace" in source) == ("trace" in experiment.uses)
    assert any(word in source for word in ("pool_of", "models_of", "setting.pool")) == ("pool" in experiment.uses)


def test_an_experiment_does_not_wait_for_the_others():
    code = "import sys, paceline_laboratory.commands as group; group.experiment_commands(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "paceline_laboratory.experiments.catalogue" in loaded
    modules = {f"paceline_laboratory.experiments.{name.replace('-', '_')}" for name in experiments()}
    assert not modules & set(loaded)


@pytest.mark.slow
@pytest.mark.parametrize("name", REPLAYED)
def test_a_replayed_experiment_answers_the_same_again(name, tmp_path):
    found = [experiments()[name].run(ExperimentSetting(limit=1)) for _ in range(2)]
    assert found[0] == found[1]
    write_figure(found[0].panels, tmp_path / "figure.svg")


@pytest.mark.slow  # they time, train or search for over 10 seconds
@pytest.mark.parametrize("name", [name for name in experiments() if name not in REPLAYED])
def test_an_experiment_runs_on_few_prompts(name, tmp_path):
    ran = paceline("experiment", name, "--limit", "2", "--figure", "figure.svg")
    assert ran.code == 0, ran.err
    assert (tmp_path / "figure.svg").stat().st_size > 1000


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pool")
    write_untrained_pool(folder)
    # Every row of the tables is a token's: an untrained target writes rows that no token has, and no drafter may.
    file, rows = folder / "tokenizer.json", json.loads((folder / "target" / "config.json").read_text())["vocab_size"]
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_tokens([f"<|{row}|>" for row in range(tokenizer.get_vocab_size(), rows)])
    tokenizer.save(str(file))
    return ExperimentSetting(pool=folder, trace=Path("none.trace"), seed=0, threads=1, limit=2)


def test_the_frontier_has_a_row_for_every_slim_verifier(setting, monkeypatch):
    monkeypatch.setattr(slim_frontier, "SHARES", (0.05, 0.2, 0.25, 0.5, 0.95))
    monkeypatch.setattr(slim_frontier, "PROMPTS", 1)
    monkeypatch.setattr(slim_frontier, "NEW_TOKENS", 4)
    finding = slim_frontier.run(setting)
    (table,) = finding.tables
    rows = {row[0]: row for row in table.rows}
    assert sorted(rows) == ["slim", "slim20", "slim50"]  # 5% and 95% are no layers and all; 25% is one, as 20%
    assert {row[1] for row in rows.values()} == {1, 2}
    assert rows["slim"][3] == "pool"
    assert rows["slim20"][4] <= rows["slim"][4]
    for row in rows.values():
        assert 0 < row[5] < 1
        assert row[-2] <= row[-3] <= row[-1]
    assert len(finding.panels) == 3
    assert "within the noise" in finding.answer or " in every run" in finding.answer or " in no run" in finding.answer
    assert "Of the submodels that the pool had (slim), " in finding.answer


def test_a_pool_without_a_drafter_has_no_frontier(setting, tmp_path):
    text = (setting.pool / "pool.toml").read_text(encoding="utf-8")
    head, _, target = text.partition("[[members]]")[0], None, text[text.rindex("[[members]]") :]
    alone = setting.pool / "alone.toml"
    alone.write_text(head + target, encoding="utf-8")
    with pytest.raises(ValueError, match="members must hold a model below the target to draft, got none"):
        slim_frontier.run(ExperimentSetting(pool=alone, trace=tmp_path, seed=0, threads=1, limit=1))


def test_too_few_prompts_are_refused_before_the_search(setting, monkeypatch):
    monkeypatch.setattr(slim_frontier, "_searched", lambda *_: pytest.fail("searched"))
    with pytest.raises(ValueError, match="must hold more than 12 prompts, got 12 or fewer"):
        slim_frontier.run(setting)


def test_every_drafter_is_calibrated_in_every_mode(setting, monkeypatch):
    monkeypatch.setattr(similarity_calibration, "NOISE", (0.0, 0.5))
    monkeypatch.setattr(similarity_calibration, "LEFT_OUT", (0.25, 0.5, 0.55))
    monkeypatch.setattr(similarity_calibration, "NEW_TOKENS", 5)
    finding = similarity_calibration.run(setting)
    errors, pairs = finding.tables
    assert [row[0] for row in errors.rows] == ["greedy", "coupled", "rejection"]
    drafters = [row[0] for row in pairs.rows[::3]]
    assert drafters == ["1 of 4 layers left out", "2 of 4 layers left out", "noise 0", "noise 0.5"]
    for row in pairs.rows:
        if row[0] == "noise 0":  # the target itself
            assert row[2:6] == pytest.approx((100, 100, 100, 100), abs=0.01)
        assert all(0 <= value <= 100 for value in row[2:6])
        assert row[4] <= row[2] + 0.01  # with shared noise no more agree than overlap
    assert len(finding.panels) == 4
    assert finding.answer.startswith("Over drafters whose tokens are accepted from ")


def test_layers_are_left_out_evenly():
    assert similarity_calibration.spread(3, 11) == (3, 7, 10)
    for skipped in range(1, 11):
        mask = similarity_calibration.spread(skipped, 11)
        assert len(set(mask)) == skipped
        assert 0 not in mask
        assert list(mask) == sorted(mask)


MEMBERS = {"models": ("draft", "slim", "target"), "acceptance": (0.6, 0.8)}
TRACE = make_trace(SyntheticSpec(name="small", requests=6, tokens=20, prompt_tokens=4, reach=8, run=8, **MEMBERS))
POOL = recorded_pool(TRACE)


class Routed(Policy):
    """Drafts four; the slim verifier routes; what it escalated goes to the target, all else is committed."""

    def __init__(self):
        self.route, self.settle = Verify("slim", Band(0.6, 0.5)), Verify("target", Vouched(POOL.level("slim")))

    def decide(self, seen):
        last = seen.last
        if last is None or last.num_emitted:
            return Draft("draft", 4)
        if last.num_drafted:
            return self.route
        return self.settle if last.num_escalated else Commit(seen.num_pending)


def by_hand(log):
    """(refusals, drafted tokens looked at, calls of the target, tokens), step by step."""
    counts, before = Counter(), {}
    for request, kind, level, judged, accepted, emitted in zip(
        *(log.steps[name].tolist() for name in ("request", "kind", "level", "judged", "accepted", "emitted")),
        strict=True,
    ):
        counts["tokens"] += emitted
        if kind == VERIFY:
            counts["refusals"] += accepted < judged
            counts["calls"] += level == 2
            if before.get(request) == DRAFT:
                counts["seen"] += min(accepted + 1, judged)
        before[request] = kind
    return counts


@pytest.mark.parametrize("policy", ["chain", "routed"])
def test_rates_count_what_the_steps_did(policy):
    plain, _ = replay(TRACE, make_policy("plain", POOL))
    log, _ = replay(TRACE, make_policy("draft:4/target", POOL) if policy == "chain" else Routed())
    figures, counts = _figures(log, plain, ALL), by_hand(log)
    assert figures.rejection_rate == counts["refusals"] / counts["seen"]
    assert figures.calls_per_token == counts["calls"] / counts["tokens"]
    assert 0 < figures.rejection_rate < 1
    assert figures.calls_per_token == summarise_run(log).target_calls_per_token
    assert figures.speed_up == pytest.approx(
        summarise_run(log).output_tokens_per_s / summarise_run(plain).output_tokens_per_s
    )
    assert figures.quality.lossy is (policy == "routed")


def test_of_two_levels_it_is_one_less_the_rate_of_acceptance():
    plain, _ = replay(TRACE, make_policy("plain", POOL))
    log, _ = replay(TRACE, make_policy("draft:1/target", POOL))
    accepted, judged = (int(log.steps[name].sum()) for name in ("accepted", "judged"))
    assert _figures(log, plain).rejection_rate == pytest.approx(1 - accepted / judged)


AGENT = next(load for load in LOADS if load.name == "persistent-agent")
SEEDS = (0, 1)


@pytest.fixture(scope="module")
def pico():
    return read_trace(shipped("recordings", "pico.trace"))


@pytest.fixture(scope="module")
def found(pico, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cells")
    return SharingRuns(trace=pico, seeds=SEEDS, limit=1, folder=folder).in_all_cells(AGENT)


def test_every_cell_is_served_at_every_seed(found):
    assert list(found.cells) == [(chain, sharing) for sharing in SHARINGS for chain in CHAINS]
    assert {len(cells) for cells in found.cells.values()} == {len(SEEDS)}
    assert len(cells_table(found).rows) == len(found.cells)
    assert len(interaction_table([found]).rows) == 4


def test_hits_are_where_there_is_a_cache_and_reading_is_the_rest(found):
    tokens = []
    for seed in SEEDS:
        prompts = 0
        for arrival in open_workload(AGENT.workload(1), seed=seed):
            one = [arrival]
            while one:
                prompts += one[0].prompt_tokens
                one = [] if one[0].turns is None else list(one[0].turns.after(one[0].arrives_ps))
        tokens.append(prompts)
    for (chain, sharing), cells in found.cells.items():
        for cell, prompts in zip(cells, tokens, strict=True):
            assert set(cell.hit_shares) == {name for name in A100_COST if name in chain or name == "target"}
            assert set(cell.reading_s) == set(cell.writing_s) == set(cell.hit_shares)
            for name, share in cell.hit_shares.items():
                assert share == 0 if sharing == OFF else share > 0.5
                assert cell.reading_s[name] == pytest.approx((1 - share) * prompts * A100_COST[name]["per_new_token_s"])
                assert cell.writing_s[name] > 0
            assert sum(cell.reading_s.values()) + sum(cell.writing_s.values()) <= cell.duration_s * (1 + 1e-9)


def test_sharing_changes_no_acceptance(found):
    """At one seed the same recorded answers stand for the requests, so a chain accepts the same."""
    for chain in CHAINS:
        lengths = [[one.acceptance_length for one in found.cells[chain, sharing]] for sharing in SHARINGS]
        assert lengths[0] == lengths[1] == lengths[2]


def test_attention_to_a_common_text_never_takes_longer(found):
    for chain in CHAINS:
        for once, each in zip(found.cells[chain, ATTENTION], found.cells[chain, CACHE], strict=True):
            assert once.writing_s["target"] <= each.writing_s["target"]


def test_a_server_says_who_keeps_no_cache(pico, tmp_path):
    server = SharingServer(sharing=CACHE, uncached=("draft", "mid"))
    run = served(AGENT.workload(1), THREE, server, trace=pico, seed=0, folder=tmp_path)
    assert run.hit_shares["draft"] == run.hit_shares["mid"] == 0 < run.hit_shares["target"]
    again = served(AGENT.workload(1), THREE, replace(server, uncached=()), trace=pico, seed=0, folder=tmp_path)
    assert again.duration_s < run.duration_s


SECONDS = st.floats(1e-3, 1e6)
RUNS = st.integers(2, 5).flatmap(lambda seeds: st.tuples(*[st.lists(SECONDS, min_size=seeds, max_size=seeds)] * 4))


@given(RUNS)
def test_the_term_is_the_same_either_way(runs):
    """What sharing does to the speed-up of speculation, and what speculation does to that of sharing."""
    neither, speculation, sharing, both = runs
    one, other = interaction(*runs), interaction(neither, sharing, speculation, both)
    assert one.term.mean == pytest.approx(other.term.mean, rel=1e-9)
    assert one.gain.mean == other.without.mean
    assert (one.words == MORE) == (one.term.mean - one.term.half_width > 1)
    assert (one.words == LESS) == (one.term.mean + one.term.half_width < 1)


@given(st.floats(0.5, 4), st.floats(1.1, 4), st.integers(2, 5))
def test_independent_changes_have_a_term_of_one(speed_up, gain, seeds):
    each = [1.0 + seed for seed in range(seeds)]
    found = interaction(
        each, [t / speed_up for t in each], [t / gain for t in each], [t / speed_up / gain for t in each]
    )
    assert found.term.mean == pytest.approx(1.0)
    assert found.term.half_width == pytest.approx(0.0, abs=1e-9)
    assert found.words in (MORE, LESS, OPEN)


@given(st.floats(1, 100), st.floats(1, 100), st.floats(0.1, 10), st.floats(0.01, 0.99))
def test_reading_that_goes_makes_quicker_writing_worth_more_and_slower_writing_less(reading, writing, factor, left):
    """Amdahl's law: the term is above 1 if and only if speculation takes less time to write."""
    found = interaction(
        [reading + writing] * 2,
        [reading + factor * writing] * 2,
        [left * reading + writing] * 2,
        [left * reading + factor * writing] * 2,
    )
    term = found.term.mean
    assert (term > 1 + 1e-12) == (factor < 1) or abs(term - 1) < 1e-9


def test_one_seed_has_no_interval():
    with pytest.raises(ValueError, match="an interval needs at least 2 values, got 1"):
        interaction([1.0], [1.0], [1.0], [1.0])


def common(texts):
    """Tokens that all begin with."""
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, zip(*texts, strict=False)))


def test_prompts_of_a_group_share_full_blocks_and_others_share_none():
    setting = ExperimentSetting()
    pool, prompts = pool_of(setting), shared_prompts(setting)
    texts = [pool.encode(one.text) for one in prompts]
    for start in range(0, len(texts), PROMPTS_OF_GROUP):
        group = texts[start : start + PROMPTS_OF_GROUP]
        assert common(group) >= CACHES[CACHE].block_tokens
        others = texts[:start] + texts[start + PROMPTS_OF_GROUP :]
        assert all(common([group[0], other]) < CACHES[CACHE].block_tokens for other in others)
    assert len({tuple(text) for text in texts}) == len(texts)
    assert shared_prompts(ExperimentSetting(limit=2)) == prompts[:2]


@pytest.mark.slow
def test_both_worlds_take_the_same_steps_and_find_the_same():
    setting = ExperimentSetting(limit=4)
    found = in_both_worlds(pool_of(setting), shared_prompts(setting), read_trace(shipped("recordings", "pico.trace")))
    assert set(found) == {(chain, sharing) for chain in CHAINS for sharing in (OFF, CACHE)}
    assert term(found, PLAIN, "simulated") == 1.0 != term(found, TWO, "simulated")
    for (_, sharing), one in found.items():
        assert one.agreement.difference is None
        assert one.simulated_hits == one.measured_hits
        assert (one.measured_hits > 0) == (sharing == CACHE)


VALUES = st.none() | st.integers(-(10**9), 10**9) | st.floats(-1e9, 1e9) | st.text("ab|*_\\ ", max_size=8)


@given(st.lists(st.lists(VALUES, min_size=1, max_size=4), min_size=1, max_size=5))
def test_every_form_shows_every_value_in_its_column(values):
    width = min(map(len, values))
    rows = table("made", [[table_cell(f"c{place}", row[place], "x", 2) for place in range(width)] for row in values])
    assert [head.words for head in rows.columns] == [f"c{place} (x)" for place in range(width)]
    assert list(rows.rows) == [tuple(row[:width]) for row in values]
    shown = rows.grid()
    kept = [place for place in range(width) if not place or {row[place] for row in values} - {None, ""}]
    for cells, texts in zip(rows.rows, shown.rows, strict=True):
        assert texts == tuple(rows.columns[place].text(cells[place]) for place in kept)
    lines = markdown_table(shown).splitlines()
    assert len(lines) == len(values) + 4
    assert all(len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == len(kept) + 1 for line in lines[2:])


def test_a_column_is_read_by_its_name():
    rows = table("made", [[table_cell("who", name), table_cell("count", len(name))] for name in ("a", "bcd")])
    assert rows.numbers("count") == (1.0, 3.0)
    for name in ("who", "when"):
        with pytest.raises(ValueError, match=f"^table 'made': one column '{name}' must hold numbers"):
            rows.numbers(name)


def test_a_column_that_is_empty_in_all_rows_is_not_shown():
    rows = [[table_cell("name", name), table_cell("tune", None, "", 3), table_cell("n", 1)] for name in "ab"]
    shown = table("", rows).grid()
    assert [column.heading for column in shown.columns] == ["name", "n"]
    assert shown.rows == (("a", "1"), ("b", "1"))
    assert [column.number for column in shown.columns] == [False, True]


def test_rows_of_other_columns_are_refused():
    with pytest.raises(ValueError, match=re.escape("['a'], got ['b (s)']")):
        table("made", [[table_cell("a", 1)], [table_cell("b", 1, "s")]])
    with pytest.raises(ValueError, match="rows must be one or more, got none"):
        table("made", [])


BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TAGLESS = make_trace(SyntheticSpec(name="small", requests=3, tokens=12, prompt_tokens=4, acceptance=(0.7,)))


def names_in(file):
    """What can be imported from a file of the benchmarks."""
    for node in ast.parse(file.read_text()).body:
        yield from (part.id for part in ast.walk(node) if isinstance(part, ast.Name))
        yield from (getattr(node, "name", ""), *(each.asname or each.name for each in getattr(node, "names", ())))


def test_every_benchmark_finds_what_it_imports():
    """They stand outside of the packages, where no type checker sees that a name they import has moved."""
    found = 0
    for file in sorted(BENCHMARKS.rglob("*.py")):
        for node in (one for one in ast.walk(ast.parse(file.read_text())) if isinstance(one, ast.ImportFrom)):
            place = BENCHMARKS / f"{(node.module or '').replace('.', '/')}.py"
            names = {each.name for each in node.names}
            found += 1
            if node.level == 0 and node.module.partition(".")[0] in ("paceline", "paceline_laboratory"):
                module = importlib.import_module(node.module)
                assert all(hasattr(module, name) or find_spec(f"{node.module}.{name}") for name in names), (file, names)
            elif place.is_file():
                assert names <= set(names_in(place)), (file, names)
    assert found > 200


def test_every_chain_is_one_of_the_pool():
    pool, drafting = (
        Pool((Member(name="a"), Member(name="b"), Member(name="c", drafts_only=only), Member(name="target")))
        for only in (False, True)
    )
    two = two_levels(("a", "b", "c"), "target", (1, 4))
    three = three_levels(pool, lower=(1, 2), upper=(3,))
    assert two == ["a:1/target", "a:4/target", "b:1/target", "b:4/target", "c:1/target", "c:4/target"]
    assert three[:2] == ["a:1/b:3/target", "a:2/b:3/target"] == three_levels(drafting, lower=(1, 2), upper=(3,))
    assert len(three) == 3 * 2
    for text in (*two, *three):
        found = parse_chain(text, pool)
        assert chain_of(found.members, found.windows) == text


def test_every_step_is_timed_and_none_is_changed():
    pool = recorded_pool(TAGLESS)
    alone, _ = replay(TAGLESS, make_policy("two-level", pool))
    timed = TimedSteps(make_policy("two-level", pool))
    log, _ = replay(TAGLESS, timed)
    assert all(column.tolist() == alone.steps[name].tolist() for name, column in log.steps.items())
    assert len(timed.steps_s) == (~log.steps["prefill"].astype(bool)).sum()
    assert min(timed.steps_s) > 0
    assert timed.deciding_s > 0 < timed.learning_s


def test_all_jobs_run_in_turn_and_warm_ups_are_dropped():
    ran = []
    jobs = {name: lambda name=name: (ran.append(name), len(ran))[1] for name in "ab"}
    assert in_turns(jobs, runs=2, warm_ups=1) == {"a": [3, 5], "b": [4, 6]}
    assert "".join(ran) == "ababab"
    assert set(interleaved(jobs, runs=1)) == {"a", "b"}
    assert "".join(ran) == "ababab" + "abab"


class TwoByTwo:
    """The other vocabulary has a token for every two of the target's; a draft is spelled with `wrong` at its end."""

    def __init__(self, wrong=None):
        self.wrong = wrong

    def to_other(self, text):
        return [tuple(text[place : place + 2]) for place in range(0, len(text), 2)]

    def drafted(self, before, draft):
        tokens = [token for pair in draft for token in pair]
        return tokens if self.wrong is None else [*tokens[:-1], self.wrong]


def test_all_of_a_perfect_draft_counts_where_tokens_begin_alike_and_what_is_spelled_otherwise_is_told():
    tally = Tally()
    add_drafts(tally, TwoByTwo(), list(range(8)), range(1, 8), num_tokens=1)
    assert tally.counted == [2, 2, 2]  # odd cuts part a pair
    assert (tally.spelled_share, tally.counted_a_draft) == (1.0, 2)
    assert len(tally.reading_s) == len(tally.spelling_s) == 3
    tally = Tally()
    add_drafts(tally, TwoByTwo(wrong=-1), list(range(8)), range(2, 7, 2), num_tokens=1)
    assert (tally.spelled_share, Tally().spelled_share) == (0.5, 0.0)
