"""Whether a text gives the answer that is expected of it."""


def is_right(tag: str, answer: str, text: str) -> bool:
    """True if `text` gives `answer`; a text that the token limit cut short counts as wrong.

    Args:
        tag: of the request; a text tagged `math` has to end in `Answer: ` and the answer, any other to be the answer.
        answer: what is expected; space around it does not count.
        text: what was written after the prompt.
    """
    wanted = answer.strip()
    if tag == "math":
        return text.rstrip().endswith(f"Answer: {wanted}")
    return text.strip() == wanted
