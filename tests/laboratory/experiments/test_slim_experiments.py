"""The experiments on slim verifiers and on similarity, at a size that takes a second."""

import json
from pathlib import Path

import pytest
from paceline_laboratory.experiments import similarity_calibration, slim_frontier
from paceline_laboratory.findings import ExperimentSetting
from tokenizers import Tokenizer

from ...cli.untrained_pool import write_untrained_pool


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
