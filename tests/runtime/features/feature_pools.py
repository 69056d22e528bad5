"""Pools of tiny random models with a drafter that reads the target's states, and what that says by its definition."""

import json

import torch
from paceline.traces.meta import Sampling
from safetensors.torch import load_file, save_file

from ... import word_models
from ...word_models import VOCABULARY, WIDTH

SAID = [token for token in range(VOCABULARY) if token % 5]
READS = 'features_of = "target"\n'
PART = 'vocabulary = "said.json"\n'
PROMPTS = [f"w{token} w{token + 3} w{2 * token}" for token in range(1, 6)]
CHAINS = (
    "feature:4/target",
    "feature:2/mid:3/target",
    "ngram:3/feature:4/target",
    "feature:3/slim:2/target",
    "feature:2/mid:3/slim:4/target",
    "svip,most=5",
    "adaptive",
    "specrouter",
    "via-sd-lossless",
)
COUPLED = Sampling(mode="coupled", temperature=0.8, seed=5)
MEMBERS = {
    "ngram": "ngram = { max_match = 2 }",
    "mid": 'path = "mid"',
    "slim": 'submodel_of = "target"\nskip_layers = [1]',
    "target": 'path = "target"',
}


def model(seed, *, num_layers, quiet=0.02, **changes):
    """A model whose layers add little to the token it reads, so that smaller ones often write the same."""
    made = word_models.model(seed, num_layers=num_layers, tied=False, **changes).eval()
    with torch.no_grad():
        for layer in made.model.layers:
            for part in (layer.self_attn.o_proj, layer.mlp.down_proj):
                part.weight.mul_(quiet)
    return made


def near(target, seed, share, *, rows=VOCABULARY):
    """A model of the target's embeddings and head, and some of its layers, changed by a share of noise."""
    made = model(seed, num_layers=2, vocab_size=rows)
    theirs = target.state_dict()
    generator = torch.Generator().manual_seed(seed)
    for name, weight in made.state_dict().items():
        noise = torch.randn(weight.shape, generator=generator) * theirs[name].std()
        weight.copy_(theirs[name][: len(weight)] + share * noise)
    return made


def written(
    folder,
    *,
    members=("target",),
    keys=READS + PART,
    width=WIDTH,
    fc=(WIDTH, 2 * WIDTH),
    num_layers=1,
    tokens=VOCABULARY,
    rows=VOCABULARY,
):
    """A pool of `feature`, of the named members, in their order, and what belongs to it; returns its folder.

    The tokenizer has so many tokens, and so many rows have the tables of all members but the target.
    """
    folder.mkdir(exist_ok=True)
    word_models.words(tokens).save(str(folder / "tokenizer.json"))
    target = model(1, num_layers=3)
    target.save_pretrained(folder / "target")
    if "mid" in members:
        near(target, 3, 0.15, rows=rows).save_pretrained(folder / "mid")
    drafter = model(2, num_layers=num_layers, hidden_size=width, vocab_size=rows)
    drafter.save_pretrained(folder / "feature")
    weights = folder / "feature" / "model.safetensors"
    held = {name: part for name, part in load_file(weights).items() if "embed" not in name and "lm_head" not in name}
    if fc is not None:
        generator = torch.Generator().manual_seed(4)
        held["fc.weight"] = torch.randn(fc, generator=generator) * 0.005
        if fc == (WIDTH, 2 * WIDTH):  # it carries token and state on, so that it agrees with the target now and then
            held["fc.weight"] += torch.cat([torch.eye(WIDTH), 0.05 * torch.eye(WIDTH)], dim=1)
    save_file(held, weights, metadata={"format": "pt"})
    (folder / "said.json").write_text(json.dumps(SAID), encoding="utf-8")
    listed = [f'[[members]]\nname = "{name}"\n{MEMBERS[name]}\n' for name in members]
    listed.insert(members[0] == "ngram", f'[[members]]\nname = "feature"\npath = "feature"\n{keys}')
    head = 'name = "p"\ntokenizer = "tokenizer.json"\ncontext_tokens = 96\n'
    (folder / "pool.toml").write_text(head + "".join(listed), encoding="utf-8")
    return folder


@torch.inference_mode()
def says(pool, context, judged):
    """`[V]` logits of the drafter after a context of which the target has judged so many tokens: the definition."""
    drafter, target = pool.member("feature").model, pool.target.model
    ids = torch.tensor(context)[None]
    states = target.model(input_ids=ids, use_cache=False).last_hidden_state[0, :judged]
    for length in range(max(1, judged), len(context) + 1):
        before = torch.cat([torch.zeros(1, WIDTH), states])[:length]
        inputs = drafter.fc(torch.cat([target.model.embed_tokens(ids[0, :length]), before], dim=-1))
        own = drafter.model(inputs_embeds=inputs[None], use_cache=False).last_hidden_state[0]
        states = torch.cat([states, own[len(states) :]])[: max(length, judged)]
    return drafter.lm_head(own[-1])
