"""`model.generate(custom_generate=paceline.generate, ...)` is `generate()`: the same text, or a refusal by name."""

import copy
import subprocess
import sys
from functools import partial
from importlib.resources import files
from itertools import cycle
from pathlib import Path

import paceline
import pytest
import torch
from paceline.base.errors import install_hint
from paceline.policies import Draft, Member, Pool, Ratio, Verify
from paceline.policies.fixed import Chain, Confident
from paceline.reports import summarise_run
from paceline.runtime.prompts import read_prompts
from paceline.runtime.state import KVMemoryError
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    StoppingCriteriaList,
    StopStringCriteria,
    TextIteratorStreamer,
)
from transformers.generation import EosTokenCriteria, GenerateDecoderOnlyOutput, MaxLengthCriteria
from transformers.generation.streamers import BaseStreamer

from ..conftest import ALPHABET, EOS, noisy, random_llama
from ..tokenizers.trained_tokenizers import byte_level
from .chained_models import PAD, POLICIES, Models, batch, letters

PICO = Path(str(files("paceline"))) / "pools" / "pico"


@pytest.fixture(scope="module")
def models() -> Models:
    return Models(11)


class TestGreedy:
    @pytest.mark.parametrize(("policy", "kv_cache"), [*zip(POLICIES, cycle(["slots", "mask"]), strict=False)])
    def test_a_padded_batch_reads_as_generates(self, models, policy, kv_cache):
        given = {"policy": policy, "kv_cache": kv_cache}
        stock, ours = models.both(batch(), ours=given, max_new_tokens=20, pad_token_id=PAD)
        assert torch.equal(stock, ours)

    @pytest.mark.parametrize("seed", range(2))
    def test_other_models_and_prompts(self, seed):
        models = Models(100 + seed)
        for lengths in ((3,), (5, 5), (1, 2, 30), (8, 1, 1, 6, 2)):
            stock, ours = models.both(batch(lengths, seed=seed), max_new_tokens=24, pad_token_id=PAD)
            assert torch.equal(stock, ours)

    def test_answers_that_end_early_are_filled_up(self, models):
        inputs = batch((6, 2, 9, 4, 1, 3))
        free = models.target.generate(**inputs, max_new_tokens=16, eos_token_id=None, pad_token_id=PAD)[:, 9:]
        several = [int(free[0, 3]), int(free[1, 7]), int(free[2, 11])]
        for eos in (several[0], several, torch.tensor(several), None, -1):
            for pad in (PAD, None):
                stock, ours = models.both(inputs, max_new_tokens=16, eos_token_id=eos, pad_token_id=pad)
                assert torch.equal(stock, ours)
        assert models.both(inputs, max_new_tokens=16, eos_token_id=several)[0].shape[1] <= 9 + 16

    @pytest.mark.parametrize("limits", [{"max_new_tokens": 1}, {"max_new_tokens": 2}, {"max_length": 19}, {}])
    @pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
    def test_budgets(self, models, limits):
        stock, ours = models.both(batch(), pad_token_id=PAD, **limits)
        assert torch.equal(stock, ours)

    def test_without_a_mask(self, models):
        ids = batch((5, 5))["input_ids"]
        stock, ours = models.both({"input_ids": ids}, max_new_tokens=12, pad_token_id=PAD)
        assert torch.equal(stock, ours)
        stock, ours = models.both({"inputs": ids[:1]}, max_new_tokens=12, pad_token_id=PAD)
        assert torch.equal(stock, ours)

    def test_positions_that_are_those_of_generate(self, models):
        inputs = batch((3, 5))
        inputs["position_ids"] = torch.tensor([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]])
        stock, ours = models.both(inputs, max_new_tokens=1, pad_token_id=PAD)
        assert torch.equal(stock, ours)

    def test_a_config_object_and_a_dictionary_back(self, models):
        config = GenerationConfig(max_new_tokens=9, pad_token_id=PAD, eos_token_id=EOS, return_dict_in_generate=True)
        stock, ours = models.both(batch(), generation_config=config)
        assert isinstance(ours, GenerateDecoderOnlyOutput)
        assert torch.equal(stock.sequences, ours.sequences)

    def test_criteria_objects_instead_of_options(self, models):
        inputs = batch()
        eos = int(models.target.generate(**inputs, max_new_tokens=5, pad_token_id=PAD)[1, -1])
        criteria = StoppingCriteriaList([MaxLengthCriteria(17 + 9), EosTokenCriteria(eos)])
        stock, ours = models.both(inputs, stopping_criteria=criteria, max_new_tokens=30, pad_token_id=PAD)
        assert torch.equal(stock, ours)

    def test_a_model_that_runs_through_its_own_modules(self):
        def gpt2(num_layers):
            torch.manual_seed(num_layers)
            config = GPT2Config(
                vocab_size=len(ALPHABET), n_positions=64, n_embd=32, n_layer=num_layers, n_head=4,
                initializer_range=0.3, bos_token_id=None, eos_token_id=EOS, attn_implementation="sdpa",
            )  # fmt: skip
            return GPT2LMHeadModel(config).eval()

        models = Models(1)
        models.target, models.assistants = gpt2(3), [gpt2(2)]
        stock, ours = models.both(batch(), max_new_tokens=20, pad_token_id=PAD)
        assert torch.equal(stock, ours)

    @pytest.mark.skipif(not (PICO / "pool.toml").is_file(), reason="the pool pico is not there")
    def test_trained_models(self):
        draft, mid, target = (
            AutoModelForCausalLM.from_pretrained(PICO / name, dtype=torch.float32).eval()
            for name in ("draft", "mid", "target")
        )
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(PICO / "tokenizer.json"),
            pad_token="<|end|>",
            padding_side="left",
            model_input_names=["input_ids", "attention_mask"],
        )
        texts = [prompt.text for prompt in read_prompts(PICO / "prompts.jsonl")[:4]]
        inputs = tokenizer(texts, return_tensors="pt", padding=True)
        stock = target.generate(**inputs, max_new_tokens=20, pad_token_id=0)
        logs = []
        ours = target.generate(
            **inputs,
            max_new_tokens=20,
            pad_token_id=0,
            custom_generate=paceline.generate,
            assistant_models=[mid, draft],
            on_log=logs.append,
        )
        assert torch.equal(stock, ours)
        assert logs[0].meta["policy"] == "assistant0:4/assistant1:4/target"
        assert summarise_run(logs[0]).acceptance_length > 2


