"""A draft in other tokens counts as far as both tokenizers spell the same text."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from paceline.runtime.tokenizers import REPLACEMENT, Alignment
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from ..conftest import letters
from .trained_tokenizers import byte_level, corpus, lower_casing, stripping, texts, token_sequences, unigram, word_piece

PAIRS = {
    "small to large": lambda: (byte_level(600), byte_level(1000)),
    "large to small": lambda: (byte_level(1000), byte_level(600)),
    "unigram drafts": lambda: (byte_level(600), unigram()),
    "stripping drafts": lambda: (byte_level(600), stripping()),
    "unigram judges": lambda: (unigram(), byte_level(600)),
}
EOS = 0
OTHER_EOS = 7777


def aligned(pair: str) -> tuple[Tokenizer, Tokenizer, Alignment]:
    target, other = PAIRS[pair]()
    return target, other, Alignment(target, other, EOS, frozenset({OTHER_EOS}))


def plain(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def draft_text(alignment: Alignment, other: Tokenizer, context: list[int], draft: list[int]) -> str:
    """What the other says after the context, by the definition: the whole text less the context's."""
    before = alignment.to_other(context)
    return other.decode([*before, *draft])[len(other.decode(before)) :]


@pytest.mark.parametrize("pair", PAIRS)
@given(st.data())
def test_what_counts_is_a_prefix_of_the_drafted_text(pair, data):
    """Any context and any draft: canonical or not, special tokens and halves of characters among them."""
    target, other, alignment = aligned(pair)
    context = data.draw(texts(min_size=1, max_size=6).map(lambda text: plain(target, text)) | token_sequences(target))
    draft = data.draw(texts(max_size=4).map(lambda text: plain(other, text)) | token_sequences(other, max_size=8))
    tokens = alignment.drafted(context, draft)
    text = target.decode([*context, *tokens])
    before = target.decode(context)
    # The draft may complete half a character at the end of the context, but no byte before it.
    whole = before if text.startswith(before) else before.removesuffix("\ufffd")
    assert text.startswith(whole)
    if tokens:
        said = text[len(whole) :]
        assert "\ufffd" not in said
        by_other = [draft_text(alignment, other, context, draft[: end + 1]) for end in range(len(draft))]
        assert any(longer.startswith(said) for longer in by_other)


def test_a_draft_completes_half_a_character_after_a_stray_byte():
    target, _, alignment = aligned("large to small")
    lead, rest = plain(target, "\u0325")
    assert alignment.drafted([rest, lead], [lead, rest]) == [rest]  # bytes have the same ids in both
    assert target.decode([rest, lead, rest]) == "\ufffd\u0325"


@pytest.mark.parametrize("pair", PAIRS)
@given(st.data())
def test_every_span_ends_with_a_token_of_both(pair, data):
    target, other, alignment = aligned(pair)
    context = plain(target, "the fox ")
    draft = plain(other, data.draw(texts(min_size=1, max_size=5)))
    tokens = alignment.drafted(context, draft)
    said = target.decode([*context, *tokens])
    before = alignment.to_other(context)
    assert said in {other.decode([*before, *draft[:end]]) for end in range(len(draft) + 1)}


def test_after_a_lone_space_no_word_with_a_space_of_its_own_counts():
    target, other, alignment = aligned("unigram judges")
    space = target.token_to_id("▁")
    assert target.decode([space, EOS]) == ""
    tokens = alignment.drafted([space, EOS], plain(other, "the"))
    assert target.decode([space, EOS, *tokens]) in {"", "the"}


@pytest.mark.parametrize("pair", PAIRS)
def test_a_perfect_drafter_is_understood(pair):
    """The other writes exactly what the target would: nearly all of its text comes over, whatever the cut."""
    target, _, alignment = aligned(pair)
    num_said = num_counted = 0
    for text in corpus()[:40]:
        trunk = plain(target, text)
        for cut in range(1, len(trunk) - 1, 3):
            context, wanted = trunk[:cut], trunk[cut : cut + 6]
            before = alignment.to_other(context)
            written = alignment.to_other(trunk)
            if written[: len(before)] != before:
                continue
            draft = written[len(before) : len(before) + 4]
            tokens = alignment.drafted(context, draft)
            num_said += 1
            num_counted += bool(tokens) and tokens[0] == wanted[0]
    assert num_said > 100
    assert num_counted / num_said > 0.8


@pytest.mark.parametrize("pair", PAIRS)
@given(text=texts(min_size=1, max_size=8))
def test_a_context_keeps_its_text(pair, text):
    target, other, alignment = aligned(pair)
    assume(not text.endswith(REPLACEMENT))  # reads like half a character
    context = plain(target, text)
    assume(target.decode(context) == text.removeprefix(" " if pair == "unigram judges" else ""))
    ids = alignment.to_other([EOS, *context])
    assert other.decode(ids) == target.decode(context).removeprefix("" if not pair.endswith("drafts") else " ")


def test_special_tokens_come_in_front_only():
    _, other, alignment = aligned("unigram drafts")
    start, end = other.token_to_id("<s>"), other.token_to_id("</s>")
    assert other.encode("a").ids[-1] == end
    ids = alignment.to_other(plain(byte_level(600), "the fox"))
    assert ids[0] == start
    assert end not in ids
    assert alignment.to_other([EOS]) == [start]


