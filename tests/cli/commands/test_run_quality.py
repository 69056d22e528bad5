"""`paceline run` of a lossy policy: its texts are measured after the run."""

import json

import pyarrow.parquet as pq
import pytest

from ..command_line import done, paceline, refused

pytestmark = pytest.mark.usefixtures("pool_loaded_once")

LOSSY = """
from paceline.policies import Draft, Ratio, Verify


class Lossy:
    def __init__(self, pool, lenience: float = 0.001):
        self.draft, self.verify = Draft("draft", 2), Verify(pool.target, Ratio(lenience))

    def decide(self, seen):
        return self.verify if seen.num_pending or seen.room < 1 else self.draft

    def learn(self, outcome):
        pass
"""
SAMPLED = ("--sampling", "rejection", "--temperature", "0.9", "--seed", "3")


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    rows = [{"id": text, "tag": "sums", "prompt": f"Q: {text}"} for text in ("one", "two and two", "three")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def ran(prompts, *options):
    return ("run", "--prompts", prompts, "--max-new-tokens", 6, *options)


@pytest.fixture(autouse=True)
def lossy(tmp_path):
    (tmp_path / "mine.py").write_text(LOSSY)
    return ("--policy", "mine.py:Lossy")


def quality_of(*args):
    return json.loads(done(*args, "--json", "-"))["summary"]["quality"]


def test_the_table_says_how_good_the_texts_are(prompts, lossy):
    text = " ".join(done(*ran(prompts, *lossy, "--out", "out")).split())
    assert "3 texts beside the target's own: " in text
    assert "log-likelihood per token -" in text
    requests = pq.read_table("out/requests.parquet")
    assert min(requests["trunk_tokens"].to_pylist()) > 0


def test_the_figures_are_in_the_json(prompts, lossy):
    quality = quality_of(*ran(prompts, *lossy))
    assert quality["lossy"] is True
    assert (quality["requests"], quality["known_share"]) == (3, 1.0)
    assert 0 < quality["num_divergences"] <= quality["tokens"]
    assert quality["log_prob_per_token"] < 0 > quality["own_log_prob_per_token"]
    assert quality["answers_total"] is None


def test_other_texts_are_not_measured(prompts, lossy):
    assert quality_of(*ran(prompts, "--policy", "draft:2/target")) is None
    assert quality_of(*ran(prompts, *lossy, "--no-quality")) is None
    assert "beside the target's own" not in done(*ran(prompts, "--policy", "draft:2/target"))


def test_the_measure_changes_no_answer(prompts, lossy):
    with_it, without = (
        json.loads(done(*ran(prompts, *lossy, *option, "--json", "-"))) for option in ((), ("--no-quality",))
    )
    assert with_it["outputs"] == without["outputs"]


def test_rejection_sampling_has_no_places_to_compare(prompts, lossy):
    text = " ".join(done(*ran(prompts, *lossy, *SAMPLED)).split())
    assert "texts are drawn anew by rejection sampling" in text
    assert "divergences," not in text
    quality = quality_of(*ran(prompts, *lossy, *SAMPLED))
    assert quality["num_divergences"] is quality["text_agreement"] is None


def test_answers_are_scored(tmp_path, lossy):
    rows = [
        {"id": str(index), "tag": "edit", "prompt": "Q: one", "answer": answer} for index, answer in enumerate("xy")
    ]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    quality = quality_of(*ran("asked.jsonl", *lossy))
    assert (quality["answers_right"], quality["answers_own"], quality["answers_total"]) == (0, 0, 2)


def test_who_will_not_wait_keeps_the_answers(prompts, lossy, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("paceline.studies.decode.text_qualities", interrupted)
    result = paceline(*ran(prompts, *lossy, "--json", "-"))
    assert (result.code, json.loads(result.out)["summary"]["quality"]) == (0, None)
    assert result.err == "paceline: interrupted: the answers are kept, their quality is not measured\n"


def test_bad_options_of_a_lossy_policy(prompts):
    line = refused(*ran(prompts, "--policy", "mine.py:Lossy,lenience=2"))
    assert "theta must be in (0, 1], got 2.0" in line
