"""The examples print exactly what stands beside them, and the example policy keeps the contract."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from paceline.policies import check_policy, make_policy

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
WITH_OUTPUT = sorted(path for path in EXAMPLES.glob("*.py") if path.with_suffix(".out").is_file())


def test_there_is_an_example_with_output():
    assert WITH_OUTPUT


@pytest.mark.parametrize("script", WITH_OUTPUT, ids=lambda path: path.name)
def test_prints_what_stands_beside_it(script, tmp_path):
    environment = {**os.environ, "COLUMNS": "100", "PYTHONIOENCODING": "utf-8"}
    run = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == script.with_suffix(".out").read_text(encoding="utf-8")
    assert not run.stderr


def test_the_readme_shows_what_the_example_prints():
    printed = (EXAMPLES / "compare_policies.out").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"$ .venv/bin/paceline compare --trace smollm2\n{printed}```" in readme


def test_example_policy_keeps_the_contract():
    text = f"{EXAMPLES / 'my_policy.py'}:MyPolicy"
    assert check_policy(lambda pool: make_policy(text, pool), name=text).lossless


def test_the_policy_guide_shows_the_example_as_it_is():
    guide = (ROOT / "docs" / "writing-a-policy.md").read_text(encoding="utf-8")
    shown = guide.split("```python\n")[1].split("```")[0]
    assert (EXAMPLES / "my_policy.py").read_text(encoding="utf-8").endswith(shown)
