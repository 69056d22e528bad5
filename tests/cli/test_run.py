"""`paceline run`: what it writes and how it ends; quality of lossy texts, rollouts, and what near ties say."""

import json
import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from paceline.cli.errors import BAD_INPUT, run_command
from paceline.cli.options import GivenMemory, LiveSampling, RecordedSampling, limit_bytes
from paceline.policies.fixed import Plain
from paceline.studies.setting import named_policy
from paceline.traces.contexts.on_disk import read_trace
from paceline.traces.meta import Sampling

from ..runtime.generation.chained_models import letters
from ..runtime.pools.window_pools import write_window_pool
from ..traces.importers.foreign_files import write_lines
from .command_line import done, paceline, refused, with_own

pytestmark = pytest.mark.usefixtures("pool_loaded_once")

REJECTION = ("--sampling", "rejection", "--temperature", 0.9, "--seed", 3)
COUPLED = ("--sampling", "coupled", "--temperature", 0.9, "--seed", 3)
POLICIES = """
import os, signal, threading
from paceline.policies import Draft, Ratio, Verify


class Lossy:
    def __init__(self, pool, lenience: float = 0.001):
        self.draft, self.verify = Draft("draft", 2), Verify(pool.target, Ratio(lenience))

    def decide(self, seen):
        return self.verify if seen.num_pending or seen.room < 1 else self.draft

    def learn(self, outcome):
        pass


class Interrupts:
    def __init__(self, pool):
        self.target, self.calls = pool.target, 0

    def decide(self, seen):
        self.calls += 1
        if self.calls == 9:
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
            os.kill(os.getpid(), signal.SIGINT)
        return Verify(self.target)

    def learn(self, outcome):
        pass
"""
LOSSY = ("--policy", "mine.py:Lossy")


@pytest.fixture(autouse=True)
def place(tmp_path):
    (tmp_path / "mine.py").write_text(POLICIES)
    texts = ("Q: one", "Q: two and two", "Q: three")
    write_lines(
        tmp_path / "prompts.jsonl",
        *({"id": f"r{index}", "tag": "sums", "prompt": text} for index, text in enumerate(texts)),
    )
    return tmp_path


def ran(*options):
    return ("run", *with_own(("--prompts", "prompts.jsonl", "--max-new-tokens", 6), options))


def data(*options):
    return json.loads(done(*ran(*options), "--json", "-"))


def tokens(*options):
    return [row["tokens"] for row in data(*options)["outputs"]]


def test_how_it_runs_does_not_change_the_text():
    plain = tokens()
    assert tokens("--cache", "mask", "--dead-share", 0.2, "--batch", 3) == plain
    assert tokens("--forward", "modules", "--batch", 3, "--kv-limit-mib", 3) == plain
    other = paceline(*ran("--json", "-", "--debug", "--policy", "draft:2/mid:3/target"))
    assert [row["tokens"] for row in json.loads(other.out)["outputs"]] == plain
    first, *products = other.err.splitlines()
    assert re.fullmatch(r"paceline: forwards of draft: \w+, mid: \w+, slim: \w+, target: \w+", first)
    assert all(re.match(r"paceline: product of float32 \d+x\d+: \S+ from 1\b", line) for line in products)
    by = paceline(*ran("--json", "-", "--debug", "--limit", 1, "--forward", "fused:plain-rows"))
    assert by.code == 0
    assert "product of every weight: plain-rows from 1 tokens" in by.err


