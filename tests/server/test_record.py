"""What `serve --record` keeps, is what was served, in forms that the rest of paceline reads as they are."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from paceline.base.errors import ArgumentError
from paceline.policies import make_policy
from paceline.runtime.prompts import read_prompts
from paceline.server.options import RecordingOptions
from paceline.server.record import TrafficRecorder, responses_folder
from paceline.sim.contexts import TrieTables
from paceline.sim.simulate import Scenario, simulate
from paceline.traces.importers import ImportOptions, read_recording
from paceline.traces.opening import open_recording
from paceline.traces.workloads import open_workload

from ..unit_cost import UnitCost
from .conftest import CHAIN, Client, serving, until

POLICY = "draft:4/target"


def files_of(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_what_is_recorded_is_what_was_served(models, prompts, tmp_path):
    folder = tmp_path / "traffic"
    recording = RecordingOptions(record=folder, record_every_s=0.2)
    with serving(models, recording=recording, policies=[POLICY, "plain"]) as client, ThreadPoolExecutor(4) as pool:
        asked = [(text, policy) for text in prompts for policy in (POLICY, "plain")]
        futures = [
            pool.submit(client.complete, text, policy=policy, spec_decode_metrics=True) for text, policy in asked
        ]
        found = {one.result().body["id"]: (*pair, one.result().body) for one, pair in zip(futures, asked, strict=True)}
    arrivals = list(open_workload(folder / "workload"))
    assert [one.arrives_ps for one in arrivals] == sorted(one.arrives_ps for one in arrivals)
    assert arrivals[0].arrives_ps == 0
    usages = {name: body["usage"] for name, (*_, body) in found.items()}
    assert {one.request_id: (one.prompt_tokens, one.output_tokens) for one in arrivals} == {
        name: (usage["prompt_tokens"], usage["completion_tokens"]) for name, usage in usages.items()
    }
    assert {one.request_id: one.text for one in read_prompts(folder / "prompts")} == {
        name: text for name, (text, *_) in found.items()
    }
    place = folder / responses_folder(POLICY)
    recorded = read_recording("auto", [place], ImportOptions(names={place.name: "draft"}))
    assert len(recorded.requests) == len(prompts)
    for request in recorded.requests:
        told = found[request.request_id][2]["metrics"]["speculative_decoding"]
        rounds = request.rounds["draft"]
        assert rounds.placed is None
        np.testing.assert_array_equal(rounds.drafted, told["per_step_drafted"])
        assert rounds.start[0] == 1
    alone = read_recording("vllm-detailed", [folder / responses_folder("plain")])
    assert all(not request.rounds for request in alone.requests)
    said = (folder / "cluster.toml").read_text()
    assert said.startswith("# pool pico on cpu of ")
    cluster = tomllib.loads(said)["replicas"][0]
    assert (cluster["max_num_seqs"], cluster["kv_blocks"]) == (8, 8 * 32)
    assert cluster["cost"] == "fitted.json"  # so that nothing is simulated with the seconds of the device


def test_hashes_alone_are_kept_where_asked_and_a_cap_is_one(models, prompts, tmp_path, capfd):
    folder = tmp_path / "traffic"
    recording = RecordingOptions(record=folder, record_hashes=True, record_every_s=1e6, record_mib=1)
    with serving(models, recording=recording, policies=["plain"]) as client:
        client.complete(prompts[0])
        files = client.service._recorder.files
        files._write()
        files._num_bytes = 2**20
        client.complete(prompts[1])
    assert all(prompts[0][:20] not in (folder / name).read_text() for name in files_of(folder))
    (row,) = [json.loads(line) for line in (folder / "responses-plain" / "000001.jsonl").read_text().splitlines()]
    assert len(row["prompt_sha256"]) == 64
    assert len(list(open_workload(folder / "workload"))) == 1


def test_a_folder_that_exists_and_folders_of_one_name_are_refused(models, tmp_path):
    with pytest.raises(ArgumentError, match="must name a new folder"):
        TrafficRecorder(RecordingOptions(record=tmp_path), ["plain"], None, served="")
    with pytest.raises(ArgumentError, match="policies whose folders differ"):
        TrafficRecorder(RecordingOptions(record=tmp_path / "new"), ["a:1/b", "a-1-b"], None, served="")
    assert not (tmp_path / "new").exists()
    with pytest.raises(ArgumentError, match="go with `record`"):
        RecordingOptions(record_hashes=True)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(20))
def test_a_server_that_is_killed_or_ended_leaves_whole_files(prompts, tmp_path, number):
    """In the middle of streams; one that is ended in order has written down all that it answered."""
    folder, ending = tmp_path / "traffic", (signal.SIGKILL, signal.SIGTERM)[number % 2]
    command = [sys.executable, "-m", "paceline", "serve", "--port", "0", "--policy", CHAIN]
    command += ["--record", str(folder), "--record-every", "0.05"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process,
        ThreadPoolExecutor(8) as pool,
    ):
        client = Client(int(process.stderr.readline().rsplit(":", 1)[1]), None)
        asked = enumerate(prompts * 4)
        answers = [pool.submit(client.complete, text, stream=place % 2 == 0) for place, text in asked]
        until(lambda: any((folder / "workload").glob("*.jsonl")))
        time.sleep(random.Random(number).random())  # within a file, a stream or a forward
        process.send_signal(ending)
    found = [one.result() for one in answers if not one.exception()]
    whole = {(one.events[0] if one.events else one.body)["id"] for one in found if one.status == 200}
    arrivals = {one.request_id for one in open_workload(folder / "workload")}
    texts = {one.request_id for one in read_prompts(folder / "prompts")}
    assert arrivals
    assert texts
    assert read_recording("auto", [folder / responses_folder(CHAIN)]).requests
    for rows in (file.read_text() for file in folder.rglob("[!.]*.jsonl")):
        assert rows.endswith("\n")
        assert all(json.loads(line) for line in rows.splitlines())
    if ending == signal.SIGTERM:
        assert process.returncode == 0
        assert whole <= arrivals
        assert arrivals == texts


@pytest.mark.slow
def test_prompts_that_were_kept_give_a_recording_in_which_every_step_is_that_of_the_server(models, prompts, tmp_path):
    """As docs/serving-loop.md has it: `paceline record --prompts traffic/prompts`, to its end."""
    folder, tokens = tmp_path / "traffic", 8
    with serving(models, recording=RecordingOptions(record=folder), policies=[POLICY]) as client:
        found = [client.complete(text, max_tokens=tokens, spec_decode_metrics=True).body for text in prompts[:2]]
    out = tmp_path / "traffic.trace"
    command = [sys.executable, "-m", "paceline", "record", str(out), "--prompts", str(folder / "prompts")]
    command += ["--pool", "pico", "--max-new-tokens", str(tokens)]
    ran = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    trace = open_recording(out)
    tables = TrieTables(trace)
    log = simulate(Scenario(tables=tables, cost=UnitCost()), make_policy(POLICY, tables.pool), POLICY)
    steps = list(zip(*(log.steps[name].tolist() for name in ("request", "kind", "drafted", "emitted")), strict=True))
    served = {body["id"]: body for body in found}
    assert {one.request_id for one in trace.requests} == set(served)
    for index, request in enumerate(trace.requests):
        told = served[request.request_id]
        trunk = request.trie.token[request.trie.trunk[1:]].tolist()
        assert models.tokenizer.decode(trunk) == told["choices"][0]["text"]
        assert (
            sum(drafted for number, kind, drafted, _ in steps if (number, kind) == (index, 0))
            == (told["metrics"]["speculative_decoding"]["num_draft_tokens"])
        )
        assert sum(emitted for number, *_, emitted in steps if number == index) == told["usage"]["completion_tokens"]
