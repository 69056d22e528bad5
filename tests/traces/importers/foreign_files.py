"""Small files of every foreign format, made up here."""

import gzip
import json


def write_lines(path, *objects):
    """One object a line, gzip if the name says so."""
    text = "".join(json.dumps(found) + "\n" for found in objects).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def answer(question, *turns, method="sps", category="math", key="accept_lengths", wall_s=0.5, **more):
    """A line of a spec-bench answer file; a turn is the tokens that each of its steps emitted."""
    choice = {
        "index": 0,
        "turns": ["text"] * len(turns),
        "decoding_steps": [len(turn) for turn in turns],
        "new_tokens": [sum(turn) for turn in turns],
        "wall_time": [wall_s] * len(turns),
        key: [length for turn in turns for length in turn],
        **more,
    }
    return {
        "question_id": question,
        "category": category,
        "model_id": f"toy-7b-{method}-float16",
        "choices": [{name: value for name, value in choice.items() if value is not None}],
    }


def timed_answer(question, *turns):
    """A line of the answers beside a timing file; a turn is the drafted tokens that each step kept."""
    tokens = [sum(turn) + len(turn) for turn in turns]
    idxs = [len(turn) - 1 for turn in turns]
    choice = {"turns": ["text"] * len(turns), "idxs": idxs, "new_tokens": tokens, "wall_time": [1.0] * len(turns)}
    return {"question_id": question, "model_id": "toy", "choices": [choice]}


def timing(*turns, depth=7, second=0.01):
    """A line of a timing file."""
    steps = [[second * (1 + step / 10) for step in range(len(turn))] for turn in turns]
    return {
        "generate_time": [10 * second * len(turn) for turn in turns],
        "processor_time": [second / 1000] * len(turns),
        "kv_time": [second / 100] * len(turns),
        "reset_tree_time": [second] * len(turns),
        "tree_time": steps,
        "eval_time": [[second / 10] * len(turn) for turn in turns],
        "update_time": [[second / 2] * len(turn) for turn in turns],
        "accept_length": [list(turn) for turn in turns],
        "draft_length": [[depth] * len(turn) for turn in turns],
    }


def steps(accepted, drafted):
    """vLLM's metrics of one request."""
    histogram = [accepted.count(count) for count in range(max([*drafted, 0]) + 1)]
    return {
        "acceptance_histogram": histogram,
        "num_spec_steps": len(accepted),
        "per_step_accepted": accepted,
        "per_step_drafted": drafted,
    }


def response(name, accepted, drafted, *, tokens=None, prompt_tokens=11):
    """A vLLM response, with the tokens its steps explain unless told otherwise."""
    explained = sum(accepted) + len(accepted) + 1
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": explained if tokens is None else tokens}
    metrics = {"speculative_decoding": steps(accepted, drafted)}
    return {"id": name, "choices": [{"index": 0}], "usage": usage, "metrics": metrics}


def positions(name, **drafters):
    """A line of a positions file."""
    return {"id": name, "tag": "code", "prompt_tokens": 3, "drafters": drafters}


def frontier(committed, scheduled=None):
    """A Frontier acceptance trace."""
    found = {"per_request_committed_tokens_per_iteration": committed}
    return found if scheduled is None else {**found, "per_request_scheduled_draft_tokens_per_iteration": scheduled}


def one_file_each(folder):
    """A sound file of every format: format name -> files."""
    plain = [answer(1, [1] * 9, [1] * 4, method="vanilla"), answer(2, [1] * 6, method="vanilla", category="qa")]
    sps = [answer(1, [3, 1, 5], [2, 2]), answer(2, [4, 2], category="qa")]
    turns = ([6, 0, 2], [3])
    return {
        "spec-bench": [write_lines(folder / "plain.jsonl", *plain), write_lines(folder / "sps.jsonl", *sps)],
        "eagle-timed": [
            write_lines(folder / "toy_ea_info.jsonl", timing(*turns), timing([1, 1])),
            write_lines(folder / "toy_ea.jsonl", timed_answer(1, *turns), timed_answer(2, [1, 1])),
        ],
        "vllm-detailed": [
            write_lines(folder / "vllm.jsonl", response("a", [2, 0, 1], [3, 3, 3]), response("b", [1], [2]))
        ],
        "positions": [
            write_lines(
                folder / "pos.jsonl", positions("a", draft=[3, 2, 1, 1], mid=[1, 1, 2, 1]), positions("b", draft=[1])
            )
        ],
        "frontier": [
            write_lines(folder / "frontier.json", frontier({"0": [1, 2, 3], "1": [2]}, {"0": [0, 2, 2], "1": [1]}))
        ],
    }