def test_contexts_of_special_tokens_and_drafts_of_nothing():
    target, other, alignment = aligned("small to large")
    assert alignment.drafted([EOS], plain(other, "the fox")) == plain(target, "the fox")
    assert alignment.drafted(plain(target, "a line"), []) == []
    assert alignment.drafted([], []) == []
    assert target.decode(alignment.drafted([*plain(target, "a line"), EOS], plain(other, "the fox"))) == "the fox"


def test_a_word_spelled_in_another_way_does_not_matter():
    target, other, alignment = aligned("small to large")
    letters = [token for letter in "the fox" for token in plain(target, letter)]
    assert letters != plain(target, "the fox")
    draft = plain(other, " keeps the line")
    assert alignment.drafted([*letters, *plain(target, " that")], draft) == plain(target, " keeps the line")
    assert target.decode(alignment.drafted(letters, draft)) == " keeps the line"


def test_a_long_run_without_a_place_to_split_is_spelled_whole():
    """A target that marks the starts of words cannot spell the end of one by itself."""
    target, other, alignment = aligned("unigram judges")
    context = plain(target, "日本語" * 10)
    assert target.decode(alignment.drafted(context, plain(other, "中文 fox"))) == "中文 fox"


def test_half_a_character_does_not_count():
    target, other, alignment = aligned("small to large")
    whole = plain(other, " x🙂")
    halves = [byte_token(other, byte) for byte in "🙂".encode()]
    context = plain(target, "a line")
    assert target.decode(alignment.drafted(context, [*plain(other, " x"), *halves[:2]])) == " x"
    assert target.decode(alignment.drafted(context, [*plain(other, " x"), *halves])) == " x🙂"
    assert target.decode(alignment.drafted(context, whole)) == " x🙂"
    assert alignment.drafted(context, halves[:3]) == []


def byte_token(tokenizer: Tokenizer, byte: int) -> int:
    """The token of one byte of a smile; a vocabulary of 257 has bytes only."""
    spelled = dict(zip("🙂".encode(), plain(byte_level(257), "🙂"), strict=True))
    return tokenizer.token_to_id(byte_level(257).id_to_token(spelled[byte]))


def test_a_context_that_ends_in_half_a_character_is_completed():
    target, other, alignment = aligned("large to small")
    canonical = plain(target, "a line ŝ")
    assert target.decode(canonical[:-1]).endswith("\ufffd")
    context = canonical[:-1]
    assert other.decode(alignment.to_other(context)) == "a line "
    assert alignment.drafted(context, plain(other, "ŝ")) == canonical[-1:]
    assert alignment.drafted(context, plain(other, "the")) == []


def test_a_text_that_ends_ends_for_the_target_too():
    target, other, alignment = aligned("small to large")
    context = plain(target, "a line")
    assert alignment.drafted(context, [OTHER_EOS]) == [EOS]
    assert alignment.drafted(context, [*plain(other, " of"), OTHER_EOS, 5, 6]) == [*plain(target, " of"), EOS]
    half = byte_token(other, "🙂".encode()[0])
    assert alignment.drafted(context, [half, OTHER_EOS]) == []
    assert alignment.drafted(context, [*plain(other, " of"), half, OTHER_EOS]) == plain(target, " of")


def test_another_special_token_ends_the_draft_but_not_the_text():
    target, other, alignment = aligned("unigram drafts")
    draft = [*plain(other, "the"), other.token_to_id("<s>"), *plain(other, "fox")]
    assert target.decode(alignment.drafted(plain(target, "a"), draft)) == " the"
    # Spelled out as text it is no special token.
    assert EOS not in alignment.drafted(plain(target, "a"), plain(other, "the <|end|> fox"))


def test_tokenizers_that_change_text_are_refused():
    folding = Tokenizer.from_str(byte_level(600).to_str())
    folding.normalizer = normalizers.NFC()
    words = Tokenizer(models.WordLevel({"<unk>": 0, "t1": 1}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    drafting = "^tokenizer of the drafting member must give text back unchanged"
    for target, other, told in [
        (byte_level(600), lower_casing(), f"{drafting}, got 'the quick brown fox'.* for 'The Quick BROWN Fox'"),
        (byte_level(600), word_piece(), drafting),
        (byte_level(600), folding, f"{drafting}, got 'café'"),
        (words, byte_level(600), "^tokenizer of the target must give text back unchanged, got '<unk>"),
    ]:
        with pytest.raises(ValueError, match=told):
            Alignment(target, other, EOS, frozenset())


def test_what_the_target_cannot_say_the_other_need_not():
    target, other = letters("abcdefghijklmnopqrstuvwxyz ?"), byte_level(1000)
    alignment = Alignment(target, lower_casing(), EOS, frozenset())
    assert target.decode(alignment.drafted(plain(target, "a line"), plain(lower_casing(), " of 7 foxes"))) == " of "
    draft = plain(other, " fox naïve")  # the last of which the target cannot spell to its end
    assert [other.decode([token]) for token in draft] == [" fox", " naïve"]
    tokens = Alignment(target, other, EOS, frozenset()).drafted(plain(target, "the"), draft)
    assert target.decode(tokens) == " fox"
