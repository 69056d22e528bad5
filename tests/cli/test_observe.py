"""`paceline observe`: what a client sees of a server, and what goes wrong."""

import json
import socket
import subprocess
import sys
import time
from itertools import pairwise
from signal import SIGINT

import pytest
from paceline.runs.observed import read_observed

from ..observing.fake_server import Ways, served
from ..traces.importers.foreign_files import counters
from .command_line import done, paceline, refused, with_own

PROMPTS = [{"id": f"p{number}", "prompt": "one two three" + " more" * number} for number in range(3)]
LOAD = ("--workload", "constant:rate=200,requests=4,prompt=9,output=5", "--tag", "")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in PROMPTS))
    return tmp_path


def observe(server, *options):
    return ("observe", server.url, *with_own(("--prompts", "p.jsonl", *LOAD), options))


def test_a_run_is_what_the_server_did(folder):
    with served(Ways(prefill_s=0.02, step_s=0.01)) as server:
        found = json.loads(done(*observe(server, "--out", "run", "--json", "-")))
    run = read_observed(folder / "run")
    assert (found["requests"], found["finished"], found["failed"], found["unfinished"]) == (4, 4, 0, 0)
    assert found["finish_reasons"] == {"length": 4}
    assert found["output_tokens"] == 20
    assert found["prompt_tokens"] == sum(one.prompt_tokens for one in run.requests)
    assert len(server.bodies) == 5  # and one to warm up
    for one in run.requests:
        assert len(one.outputs_at_ps) == 5
        assert (one.outputs_at_ps[0] - one.sent_at_ps) / 1e12 > 0.02
        # Of the whole: a client on a busy machine may see the first token late, and then the others sooner.
        assert (one.ended_at_ps - one.sent_at_ps) / 1e12 > 0.06
        assert one.prompt_tokens == len(PROMPTS[int(one.prompt_id[1:])]["prompt"].split())
    due = [one.due_at_ps for one in run.requests]
    assert due == [number * 5 * 10**9 for number in range(4)]
    assert found["tpot_s"]["mean"] == pytest.approx(
        sum((one.ended_at_ps - one.outputs_at_ps[0]) / 4 for one in run.requests) / 4e12
    )


def test_metrics_shows_the_folder_as_observe_did(folder):
    with served(Ways(step_s=0.002)) as server:
        printed = done(*observe(server, "--out", "run"))
    assert done("metrics", "run") == printed
    assert "an observed run stands alone" in refused("metrics", "run", "run")
    assert refused("metrics", "run", "--slo", "ttft=1") == "--slo is for simulated runs, run was observed"


def test_chunks_are_no_tokens(folder):
    """What nobody counted is unknown, whatever number of chunks came."""
    with served(Ways(usage=False)) as server:
        found = json.loads(done(*observe(server, "--out", "run", "--json", "-")))
        printed = done(*observe(server))
    assert (found["finished"], found["uncounted"], found["output_tokens"], found["tpot_s"]) == (4, 4, None, None)
    assert found["meta"]["counted_by"] == "nobody"
    assert found["ttft_s"] is not None
    assert "tokens of 4 finished requests are unknown: the server sent no usage" in " ".join(printed.split())


def test_the_tokenizer_of_the_server_counts_where_usage_is_missing(folder):
    with served(Ways(usage=False, tokenizer=True, tokens_a_chunk=2)) as server:
        found = json.loads(done(*observe(server, "--count-tokens", "--json", "-")))
    assert (found["output_tokens"], found["meta"]["counted_by"]) == (20, "tokenizer")


@pytest.mark.parametrize(("tokenizer", "of_template"), [("vllm", 2), ("llama.cpp", 0)])
def test_prompts_are_counted_as_the_server_counts_them(folder, tokenizer, of_template):
    """vLLM counts a chat with its template; llama.cpp's server answers vLLM's question, with no tokens."""
    counts = []
    for at, chat in enumerate(([], ["--chat"])):
        with served(Ways(usage=False, tokenizer=tokenizer)) as server:
            done(*observe(server, "--count-tokens", "--out", f"run{at}", *chat))
        counts.append([one.prompt_tokens for one in read_observed(folder / f"run{at}").requests])
    assert counts[1] == [count + of_template for count in counts[0]]
    assert min(counts[0]) > 0


