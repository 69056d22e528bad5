"""`--sampling` and what belongs to it: each mistake is one clear line."""

import pytest
from paceline.cli.errors import BAD_INPUT, run_command
from paceline.cli.options import LiveSampling, RecordedSampling
from paceline.traces.meta import Sampling

from ..command_line import done, refused

SAMPLED = ["coupled", "rejection"]


def chosen(mode, temperature, seed, top_p=None, top_k=None, kind=LiveSampling):
    return kind(sampling=mode, temperature=temperature, seed=seed, top_p=top_p, top_k=top_k).chosen()


@pytest.mark.parametrize("mode", SAMPLED)
def test_all_options_reach_the_sampling(mode):
    wanted = Sampling(mode=mode, temperature=0.8, seed=1, top_p=0.9, top_k=40)
    assert chosen(mode, 0.8, 1, 0.9, 40) == wanted
    assert chosen(mode, 0.8, 1) == Sampling(mode=mode, temperature=0.8, seed=1)


def test_greedy_is_the_plain_one():
    assert chosen("greedy", None, None, None, None) == Sampling(mode="greedy")


@pytest.mark.parametrize(
    "options", [(0.8, None, None, None), (None, 1, None, None), (None, None, 0.9, None), (None, None, None, 3)]
)
def test_greedy_takes_no_option(options):
    with pytest.raises(ValueError, match="belong to --sampling coupled or rejection; greedy takes none"):
        chosen("greedy", *options)
    with pytest.raises(ValueError, match="belong to --sampling coupled; greedy takes none"):
        chosen("greedy", *options, kind=RecordedSampling)


@pytest.mark.parametrize("mode", SAMPLED)
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((None, 1, None, None), "needs --temperature and --seed"),
        ((0.8, None, None, None), "needs --temperature and --seed"),
        ((-1.0, 1, None, None), "--temperature must be >= 0.001 and finite, got -1.0"),
        ((float("inf"), 1, None, None), "--temperature must be >= 0.001 and finite, got inf"),
        ((0.8, 1, 0.0, None), "--top-p must be in (0, 1], got 0.0"),
        ((0.8, 1, 1.5, None), "--top-p must be in (0, 1], got 1.5"),
        ((0.8, 1, float("nan"), None), "--top-p must be in (0, 1], got nan"),
        ((0.8, 1, None, 0), "--top-k must be >= 1, got 0"),
    ],
)
def test_options_that_cannot_be(capsys, mode, options, told):
    assert run_command(lambda **_: chosen(mode, *options)) == BAD_INPUT
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("command", [("record", "out"), ("agree",)])
def test_a_recording_is_not_of_rejection_sampling(tmp_path, command):
    """Neither offered nor taken."""
    (tmp_path / "prompts.jsonl").write_text('{"id": "a", "tag": "x", "prompt": "one"}\n')
    options = ["--sampling", "rejection", "--temperature", "0.8", "--seed", "1"]
    line = refused(*command, "--prompts", "prompts.jsonl", *options)
    assert line == "Invalid value for '--sampling': 'rejection' is not one of 'greedy', 'coupled'."
    shown = done(*command[:1], "--help")
    assert "<greedy|coupled>" in shown
    assert "rejection" not in shown
    assert "rejection" in done("run", "--help")
    assert not (tmp_path / "out").exists()
