"""What pools write, record and replay is what `generate()` of their target writes: windows, ends, options, padding."""

import json
import re
import shutil
from itertools import cycle

import numpy as np
import paceline
import pytest
import torch
from paceline.runtime.forward import ModuleForward, layer_windows, within_window
from paceline.runtime.pools.chat_template import read_chat_template
from paceline.runtime.pools.check import check_pool
from paceline.runtime.pools.configs import OFF_IN_FILES, OPTIONS
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_file import PoolFileError
from paceline.runtime.recording.recorder import record
from paceline.runtime.recording.together import Ask, TreeForward, causal_mask, tree_mask
from paceline.runtime.threads import Memory
from paceline.studies.agree import agree
from paceline.studies.record import tree_of
from paceline.traces.contexts.on_disk import read_trace
from paceline.traces.meta import Closure, Sampling, TreeClosure
from transformers import GenerationConfig, PreTrainedTokenizerFast

from ...pairs import pairs
from ..conftest import ALPHABET, EOS, random_llama
from ..features import feature_pools
from ..tiny_decoders import tiny_decoder, without_cache
from .making import (
    COUPLED,
    GREEDY,
    NGRAM,
    PROMPTS,
    VALUES,
    asked,
    at,
    change_json,
    ran,
    replayed,
    slim,
    stock,
    trunks,
    write,
)
from .window_pools import ENDS, FAMILIES, WINDOW, write_window_pool

WINDOW_POLICIES = (
    "plain",
    "draft:5/target",
    "ngram:3/draft:4/target",
    "tree,shape=3x2x1",
    "tree-dynamic,depth=4,tokens=8",
)


@pytest.fixture(scope="module")
def window_pool(request, tmp_path_factory, tiny_pool):
    """A pool, and what `generate()` answers; all prompts but one are longer than the window."""
    folder = write_window_pool(tmp_path_factory.mktemp("windows"), request.param, tiny_pool.tokenizer)
    pool = ModelPool.load(folder)
    assert {WINDOW, 5} & set(layer_windows(pool.target.model.config))
    answers = stock(pool, folder)
    assert len({tuple(answer) for answer in answers}) == len(answers)
    assert len({token for answer in answers for token in answer}) > 4
    return pool, answers


@pytest.mark.parametrize(
    ("window_pool", "policy", "batch", "cache"),
    sorted(pairs([*FAMILIES], WINDOW_POLICIES, [1, 3], ["slots", "mask"])),
    indirect=["window_pool"],
)
@pytest.mark.one_in(6)
def test_windows_run_as_generate_does(window_pool, policy, batch, cache):
    pool, answers = window_pool
    assert ran(pool, policy, batch=batch, memory=Memory(cache=cache), debug=True) == answers


@pytest.mark.parametrize("window_pool", FAMILIES, indirect=True)
@pytest.mark.one_in(3)
def test_windows_are_recorded_and_replayed_as_generate_does(window_pool, tmp_path):
    pool, answers = window_pool
    assert pool.eos_token_ids == tuple(ENDS)
    trees = tuple(TreeClosure(model="draft", shape=shape) for shape in ("3x2x1", "beam=4,depth=4"))
    closure = Closure(kind="monotone", reach=8, run=6, trees=trees)
    trace = record(pool, PROMPTS, sampling=GREEDY, closure=closure, max_new_tokens=16, out=tmp_path / "w.trace")
    assert trunks(trace) == answers
    for policy in WINDOW_POLICIES:
        assert replayed(trace, policy)[0] == answers