def test_a_chat_that_vllm_does_not_count_is_unknown(folder):
    """Its text alone lacks the tokens of the template."""
    with served(Ways(usage=False, tokenizer="no chats")) as server:
        found = json.loads(done(*observe(server, "--chat", "--count-tokens", "--out", "run", "--json", "-")))
    assert (found["meta"]["counted_by"], found["output_tokens"]) == ("nobody", 20)
    assert {one.prompt_tokens for one in read_observed(folder / "run").requests} == {None}


@pytest.mark.parametrize(
    "said", [None, [True], [{"count": True}], [{"count": -1}], [{"count": 1e3}], [{"tokens": 4}], [[]]]
)
def test_without_a_tokenizer_that_tells_a_count_nothing_is_sent(folder, said):
    ways = Ways() if said is None else Ways(usage=False, tokenizer=True, tokenized=said)
    with served(ways) as server:
        assert "has no tokenizer to ask" in refused(*observe(server, "--count-tokens", "--warmup", "0"))
        assert server.bodies == []


def test_a_tokenizer_that_stops_telling_leaves_what_was_measured(folder):
    with served(Ways(usage=False, tokenizer=True, tokenized=[{"count": 2}, {"count": 0}, {"count": True}])) as server:
        found = json.loads(done(*observe(server, "--count-tokens", "--out", "run", "--json", "-")))
    assert (found["finished"], found["output_tokens"], found["meta"]["counted_by"]) == (4, None, "nobody")
    assert len(read_observed(folder / "run").requests) == 4


def test_a_closed_loop_keeps_as_many_under_way_as_asked(folder):
    with served(Ways(together=2)) as server:
        asked = ("--concurrency", "2", "--warmup", "0", "--out", "run", "--json", "-")
        found = json.loads(done(*observe(server, *asked)))
    requests = read_observed(folder / "run").requests
    # As the client sees it: the server may still be ending an answer when the next request is there.
    under_way = [sum(other.sent_at_ps <= one.sent_at_ps < other.ended_at_ps for other in requests) for one in requests]
    assert max(under_way) == 2
    assert (found["finished"], found["meta"]["loop"], found["meta"]["concurrency"]) == (4, "closed", 2)


@pytest.mark.parametrize("options", [(), ("--concurrency", "1")])
def test_turns_of_a_session_follow_what_they_follow(folder, options):
    turn = {"wait_s": 0.03, "prompt_tokens": 9, "output_tokens": 2}
    first = {"request_id": "s", "arrives_s": 0, "prompt_tokens": 5, "output_tokens": 3, "turns": [turn, turn]}
    (folder / "w.jsonl").write_text(json.dumps(first))
    with served() as server:
        done("observe", server.url, "--prompts", "p.jsonl", "--workload", "w.jsonl", "--out", "run", *options)
    requests = read_observed(folder / "run").requests
    assert [one.request_id for one in requests] == ["s", "s/1", "s/2"]
    for before, after in pairwise(requests):
        assert after.sent_at_ps - before.ended_at_ps >= 0.03e12


def test_requests_of_a_graph_are_all_sent(folder):
    graph = [
        {"request_id": "tests", "after": ["lead"], "prompt_tokens": 9, "output_tokens": 2},
        {"request_id": "docs", "after": ["lead", "tests"], "prompt_tokens": 9, "output_tokens": 2},
    ]
    lead = {"request_id": "lead", "arrives_s": 0, "prompt_tokens": 5, "output_tokens": 3, "graph": graph}
    (folder / "w.jsonl").write_text(json.dumps(lead))
    with served() as server:
        done("observe", server.url, "--prompts", "p.jsonl", "--workload", "w.jsonl", "--out", "run")
    assert [one.request_id for one in read_observed(folder / "run").requests] == ["lead", "tests", "docs"]


def test_chat_and_options_are_sent(folder):
    with served() as server:
        done(*observe(server, "--chat", "--temperature", "0.5", "--ignore-eos", "--seed", "7", "--warmup", "0"))
        body = server.bodies[0]
    assert body["messages"][0]["role"] == "user"
    assert (body["temperature"], body["ignore_eos"], body["seed"], body["max_tokens"]) == (0.5, True, 7, 5)
    assert body["stream_options"] == {"include_usage": True}


