"""Slim verifiers: masks, the search among them, the distances it minimises, and a pool file to which they are added."""

import dataclasses
import re
import sys
import tomllib
from functools import cache
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paceline.base.errors import install_hint
from paceline.runtime import slim as under_test
from paceline.runtime.pools.members import describe_model
from paceline.runtime.pools.pool_file import PoolFileError, read_pool_file
from paceline.runtime.pools.submodels import make_submodel
from paceline.runtime.profiling.costs import MeasuredCosts
from paceline.runtime.slim import (
    Budget,
    Distance,
    SlimFound,
    add_slims,
    best_trial,
    calibrate,
    check_names,
    find_slims,
    mark_dominated,
    mask_of,
    masks_of,
    measure_distance,
    nearest_unseen,
    num_skipped,
    search_masks,
    skipped_of,
    slim_name,
)
from paceline.traces.meta import CostTable, Sampling
from paceline_laboratory.shared import measure_agreement, perturbed, shared_noise_agreement, with_slims
from transformers import GPT2Config, GPT2LMHeadModel

from ..tiny_models import EOS, VOCABULARY, random_prompts, tiny_pool_of_four
from .offline import trunk

PROMPTS = random_prompts(5)
TOKENS = 12
GOOD = (1, 3, 4, 8)


@pytest.fixture(scope="module")
def calibration():
    return calibrate(tiny_pool_of_four(), PROMPTS, max_new_tokens=TOKENS)


def target():
    return tiny_pool_of_four().target.model


# -- masks, and the search among them


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12), st.data())
def test_every_point_is_a_mask(keys, data):
    skipped = data.draw(st.integers(1, len(keys) - 1))
    mask = mask_of(keys, skipped)
    assert len(set(mask)) == skipped
    assert list(mask) == sorted(mask)
    kept = set(range(len(keys))) - set(mask)
    assert min(keys[layer] for layer in mask) >= max(keys[layer] for layer in kept)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9, unique=True), st.data())
def test_the_nearest_unseen_mask_is_one_exchange_away(keys, data):
    skipped = data.draw(st.integers(1, len(keys) - 1))
    mask = mask_of(keys, skipped)
    neighbours = [other for other in combinations(range(len(keys)), skipped) if len({*other} - {*mask}) == 1]
    seen = {mask, *data.draw(st.lists(st.sampled_from(neighbours)))}
    found = nearest_unseen(keys, mask, seen)
    if set(neighbours) <= seen:
        assert found is None
        return
    exchanged, other = found
    assert other in neighbours
    assert other not in seen
    assert mask_of(exchanged, skipped) == other
    assert sorted(exchanged) == sorted(keys)


def test_shares_become_numbers_of_layers():
    assert skipped_of([0.45, 0.2, 0.9], 11) == {"slim45": 5, "slim20": 2, "slim90": 10}
    assert [slim_name(share) for share in (0.29, 0.125)] == ["slim29", "slim12.5"]


def searched(num_layers=11, skipped=4, **budget):
    """Trials where distances grow with every layer that differs from the best mask."""
    asked = []

    def measure(mask):
        asked.append(mask)
        wrong = sum(1 + layer / 10 for layer in set(mask) ^ set(GOOD))
        return Distance(tvd=wrong / 20, disagreement=0.5)

    trials = search_masks(measure, num_layers, skipped, Budget(**budget))
    assert [trial.skip_layers for trial in trials] == asked
    return trials


def test_few_masks_are_all_tried():
    trials = searched(5, 2, trials=10, random_trials=1, seed=0)
    assert [trial.skip_layers for trial in trials] == list(combinations(range(5), 2))
    assert {trial.how for trial in trials} == {"exhaustive"}
    assert len({trial.skip_layers for trial in searched(5, 2, trials=9, random_trials=2, seed=0)}) == 9


def test_no_mask_is_tried_twice_and_the_best_is_found_in_a_quarter_of_them():
    trials = searched(trials=80, random_trials=20, seed=0)
    assert len({trial.skip_layers for trial in trials}) == len(trials) == 80
    assert [trial.how for trial in trials] == ["random"] * 20 + ["bayesian"] * 60
    assert best_trial(trials).skip_layers == GOOD
    first = searched(trials=14, random_trials=10, seed=3)
    assert first == searched(trials=14, random_trials=10, seed=3)
    assert first != searched(trials=14, random_trials=10, seed=4)