@pytest.mark.parametrize("window_pool", FAMILIES, indirect=True)
def test_the_draft_off_the_trunk_sees_its_window_too(window_pool):
    """A token tree's contexts, of which each goes its own way, have the logits of their texts."""
    pool, _ = window_pool
    for member in pool.members[1:]:
        forward, text = TreeForward(ModuleForward(member.model)), pool.encode(PROMPTS[1].text)
        forward.append({0: Ask([0], text, range(len(text)), causal_mask(0, len(text)))})
        last, path = np.array([9, 15, 20], dtype=np.int32), np.zeros((3, 0), dtype=np.int32)
        for depth in range(1, 7):
            first = forward.num_slots(0)
            found = forward.append({0: Ask([0], [3, 4, 5], last + depth, tree_mask(last, path, first))})[0].logits
            path = np.column_stack([path, first + np.arange(3, dtype=np.int32)])
            for row, end in enumerate(last.tolist()):
                expected = without_cache(member.model, text[: end + 1] + [3 + row] * depth)[-1]
                assert torch.allclose(found[row], expected, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("window", [1, 3, 4, 50])
def test_the_last_tokens_of_a_window_are_counted_along_the_row(window):
    looks = torch.rand((2, 1, 5, 20), generator=torch.Generator().manual_seed(0)) < 0.6
    narrow = within_window(looks, window)
    for row, kept in zip(looks.flatten(0, 2), narrow.flatten(0, 2), strict=True):
        assert kept.nonzero().flatten().tolist() == row.nonzero().flatten().tolist()[-window:]


def test_windows_of_a_config():
    assert layer_windows(tiny_decoder("llama").config) == (None, None)
    assert layer_windows(tiny_decoder("mistral-window").config) == (4, 4)
    assert layer_windows(tiny_decoder("qwen2-window").config) == (None, 4)
    assert layer_windows(tiny_decoder("gemma3").config) == (4, None)
    assert layer_windows(tiny_decoder("qwen2", use_sliding_window=False, sliding_window=4).config) == (None, None)


@pytest.fixture(scope="module")
def llama_pool(tmp_path_factory, tiny_pool):
    """Never changed by a test."""
    members = NGRAM + slim("draft", 2) + at("target")
    folder = tmp_path_factory.mktemp("llama") / "pool"
    return write(folder, tiny_pool.tokenizer, members, name="options", target=random_llama(11))


@pytest.fixture
def folder(llama_pool, tmp_path):
    """A copy that a test may change; there is no generation_config.json."""
    copied = shutil.copytree(llama_pool, tmp_path / "pool")
    (copied / "target" / "generation_config.json").unlink()
    return copied


def say(folder, options: dict, *, ignored: tuple[str, ...] = ()) -> None:
    """The target's options of generation, and which of them the pool ignores."""
    (folder / "target" / "generation_config.json").write_text(json.dumps(options))
    file = folder / "pool.toml"
    kept = [line for line in file.read_text().splitlines() if not line.startswith("ignore")]
    key = [f"ignore_generation_options = {json.dumps(ignored)}"] if ignored else []
    file.write_text("\n".join([*key, *kept]))


@pytest.mark.parametrize("place", ["config", "generation", "generation over config"])
def test_run_record_and_replay_end_where_generate_does(folder, tmp_path, place):
    config = folder / "target" / "config.json"
    free = ran(ModelPool.load(folder), "plain")
    ends = [free[1][2], free[2][4]]  # early ones, so that ending at either is another text
    if place == "config":
        change_json(config, eos_token_id=ends)
    elif place == "generation":
        change_json(config, eos_token_id=None)
        say(folder, {"eos_token_id": ends})
    else:  # generate() then does not stop at what config.json names
        change_json(config, eos_token_id=[EOS, ends[0]])
        say(folder, {"eos_token_id": ends[1]})
        del ends[0]
    pool = ModelPool.load(folder)
    wanted = stock(pool, folder)
    assert sum(map(len, wanted)) < sum(map(len, free))
    closure = Closure(kind="monotone", reach=6, run=4)
    record(pool, PROMPTS, sampling=GREEDY, closure=closure, max_new_tokens=16, out=tmp_path / "ends.trace")
    trace = read_trace(tmp_path / "ends.trace")
    assert set(trace.meta.eos_token_ids) == set(pool.eos_token_ids) == set(ends)
    assert trunks(trace) == wanted
    for policy in ("plain", "draft:4/target", "ngram:3/draft:2/target"):
        assert ran(pool, policy) == replayed(trace, policy)[0] == wanted


NO_ID = ["x", 10**9, len(ALPHABET), True, -1, 1.5, [0, "x"], [0, -1], [[0]], {"a": 0}]


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_end_tokens_that_are_no_ids_are_one_line(folder, file):
    change_json(folder / "target" / "config.json", eos_token_id=0)
    for wrong in NO_ID:
        if file == "config.json":
            change_json(folder / "target" / file, eos_token_id=wrong)
        else:
            say(folder, {"eos_token_id": wrong})
        with pytest.raises(PoolFileError) as caught:
            ModelPool.load(folder)
        assert str(caught.value) == f"{folder / 'target' / file}: eos_token_id must be ids from 0 to 31, got {wrong!r}"


@pytest.mark.parametrize("said", [{"eos_token_id": None}, {}, {"eos_token_id": []}])
def test_a_target_whose_generate_never_stops_is_refused(folder, said):
    say(folder, said)
    with pytest.raises(PoolFileError, match=r"generation_config\.json: eos_token_id must name the tokens .*, got None"):
        ModelPool.load(folder)


NO_EFFECT = [option for options in OPTIONS["no_effect"].values() for option in options]
PROMPT = asked("hello there, the ca")
# What the greedy text is asked with; they are the run's own, or say what else than ids is returned.
ASKED = {"return_dict_in_generate": False} | {name: False for name in OPTIONS["off_in_calls"] if name[:3] == "out"}


def chain(pool):
    return ran(pool, "draft:3/target", PROMPT, num_tokens=16, forward="modules")


@pytest.fixture(scope="module")
def unchanged(llama_pool):
    """What the pool writes as it is."""
    return chain(ModelPool.load(llama_pool))


def test_the_list_of_options_holds_every_one_once():
    """A new version of transformers may bring some."""
    known = {option for option in vars(GenerationConfig()) if not option.startswith("_")}
    listed = sorted([*NO_EFFECT, *OFF_IN_FILES, *set(OPTIONS["off_in_calls"]) - set(NO_EFFECT) - set(OFF_IN_FILES)])
    assert known <= set(listed) == set(VALUES)
    assert len(listed) == len(set(listed))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("option", NO_EFFECT)
@pytest.mark.one_in(5)
def test_an_option_that_is_let_through_changes_no_text(folder, option):
    say(folder, {"eos_token_id": EOS} | ({} if VALUES[option] is None else {option: VALUES[option]}))
    pool = ModelPool.load(folder)
    assert chain(pool) == stock(pool, folder, PROMPT, num_tokens=16, **ASKED)


@pytest.mark.parametrize("option", sorted(OFF_IN_FILES))
@pytest.mark.one_in(7)
def test_another_option_is_refused_by_name_and_may_be_ignored_or_left_off(folder, unchanged, option):
    said = {"eos_token_id": EOS, option: VALUES[option]}
    say(folder, said | {"do_sample": option == "num_return_sequences"})  # several need chance
    told = rf"generation_config\.json: {option} must be left at .*ignore_generation_options = \[\"{option}\"\]"
    with pytest.raises(PoolFileError, match=told) as caught:
        ModelPool.load(folder)
    assert str(caught.value) in check_pool(folder).problems
    say(folder, said | {"do_sample": option == "num_return_sequences"}, ignored=(option,))
    assert chain(ModelPool.load(folder)) == unchanged
    for off in (None, *OFF_IN_FILES[option]):
        say(folder, said | {option: off})
        assert check_pool(folder).works


def test_options_of_an_instruct_model(folder, tmp_path):
    """As Qwen2.5-Instruct has them: what only sampling reads is let through; the recording tells what is left off."""
    sampled = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8}
    options = sampled | {"eos_token_id": EOS, "repetition_penalty": 1.1}
    say(folder, options)
    with pytest.raises(PoolFileError, match=r"repetition_penalty must be left at 1, .*got 1\.1$"):
        ModelPool.load(folder)
    say(folder, options | {"min_length": 4}, ignored=("repetition_penalty",))
    with pytest.raises(PoolFileError, match="min_length must be left at 0"):
        ModelPool.load(folder)
    say(folder, options, ignored=("repetition_penalty",))
    assert check_pool(folder).works
    pool = ModelPool.load(folder)
    assert chain(pool) == stock(pool, folder, PROMPT, num_tokens=16, repetition_penalty=1.0)
    assert chain(pool) != stock(pool, folder, PROMPT, num_tokens=16, repetition_penalty=1.3)  # what it is refused for
    closure = Closure(kind="monotone", reach=2, run=1)
    trace = record(pool, PROMPT, sampling=GREEDY, closure=closure, max_new_tokens=4, out=tmp_path / "t.trace")
    assert trace.meta.origin == "recorded from pool options; repetition_penalty 1.1 of its generation config left off"


