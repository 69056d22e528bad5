"""Foreign logs: what is read of each, what is refused in one line, how formats are told, and what is drawn."""

import copy
import json
import os
import shutil
import tomllib
from collections import Counter
from itertools import pairwise, permutations, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.traces import TraceFormatError, importers
from paceline.traces.importers import ImportOptions, choose_format, format_names, import_recording, read_recording
from paceline.traces.importers.formats import FORMATS, detect, format_named
from paceline.traces.importers.reading import half_of_last_digit
from paceline.traces.importers.responses import place_plain_steps
from paceline.traces.importers.totals import (
    constant_hazard,
    draw_accepted,
    hazard_of_steps,
    pair,
    place,
    spread,
)
from paceline.traces.rounds.on_disk import read_rounds
from paceline.traces.shapes import shape_called
from prometheus_client.parser import text_string_to_metric_families

from ...cli.command_line import paceline, refused
from ...rows import check_rows
from ..rounds.rounds_strategies import assert_same_rounds
from ..sheets import IMPORTED, NOT_IMPORTED, imported, read_rows, rows_in, seen, told, written
from .foreign_files import (
    STATED,
    aiperf,
    answer,
    counters,
    metrics_line,
    one_file_each,
    positions,
    summary,
    write_lines,
    write_text,
)

SHEET = Path(importers.__file__).with_name("formats.toml")


def test_what_is_read_of_a_log(tmp_path):
    def check(row, folder):
        assert seen(row, folder) == row["seen"]

    check_rows(rows_in(IMPORTED, tmp_path), check)


def test_what_does_not_fit_is_refused_by_its_field(tmp_path):
    def check(row, folder):
        assert told(row, folder) == row["told"] != ""
        assert len(row["told"]) <= 300
        assert "\n" not in row["told"]

    check_rows(rows_in(NOT_IMPORTED, tmp_path), check)


def test_lossy_acceptance_is_remarked_wherever_the_recording_is_used(tmp_path):
    lossy = [row for row in read_rows(IMPORTED) if row["why"].endswith("is said to be lossy")]
    remarks = [imported(row, written(row, tmp_path)).about.remarks for row in lossy]
    assert [len(each) for each in remarks] == [1, 1]
    assert all(told.startswith("lossy by ") for (told,) in remarks)


def has_placed(request):
    return any(0 < rounds.get("rounds", 0) == rounds["placed"] for rounds in request.get("rounds", {}).values())


PLACED = [row for row in read_rows(IMPORTED) if any(has_placed(one) for one in row["seen"]["requests"])]


def test_placed_rounds_follow_each_other_and_their_order_is_of_the_seed(tmp_path):
    moved = 0
    for number, row in enumerate(PLACED):
        paths = written(row, tmp_path)
        drawn = [imported(row | {"options": row["options"] | {"seed": seed}}, paths) for seed in (0, 0, 1)]
        one, same, other = ([repr(request) for request in recording.requests] for recording in drawn)
        assert one == same, number
        moved += one != other
        for request in drawn[0].requests:
            for rounds in request.rounds.values():
                assert {rounds.start.dtype, rounds.accepted.dtype, rounds.drafted.dtype} == {np.dtype(np.int32)}
                assert (rounds.accepted <= rounds.drafted).all()
                ends = zip(rounds.start.tolist(), rounds.accepted.tolist(), strict=True)
                assert all(start + kept + 1 == after for (start, kept), (after, _) in pairwise(ends))
    assert moved > len(PLACED) / 4