def test_a_request_that_fails_leaves_the_others_and_exits_with_one(place):
    """So little memory that the longer prompts fit not even alone."""
    write_lines(place / "prompts.jsonl", {"id": "short", "prompt": "Q"}, {"id": "long", "prompt": "word " * 100})
    result = paceline(*ran("--out", "out", "--kv-limit-mib", 1.5))
    assert result.code == 1
    assert "paceline: failed: request long: " in result.err
    assert "1 of 2 requests failed" in result.err
    assert "Traceback" not in result.err
    lines = (place / "out" / "outputs.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["finish_reason"] for line in lines] == ["length", "error"]


def test_without_an_answer_there_is_nothing_to_draw(place):
    write_lines(place / "prompts.jsonl", {"id": "long", "prompt": "word " * 100})
    result = paceline(*ran("--kv-limit-mib", 1.5, "--figure", "f.svg"))
    assert result.code == 2
    *failed, refusal = result.err.splitlines()
    assert any(line.startswith("paceline: failed: request long: ") for line in failed)
    assert refusal == "paceline: error: --figure has nothing to show: no request was answered"
    assert not (place / "f.svg").exists()


def test_an_interrupt_keeps_what_is_finished(place, monkeypatch):
    class Interrupted(Plain):
        calls = 0

        def decide(self, seen):
            Interrupted.calls += 1
            if Interrupted.calls == 9:
                raise KeyboardInterrupt
            return super().decide(seen)

    monkeypatch.setattr("paceline.studies.decode.named_policy", lambda _: named_policy(Interrupted))
    result = paceline(*ran("--out", "out", "--json", "run.json"))
    assert result.code == 130
    assert json.loads((place / "run.json").read_text())["page"]["partial"] == "1 of 3 requests ended"
    told = r"paceline: error: interrupted: in Interrupted at \S*test_run\.py:\d+; 1 of 3 requests ended and are kept\n"
    assert re.fullmatch(told, result.err)
    assert len((place / "out" / "outputs.jsonl").read_text(encoding="utf-8").splitlines()) == 1


def test_a_second_ctrl_c_is_ignored_while_the_finished_are_written(place, signals_put_back):
    found = paceline(*ran("--out", "out", "--policy", "mine.py:Interrupts"))
    assert found.code == 130
    told = r"interrupted: in mine.py:Interrupts at mine.py:\d+; 1 of 3 requests ended and are kept\n"
    assert re.fullmatch(f"paceline: error: {told}", found.err)
    assert (place / "out" / "outputs.jsonl").is_file()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--stop", ""), "--stop must not be empty"),
        (("--stop", "\udcff"), "--stop must be UTF-8"),
        (("--policy", "plain", "--policy", "ngram", "--out", "o"), "--out goes with one --policy, got plain, ngram"),
        (("--out", "same", "--json", "same"), "--json must be a file of its own, got 'same'"),
        (("--top-k", 3), "greedy takes none"),
        (("--kv-limit-mib", 0), "--kv-limit-mib must be > 0"),
        (("--kv-limit-mib", "nan"), "--kv-limit-mib must be > 0"),
        (("--kv-limit-mib", "much"), "--kv-limit-mib must be > 0 and finite, got much"),
        (("--kv-limit-mib", "cpu=0"), "--kv-limit-mib must be > 0 and finite, got 0"),
        (("--kv-limit-mib", "3", "--kv-limit-mib", "4"), "--kv-limit-mib must be NAME=MIB, got '3'"),
        (("--kv-limit-mib", "cuda:7=3"), "--kv-limit-mib must name devices of the pool (cpu), got 'cuda:7'"),
        (("--device", "cpu"), "--device must be NAME=DEVICE, got 'cpu'"),
        (("--device", "slim=cpu"), "as a submodel is where its model is, got 'slim'"),
        (("--device", "large=cpu"), "--device must name members with weights of their own (draft, mid, target)"),
        (("--device", "target=cuda:77"), "--device of target must be a device of this machine (cpu"),
        (("--dead-share", 0.5), "--dead-share belongs to --cache mask"),
        (("--prompts", "long.jsonl"), "request long: prompt of "),
        (("--policy", "mine.py:Lossy,lenience=2"), "theta must be in (0, 1], got 2.0"),
        ((*COUPLED, "--rollouts", "0@0"), "--rollouts must have at least 1 path at each depth, got 0@0"),
        ((*COUPLED, "--rollouts", "2@3/2@3"), "--rollouts must have ascending depths in [0, 2,147,483,647], got 2@3/"),
        ((*COUPLED, "--rollouts", "2@6"), "--rollouts depths must be < 6, the --max-new-tokens of an answer, got 6"),
        (
            (*COUPLED, "--rollouts", "four"),
            "--rollouts must be N@DEPTH, others behind a slash, as 4@0/2@32, got 'four'",
        ),
        ((*COUPLED, "--rollouts", "2@0", "--policy", "typical"), "--quality must be False with --rollouts"),
        (("--rollouts", "2@0"), "--rollouts must be sampled (--sampling coupled or rejection)"),
        (("--shared-attention", "off"), "--shared-attention goes with --prefix-cache, got off without one"),
    ],
)
def test_bad_options_are_one_line(place, options, told):
    write_lines(place / "long.jsonl", {"id": "long", "prompt": "many words " * 400})
    assert told in refused(*ran(*options))


def test_more_threads_or_a_larger_batch_than_the_machine_are_refused_before_it_runs(monkeypatch):
    line = refused(*ran("--threads", 1024))
    assert re.fullmatch(r"--threads must be <= \d+, as there (is|are) \d+ processors? to run on, got 1024", line)
    monkeypatch.setattr("paceline.runtime.decode.total_bytes", lambda device: 10_000)
    assert "batch must fit into memory: 3 requests" in refused(*ran("--batch", 8))


def test_fewer_requests_than_the_batch_are_told():
    assert "--batch 32: the run has 3 requests, so at most 3 run together" in done(*ran("--batch", 32))
    assert "run together" not in done(*ran("--batch", 3))


# -- texts of a lossy policy are measured after the run