def test_only_bayesian_search_needs_a_library_and_says_so_before_any_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert {trial.how for trial in searched(trials=7, random_trials=7, seed=0)} == {"random"}
    with pytest.raises(ModuleNotFoundError, match=re.escape(install_hint("search"))):
        find_slims(tiny_pool_of_four(), (), [0.5], Budget(trials=5, random_trials=1, seed=0), max_new_tokens=TOKENS)


# -- distances


def test_texts_are_what_the_target_writes(calibration):
    texts = [list(text.tokens) for text in calibration.texts]
    assert texts == [trunk(tiny_pool_of_four(), prompt, num_tokens=TOKENS) for prompt in PROMPTS]
    assert calibration.num_tokens == sum(map(len, texts))
    for text in calibration.texts:
        assert text.target_probs.argmax(-1).tolist() == list(text.tokens)


def test_a_distance_is_the_mean_over_all_tokens(calibration):
    """Token by token, each from its whole context."""
    slim = make_submodel(target(), (1, 2))
    apart, unequal = [], []
    for text in calibration.texts:
        for place in range(len(text.tokens)):
            context = torch.tensor([[*text.prompt, *text.tokens[:place]]])
            mine, theirs = (model(context, use_cache=False).logits[0, -1].softmax(-1) for model in (slim, target()))
            apart.append(float((mine - theirs).clamp(min=0).sum()))
            unequal.append(bool(mine.argmax() != theirs.argmax()))
    found = measure_distance(slim, calibration)
    assert found.tvd == pytest.approx(sum(apart) / len(apart), abs=1e-5)
    assert found.disagreement == sum(unequal) / len(unequal)
    assert 0 < found.tvd < 1
    assert 0 < found.disagreement < 1
    assert measure_distance(target(), calibration) == Distance(tvd=0.0, disagreement=0.0)
    # Broken logits are as far as can be.
    slim.model.norm = torch.nn.Identity()
    slim.model.embed_tokens = torch.nn.Embedding.from_pretrained(torch.full((VOCABULARY, 32), float("nan")))
    assert measure_distance(slim, calibration) == Distance(tvd=1.0, disagreement=1.0)


def test_distances_are_taken_at_the_temperature_of_the_text():
    sampling = Sampling(mode="coupled", temperature=0.5, seed=2)
    text = calibrate(tiny_pool_of_four(), PROMPTS[:2], max_new_tokens=4, sampling=sampling).texts[0]
    logits = target()(torch.tensor([text.prompt]), use_cache=False).logits[0, -1]
    torch.testing.assert_close(text.target_probs[0], (logits / 0.5).softmax(-1))


# -- the whole search


def test_the_best_mask_of_each_share_is_found_beside_what_was_there_before(calibration):
    pool, budget = tiny_pool_of_four(), Budget(trials=6, random_trials=2, seed=0)
    frontier = find_slims(pool, PROMPTS, [0.25, 0.5], budget, baselines={"mid": (1, 2)}, max_new_tokens=TOKENS)

    def apart(mask):
        return measure_distance(make_submodel(target(), mask), calibration)

    for found, name, share, skipped in zip(frontier.found, ("slim25", "slim50"), (0.25, 0.5), (1, 2), strict=True):
        best = min(combinations(range(4), skipped), key=lambda mask: apart(mask).tvd)
        assert (found.name, found.share, found.skip_layers, found.how) == (name, share, best, "exhaustive")
    assert frontier.num_trials == 4 + 6
    assert frontier.num_tokens == calibration.num_tokens
    (mid,) = frontier.baselines
    assert Distance(tvd=mid.tvd, disagreement=mid.disagreement) == apart((1, 2))
    assert mid.how == "pool"
    assert mid.seconds == frontier.found[1].seconds  # measured once for each number of layers
    assert mid.num_parameters == pool.member("mid").num_parameters
    for row in (*frontier.found, mid):
        assert row.seconds > 0
        assert row.seconds_share == row.seconds / frontier.target_s


def test_a_busy_spell_does_not_count(monkeypatch):
    spells = iter([(0.9, 0.1), (0.4, 0.7), *[(0.8, 0.8)] * (under_test.SPELLS - 2)])

    def measured(pool, *, new_tokens, repeats):
        seconds = zip((member.name for member in pool.members), next(spells), strict=True)
        tables = {name: CostTable(new_tokens=new_tokens, seconds=(taken,)) for name, taken in seconds}
        return MeasuredCosts(tables, repeats, 0.0, 0.0, 1.0)

    monkeypatch.setattr(under_test, "measure_costs", measured)
    assert under_test.verify_seconds(tiny_pool_of_four(), [(1,)]) == {1: 0.4, 0: 0.1}


