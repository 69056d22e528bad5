"""The pages on policies name every policy, its options and their defaults; abouts are written alike."""

import inspect
import re
from pathlib import Path

import pytest
from paceline.policies.about import about_of
from paceline.policies.by_name import own_policies
from paceline.policies.chain_text import policy_options

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("policies", "policies-load", "policies-lossy", "specrouter", "working-ahead", "oracles")
# A name, and what it is found by; or several of them, such as "SpecRouter, arXiv:2505.07680".
PAPERS = re.compile(r"[^,;]+(, (arXiv:\d{4}\.\d{5}|\w+ \d{4}))?(; [^,;]+, arXiv:\d{4}\.\d{5})*")


def sections(*pages):
    """By policy, the section whose heading has its name in code."""
    found = {}
    for page in pages:
        text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
        for section in re.split(r"^(?=#{1,6} )", text, flags=re.MULTILINE):
            for name in re.findall(r"`([^`]+)`", section.partition("\n")[0]):
                assert name not in found, f"{name} has two sections"
                found[name] = section
    return found


def test_every_policy_has_a_section_and_every_section_a_policy():
    assert set(sections(*PAGES)) == set(own_policies())


# The lossy page gives some of them in words.
@pytest.mark.parametrize(
    "name",
    sorted(set(own_policies()) & set(sections("policies", "policies-load", "specrouter", "working-ahead", "oracles"))),
)
def test_options_and_defaults_are_those_of_the_code(name):
    section = sections(*PAGES)[name]
    code = re.findall(r"`([^`]+)`", section)
    for option in policy_options(own_policies()[name]).values():
        assert any(re.search(rf"\b{option.name}\b", words) for words in code), f"{option.name} is not told"
        if option.default in {None, "", inspect.Parameter.empty}:
            continue
        told = re.findall(rf"\b{option.name}=([\w.-]+)|^\| `{option.name}` \| (\S+)", section, flags=re.MULTILINE)
        values = {value.rstrip(".") for pair in told for value in pair if value}
        assert same(option.default, values), f"{option.name}={option.default} is not told, but {values}"


def same(default, values):
    """Whether a default is among the values that a text gives; numbers may be written in any way."""
    if isinstance(default, str):
        return default in values
    return any(re.fullmatch(r"-?\d+(\.\d+)?", value) and float(value) == default for value in values)


def test_papers_are_written_alike():
    for name, cls in own_policies().items():
        paper = about_of(cls).paper
        assert not paper or PAPERS.fullmatch(paper), (name, paper)