def test_the_table_and_the_json_say_how_good_the_texts_are():
    text = " ".join(done(*ran(*LOSSY, "--out", "out")).split())
    assert "3 texts beside the target's own: " in text
    assert "log-likelihood per token -" in text
    assert min(pq.read_table("out/requests.parquet")["trunk_tokens"].to_pylist()) > 0
    found = data(*LOSSY)
    quality = found["summary"]["quality"]
    assert (quality["lossy"], quality["requests"], quality["known_share"]) == (True, 3, 1.0)
    assert 0 < quality["num_divergences"] <= quality["tokens"]
    assert quality["log_prob_per_token"] < 0 > quality["own_log_prob_per_token"]
    assert quality["answers_total"] is None
    without = data(*LOSSY, "--no-quality")
    assert (without["outputs"], without["summary"]["quality"]) == (found["outputs"], None)
    assert data("--policy", "draft:2/target")["summary"]["quality"] is None


def test_rejection_sampling_has_no_places_to_compare():
    text = " ".join(done(*ran(*LOSSY, *REJECTION)).split())
    assert "texts are drawn again by rejection sampling" in text
    assert "divergences," not in text
    quality = data(*LOSSY, *REJECTION)["summary"]["quality"]
    assert quality["num_divergences"] is quality["text_agreement"] is None


def test_answers_are_scored(place):
    rows = ({"id": answer, "tag": "edit", "prompt": "Q: one", "answer": answer} for answer in "xy")
    write_lines(place / "prompts.jsonl", *rows)
    quality = data(*LOSSY)["summary"]["quality"]
    assert (quality["answers_right"], quality["answers_own"], quality["answers_total"]) == (0, 0, 2)


def test_who_will_not_wait_keeps_the_answers(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.studies.decode.text_qualities", interrupted)
    result = paceline(*ran(*LOSSY, "--json", "-"))
    assert (result.code, json.loads(result.out)["summary"]["quality"]) == (0, None)
    assert result.err == "paceline: interrupted: the answers are kept, their quality is not measured\n"


# -- trees of answers


def test_a_path_that_cannot_start_is_said_and_the_exit_code_tells(place):
    write_lines(place / "prompts.jsonl", {"id": "long", "prompt": "Q: one"}, {"id": "two", "prompt": "Q: two and two"})
    # Every path but those that branch too late is answered: a stop string ends all of them at once.
    ends = [word for letter in "etaoinshr \n" for word in ("--stop", letter)]
    found = paceline(*ran(*COUPLED, "--max-new-tokens", 30, "--rollouts", "2@0/2@29", *ends))
    assert found.code == 1
    assert "paceline: failed: request long.2: must leave long after 29 tokens of answer, which ended after" in found.err
    assert "4 of 8 requests failed" in found.err


def test_members_that_share_no_attention_are_named_where_it_is_asked_for():
    asked = ran(*COUPLED, "--rollouts", "3@0", "--batch", 3, "--prefix-cache", 8, "--shared-attention", "on")
    printed = done(*asked, "--forward", "modules")
    assert "attention over what rows share is computed row by row in draft (modules), mid (modules)" in printed
    assert "row by row" not in done(*asked, "--forward", "fused")


# -- options by themselves


def test_the_memory_options_by_themselves():
    assert limit_bytes(None) is None
    assert limit_bytes(["2"]) == 2 * 2**20
    assert limit_bytes(["cpu=2", "cuda:0=0.5"]) == {"cpu": 2 * 2**20, "cuda:0": 2**19}
    assert GivenMemory().checked()["dead_share"] == 0.5


def chosen(mode, temperature=None, seed=None, top_p=None, top_k=None, kind=LiveSampling):
    return kind(sampling=mode, temperature=temperature, seed=seed, top_p=top_p, top_k=top_k).chosen()


@pytest.mark.parametrize("mode", ["coupled", "rejection"])
def test_all_options_reach_the_sampling(mode):
    wanted = Sampling(mode=mode, temperature=0.8, seed=1, top_p=0.9, top_k=40)
    assert chosen(mode, 0.8, 1, 0.9, 40) == wanted
    assert chosen(mode, 0.8, 1) == Sampling(mode=mode, temperature=0.8, seed=1)
    assert chosen("greedy") == Sampling(mode="greedy")


@pytest.mark.parametrize("option", [{"temperature": 0.8}, {"seed": 1}, {"top_p": 0.9}, {"top_k": 3}])
def test_greedy_takes_no_option(option):
    with pytest.raises(ValueError, match="belong to --sampling coupled or rejection; greedy takes none"):
        chosen("greedy", **option)
    with pytest.raises(ValueError, match="belong to --sampling coupled; greedy takes none"):
        chosen("greedy", **option, kind=RecordedSampling)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((None, 1), "needs --temperature and --seed"),
        ((0.8,), "needs --temperature and --seed"),
        ((-1.0, 1), "--temperature must be >= 0.001 and finite, got -1.0"),
        ((float("inf"), 1), "--temperature must be >= 0.001 and finite, got inf"),
        ((0.8, 1, 0.0), "--top-p must be in (0, 1], got 0.0"),
        ((0.8, 1, 1.5), "--top-p must be in (0, 1], got 1.5"),
        ((0.8, 1, float("nan")), "--top-p must be in (0, 1], got nan"),
        ((0.8, 1, None, 0), "--top-k must be >= 1, got 0"),
    ],
)
def test_sampling_that_cannot_be(capsys, options, told):
    for mode in ("coupled", "rejection"):
        assert run_command(lambda mode=mode, **_: chosen(mode, *options)) == BAD_INPUT
        assert told in capsys.readouterr().err