class TestStopStrings:
    @pytest.mark.parametrize("places", [[(0, 5, 6)], [(1, 3, 5), (2, 9, 12)], [(0, 0, 1), (3, 7, 9), (4, 1, 4)]])
    def test_they_end_answers_where_generate_ends_them(self, models, places):
        inputs, tokenizer = batch((7, 7, 7, 7, 7)), letters()
        options = {"max_new_tokens": 24, "pad_token_id": PAD}
        free = models.target.generate(**inputs, **options)
        rows = ["".join(ALPHABET[token] for token in row) for row in free[:, 7:].tolist()]
        texts = [rows[row][start:end] for row, start, end in places]
        stock = models.target.generate(**inputs, stop_strings=texts, tokenizer=tokenizer, **options)
        ours = models.chained(inputs, stop_strings=texts, target_tokenizer=tokenizer, **options)
        assert torch.equal(stock, ours)
        assert not torch.equal(stock, free)

    def test_they_may_begin_in_the_prompt(self, models):
        inputs, tokenizer = batch((7,)), letters()
        first = models.target.generate(**inputs, max_new_tokens=1)[0]
        text = "".join(ALPHABET[int(token)] for token in first[-3:])
        ours = models.chained(inputs, stop_strings=[text], target_tokenizer=tokenizer, max_new_tokens=24)
        assert torch.equal(ours[0], first)

    def test_as_a_criterion(self, models):
        inputs = batch((7, 7))
        criteria = StoppingCriteriaList([StopStringCriteria(letters(), ["e", "th"])])
        stock, ours = models.both(inputs, stopping_criteria=criteria, max_new_tokens=24, pad_token_id=PAD)
        assert torch.equal(stock, ours)

    def test_what_they_need(self, models):
        with pytest.raises(ValueError, match=r"stop_strings need target_tokenizer, .* got NoneType"):
            models.chained(batch(), stop_strings=["e"], tokenizer=letters(), max_new_tokens=4)
        with pytest.raises(ValueError, match=r"stop_strings must not be empty, got \['e', ''\]"):
            models.chained(batch(), stop_strings=["e", ""], target_tokenizer=letters(), max_new_tokens=4)
        with pytest.raises(ValueError, match="more than one row need eos_token_id"):
            models.chained(
                batch(), stop_strings=["e"], target_tokenizer=letters(), max_new_tokens=4, eos_token_id=None,
                pad_token_id=PAD,
            )  # fmt: skip


