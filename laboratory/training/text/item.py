"""Training texts, each split where a held-out prompt would stop."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A prompt and the text that should follow it.

    Attributes:
        tag: domain of the text, such as `math`.
        prompt: what a model is given.
        completion: what a model should write; the end token comes after it.
        answer: the part of the completion that can be scored, where one exists.
    """

    tag: str
    prompt: str
    completion: str
    answer: str | None = None

    @property
    def text(self) -> str:
        """The whole document without the end token."""
        return self.prompt + self.completion


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Documents by domain.

    Attributes:
        train: what models learn from.
        held_out: what they never see, or whose prompts they never see.
    """

    train: dict[str, list[Item]]
    held_out: dict[str, list[Item]]
