"""Drafters distilled from a small random target: every stage, what continues a cut one, and what they are."""

import json
from dataclasses import replace
from shutil import copytree

import pytest
import torch
from paceline.runtime.pools.pool import ModelPool
from paceline.runtime.pools.pool_file import PoolFileError
from paceline.studies.agree import agree
from paceline_laboratory.training.distilling import Job, JobFailedError, distil_pool, run_jobs
from paceline_laboratory.training.students import (
    begin_feature_student,
    begin_student,
    common_tokens,
    distance,
    parted,
    read_recipe,
    read_shards,
    states_at_depths,
)
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 64
TEMPLATE = "{% for m in messages %}w2 {{ m['content'] }} w3 {% endfor %}"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    words = {f"w{token}": token for token in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w1"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.3, tie_word_embeddings=True,
        eos_token_id=0, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder / "target")
    (folder / "pool.toml").write_text(
        'name = "p"\ntokenizer = "tokenizer.json"\ncontext_tokens = 128\n'
        '[[members]]\nname = "target"\npath = "target"\n',
        encoding="utf-8",
    )
    return folder


@pytest.fixture(scope="module")
def distilled(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("distilled")
    distil_pool(source, read_recipe("tiny"), folder / "out", folder / "work", processes=1, command="it")
    return folder


def test_the_pool_drafts_what_the_target_says_in_both_worlds(distilled):
    pool = ModelPool.load(distilled / "out")
    assert [member.name for member in pool.members] == ["ngram", "draft", "mid", "feature", "target"]
    policies = ["draft:3/target", "feature:3/target", "draft:2/mid:3/target", "mid:2/feature:3/target"]
    assert agree(pool, ["w5 w6", "w9"], policies, max_new_tokens=8, reach=6).agree
    recipe = read_recipe("tiny")
    for name, student in recipe.students.items():
        weights = load_file(distilled / "out" / name / "model.safetensors")
        assert not any("embed" in key or "lm_head" in key for key in weights)
        said = json.loads((distilled / "out" / name / "vocabulary.json").read_text(encoding="utf-8"))
        assert len(said) <= student.head_tokens
        assert set(pool.eos_token_ids) <= set(said)


def test_texts_are_dialogues_with_the_targets_states(source, distilled):
    pool, recipe = ModelPool.load(source, chat=True), read_recipe("tiny")
    texts = read_shards(recipe, distilled / "work" / "shards")
    tags = set(recipe.tasks)
    for text in texts:
        assert text.tag in tags
        assert text.tokens[: text.answer_at].tolist() == pool.encode(text.question)
        expected = pool.target.model.base_model(input_ids=text.tokens[None, :-1]).last_hidden_state[0]
        assert text.states.shape == (len(text.tokens) - 1, 32)
        torch.testing.assert_close(text.states.float(), expected, rtol=0.2, atol=0.3)  # of bfloat16 at worst
    ours, held_out = parted(texts, recipe)
    assert [*ours, *held_out] == texts
    assert len(held_out) == recipe.held_out_rows
    with pytest.raises(ValueError, match="recipe tiny must hold out fewer than 4 texts, got 4"):
        parted(texts[:4], recipe)


def test_a_second_call_writes_the_same_and_trains_nothing_again(source, distilled, tmp_path, monkeypatch):
    recipe = read_recipe("tiny")
    before = {path: path.stat().st_mtime_ns for path in (distilled / "work").rglob("*.safetensors")}
    distil_pool(source, recipe, tmp_path / "out", distilled / "work", processes=1, command="it")
    assert {path: path.stat().st_mtime_ns for path in (distilled / "work").rglob("*.safetensors")} == before
    for name in recipe.students:
        ours, theirs = (out / name / "model.safetensors" for out in (tmp_path / "out", distilled / "out"))
        assert ours.read_bytes() == theirs.read_bytes()
    with pytest.raises(ValueError, match=r"work must belong to the same recipe and target, .* holds another one"):
        distil_pool(source, replace(recipe, seed=1), tmp_path / "o", distilled / "work", processes=1, command="it")


def test_processes_give_what_one_gives(source, distilled, tmp_path):
    recipe = read_recipe("tiny")
    work = tmp_path / "work"
    work.mkdir()
    # The dtype is measured: it is a matter of the machine, not of the processes.
    (work / "recipe.json").write_bytes((distilled / "work" / "recipe.json").read_bytes())
    distil_pool(source, recipe, tmp_path / "out", work, processes=2, command="it")
    for name in recipe.students:
        for file in ("model.safetensors", "vocabulary.json"):
            assert (tmp_path / "out" / name / file).read_bytes() == (distilled / "out" / name / file).read_bytes()


def test_a_process_that_fails_is_told(tmp_path):
    job = Job(pool=str(tmp_path / "none"), work=str(tmp_path), recipe="tiny", dtype="float32", every=2)
    with pytest.raises(JobFailedError, match="a process of the distillation ended with 1"):
        run_jobs([job, replace(job, first=1)], processes=2)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (("context_tokens = 128", "context_tokens = 64"), "context_tokens must hold a dialogue of recipe tiny"),
        (
            ('path = "target"', 'path = "target"\ndtype = "bfloat16"'),
            r"members\[0\].dtype must be float32 to be distilled",
        ),
    ],
)
def test_a_target_that_would_be_learned_wrong_is_refused(source, tmp_path, changes, complaint):
    folder = tmp_path / "source"
    copytree(source, folder)
    text = (folder / "pool.toml").read_text(encoding="utf-8")
    (folder / "pool.toml").write_text(text.replace(*changes), encoding="utf-8")
    with pytest.raises(PoolFileError, match=complaint):
        distil_pool(folder, read_recipe("tiny"), tmp_path / "out", tmp_path / "work", processes=1, command="it")
    assert not (tmp_path / "work").exists()