# -- a recording says how far rounding reaches in it, in every dtype

TIE_PROMPTS = ("a", "hello there, how do you do?", "the cat, the cat, the ca", "we go on and on, we go")
BOUNDS = {"float32": 2**-18, "bfloat16": 2**-6}


@pytest.fixture(scope="module")
def ties(tmp_path_factory):
    """By dtype (folder of a pool with prompts, recording, what `record` printed)."""
    base, found = tmp_path_factory.mktemp("half"), {}
    for dtype in BOUNDS:
        folder = write_window_pool(base / dtype, "qwen3-window", letters().backend_tokenizer, dtype=dtype)
        rows = ({"id": f"r{row}", "prompt": text} for row, text in enumerate(TIE_PROMPTS))
        write_lines(folder / "prompts.jsonl", *rows)
        told = done("record", folder / "r.trace", *with_pool(folder), "--no-costs", "--reach", 4, "--run", 4)
        found[dtype] = folder, folder / "r.trace", told
    return found


def with_pool(folder):
    return ("--pool", folder, "--prompts", folder / "prompts.jsonl", "--max-new-tokens", 20)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_record_inspect_and_compare_say_dtype_and_near_ties(ties, dtype):
    _, trace, printed = ties[dtype]
    meta = read_trace(trace).meta
    found = meta.trunk_near_ties
    assert (meta.dtype, found.bound) == (dtype, BOUNDS[dtype])
    assert 0 <= found.count <= found.tokens <= 20 * len(TIE_PROMPTS)
    told = f"{found.count} of {found.tokens} trunk tokens ({found.count / found.tokens:.1%}) at a near tie"
    assert f"{dtype}: {told}" in printed
    assert ("near tie may go the other way" in printed) == (dtype != "float32")
    assert f"{dtype}, {told}" in " ".join(done("trace", "inspect", trace).split())
    asked = ("compare", "--trace", trace, "--policy", "draft:2/target", "--cost", "h200")
    shown = " ".join(done(*asked).split())
    for words in (f"recorded in {dtype}, ", "not that a run writes the same text"):
        assert (words in shown) == (dtype != "float32")
    remarks = json.loads(done(*asked, "--json", "-"))["meta"]["remarks"]
    assert any(line.startswith(f"recorded in {dtype}, ") for line in remarks) == (dtype != "float32")


def test_coarser_rounding_finds_more_near_ties(ties):
    counts = [read_trace(ties[dtype][1]).meta.trunk_near_ties.count for dtype in BOUNDS]
    assert counts[0] <= counts[1] > 0


def test_an_older_recording_says_that_it_does_not_know(ties):
    shutil.copytree(ties["bfloat16"][1], "r.trace")
    file = Path("r.trace") / "meta.json"
    meta = json.loads(file.read_text())
    del meta["trunk_near_ties"]
    file.write_text(json.dumps(meta))
    assert read_trace(Path("r.trace")).meta.trunk_near_ties is None
    assert "bfloat16, near ties of the trunk not known" in " ".join(done("trace", "inspect", "r.trace").split())
    printed = done("compare", "--trace", "r.trace", "--policy", "draft:2/target", "--cost", "h200")
    assert "near ties of the trunk not known" in " ".join(printed.split())


def test_agree_says_whether_a_difference_stands_at_a_near_tie(ties, place):
    """Widths of forwards change what bf16 models write; the two worlds then differ, and say why."""
    folder, trace, _ = ties["bfloat16"]
    asked = ("agree", *with_pool(folder), "--trace", trace, "--batch", 3, "--policy", "draft:3/target")
    ran = paceline(*asked)
    assert ran.code in (0, 1), ran.err
    assert ran.out.count("a near tie: ") == ran.out.count("both had committed")
    assert paceline(*asked, "--json", "a.json").code == ran.code
    told = json.loads((place / "a.json").read_text())
    assert told["meta"]["dtype"] == "bfloat16"
    assert told["meta"]["trunk_near_ties"]["bound"] == 2**-6
    assert all(row["difference"] or row["near_ties"] == [] for row in told["policies"])