def test_plain_steps_that_are_not_listed_are_placed_by_the_seed(tmp_path):
    (row,) = (row for row in read_rows(IMPORTED) if row["why"].startswith("steps that are not listed are placed"))
    paths, starts = written(row, tmp_path), set()
    for seed in (0, 0, 1, 2):
        rounds = imported(row | {"options": {"seed": seed}}, paths).requests[0].rounds["drafter"]
        assert rounds.start.tolist() == (np.cumsum(rounds.accepted + 1) - rounds.accepted).tolist()
        assert rounds.accepted[~rounds.placed].tolist() == [2, 0, 1]
        assert (rounds.drafted[rounds.placed] == 0).all()
        starts.add(str(rounds.start))
    assert len(starts) == 3


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.lists(st.floats(0.3, 1.0), min_size=5, max_size=5))
def test_lines_of_any_depths_give_the_rates_that_all_of_them_have(tmp_path_factory, depths, kept):
    """Each line has 1000 drafts of its depth, kept as always; rates are rounded to three decimals."""
    rates = np.round(np.cumprod(kept), 3)
    lines = []
    for depth in depths:
        stated = [*rates[:depth], *[0.0] * (5 - depth)]
        lines.append(metrics_line(stated, round(1000 * sum(stated)), 1000 * depth, depth=depth))
    path = write_text(tmp_path_factory.mktemp("log") / "vllm.log", *lines)
    recording = read_recording("vllm-log", [path], ImportOptions(**STATED["vllm-log"]))
    (drafter,) = recording.meta.drafters
    assert drafter.window == max(depths)
    hazards = [*drafter.stated.hazards] + [drafter.stated.hazards[-1]] * drafter.window
    np.testing.assert_allclose(np.cumprod(hazards[: drafter.window]), rates[: max(depths)], atol=2e-3)
    assert any("positions from" in note for note in recording.meta.notes) == (max(depths) < 5)


FIRST_LINES = (
    "INFO [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='meta-llama/Llama-3.1-8B-Instruct', "
    "speculative_config=SpeculativeConfig(method='eagle3', model='yuhuili/EAGLE3-LLaMA3.1-Instruct-8B', "
    "num_spec_tokens=5), tokenizer='meta-llama/Llama-3.1-8B-Instruct'",
    "INFO [utils.py:233] non-default args: {'model': 'meta-llama/Llama-3.1-8B-Instruct', 'speculative_config': "
    "{'method': 'eagle3', 'model': 'yuhuili/EAGLE3-LLaMA3.1-Instruct-8B', 'num_speculative_tokens': 5}}",
)


def test_first_lines_of_vllm_name_models_and_version(tmp_path):
    line, stated = metrics_line([0.7, 0.5], 120, 200), STATED["vllm-log"]
    for first in FIRST_LINES:
        meta = read_recording("vllm-log", [write_text(tmp_path / "a.log", first, line)], ImportOptions(**stated)).meta
        assert meta.served_model == "llama-3.1-8b"
        assert [shape.name for shape in meta.models] == ["drafter"]
        assert meta.models[0] == shape_called("eagle3-llama-3.1-8b", "drafter", None)
        assert meta.software == ({"vllm": "0.11.0"} if "v0.11.0" in first else {})
        assert meta.drafts_by == "eagle3=yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"
    # So a head that is given later needs not name it again.
    named = write_text(tmp_path / "c.log", "INFO 'model': 'meta-llama/Llama-3.1-8B-Instruct'", line)
    given = read_recording("vllm-log", [named], ImportOptions(**stated)).with_shapes(["drafter=eagle3"])
    assert given.meta.models == (shape_called("eagle3-llama-3.1-8b", "drafter", None),)
    # A head whose name leaves it out is one for the model that is served; a model that nobody knows has no shape.
    for drafter, shapes in (("x/EAGLE3-head", given.meta.models), ("x/unheard-of", ())):
        named = write_text(
            tmp_path / "d.log", FIRST_LINES[0].replace("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", drafter), line
        )
        assert read_recording("vllm-log", [named], ImportOptions(**stated)).meta.models == shapes
    silent = read_recording("vllm-log", [write_text(tmp_path / "b.log", line)], ImportOptions(**stated)).meta
    assert (silent.served_model, silent.models, silent.software, silent.drafts_by) == ("", (), {}, "")