class Listener(BaseStreamer):
    def __init__(self) -> None:
        self.heard: list = []

    def put(self, value) -> None:
        self.heard.append(value.tolist())

    def end(self) -> None:
        self.heard.append("end")


class TestStreamer:
    def test_it_hears_what_it_hears_from_generate(self, models):
        stock, ours = Listener(), Listener()
        models.target.generate(**batch((6,)), max_new_tokens=12, streamer=stock)
        models.chained(batch((6,)), max_new_tokens=12, streamer=ours)
        assert stock.heard == ours.heard
        assert len(ours.heard) > 3

    def test_an_iterator_comes_to_an_end(self, models):
        streamer = TextIteratorStreamer(letters(), skip_prompt=True)
        ids = models.chained(batch((6,)), max_new_tokens=12, streamer=streamer)
        assert "".join(streamer) == "".join(ALPHABET[token] for token in ids[0, 6:].tolist())

    def test_it_is_for_one_row(self, models):
        with pytest.raises(ValueError, match="streamer must be for a batch of 1, got a batch of 2"):
            models.chained(batch((6, 6)), max_new_tokens=12, streamer=Listener())


class TestMemory:
    def test_short_memory_changes_nothing(self, models):
        stock = models.target.generate(**batch(), max_new_tokens=20, pad_token_id=PAD)
        ours, logs = [], []
        for kv_cache in ("slots", "mask"):
            limit = {"kv_cache": kv_cache, "kv_limit_bytes": 160_000, "on_log": logs.append}
            ours.append(models.chained(batch(), max_new_tokens=20, pad_token_id=PAD, **limit))
        assert all(torch.equal(stock, each) for each in ours)
        assert sum(log.requests["preempted"].sum() for log in logs) > 0

    def test_too_little_memory_is_an_error(self, models):
        with pytest.raises(KVMemoryError, match="the KV limit is 1,000"):
            models.chained(batch(), max_new_tokens=4, pad_token_id=PAD, kv_limit_bytes=1000)


class TestPolicies:
    def test_objects_classes_and_functions(self, models):
        pool = Pool(tuple(Member(name=name) for name in ("assistant0", "assistant1", "target")))
        stock = models.target.generate(**batch(), max_new_tokens=12, pad_token_id=PAD)
        for policy in (Chain(pool, "assistant0:2/target"), Confident, partial(Chain, spec="assistant1:3/target")):
            logs = []
            ours = models.chained(batch(), max_new_tokens=12, pad_token_id=PAD, policy=policy, on_log=logs.append)
            assert torch.equal(stock, ours)
            assert logs[0].meta["policy"] in {"Chain", "Confident"}
            assert logs[0].steps["drafted"].sum() > 0

    def test_names_follow_size_or_the_user(self, models):
        large, small = models.assistants
        assert large.num_parameters() > small.num_parameters()
        logs = []
        models.chained(batch(), max_new_tokens=4, pad_token_id=PAD, on_log=logs.append)
        assert logs[0].meta["members"] == ["assistant0", "assistant1", "target"]
        names = {"assistant_names": ["mid", "draft"], "policy": "draft:2/mid:3/target"}
        models.chained(batch(), max_new_tokens=4, pad_token_id=PAD, on_log=logs.append, **names)
        assert logs[1].meta["members"] == ["draft", "mid", "target"]

    def test_a_lossy_policy_has_its_way(self, models):
        class Lenient:
            def __init__(self, pool):
                self.verify = Verify("target", Ratio(1e-6))

            def decide(self, seen):
                return self.verify if seen.num_pending else Draft("assistant0", 3)

            def learn(self, outcome):
                pass

        stock, ours = models.both(batch(), ours={"policy": Lenient}, max_new_tokens=20, pad_token_id=PAD)
        assert not torch.equal(stock, ours)