def slim(name="slim45", layers=(1, 3), size=70, seconds=1.0, tvd=0.1, disagreement=0.1):
    measured = {"share": 0.5, "tvd": tvd, "disagreement": disagreement, "seconds": seconds, "seconds_share": 0.5}
    return SlimFound(name=name, skip_layers=layers, num_parameters=size, how="random", **measured)


def test_a_row_is_dominated_by_one_that_is_nowhere_worse():
    points = [(1, 0.5, 0.5), (2, 0.4, 0.4), (2, 0.4, 0.5), (3, 0.4, 0.3), (3, 0.5, 0.4), (1, 0.5, 0.5)]
    rows = [slim(seconds=seconds, tvd=tvd, disagreement=disagreement) for seconds, tvd, disagreement in points]
    assert [each.dominated for each in mark_dominated(rows)] == [False, False, True, False, True, False]


def found_in(model, share):
    pool = dataclasses.replace(tiny_pool_of_four(), members=(describe_model("target", "model", model, None),))
    return find_slims(pool, PROMPTS, [share], Budget(trials=2, random_trials=2, seed=0), max_new_tokens=2)


def of_ngram():
    return dataclasses.replace(tiny_pool_of_four(), members=tiny_pool_of_four().members[:1])


def gpt2():
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=3, n_head=4, eos_token_id=EOS)
    return GPT2LMHeadModel(config).eval()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: num_skipped(0.0, 11), r"share must be in \(0, 1\), got 0"),
        (lambda: num_skipped(1.0, 11), r"share must be in \(0, 1\), got 1"),
        (lambda: num_skipped(float("nan"), 11), r"share must be in \(0, 1\), got nan"),
        (lambda: num_skipped(0.04, 11), "at least one of 11 layers and keep one, got 0.04, which rounds to 0"),
        (lambda: num_skipped(0.96, 11), "at least one of 11 layers and keep one, got 0.96, which rounds to 11"),
        (lambda: skipped_of([0.45, 0.46], 11), r"number of layers than slim45 \(5 of 11\), got 0.46"),
        (lambda: Budget(trials=0, random_trials=1, seed=0), "trials must be >= 1, got 0"),
        (lambda: Budget(trials=5, random_trials=0, seed=0), r"random_trials must be 1 to trials \(5\), got 0"),
        (lambda: Budget(trials=5, random_trials=6, seed=0), r"random_trials must be 1 to trials \(5\), got 6"),
        (lambda: Budget(trials=5, random_trials=1, seed=-1), "seed must be >= 0, got -1"),
        (lambda: calibrate(tiny_pool_of_four(), (), max_new_tokens=9), "`prompts` must hold at least one, got none"),
        (lambda: found_in(gpt2(), 0.5), r"target target: a submodel needs layers under model"),
        (lambda: found_in(make_submodel(target(), (1, 2, 3)), 0.45), "one of 1 layers and keep one"),
        (lambda: perturbed(target(), -0.1, seed=0), "noise must be >= 0, got -0.1"),
        (lambda: perturbed(target(), float("nan"), seed=0), "noise must be >= 0, got nan"),
        (lambda: with_slims(tiny_pool_of_four(), {"mid": (0,)}), "name must not be that of a member, got 'mid'"),
        (lambda: with_slims(of_ngram(), {"a": (0,)}), "target must be a model with layers, got ngram without any"),
    ],
)
def test_what_cannot_be_searched_is_refused(call, told):
    with pytest.raises(ValueError, match=told):
        call()


# -- models of a known similarity, of the laboratory


WEIGHTS = st.lists(st.floats(0, 1) | st.just(0.0), min_size=5, max_size=5).filter(lambda weights: sum(weights) > 0.1)


def distribution(weights):
    values = torch.tensor(weights, dtype=torch.float64)
    return values / values.sum()


@given(WEIGHTS, WEIGHTS)
def test_shared_noise_by_its_definition_and_its_bounds(one, other):
    p, q = distribution(one), distribution(other)
    both = [i for i in range(5) if p[i] > 0 and q[i] > 0]
    by_definition = sum(1 / sum(max(float(p[j] / p[i]), float(q[j] / q[i])) for j in range(5)) for i in both)
    agreement = float(shared_noise_agreement(p[None], q[None])[0])
    tvd = float((p - q).abs().sum() / 2)
    assert agreement == pytest.approx(by_definition, abs=1e-9)
    assert (1 - tvd) / (1 + tvd) - 1e-9 <= agreement <= 1 - tvd + 1e-9