def test_further_fields_are_sent_with_each_request_and_kept(folder):
    with served() as server:
        done(*observe(server, "--extra-body", '{"policy": "plain", "top_k": 4}', "--out", "run"))
    assert server.bodies
    assert all((body["policy"], body["top_k"], body["stream"]) == ("plain", 4, True) for body in server.bodies)
    assert read_observed(folder / "run").meta.extra_body == {"policy": "plain", "top_k": 4}


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ("{", "--extra-body must be JSON, got '{': "),
        ("[1]", "--extra-body must be a JSON object, got a list"),
        ('{"seed": 1}', "--extra-body must leave out seed, which the workload and other options decide"),
        ('{"max_completion_tokens": 9}', "--extra-body must leave out max_completion_tokens, which the workload and"),
    ],
)
def test_what_is_no_further_field_is_refused_before_anything_is_sent(folder, extra, message):
    with served() as server:
        assert refused(*observe(server, "--extra-body", extra)).startswith(message)
        assert server.bodies == []


def test_a_key_is_sent_and_shown_nowhere(folder, monkeypatch):
    monkeypatch.setenv("THE_KEY", "sesame-open")
    with served(Ways(key="sesame-open")) as server:
        printed = done(*observe(server, "--api-key-env", "THE_KEY", "--out", "run"))
        server.ways.key = "another"
        said = refused(*observe(server, "--api-key-env", "THE_KEY"))
    assert said.endswith("warm-up request 1: HTTP 401: wrong key: Bearer ***")
    kept = "".join(path.read_bytes().decode("latin-1") for path in (folder / "run").iterdir())
    assert "sesame" not in printed + said + kept