def test_what_is_to_be_ignored_must_be_there(folder):
    say(folder, {"eos_token_id": EOS, "temperature": 0.7}, ignored=("temperature",))
    told = r"ignore_generation_options must be options of .* refused \(none\), got 'temperature'$"
    with pytest.raises(PoolFileError, match=told):
        ModelPool.load(folder)
    assert any("got 'temperature'" in problem for problem in check_pool(folder).problems)


def test_options_in_a_config_without_the_other_file_count(folder):
    """As `generate()` reads models saved before there was a generation_config.json."""
    change_json(folder / "target" / "config.json", eos_token_id=EOS, no_repeat_ngram_size=2)
    with pytest.raises(PoolFileError, match=r"config\.json: no_repeat_ngram_size must be left at 0"):
        ModelPool.load(folder)


def test_options_that_transformers_cannot_read_are_one_line(folder):
    say(folder, {"max_new_tokens": -3})
    (problem,) = check_pool(folder).members[2].problems
    assert "generation_config.json: content must be options of generation that transformers reads" in problem


# Members whose tables are padded differently. The target is not trained, so that it writes rows that no token has,
# which no other member may draft.
TOKENS = len(ALPHABET)
TARGET_ROWS = TOKENS + 8
# Tables that are smaller than the target's, larger, as large, and without any padding.
TABLES = [(TOKENS, TOKENS + 4), (TOKENS + 16, TOKENS), (TOKENS + 2, TARGET_ROWS)]
POLICIES = ("plain", "draft:4/target", "draft:3/mid:5/target", "slim:3/target", "ngram:3/draft:2/target")
# The last has a branch for every row of the target, of which members say only those of tokens.
TREES = ("tree,shape=3x2x1,through=mid", "tree-dynamic,draft=mid,beams=3,depth=4,tokens=8", f"tree,shape={TARGET_ROWS}")
SAMPLINGS = pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=lambda sampling: sampling.mode)