class TestForeignAssistants:
    @pytest.fixture(scope="class")
    @classmethod
    def foreign(cls):
        target, other = (PreTrainedTokenizerFast(tokenizer_object=byte_level(size)) for size in (400, 300))
        models = Models(7)
        models.target = random_llama(7, vocab_size=400)
        models.assistants = [random_llama(8, vocab_size=300, num_layers=1), noisy(models.target, 0.02, seed=3)]
        return models, {"target_tokenizer": target, "assistant_tokenizers": [other, None]}

    def test_it_drafts_and_the_text_stays(self, foreign):
        models, tokenizers = foreign
        other = tokenizers["assistant_tokenizers"][0].backend_tokenizer
        other.enable_padding()
        for policy in (None, "assistant0:4/target", "assistant0:3/assistant1:4/target"):
            ours = {"policy": policy, **tokenizers}
            stock, chained = models.both(batch(), ours=ours, max_new_tokens=16, pad_token_id=PAD)
            assert torch.equal(stock, chained)
        assert other.padding is not None

    def test_what_it_needs(self, foreign):
        models, tokenizers = foreign
        needs = {"max_new_tokens": 4, "pad_token_id": PAD, **tokenizers}
        with pytest.raises(
            ValueError, match="target must have a tokenizer where assistant0 has a tokenizer of its own"
        ):
            models.chained(batch(), **(needs | {"target_tokenizer": None}))
        with pytest.raises(ValueError, match="the target must have an end-of-sequence token where assistant0"):
            models.chained(batch(), **(needs | {"eos_token_id": None}))
        with pytest.raises(ValueError, match="assistant_tokenizers must be fast tokenizers, got str"):
            models.chained(batch(), **(needs | {"assistant_tokenizers": ["gpt2", None]}))
        foreign = {"assistant_models": [models.assistants[0], random_llama(8, vocab_size=300, num_layers=2)]}
        foreign["assistant_tokenizers"] = [tokenizers["assistant_tokenizers"][0]] * 2
        with pytest.raises(ValueError, match="assistant1 cannot verify and can only stand first"):
            models.chained(batch(), **(needs | foreign))


def test_models_are_left_as_they_are(models):
    all_models = [
        copy.deepcopy(model).requires_grad_(requires_grad=True) for model in (models.target, *models.assistants)
    ]
    target, *assistants = all_models
    inputs = batch()
    before = [
        [(name, tensor.data_ptr(), tensor.stride(), tensor.requires_grad) for name, tensor in tensors(model)]
        for model in all_models
    ]
    values = [{name: tensor.clone() for name, tensor in tensors(model)} for model in all_models]
    logits = [model(**inputs).logits for model in all_models]
    target.generate(
        **inputs, max_new_tokens=8, pad_token_id=PAD, custom_generate=paceline.generate, assistant_models=assistants
    )
    for model, places, held, said in zip(all_models, before, values, logits, strict=True):
        now = list(tensors(model))
        assert [(name, each.data_ptr(), each.stride(), each.requires_grad) for name, each in now] == places
        assert all(torch.equal(each, held[name]) for name, each in now)
        assert torch.equal(model(**inputs).logits, said)
        model(**inputs).logits.sum().backward()
        assert not model.training


def tensors(model):
    yield from model.named_parameters()
    yield from model.named_buffers()


def test_the_guide_shows_what_the_example_prints():
    root = Path(__file__).parents[3]
    printed = (root / "examples" / "transformers_generate.out").read_text(encoding="utf-8")
    assert printed in (root / "docs" / "transformers.md").read_text(encoding="utf-8")


def python(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_importing_paceline_imports_no_torch():
    run = python(
        "import paceline, sys; print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    )
    assert run.stdout == "[]\n"


def test_without_torch_the_extra_is_named():
    run = python("import sys; sys.modules['torch'] = None; import paceline; paceline.generate")
    assert f"paceline.generate runs real models and needs torch: {install_hint('runtime')}" in run.stderr
    run = python("import paceline; paceline.generation")
    assert "module 'paceline' has no attribute 'generation'" in run.stderr
