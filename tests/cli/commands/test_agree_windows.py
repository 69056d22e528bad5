"""`paceline agree` finds no difference on models with sliding windows and several end tokens."""

import json

import pytest

from ...runtime.generation.chained_models import letters
from ...runtime.pools.window_pools import write_window_pool
from ..command_line import done

PROMPTS = ("a", "hello there, how do you do?", "the cat, the cat, the ca", "we go on and on, we go")


@pytest.mark.parametrize("cache", ["slots", "mask"])
@pytest.mark.parametrize("family", ["mistral-window", "gemma2", "gemma3", "qwen2-window"])
def test_no_difference(tmp_path, family, cache):
    folder = write_window_pool(tmp_path / "pool", family, letters().backend_tokenizer)
    rows = [{"id": f"r{row}", "prompt": text} for row, text in enumerate(PROMPTS)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    asked = ("--pool", folder, "--prompts", folder / "prompts.jsonl", "--max-new-tokens", 20)
    printed = done("agree", *asked, "--policy", "draft:4/target", "--policy", "ngram", "--batch", 3, "--cache", cache)
    assert printed.splitlines()[-1].endswith("no difference")