@pytest.mark.parametrize(
    ("arguments", "drafts_by"),
    [
        ("{'method': 'draft_model', 'model': 'a/b'}", "model=a/b"),
        ("{'method': 'mtp', 'num_speculative_tokens': 2}", "mtp"),
        ("{'method': 'mtp', 'model': 'm'}", "mtp"),
        ("{'method': 'mtp', 'model': 'a/b'}", "mtp=a/b"),
        ("{'method': 'deepseek_mtp'}, 'speculative_config': {'method': 'mtp', 'model': 'm'}", "mtp"),
        ("{'method': 'suffix'}", "suffix"),
        ("{'method': 'medusa', 'model': 'a/b'}", ""),
        ("{'model': 'a/b'}", ""),
        ("{'method': 'eagle', 'model': 'a/b'}, 'speculative_config': {'method': 'eagle', 'model': 'a/c'}", ""),
        ("{'method': 'eagle'}, 'kv': {'method': 'zip'}", ""),
    ],
)
def test_first_lines_say_what_drafts_or_nothing_is_said(arguments, drafts_by, tmp_path):
    first = f"INFO [utils.py:233] non-default args: {{'model': 'm', 'speculative_config': {arguments}}}"
    log = write_text(tmp_path / "a.log", first, metrics_line([0.7, 0.5], 120, 200))
    assert read_recording("vllm-log", [log], ImportOptions(**STATED["vllm-log"])).meta.drafts_by == drafts_by


SGLANG_ARGUMENTS = {
    "model_path": "meta-llama/Llama-3.1-8B-Instruct",
    "speculative_algorithm": "EAGLE3",
    "speculative_draft_model_path": "jamesliu1/sglang-EAGLE3-Llama-3.1-Instruct-8B",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}


def test_arguments_of_sglang_name_models(tmp_path):
    """In its log as Python, in results of bench_serving as JSON."""
    said = ", ".join(f"{key}={value!r}" for key, value in SGLANG_ARGUMENTS.items())
    line = "[2026-11-28 09:00:12] Decode batch, #running-req: 8, #token: 1, accept len: 2.50, accept rate: 0.50"
    log = write_text(tmp_path / "a.log", f"[2026-11-28 09:00:00] server_args=ServerArgs({said}, tp_size=1)", line)
    totals = {"completed": 8, "total_input_tokens": 800, "total_output_tokens": 1600, "accept_length": 2.5}
    result = {"backend": "sglang", "max_concurrency": 4, **totals, "server_info": SGLANG_ARGUMENTS}
    bench = write_text(tmp_path / "b.jsonl", json.dumps(result))
    for name, file, options in (
        ("sglang-log", log, STATED["vllm-log"]),
        ("sglang-bench", bench, {"windows": {"drafter": 3}}),
    ):
        meta = read_recording(name, [file], ImportOptions(**options)).meta
        assert meta.served_model == "llama-3.1-8b"
        assert meta.models == (shape_called("eagle3-llama-3.1-8b", "drafter", None),)
        assert meta.drafts_by == "eagle3=jamesliu1/sglang-EAGLE3-Llama-3.1-Instruct-8B"