def like(model, num_rows: int, num_layers: int = 3):
    """The first layers, with a table of another size."""
    other = random_llama(0, num_layers=num_layers, vocab_size=num_rows)
    held, shared = other.state_dict(), min(num_rows, TARGET_ROWS)
    for name, weight in model.state_dict().items():
        if weight.shape[:1] == (TARGET_ROWS,):
            held[name][:shared] = weight[:shared]
        elif name in held:
            held[name].copy_(weight)
    return other


@pytest.fixture(scope="module")
def padded_target():
    return random_llama(11, vocab_size=TARGET_ROWS)


@pytest.fixture(scope="module", params=TABLES, ids=str)
def padded(request, tmp_path_factory, tiny_pool, padded_target):
    """A pool, and what `generate()` writes."""
    draft_rows, mid_rows = request.param
    models = {"draft": like(padded_target, draft_rows, 1), "mid": like(padded_target, mid_rows, 2)}
    members = NGRAM + at("draft", "mid") + slim("slim", 2) + at("target")
    folder = write(tmp_path_factory.mktemp("padded"), tiny_pool.tokenizer, members, target=padded_target, **models)
    assert check_pool(folder).works
    pool = ModelPool.load(folder)
    answers = stock(pool, folder)
    assert any(token >= TOKENS for answer in answers for token in answer)
    return pool, answers


