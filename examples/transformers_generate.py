"""transformers' `generate()`, and the same call with two lines more: a chain of three models for a batch of prompts.

And what needs no other model: copies from the text itself, and the model with some of its layers left out.

`examples/transformers_generate.out` beside this file is what it prints.
"""

from importlib.resources import files
from pathlib import Path

import paceline
import torch
from paceline.reports import summarise_run
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging

POOL = Path(str(files("paceline"))) / "pools" / "pico"
PROMPTS = (
    "Problem: A box holds 11 shells. Emma fills 9 boxes. How many shells does Emma pack?\nSteps:",
    "Dialogue: In the shop\nCustomer: Hi there. Do you sell a jacket like this one?\nClerk:",
    "# shutil.py\ndef ignore_patterns(*patterns):\n",
)


def main() -> None:
    torch.set_num_threads(1)
    draft, mid, model = load("draft"), load("mid"), load("target")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(POOL / "tokenizer.json"),
        pad_token="<|end|>",
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
    )
    inputs = tokenizer(list(PROMPTS), return_tensors="pt", padding=True)
    stock = model.generate(**inputs, max_new_tokens=40, pad_token_id=tokenizer.pad_token_id)
    logs = []
    ours = {"max_new_tokens": 40, "pad_token_id": tokenizer.pad_token_id, "custom_generate": paceline.generate}
    chained = model.generate(
        **inputs,
        **ours,
        assistant_models=[draft, mid],
        # Optional: the chain, instead of the default one, and what happened in numbers.
        policy="assistant0:4/assistant1:6/target",
        on_log=logs.append,
    )
    for text in tokenizer.batch_decode(chained, skip_special_tokens=True):
        print(text, end="\n----\n")
    print(f"equal to generate(): {torch.equal(stock, chained)}")
    print(f"acceptance length: {summarise_run(logs[0]).acceptance_length:.2f}")
    alone = model.generate(
        **inputs,
        **ours,
        prompt_lookup_num_tokens=4,
        skip_layers=[2, 4, 6, 8, 9],
        policy="ngram:4/slim:6/target",
        on_log=logs.append,
    )
    print(f"equal without another model: {torch.equal(stock, alone)}")
    print(f"acceptance length: {summarise_run(logs[1]).acceptance_length:.2f}")


def load(name: str) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(POOL / name, dtype=torch.float32).eval()


if __name__ == "__main__":
    logging.disable_progress_bar()
    main()