def _queried(pages, path):
    """The series of pages of metrics, a minute apart, as Prometheus's HTTP API answers a query for a range."""
    series = {}
    for minute, page in enumerate(pages):
        for line in page:
            (family,) = text_string_to_metric_families(f"{line}\n")
            (one,) = family.samples
            series.setdefault((one.name, tuple(one.labels.items())), []).append([1e9 + 60 * minute, str(one.value)])
    found = [
        {"metric": {"__name__": name, **dict(labels)}, "values": values} for (name, labels), values in series.items()
    ]
    path.write_text(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": found}}))
    return path


def test_what_prometheus_answers_is_read_as_the_pages_it_took(tmp_path):
    pages = [counters(n, [n // 2, n // 4], requests=n // 10, tokens=n * 2)[1:] for n in (50, 90, 200)]
    pages = [[*page, f'vllm:num_requests_running{{engine="0"}} {n}'] for page, n in zip(pages, (1, 2, 6), strict=True)]
    texts = [write_text(tmp_path / f"page{minute}", "\n".join(page)) for minute, page in enumerate(pages)]
    whole = _queried(pages, tmp_path / "whole")
    lines = range(len(pages[0]))
    parts = [_queried([[page[line]] for page in pages], tmp_path / f"part{line}") for line in lines]
    found = [read_recording("auto", files) for files in (texts, [whole], parts)]
    assert [one.meta.drafters for one in found[1:]] == [found[0].meta.drafters] * 2
    assert [len(one.requests) for one in found] == [15] * 3
    ran = "requests that ran, for --batch: 1 to 6 at the times of the pages, 3 on average"
    assert [ran in one.meta.notes for one in found] == [True] * 3
    with pytest.raises(TraceFormatError, match="file: must be a page of metrics, as others are"):
        read_recording("auto", [whole, texts[0]])
    whole.write_text(whole.read_text().replace("1000000060.0", '"then"'))
    with pytest.raises(TraceFormatError, match="values: must be pairs of a time and a value, got 'a list of 2'"):
        read_recording("auto", [whole])


def test_a_log_of_vllm_says_how_many_requests_ran_with_its_drafts(tmp_path):
    """Each line of drafts follows one of its engine; sums over several engines tell no batch."""

    def log(*running, of="Engine 000:"):
        ran = (f"{of} Avg generation throughput: 9 tokens/s, Running: {n} reqs, Waiting: 0 reqs" for n in running)
        return [line for told in ran for line in (told, metrics_line([0.8, 0.5], 130, 200))]

    stated = ImportOptions(**STATED["vllm-log"])
    notes = read_recording("vllm-log", [write_text(tmp_path / "one", *log(4, 8, 9))], stated).meta.notes
    assert "requests that ran, for --batch: 4 to 9 at the times of the lines, 7 on average" in notes
    for lines in (log(4), log(4, 8, of="2 Engines Aggregated:")):
        found = read_recording("vllm-log", [write_text(tmp_path / "other", *lines)], stated)
        assert "requests that ran" not in " ".join(found.meta.notes)


def test_a_series_that_begins_later_is_of_the_page_of_its_time(tmp_path):
    """Prometheus sorts series by labels, so one that a server makes at its first answer may come first."""
    pages = [counters(n, [n // 2], requests=n // 10, tokens=2 * n)[1:] for n in (50, 90, 200)]
    pages = [sorted(page, key=lambda line: "request_success" not in line) for page in pages]
    texts = [write_text(tmp_path / f"page{at}", "\n".join(page[not at :])) for at, page in enumerate(pages)]
    whole = _queried(pages, tmp_path / "whole")
    queried = json.loads(whole.read_text())
    del queried["data"]["result"][0]["values"][0]
    whole.write_text(json.dumps(queried))
    found = [read_recording("auto", files) for files in (texts, [whole])]
    assert [len(one.requests) for one in found] == [20, 20]
    assert found[0].meta.drafters == found[1].meta.drafters


def test_a_log_that_is_cut_says_so_of_its_last_line_alone(tmp_path):
    line, path = metrics_line([0.7, 0.5, 0.3], 150, 300), tmp_path / "a.log"
    cut = line[: line.index("0.300") - 2]
    for text, is_cut in ((f"{line}\n{cut}", True), (f"{line}\n{cut}\n", False), (f"{cut}\n{line}", False)):
        path.write_text(text)
        with pytest.raises(TraceFormatError) as error:
            read_recording("vllm-log", [path])
        assert error.value.field == "Mean acceptance length"
        assert error.value.rule.endswith(" (the file's last line: is it cut?)") == is_cut


def test_rounding_is_told_by_the_digits_that_are_printed():
    halves = {"3": 0.5, "3.0": 0.05, "0.554": 0.0005, "5e-05": 0.5e-5, "1.25e-05": 0.5e-7}
    assert {text: half_of_last_digit(text) for text in halves} == pytest.approx(halves)


# -- formats


@pytest.mark.parametrize("name", format_names())
def test_a_format_is_told_by_its_files_written_and_read_again(tmp_path, name):
    files, options = one_file_each(tmp_path)[name], ImportOptions(**STATED.get(name, {}))
    assert detect(files).name == detect(files[::-1]).name == name
    assert choose_format("auto", files) is format_named(name)
    wanted = read_recording(name, files, options)
    assert import_recording(name, files, tmp_path / "t.trace", options) == wanted.meta
    assert_same_rounds(read_rounds(tmp_path / "t.trace"), wanted)


def test_the_list_of_formats(tmp_path):
    assert set(format_names()) == set(tomllib.loads(SHEET.read_text())) == set(one_file_each(tmp_path))
    for known in FORMATS:
        assert known.words
        assert known.keys
        assert [note.split(":")[0] for note in known.notes] == ["Exact", "Unknown"]
        assert all(note.endswith(".") and "\n" not in note for note in known.notes)


def test_files_of_two_formats_or_of_two_at_once(tmp_path):
    files = one_file_each(tmp_path)
    both = write_lines(tmp_path / "both.jsonl", {"id": 1, "drafters": {}, "question_id": 1, "choices": []})
    for paths, rule in (
        ([*files["vllm-detailed"], *files["positions"]], "format: must be vllm-detailed as the files before it"),
        ([*files["eagle-timed"][::-1], *files["positions"]], "format: must be eagle-timed"),
        ([both], "must be named, the file could be spec-bench or positions"),
    ):
        with pytest.raises(TraceFormatError, match=rf"{paths[-1].name}: .*{rule}"):
            detect(paths)
    for name, paths, rule in (
        ("auto", [], "files must name at least one file"),
        ("spec-bench", [Path("x"), Path("y"), Path("x")], "files must be given once each, got 'x'"),
        ("csv", [Path("x")], r"format must be auto or a known one \(known are .*, got 'csv'"),
    ):
        with pytest.raises(ValueError, match=rule):
            choose_format(name, paths)
    with pytest.raises(ValueError, match=r"format must be auto or a known one .known are eagle-timed, spec-bench, "):
        format_named("csv")


def test_requests_pass_by_one_at_a_time_and_a_failed_import_leaves_nothing(tmp_path):
    passed = []
    watch = lambda requests: (passed.append(request.request_id) or request for request in requests)  # noqa: E731
    path = write_lines(tmp_path / "x.jsonl", positions("a", draft=[1]), positions("b", draft=[2, 1]))
    import_recording("positions", [path], tmp_path / "t.trace", watch=watch)
    assert passed == ["a", "b"]
    (tmp_path / "out").mkdir()
    lines = [positions(str(number), draft=[1, 2, 1]) for number in range(50)]
    path = write_lines(tmp_path / "x.jsonl", *lines, positions("0", draft=[1]))
    with pytest.raises(TraceFormatError, match="line 51: id: must be unique, got '0'"):
        import_recording("positions", [path], tmp_path / "out" / "t.trace")
    assert list((tmp_path / "out").iterdir()) == []


def test_lines_are_blamed_on_their_own_file_whichever_comes_first(tmp_path):
    bad = {"id": "bad", "metrics": {}}
    fine = write_lines(tmp_path / "fine.jsonl", summary("a", [1, 2]), bad, summary("b", [1, 2]))
    worse = write_lines(tmp_path / "bad.jsonl", bad, bad)
    for files in ([fine, worse], [worse, fine]):
        with pytest.raises(TraceFormatError, match=rf"^{worse}: line 1: speculative_decoding: .*all lines are bad"):
            read_recording("vllm-summary", files, ImportOptions(skip_bad_lines=True))


# -- files of no known format


# What files hold, byte for byte as Latin-1, and what is told of them here and in folders of long names.
UNKNOWN = read_rows(Path(__file__).with_name("unknown.jsonl"))
FOLDERS = (".", "logs of some server/on some day")
ENDLESS = {
    "thousands of keys": (json.dumps({f"k{number}": number for number in range(20_000)}).encode(), "resembles none"),
    "a long key": (json.dumps({"k" * 100_000: 1}).encode(), "resembles none"),
    "a long text": (json.dumps({"text": "x" * 1_000_000}).encode(), "resembles none"),
    "deep JSON": (b'{"a": ' + b"[" * 50_000, "nested too deep"),
    "a line without end": (b"word " * 200_000, "resembles none"),
}


def refused_line(tmp_path, folder, content, name="auto"):
    """The line that a file is refused with, by the command, in a folder."""
    path = os.path.relpath(tmp_path / folder / "my file.log")
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_bytes(content)
    line = refused("trace", "import", name, path, "--out", "x.trace")
    assert line.startswith(f"{path}: ")
    assert len(f"paceline: error: {line}") <= 300
    assert line.isprintable()
    assert not (tmp_path / "x.trace").exists()
    return line


@pytest.mark.parametrize("row", UNKNOWN, ids=lambda row: row["what"])
def test_one_short_line_says_what_it_is_and_what_to_save(tmp_path, monkeypatch, row):
    monkeypatch.chdir(tmp_path)
    assert [refused_line(tmp_path, folder, row["content"].encode("latin-1")) for folder in FOLDERS] == row["told"]


def test_a_rule_of_the_whole_recording_names_the_value(tmp_path, monkeypatch):
    """Also one whose words are pydantic's."""
    path = tmp_path / "rounds.json"
    path.write_text('{"per_request_committed_tokens_per_iteration": {"0": [2, 1]}}')
    with pytest.raises(
        ValueError, match=r"^recording: names of drafters and target must be unique, got .'target', 'ta"
    ):
        read_recording("frontier", [path], ImportOptions(names={path.name: "target"}))
    monkeypatch.setattr("paceline.traces.importers.formats._served_model", lambda _: 5)
    with pytest.raises(ValueError, match=r"^served_model: Input should be a valid string, got 5$"):
        read_recording("frontier", [path])


@pytest.mark.parametrize("name", ENDLESS)
def test_the_line_is_short_whatever_the_length_of_the_file(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    content, words = ENDLESS[name]
    for folder in FOLDERS:
        assert words in refused_line(tmp_path, folder, content)


def test_a_cut_file_of_every_format_and_one_of_another_are_told_shortly(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, files in one_file_each(tmp_path).items():
        half = files[0].read_bytes()
        (tmp_path / "half").write_bytes(half[: len(half) // 3].replace(b"accept", b"acept").replace(b"spec_", b"spek_"))
        for form in ("auto", name):
            ran = paceline("trace", "import", form, "half", "--out", "x.trace")
            assert ran.code == (0 if name == "llamacpp-log" else 2), (name, form)  # a log ends anywhere
            assert len(ran.told) <= 300, (name, form)
            shutil.rmtree(tmp_path / "x.trace", ignore_errors=True)
        refused_line(tmp_path, ".", b"nothing of the kind\n", name)


# -- NaN and Infinity, as Python writes them into JSON: they pass where nobody reads, and are refused by name elsewhere


def numbers(found, path=()):
    """Paths of all numbers within JSON."""
    if isinstance(found, (dict, list)):
        for key, value in found.items() if isinstance(found, dict) else enumerate(found):
            yield from numbers(value, (*path, key))
    elif not isinstance(found, (str, bool, type(None))):
        yield path


def infinite(found, path):
    """The same object with no number at the end of a path of keys."""
    found = copy.deepcopy(found)
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = float("inf")
    return found


OF_JSON = (
    *("spec-bench", "eagle-timed", "vllm-detailed", "positions", "frontier", "vllm-summary", "sglang-meta", "trtllm"),
    *("llamacpp-timings", "vllm-bench", "sglang-bench"),
)


@pytest.mark.parametrize("name", OF_JSON)
def test_a_number_that_is_none_is_refused_by_its_field_or_read_by_nobody(tmp_path, name):
    files, options = one_file_each(tmp_path)[name], ImportOptions(name="x", **STATED.get(name, {}))
    sound, was_refused = read_recording(name, files, options), False
    for file in files:
        text = file.read_text()
        found = [json.loads(line) for line in text.splitlines()]
        for number, path in [(number, path) for number, line in enumerate(found) for path in numbers(line)]:
            write_lines(file, *found[:number], infinite(found[number], path), *found[number + 1 :])
            line = ""
            try:
                assert_same_rounds(read_recording(name, files, options), sound)
            except TraceFormatError as error:
                line, was_refused = str(error), True
            if line:
                assert next(part for part in reversed(path) if isinstance(part, str)) in line
                assert line.endswith("got inf")
        file.write_text(text)
    assert was_refused


def test_sessions_are_those_that_logs_say(tmp_path):
    """Turns and samples of a question, and records of one `session_num`; a format that knows none says so."""
    asked = answer(1, [2, 1], [1, 3]), answer(2, [1, 2])
    asked[1]["choices"] *= 2
    answers = write_lines(tmp_path / "answers.jsonl", *asked)
    found = read_recording("spec-bench", [answers], ImportOptions(name="x"))
    assert [(one.request_id, one.session) for one in found.requests] == [
        *(("1/1", "1"), ("1/2", "1"), ("2/1", "2"), ("2/1/1", "2"))
    ]
    records = [aiperf(name, [2, 0, 1], [3, 3, 3]) for name in "abc"]
    for record, number in zip(records, (0, 0, 1), strict=True):
        record["metadata"]["session_num"] = number
    del records[2]["metadata"]["x_request_id"]  # then the number is all that calls it
    found = read_recording("aiperf", [write_lines(tmp_path / "profile.jsonl", *records)], ImportOptions(name="x"))
    assert [(one.request_id, one.session) for one in found.requests] == [("a", "0"), ("b", "0"), ("1", "")]
    placed = write_lines(tmp_path / "places.jsonl", positions("q", d=[2, 1, 1]))
    assert not read_recording("positions", [placed], ImportOptions(name="x")).requests[0].session


# -- drawn rounds meet the totals exactly, and are as likely as the assumption says


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=8), st.data())
def test_a_spread_adds_up_within_bounds_and_is_even(bounds, data):
    least = np.array([low for low, _ in bounds])
    most = np.array([low + more for low, more in bounds])
    total = data.draw(st.integers(int(least.sum()), int(most.sum())))
    counts = spread(total, least, most, np.random.default_rng(0))
    assert counts.sum() == total
    assert (counts >= least).all()
    assert (counts <= most).all()
    free = [count for count, low, high in zip(counts, least, most, strict=True) if low < count < high]
    assert not free or max(free) - min(free) <= 1


@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.data())
def test_accepted_tokens_add_up_and_fit_their_drafts(drafted, data):
    drafted = np.array(drafted)
    total = data.draw(st.integers(0, int(drafted.sum())))
    one = min(total, int(drafted.max()))
    accepted = draw_accepted(total, drafted, np.random.default_rng(1), one_keeps=one)
    assert accepted.sum() == total
    assert accepted.max() >= one
    assert (accepted >= 0).all()
    assert (accepted <= drafted).all()


def test_accepted_tokens_are_as_likely_as_the_assumption_says():
    """Against all ways in which four rounds can keep five tokens, each with its probability given the sum."""
    drafted, total, num_draws = np.array([3, 3, 2, 3]), 5, 700
    hazard = constant_hazard(total / 4, drafted)
    ways = {}
    for kept in product(*(range(most + 1) for most in drafted)):
        if sum(kept) == total:
            ways[kept] = np.prod(
                [hazard**k * (1 - hazard if k < most else 1) for k, most in zip(kept, drafted, strict=True)]
            )
    expected = {way: num_draws * share / sum(ways.values()) for way, share in ways.items()}
    drawn = Counter(
        tuple(draw_accepted(total, drafted, np.random.default_rng(seed)).tolist()) for seed in range(num_draws)
    )
    assert set(drawn) <= set(ways)
    chi_square = sum((drawn[way] - count) ** 2 / count for way, count in expected.items())
    freedom = len(ways) - 1
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom)


def test_a_constant_hazard_meets_its_mean():
    for window, share in product((1, 3, 8), (0.0, 0.1, 0.5, 0.97, 1.0)):
        hazard = constant_hazard(share * window, np.array([window]))
        assert sum(hazard**depth for depth in range(1, window + 1)) == pytest.approx(share * window, abs=1e-9)


def test_ends_of_answers_are_cut_once():
    def steps(tokens, hazard, window):
        emitted = [(kept + 1, hazard**kept * (1 - hazard)) for kept in range(window)] + [(window + 1, hazard**window)]
        return 1 + sum(prob * steps(tokens - many, hazard, window) for many, prob in emitted) if tokens > 0 else 0.0

    for tokens, hazard, window in ((2, 0.6, 1), (5, 0.8, 3), (9, 0.5, 2)):
        answers = np.array([tokens, tokens, tokens + 1])
        total = sum(steps(many, hazard, window) for many in answers.tolist())
        assert hazard_of_steps(answers, total, window) == pytest.approx(hazard)
        assert hazard_of_steps(answers, np.sum(-(-answers // (window + 1))) - 0.1, window) is None
    # A long answer: a step for each mean round, of 1.5 tokens, and for the third of a token that the last overshoots.
    assert hazard_of_steps(np.array([10**6]), (10**6 + 1 / 3) / 1.5, 1) == pytest.approx(0.5, abs=1e-9)


def test_what_ends_cut_of_whole_steps_hides_no_plain_ones(tmp_path):
    """vLLM counts a step before the answer's end cuts it; answers of 20 tokens, half of whose steps draft three."""
    generator, kept = np.random.default_rng(0), []
    for _ in range(6000):
        left = 19
        while left > 0:
            drafts = generator.random() < 0.5
            kept += [min(int(generator.geometric(0.3)) - 1, 3)] if drafts else []
            left -= 1 + (kept[-1] if drafts else 0)
    by_place = [sum(one > place for one in kept) for place in range(3)]
    page = counters(len(kept), by_place, requests=6000, tokens=6000 * 20)
    found = read_recording("vllm-metrics", [write_text(tmp_path / "x", *page)])
    assert found.meta.drafters[0].stated.drafting == pytest.approx(0.5, abs=0.005)  # by the plain ones left: 0.533


def test_what_a_cut_count_would_mean_is_remarked(tmp_path):
    """Whole steps of (0.7, 3) give 2.533 tokens; ends of answers of 20 tokens cut that to 2.4 (drawn in 6,000)."""
    result = {"completed": 6000, "total_output_tokens": 120_000, "accept_length": 2.3996}
    for tokens, remarked in ((120_000, True), (1_800_000, False)):
        path = write_lines(tmp_path / "x.json", result | {"total_output_tokens": tokens})
        notes = read_recording("sglang-bench", [path], ImportOptions(windows={"drafter": 3})).meta.notes
        assert any(told.endswith("does, steps gave 2.53 tokens on average, not 2.40") for told in notes) == remarked


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.integers(-3, 6), st.integers(0, 20))
def test_placed_rounds_explain_all_tokens(accepted, missing, seed):
    accepted = np.array(accepted)
    explained = int(accepted.sum()) + len(accepted)
    generator = np.random.default_rng(seed)
    found = place(accepted, np.full(len(accepted), 4), num_tokens=explained + missing, generator=generator)
    if missing < 0 and accepted.max() < -missing:
        assert found is None
        return
    placed, drafted = found
    assert sorted(placed.tolist()) == sorted([*accepted.tolist(), *[0] * max(missing, 0)])
    assert (drafted == 0).sum() == max(missing, 0)
    assert explained - placed[-1] - 1 < explained + min(missing, 0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=6), st.integers(0, 99))
def test_paired_drafts_are_as_long_as_what_was_kept(pairs, seed):
    accepted = np.array([kept for kept, _ in pairs])
    drafts = np.random.default_rng(seed).permutation([kept + more for kept, more in pairs])
    paired = pair(accepted, drafts, np.random.default_rng(seed))
    assert (paired >= accepted).all()
    assert sorted(paired) == sorted(drafts)


def drawn_orders(count, draw):
    return Counter(tuple(np.asarray(draw(np.random.default_rng(seed))).tolist()) for seed in range(count))


def test_every_order_is_as_likely():
    three, drafts = np.array([0, 1, 2]), np.array([3, 1, 2])
    placed = drawn_orders(1200, lambda generator: place(three, np.full(3, 4), num_tokens=6, generator=generator)[0])
    assert len(placed) == 6
    assert min(placed.values()) > 140
    paired = drawn_orders(2000, lambda generator: pair(three, drafts, generator))
    assert set(paired) == {order for order in permutations((3, 1, 2)) if all(np.array(order) >= three)}
    assert max(paired.values()) - min(paired.values()) < 2000 / len(paired) / 4
    plain = drawn_orders(2000, lambda generator: place_plain_steps(2, 2, generator))
    assert len(plain) == 6
    assert max(plain.values()) < 1.4 * min(plain.values())