def test_shared_noise_is_what_sampling_with_it_gives():
    p, q = distribution([0.5, 0.1, 0.2, 0.15, 0.05]), distribution([0.1, 0.3, 0.2, 0.05, 0.35])
    generator = torch.Generator().manual_seed(0)
    exponentials = torch.empty(200_000, 5, dtype=torch.float64).exponential_(generator=generator)
    same = ((p / exponentials).argmax(-1) == (q / exponentials).argmax(-1)).double().mean()
    assert float(shared_noise_agreement(p[None], q[None])[0]) == pytest.approx(float(same), abs=0.005)


@cache
def sampled():
    sampling = Sampling(mode="coupled", temperature=0.8, seed=1)
    return calibrate(tiny_pool_of_four(), random_prompts(4), max_new_tokens=16, sampling=sampling)


def test_agreement_lies_between_its_bounds_and_more_noise_is_further_away():
    assert measure_agreement(target(), sampled()) == pytest.approx(1.0, abs=1e-6)
    cut = make_submodel(target(), (1, 2))
    assert 0.2 < measure_agreement(cut, sampled()) < 1 - measure_distance(cut, sampled()).tvd
    before = {name: weight.clone() for name, weight in target().named_parameters()}
    far = [measure_distance(perturbed(target(), noise, seed=0), sampled()).tvd for noise in (0.0, 0.05, 0.2)]
    assert far[0] == pytest.approx(0.0, abs=1e-6)
    assert far[0] < far[1] < far[2]
    assert all(torch.equal(weight, before[name]) for name, weight in target().named_parameters())
    one, again, other = (perturbed(target(), 0.1, seed=seed).lm_head.weight for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    weight = target().lm_head.weight
    assert float((one - weight).std() / weight.std()) == pytest.approx(0.1, rel=0.1)


def test_slims_stand_in_order_of_size():
    pool = with_slims(tiny_pool_of_four(), {"a": (0,), "b": (0, 1, 3)})
    assert [member.name for member in pool.members] == ["ngram", "draft", "b", "mid", "slim", "a", "target"]
    assert len(tiny_pool_of_four().members) == 5


# -- a pool file to which they are added says what it said before, in the same words


TEXT = """\
# Of the club.
name = "p"
tokenizer = "words/tokenizer.json"  # shared
context_tokens = 512

[[members]]
name = "ngram"
ngram = { max_match = 3 }

# Small and quick.
[[members]]
name = 'draft'
path = 'draft'

[[members]] # by hand
name = "slim"
submodel_of = "target"
skip_layers = [
    1, 2,  # chosen by eye
]

# The large one,
# which writes.
[[members]]
name = "target"
path = "../large models/target"
device = "cpu"
"""
SIZES = {"ngram": 0, "draft": 10, "slim": 60, "target": 100}
BLOCK = '[[members]]\nname = "slim45"\nsubmodel_of = "target"\nskip_layers = [1, 3]\n\n'
LOW_RANK = TEXT.replace("by eye\n]", 'by eye\n]\nlow_rank = "restored.safetensors"')
BY_HAND = TEXT.replace("[[members]] # by hand", "# By hand.\n[[members]]")


@pytest.fixture
def file(tmp_path):
    folder = tmp_path / "pool"
    for part in (folder / "words", folder / "draft", tmp_path / "large models" / "target"):
        part.mkdir(parents=True)
    (folder / "words" / "tokenizer.json").write_text("{}")
    (folder / "pool.toml").write_text(TEXT, encoding="utf-8")
    return folder / "pool.toml"


def added(file, *slims, text=None, folder=None):
    if text is not None:
        file.write_bytes(text.encode())
    content = read_pool_file(file)[1]
    sizes = {member.name: SIZES.get(member.name, 100) for member in content.members}
    return add_slims(file, content, slims or (slim(),), sizes, folder=folder or file.parent)


@pytest.mark.parametrize(
    ("slims", "order"),
    [
        ([slim()], "ngram draft slim slim45 target"),
        ([slim(size=5)], "ngram slim45 draft slim target"),
        ([slim(size=10)], "ngram draft slim45 slim target"),
        ([slim(size=59)], "ngram draft slim45 slim target"),
        ([slim(size=99)], "ngram draft slim slim45 target"),
        ([slim("slim20", (1,), 90), slim("slim70", (1, 2, 3), 30)], "ngram draft slim70 slim slim20 target"),
        ([slim("slim", (3, 4), 60)], "ngram draft slim target"),
    ],
)
def test_members_stand_in_order_of_size_and_nothing_else_is_new(file, slims, order):
    text = added(file, *slims)
    assert [member["name"] for member in tomllib.loads(text)["members"]] == order.split()
    if slims[0].name == "slim45":
        assert text.replace(BLOCK, "") == TEXT
        assert '# which writes.\n[[members]]\nname = "target"' in text
    if slims[0].name == "slim":  # it is replaced where it stands
        assert text == TEXT.replace("[\n    1, 2,  # chosen by eye\n]", "[3, 4]")


def test_a_replaced_member_moves_with_its_comments_if_its_size_changes(file):
    text = added(file, slim("slim", (1, 2, 3), 7), text=BY_HAND)
    assert [member["name"] for member in tomllib.loads(text)["members"]] == ["ngram", "slim", "draft", "target"]
    assert '# By hand.\n[[members]]\nname = "slim"' in text


@pytest.mark.parametrize("text", [TEXT.replace("\n", "\r\n"), TEXT.rstrip("\n")], ids=["Windows", "no last line break"])
def test_ends_of_lines_stay(file, text):
    end = "\r\n" if "\r\n" in text else "\n"
    found = added(file, text=text)
    assert found.replace(BLOCK.replace("\n", end), "") == text


def test_locations_are_found_from_another_folder(file, tmp_path):
    for name in ("draft/said.json", "restored.safetensors"):
        (file.parent / name).touch()
    text = LOW_RANK.replace("path = 'draft'", "path = 'draft'\nvocabulary = \"draft/said.json\"")
    other = tmp_path / "kept" / "here"
    other.mkdir(parents=True)
    found = added(file, text=text, folder=other)
    content = tomllib.loads(found)
    members = {member["name"]: member for member in content["members"]}
    assert content["tokenizer"] == "../../pool/words/tokenizer.json"
    assert (members["draft"]["path"], members["target"]["path"]) == ("../../pool/draft", "../../large models/target")
    assert members["draft"]["vocabulary"] == "../../pool/draft/said.json"
    assert members["slim"]["low_rank"] == "../../pool/restored.safetensors"
    assert "# shared" in found
    # Hub ids and absolute locations stay, and a link to the same folder is the same folder.
    absolute = str(file.parent / "draft")
    text = TEXT.replace("'draft'\n\n", f"'{absolute}'\n\n").replace("../large models/target", "owner/target")
    content = tomllib.loads(added(file, text=text, folder=tmp_path))
    assert [member["path"] for member in content["members"] if "path" in member] == [absolute, "owner/target"]
    (tmp_path / "link").symlink_to(file.parent)
    assert added(file, text=TEXT, folder=tmp_path / "link").replace(BLOCK, "") == TEXT


HEAD = 'tokenizer = "t"\ncontext_tokens = 8\n'


@pytest.mark.parametrize(
    "text",
    [
        f'name = "p"\n{HEAD}members = [{{ name = "target", path = "a/b" }}]\n',
        f'name = "p"\n{HEAD}[["members"]]\nname = "target"\npath = "a/b"\n',
        f'name = """\n[[members]]"""\n{HEAD}[[members]]\nname = "target"\npath = "a/b"\n',
        TEXT.replace("path = 'draft'", "\"path\" = 'draft'"),
    ],
)
def test_a_file_in_another_form_is_refused(file, tmp_path, text):
    with pytest.raises(PoolFileError, match=r"pool\.toml: members.* must .*with plain keys"):
        added(file, text=text, folder=tmp_path)


def test_names_that_are_taken_are_refused(file):
    path, content = read_pool_file(file)
    assert masks_of(content) == {"slim": (1, 2)}
    check_names(path, content, ["slim45"], replace=False)
    check_names(path, content, ["slim"], replace=True)
    with pytest.raises(PoolFileError, match=r"members\[2\]\.name .*`replace`.*, got 'slim'"):
        check_names(path, content, ["slim45", "slim"], replace=False)
    with pytest.raises(PoolFileError, match=r"members\[1\] must be a submodel of target to be replaced, got 'draft'"):
        check_names(path, content, ["draft"], replace=True)
    # One with weights of its own is neither replaced nor compared.
    file.write_text(LOW_RANK, encoding="utf-8")
    content = read_pool_file(file)[1]
    assert masks_of(content) == {}
    with pytest.raises(PoolFileError, match=r"members\[2\]\.low_rank must be absent where the submodel"):
        check_names(path, content, ["slim"], replace=True)