def test_a_template_that_changes_questions_is_refused(source, tmp_path):
    folder = tmp_path / "source"
    copytree(source, folder)
    (folder / "chat_template.jinja").write_text("w2 w3", encoding="utf-8")
    with pytest.raises(PoolFileError, match="chat template must hold a question once, as it is"):
        distil_pool(folder, read_recipe("tiny"), tmp_path / "out", tmp_path / "work", processes=1, command="it")


def test_a_student_begins_as_layers_of_its_target(source):
    target = ModelPool.load(source).target.model
    for num_layers, sources in ((1, [0]), (2, [0, 2]), (3, [0, 1, 2])):
        student = begin_student(target, num_layers)
        for layer, of in zip(student.model.layers, sources, strict=True):
            for own, theirs in zip(layer.parameters(), target.model.layers[of].parameters(), strict=True):
                assert torch.equal(own, theirs)
    tokens = torch.arange(9)[None]
    with torch.inference_mode():
        whole = student.model(inputs_embeds=target.model.embed_tokens(tokens)).last_hidden_state
        torch.testing.assert_close(whole, target.model(input_ids=tokens).last_hidden_state)


def test_what_is_learned_at_a_depth_is_what_decoding_reads_there(source):
    """Against one forward for each place and depth, whose text is judged up to there."""
    target = ModelPool.load(source).target.model
    torch.manual_seed(5)
    student = begin_feature_student(target).eval()
    torch.nn.init.normal_(student.fc.weight, std=0.1)
    embedded, states = torch.randn(1, 9, 32), torch.randn(1, 9, 32)
    with torch.inference_mode():
        depths = list(states_at_depths(student, embedded, states, 3))
        for place in range(9):
            for depth in range(min(3, place + 1)):
                judged = place - depth
                before = torch.cat([torch.zeros(1, 1, 32), states[:, :judged]], dim=1)
                own = [depths[number][:, judged + number][:, None] for number in range(depth)]
                read = student.fc(torch.cat([embedded[:, : place + 1], torch.cat([before, *own], dim=1)], dim=-1))
                expected = student.model(inputs_embeds=read).last_hidden_state[:, -1]
                torch.testing.assert_close(depths[depth][:, place], expected)


def test_the_distance_is_least_where_both_say_the_same():
    torch.manual_seed(0)
    states, head = torch.randn(5, 8), torch.randn(6, 8)
    own = distance(states, states, head)
    probs = (states @ head.T).softmax(-1)
    torch.testing.assert_close(own, -(probs * probs.log()).sum(-1).mean())
    assert all(distance(torch.randn(5, 8), states, head) > own for _ in range(20))


def test_the_commonest_tokens_have_the_ends_among_them(source, distilled):
    texts = read_shards(read_recipe("tiny"), distilled / "work" / "shards")
    assert 60 in common_tokens(texts, 3, [60])
    assert len(common_tokens(texts, 10, [0])) == 10