@pytest.mark.parametrize(
    ("policy", "forward"), [*zip(POLICIES + TREES, cycle(["modules", "fused", "fused"]), strict=False)]
)
@pytest.mark.one_in(5)
def test_padded_texts_are_those_of_generate(padded, policy, forward):
    assert ran(padded[0], policy, forward=forward) == padded[1]


def test_padded_coupled_texts_are_the_targets(padded):
    pool, _ = padded
    alone = ran(pool, "plain", sampling=COUPLED)
    table = [rows for rows, _ in TABLES].index(pool.member("draft").model.config.vocab_size)
    for policy in (POLICIES[1:] + TREES)[table::3]:  # each policy with one of the tables
        assert ran(pool, policy, sampling=COUPLED) == alone


def check_agree(pool, prompts, policies, **given):
    found = agree(pool, prompts, policies, batch=2, **given)
    assert found.agree, [(one.policy, one.difference) for one in found.policies if one.difference]
    assert all(one.left is None and one.num_steps > 3 for one in found.policies)


@SAMPLINGS
@pytest.mark.one_in(2)
def test_padded_both_worlds_take_the_same_steps(padded, sampling):
    check_agree(padded[0], PROMPTS[:3], POLICIES + TREES, sampling=sampling, max_new_tokens=8)


def test_trees_have_no_branch_of_a_row_without_a_token(padded, tmp_path):
    trees = tuple(tree_of(text) for text in (f"draft:{TARGET_ROWS}", "mid:3x2x1"))
    closure = Closure(kind="monotone", reach=3, run=2, trees=trees)
    record(padded[0], PROMPTS[:2], sampling=COUPLED, closure=closure, max_new_tokens=8, out=tmp_path / "p.trace")
    trace = read_trace(tmp_path / "p.trace")
    assert trace.meta.vocab_size == TARGET_ROWS
    for request in trace.requests:
        assert (request.trie.next_token[:-1] < TOKENS).all()
        branches = request.trie.ranks.rank >= 0
        assert (np.broadcast_to(request.trie.token, branches.shape)[branches] < TOKENS).all()
        # Every token is a branch of `draft` somewhere on the trunk.
        assert set(request.trie.token[branches[0]].tolist()) == set(range(TOKENS))


def test_rejection_sampling_keeps_the_targets_distribution(padded):
    """The first token of many draws, under a draft that cannot say a part of what the target writes."""
    pool, _ = padded
    probs = pool.target.model(torch.tensor([pool.encode("hello there")])).logits[0, -1].softmax(-1)
    sampling = Sampling(mode="rejection", temperature=1.0, seed=5)
    given = {"sampling": sampling, "num_tokens": 2, "batch": 100, "forward": "modules"}
    answers = ran(pool, "draft:2/target", asked(*["hello there"] * 600), **given)
    shares = torch.bincount(torch.tensor([answer[0] for answer in answers]), minlength=TARGET_ROWS) / 600
    assert shares[TOKENS:].sum() > 0
    # A mean of 600 draws lies within 5 of its own spreads.
    assert ((shares - probs).abs() <= 5 * (probs * (1 - probs) / 600).sqrt() + 1 / 600).all()
    inside = probs[:TOKENS].sum()
    assert abs(shares[:TOKENS].sum() - inside) <= 5 * (inside * (1 - inside) / 600).sqrt()


