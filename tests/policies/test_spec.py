"""A text is read once, and the spec builds as many policies as runs ask for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.policies import PolicySpec, PolicySpecError
from paceline.policies.check import check_pool
from paceline.policies.fixed import Chain

POOL = check_pool()
PLAIN = st.sampled_from(["plain", "two-level(most=8,start=2)", "draft:2/mid:3/target", "svip(h=0.5)", "adaptive()"])
NESTED = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.builds("guarded(policy={},trial={})".format, inner, st.integers(1, 9)),
        st.builds("per-tag(default={},code={})".format, inner, inner),
    ),
    max_leaves=6,
)


def options_of(spec):
    """A spec without its texts."""
    parts = {key: options_of(value) if isinstance(value, PolicySpec) else value for key, value in spec.options.items()}
    return spec.name, parts


@given(text=NESTED)
def test_any_nesting_is_read_and_built(text):
    spec = PolicySpec.parse(text)
    assert spec.label == text
    assert type(spec.build(POOL)) is type(PolicySpec.parse(f"guarded,policy={text}").build(POOL).wrapped)


def test_spellings_mean_the_same():
    spellings = (
        "per-tag,default=plain,code=guarded(policy=two-level(most=8))",
        "per-tag(default=plain,code=guarded(policy=two-level(most=8)))",
        "per-tag,default=plain,code=guarded+policy=two-level++most=8",
    )
    first, *others = [options_of(PolicySpec.parse(text)) for text in spellings]
    inner = ("guarded", {"policy": ("two-level", {"most": 8})})
    assert first == ("per-tag", {"default": ("plain", {}), "code": inner})
    assert others == [first, first]


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("draft:4/target", "chain", {"spec": "draft:4/target"}),
        ("chain,spec=draft:4/target", "chain", {"spec": "draft:4/target"}),
        ("confident,below=1,most=3", "confident", {"below": 1.0, "most": 3}),
        ("anything", "anything", {}),
    ],
)
def test_values_are_what_the_constructor_wants(text, name, options):
    spec = PolicySpec.parse(text)
    assert (spec.name, spec.options, spec.label) == (name, options, text)


def test_a_bare_word_may_be_the_target_of_a_pool():
    assert type(PolicySpec.parse("target").build(POOL)) is Chain


def test_each_policy_is_a_new_one():
    spec = PolicySpec.parse("guarded,policy=two-level")
    first, second = spec.build(POOL), spec.build(POOL)
    assert first is not second
    assert first.wrapped is not second.wrapped


def test_a_file_is_read_once(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from paceline.policies.fixed import Plain as Mine\n", encoding="utf-8")
    spec = PolicySpec.parse(f"{file}:Mine")
    file.unlink()
    assert spec.build(POOL).about.lossless


@pytest.mark.parametrize("name", ["a(b)/mine", "a(b/mine", "c++/mine", "a+b, c/mine", "d)/mine"])
@pytest.mark.parametrize("options", ["", ",most=3", "(most=3)"])
def test_a_file_may_have_any_name(tmp_path, name, options):
    file = file_of_adaptive(tmp_path / f"{name}.py")
    spec = PolicySpec.parse(f"{file}:Mine{options}")
    assert (spec.name, spec.options) == (f"{file}:Mine", {"most": 3} if options else {})


@pytest.mark.parametrize("name", ["a(b)/mine", "c++/mine", "a+b/mine"])
@pytest.mark.parametrize("options", ["+most=3", "(most=3)"])
def test_so_may_one_inside_another_policy(tmp_path, name, options):
    file = file_of_adaptive(tmp_path / f"{name}.py")
    part = PolicySpec.parse(f"guarded,policy={file}:Mine{options}").options["policy"]
    assert (part.name, part.options) == (f"{file}:Mine", {"most": 3})


def file_of_adaptive(file):
    file.parent.mkdir()
    file.write_text("from paceline.policies.windows import Adaptive as Mine\n", encoding="utf-8")
    return file


@pytest.mark.parametrize("fold", [33, 2000])
def test_what_is_nested_too_deep_is_refused_in_one_line(fold):
    older = "guarded" + "".join(f"{'+' * depth or ','}policy=guarded" for depth in range(fold))
    for text in ("guarded(policy=" * fold + "plain" + ")" * fold, older):
        with pytest.raises(PolicySpecError, match="can stand in one another 32 deep at most") as refused:
            PolicySpec.parse(text)
        assert len(str(refused.value)) < 1000


def test_windows_are_one_label_however_they_are_written():
    spec = PolicySpec.parse("draft:04/mid:0010/target")
    assert spec.label == "draft:4/mid:10/target"
    assert spec.build(POOL).spec == PolicySpec.parse(spec.label).build(POOL).spec


def test_a_window_is_refused_as_it_was_written():
    with pytest.raises(PolicySpecError, match=r"chain 'draft:00/target': the window of draft must be .* got '00'"):
        PolicySpec.parse("draft:00/target").build(POOL)
