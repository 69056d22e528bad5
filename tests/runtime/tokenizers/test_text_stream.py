"""What is streamed, joined, is the text of the whole answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.runtime.tokenizers import TextStream

from .trained_tokenizers import FAMILIES, byte_level, token_sequences, unigram


@pytest.mark.parametrize("family", FAMILIES)
@given(st.data())
def test_joined_it_is_the_text_of_all_tokens(family, data):
    tokenizer = FAMILIES[family]()
    tokens = data.draw(token_sequences(tokenizer, max_size=30))
    stream = TextStream(tokenizer)
    parts = [stream.push(token) for token in tokens]
    assert "".join(parts) + stream.rest() == tokenizer.decode(tokens)
    assert stream.rest() == ""


@pytest.mark.parametrize("family", FAMILIES)
def test_words_come_with_their_tokens(family):
    tokenizer = FAMILIES[family]()
    tokens = tokenizer.encode("the fox keeps a line", add_special_tokens=False).ids
    stream = TextStream(tokenizer)
    for index, token in enumerate(tokens):
        part = stream.push(token)
        assert part == tokenizer.decode(tokens[: index + 1])[len(tokenizer.decode(tokens[:index])) :]


def test_a_character_comes_when_it_is_whole():
    tokenizer = byte_level(300)
    tokens = tokenizer.encode("a🙂b").ids
    stream = TextStream(tokenizer)
    parts = [stream.push(token) for token in tokens]
    assert len(parts) > 3
    assert [part for part in parts if part] == ["a", "🙂", "b"]


def test_bytes_come_when_their_run_is_over():
    """One more byte would turn all of them into U+FFFD."""
    tokenizer = unigram()
    tokens = tokenizer.encode("a日b", add_special_tokens=False).ids
    stream = TextStream(tokenizer)
    assert [part for part in map(stream.push, tokens) if part] == ["a", "日b"]


def test_half_a_character_at_the_end_is_shown():
    tokenizer = byte_level(300)
    stream = TextStream(tokenizer)
    assert [stream.push(token) for token in tokenizer.encode("🙂").ids[:2]] == ["", ""]
    assert stream.rest() == "\ufffd"


def test_it_holds_few_tokens():
    tokenizer = byte_level(600)
    stream = TextStream(tokenizer)
    for token in tokenizer.encode("the naïve fox 日本 " * 50).ids:
        stream.push(token)
        assert len(stream._ids) <= 10
