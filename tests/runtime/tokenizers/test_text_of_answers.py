"""Text of an answer: up to the first token that completes a stop string, and streamed token by token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.runtime.stop_strings import TextStream, make_ending, text_before_stop
from paceline.runtime.tokenizers import Pieces

from .trained_tokenizers import FAMILIES, byte_level, token_sequences, unigram


def brute_force(tokenizer, tokens, stops) -> int | None:
    for end in range(1, len(tokens) + 1):
        text = tokenizer.decode(tokens[:end])
        if any(stop in text for stop in stops):
            return end
    return None


def ended(ending, tokens, commits) -> int | None:
    """What a session is told that commits `tokens` in pieces of the given lengths."""
    emitted: list[int] = []
    for length in commits:
        num_before = len(emitted)
        emitted += tokens[num_before : num_before + length]
        if len(emitted) > num_before and (kept := ending(emitted, num_before)) is not None:
            assert num_before < kept <= len(emitted)
            return kept
    return None


@pytest.mark.parametrize("family", FAMILIES)
@given(st.data())
def test_it_ends_where_the_whole_text_says(family, data):
    tokenizer = FAMILIES[family]()
    tokens = data.draw(token_sequences(tokenizer, min_size=1, max_size=60))
    text = tokenizer.decode(tokens).replace("\ufffd", "")
    pieces = st.tuples(st.integers(0, max(0, len(text) - 1)), st.integers(1, 12)).map(
        lambda piece: text[piece[0] : piece[0] + piece[1]] or "none"
    )
    stops = data.draw(st.lists(pieces | st.sampled_from([" a", "日", "zz"]), min_size=1, max_size=3))
    commits = data.draw(st.lists(st.integers(1, 9), min_size=len(tokens), max_size=len(tokens)))
    wanted = brute_force(tokenizer, tokens, stops)
    assert ended(make_ending(tokenizer, stops), tokens, commits) == wanted


@pytest.mark.parametrize("family", ["byte-level", "unigram", "stripping"])
@given(st.data())
def test_it_finds_a_stop_string_deep_in_an_answer(family, data):
    tokenizer = FAMILIES[family]()
    stop = data.draw(st.sampled_from(["###", "\n\n", "日本", " fox\n", "🙂"]))
    lead = "the Quick naïve line 12 " * data.draw(st.integers(5, 20))
    tokens = tokenizer.encode(f"{lead}x{stop}y and more", add_special_tokens=False).ids
    commits = data.draw(st.lists(st.integers(1, 9), min_size=len(tokens), max_size=len(tokens)))
    found = ended(make_ending(tokenizer, [stop]), tokens, commits)
    assert found == brute_force(tokenizer, tokens, [stop])
    assert text_before_stop(tokenizer.decode(tokens[:found]), [stop]) == f"{lead}x"


def test_the_cost_does_not_grow_with_the_answer():
    class Counting:
        """A tokenizer that counts the tokens it is asked to decode."""

        def __init__(self, tokenizer):
            self._tokenizer = tokenizer
            self.num_decoded = 0

        def __getattr__(self, name):
            return getattr(self._tokenizer, name)

        def decode(self, ids):
            self.num_decoded += len(ids)
            return self._tokenizer.decode(ids)

    for tokenizer in map(Counting, (byte_level(600), unigram())):
        ending = make_ending(tokenizer, ["never said", "日本"])
        tokens = tokenizer.encode("the naïve fox 中文 keeps a line. " * 200, add_special_tokens=False).ids
        for end in range(4, len(tokens), 4):
            tokenizer.num_decoded = 0
            assert ending(tokens[:end], end - 4) is None
            assert tokenizer.num_decoded < 400


def test_one_ending_serves_many_requests():
    tokenizer = byte_level(600)
    ending = make_ending(tokenizer, ["the fox"])
    first, second = tokenizer.encode("see the").ids, tokenizer.encode("a fox").ids
    assert ending(first, 0) is None
    assert ending(second, 0) is None
    longer = [*first, *tokenizer.encode(" fox").ids]
    assert ending(longer, len(first)) == len(longer)


def test_what_ends_nothing_and_what_cannot_be_found():
    assert make_ending(byte_level(600), []) is None
    for stops, rule in ((["a", ""], r"must not be empty, got \['a', ''\]"), (["\ufffd"], r"must not hold U\+FFFD")):
        with pytest.raises(ValueError, match=f"^stop strings {rule}"):
            make_ending(byte_level(600), stops)
    assert text_before_stop("one two three", ["three", "two"]) == "one "
    assert text_before_stop("one two three", ["four"]) == "one two three"
    assert text_before_stop("aab", ["ab", "aab"]) == ""


@pytest.mark.parametrize("family", FAMILIES)
@given(st.data())
def test_joined_it_is_the_text_of_all_tokens(family, data):
    tokenizer = FAMILIES[family]()
    tokens = data.draw(token_sequences(tokenizer, max_size=30))
    stream = TextStream(Pieces(tokenizer))
    parts = [stream.push(token) for token in tokens]
    assert "".join(parts) + stream.rest() == tokenizer.decode(tokens)
    assert stream.rest() == ""


@pytest.mark.parametrize("family", FAMILIES)
def test_words_come_with_their_tokens(family):
    tokenizer = FAMILIES[family]()
    tokens = tokenizer.encode("the fox keeps a line", add_special_tokens=False).ids
    stream = TextStream(Pieces(tokenizer))
    for index, token in enumerate(tokens):
        part = stream.push(token)
        assert part == tokenizer.decode(tokens[: index + 1])[len(tokenizer.decode(tokens[:index])) :]


def streamed(tokenizer, text, *, cut=None):
    """What comes with each token, and at the end."""
    stream = TextStream(Pieces(tokenizer))
    parts = [stream.push(token) for token in tokenizer.encode(text, add_special_tokens=False).ids[:cut]]
    return [*parts, stream.rest()]


def test_characters_come_when_they_are_whole():
    parts = streamed(byte_level(300), "a🙂b")
    assert len(parts) > 4
    assert [part for part in parts if part] == ["a", "🙂", "b"]
    # Bytes come when their run is over: one more byte would turn all of them into U+FFFD.
    assert [part for part in streamed(unigram(), "a日b") if part] == ["a", "日b"]
    assert streamed(byte_level(300), "🙂", cut=2) == ["", "", "\ufffd"]


def test_it_holds_few_tokens():
    tokenizer = byte_level(600)
    stream = TextStream(Pieces(tokenizer))
    for token in tokenizer.encode("the naïve fox 日本 " * 50).ids:
        stream.push(token)
        assert len(stream._ids) <= 10