@pytest.mark.parametrize("rows", [30, 34, feature_pools.VOCABULARY])
@SAMPLINGS
@pytest.mark.one_in(3)
def test_a_drafter_that_reads_states_says_only_tokens(rows, sampling, tmp_path):
    """Of 30 tokens: two members have tables of so many rows, one of which reads the target's states."""
    made = {"members": ("mid", "target"), "keys": feature_pools.READS, "tokens": 30, "rows": rows}
    pool = ModelPool.load(feature_pools.written(tmp_path / "pool", **made))
    prompts, given = asked(*feature_pools.PROMPTS[:3]), {"sampling": sampling, "max_new_tokens": 12}
    record(pool, prompts, closure=Closure(kind="monotone", reach=5, run=2), out=tmp_path / "p.trace", **given)
    requests = read_trace(tmp_path / "p.trace").requests
    assert any((request.trie.next_token[-1] >= 30).any() for request in requests)
    assert all((request.trie.next_token[:-1] < 30).all() for request in requests)
    chains = ("feature:4/target", "feature:2/mid:3/target")
    check_agree(pool, prompts, chains, recording=tmp_path / "p.trace", **given)


def test_generate_with_a_tokenizer_that_says_what_is_padding(padded_target, tiny_pool):
    small = like(padded_target, TOKENS)
    ids = torch.tensor([tiny_pool.tokenizer.encode("hello there").ids])
    given = {"max_new_tokens": 24, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tiny_pool.tokenizer)

    def ours(assistant, tokenizer):
        how = {"assistant_models": [assistant], "target_tokenizer": tokenizer, "custom_generate": paceline.generate}
        return padded_target.generate(ids, **how, **given)

    assert torch.equal(ours(small, tokenizer), padded_target.generate(ids, **given))
    assert small.config.vocab_size == TOKENS
    for assistant, known, told in [
        (small, None, r"assistant0 must have the target's vocabulary size .*target_tokenizer must say"),
        (like(padded_target, TOKENS - 1), tokenizer, rf"a row for each of the {TOKENS} tokens of target_tokenizer"),
    ]:
        with pytest.raises(ValueError, match=told):
            ours(assistant, known)


STAMPED = (
    "{{ img_token }}{{ cls_token }}{{ bos_token }}{% for one in messages %}{{ one.content }}{{ eos_token }}{% endfor %}"
)
OF_TOOLS = {"name": "tool_use", "template": "b"}
TABLE = {"added_tokens_decoder": {"0": {"content": "a", "special": True}}}


@pytest.mark.parametrize(
    ("config", "beside"),
    [
        ({"bos_token": "a", "eos_token": {"__type": "AddedToken", "content": "b"}, "cls_token": "c"}, {}),
        ({}, {"bos_token": "a", "eos_token": {"content": "b"}}),
        ({"bos_token": "c", "eos_token": "b"}, {"bos_token": "a"}),
        ({"bos_token": "c", **TABLE}, {"bos_token": "a", "eos_token": "b"}),
        ({"bos_token": "a", "extra_special_tokens": {"img_token": "b"}, **TABLE}, {}),
        ({"bos_token": "a", "extra_special_tokens": {"img_token": "b"}}, {"bos_token": "a"}),
        ({"bos_token": "a", "chat_template": [OF_TOOLS, {"name": "default", "template": STAMPED}]}, {}),
    ],
)
def test_a_template_has_the_special_tokens_that_transformers_gives_it(tmp_path, tiny_pool, config, beside):
    """Those of older tokenizers are in a file of their own."""
    tiny_pool.tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": STAMPED, **config}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    if beside:
        (tmp_path / "special_tokens_map.json").write_text(json.dumps(beside))
    theirs = PreTrainedTokenizerFast.from_pretrained(str(tmp_path)).apply_chat_template(
        [{"role": "user", "content": "d"}], tokenize=False, add_generation_prompt=True
    )
    assert read_chat_template(tmp_path / "pool.toml", "tokenizer.json").asked("d") == theirs
    assert len(theirs) > 1


@pytest.mark.parametrize("name", ["tool_use", ["default"], {}])
def test_named_templates_without_a_default_are_refused_by_name(tmp_path, name):
    (tmp_path / "tokenizer.json").touch()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": [OF_TOOLS | {"name": name}]}))
    told = f"called default among its named chat templates ({name}), got 'tokenizer"
    with pytest.raises(ValueError, match=re.escape(told)):
        read_chat_template(tmp_path / "pool.toml", "tokenizer.json")