FAULTS = {
    "500": "HTTP 500: out of memory",
    "garbage": "the stream ended without [DONE] and without a finish_reason; it has '<html>gateway</html>', which is "
    "no field of an event stream (the answer had begun)",
    "error": "the server said in its stream: engine died (the answer had begun)",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_request_that_fails_is_counted_by_name_and_the_others_go_on(folder, fault):
    with served(Ways(fault={1: fault})) as server:
        ran = paceline(*observe(server, "--warmup", "0", "--concurrency", "1", "--out", "run", "--json", "-"))
        server.ways.fault = dict.fromkeys(range(99), "500")
        all_failed = paceline(*observe(server, "--warmup", "0"))
    found = json.loads(ran.out)
    assert (ran.code, found["requests"], found["finished"], found["failed"]) == (0, 4, 3, 1)
    assert list(found["failures"]) == [FAULTS[fault]]
    assert sum(bool(one.failed) for one in read_observed(folder / "run").requests) == 1
    assert all_failed.code == 1
    assert "4 requests failed: HTTP 500: out of memory" in all_failed.out


def test_an_answer_with_a_reason_needs_no_done(folder):
    with served(Ways(done=False)) as server:
        found = json.loads(done(*observe(server, "--json", "-")))
    assert found["finished"] == 4
    assert "4 answers ended with a finish_reason, and without [DONE]" in found["meta"]["notes"]


def test_acceptance_is_the_difference_of_counters_and_unknown_without_them(folder):
    names = ("drafts", "draft_tokens", "accepted_tokens")
    pages = [
        "\n".join(
            f'vllm:spec_decode_num_{name}_total{{model_name="tiny"}} {count}'
            for name, count in zip(names, counts, strict=True)
        )
        for counts in ((10, 40, 20), (15, 60, 33))
    ]
    with served(Ways(metrics=pages)) as server:
        found = json.loads(done(*observe(server, "--json", "-")))["meta"]
        server.ways.metrics = []
        unknown = json.loads(done(*observe(server, "--json", "-")))["meta"]
        server.ways.timings = {"draft_n": 4, "draft_n_accepted": 3}
        told = json.loads(done(*observe(server, "--json", "-")))["meta"]
    assert [found["acceptance"][name] for name in ("drafts", "drafted", "accepted")] == [5, 20, 13]
    assert found["acceptance"]["accept_length"] == pytest.approx(1 + 13 / 5)
    assert unknown["acceptance"] is None
    assert "HTTP 404" in unknown["acceptance_unknown"]
    assert (told["acceptance"]["drafted"], told["acceptance"]["accepted"]) == (16, 12)


def test_what_cannot_be_asked_is_refused_and_nothing_is_written(folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        there = ("--prompts", "p.jsonl", *LOAD, "--out", "run")
        assert "/v1/models: cannot be reached: Connection refused" in refused(
            "observe", f"http://127.0.0.1:{port}", *there
        )
    with served(Ways(models=("one", "two"))) as server:
        several = "--model must be given where a server lists several models or none, got one, two"
        assert refused(*observe(server, "--out", "run")) == several
        assert "(one, two), got 'three'" in refused(*observe(server, "--model", "three", "--out", "run"))
        bare = ("--model", "one", "--out", "run")
        assert refused(*observe(server, *bare, "--api-key-env", "NOT_THERE")).endswith("is set, got 'NOT_THERE'")
        assert "--tag gives all requests one" in refused(*observe(server, *bare, "--tag", "code"))
        assert "--concurrency must be in [1, 4096], got 0" in refused(*observe(server, *bare, "--concurrency", "0"))
        assert server.bodies == []
        server.ways.fault = {0: "500"}
        assert refused(*observe(server, *bare)).endswith("/v1/completions: warm-up request 1: HTTP 500: out of memory")
    for url in ("localhost:8000", "ftp://a", "http://", "http://a:b"):
        assert "URL must be http://HOST:PORT" in refused("observe", url, *there)
    assert "must hold no name and no password" in refused("observe", "http://me:secret@h", *there)
    assert not (folder / "run").exists()
    (folder / "run").mkdir()
    assert "exists already" in refused("observe", "http://h", *there)


def test_an_interrupt_keeps_what_was_measured(folder):
    with served(Ways(stuck_from=10)) as server:
        load = ("--workload", "constant:rate=20,requests=40000,prompt=9,output=5", "--tag", "", "--warmup", "0")
        command = ("observe", server.url, "--prompts", "p.jsonl", *load, "--out", "run")
        running = subprocess.Popen([sys.executable, "-m", "paceline", *command], stderr=subprocess.PIPE, text=True)
        while server.num_answered < 2 or len(server.bodies) < 12:
            assert running.poll() is None
            time.sleep(0.02)
        running.send_signal(SIGINT)
        _, said = running.communicate(timeout=600)
    run = read_observed(folder / "run")
    finished = len(run.finished)
    assert running.returncode == 130
    assert f"{finished} of {len(run.requests)} requests finished and are kept" in said
    assert (run.meta.stopped, run.failed) == ("interrupted", [])
    assert 2 <= finished <= 10 < len(run.requests) < 40000


STEP_S, DRAFT_S = 0.05, 0.02  # of a step of the target, and of a drafted token


@pytest.mark.slow
def test_a_server_is_calibrated_without_and_with_its_drafter(folder):
    """Observed plain, then with K = 3: its two terms come out, and another run of it is foretold."""
    load = ("--workload", "constant:rate=200,requests=3,prompt=9,output=13", "--tag", "", "--concurrency", "1")
    # Rounds draft three tokens and keep one.
    metrics = ["\n".join(counters(rounds, (rounds, 0, 0), model="tiny")) for rounds in (0, 3 * 6)]
    drafting = Ways(prefill_s=STEP_S, step_s=STEP_S + 3 * DRAFT_S, tokens_a_chunk=2, metrics=metrics)
    texts = [{"id": f"q{words}", "prompt": "word " * words} for words in (20, 60, 100, 140, 180)]
    (folder / "q.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in texts))
    for run, ways in (("plain", Ways(prefill_s=STEP_S, step_s=STEP_S)), ("k3", drafting), ("again", drafting)):
        with served(ways) as server:
            done("observe", server.url, "--prompts", "q.jsonl", *load, "--drafter", "d", "--out", run)
    (folder / "c.toml").write_text('[[replicas]]\ndevice = "cpu-roofline"\nprefix_cache = false\n')
    calibrated = ("--calibrate", "plain", "--calibrate", "k3", "--write-cost", "mine.json")
    asked = ("validate", "--observed", "again", *calibrated, "--cluster", "c.toml", "--json", "-")
    ran = paceline(*asked)
    found = json.loads(ran.out)
    assert (ran.code, ran.err) == (0 if found["within"] else 1, "")
    terms = found["calibration"]["cost"]
    assert terms["target"]["intercept_s"] == pytest.approx(STEP_S, rel=0.02)
    assert terms["draft"] == {"per_token_s": pytest.approx(DRAFT_S, rel=0.02)}
    errors = {cell["name"]: cell["error"] for cell in found["cells"]}
    # A first token is one step here, to which a busy machine may add a part: it is judged where no clock is read.
    assert max(abs(errors[f"{name}_s_{part}"]) for name in ("tpot", "e2e") for part in ("mean", "p50")) < 0.03
    written = json.loads((folder / "mine.json").read_text())
    assert written.pop("fit")["within"] is found["within"]
    assert written == terms | {"draft": terms["draft"] | {"draft_lengths": [3]}}
