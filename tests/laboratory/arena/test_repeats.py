"""What of a recording's answers stood before."""

from dataclasses import replace

from paceline.base.files import shipped
from paceline.traces.contexts.store import read_trace
from paceline_laboratory.arena.repeats import PIECE, pieces_of, repeats, repeats_table

PICO = read_trace(shipped("recordings", "pico.trace"))


def answer_of(request):
    return request.trie.token[request.trie.trunk[1:]].tolist()


def stands_in(piece, text):
    return any(tuple(text[start : start + PIECE]) == piece for start in range(len(text)))


def test_pieces_are_counted_as_by_looking_for_each_of_them():
    some = replace(PICO, requests=PICO.requests[::4])
    own = earlier = 0
    for place, request in enumerate(some.requests):
        answer = answer_of(request)
        for start, piece in enumerate(pieces_of(answer)):
            own += stands_in(piece, [*request.prompt, *answer[: start + PIECE - 1]])
            earlier += any(stands_in(piece, answer_of(other)) for other in some.requests[:place])
    found = repeats(some)
    assert (found.own, found.earlier) == (own, earlier)
    assert found.pieces == sum(max(0, len(answer_of(request)) - PIECE + 1) for request in some.requests)
    assert own > 0 < earlier


def test_a_recording_that_comes_again_stands_in_earlier_answers():
    once = repeats(PICO)
    twice = repeats(replace(PICO, requests=[*PICO.requests, *PICO.requests]))
    assert twice.pieces == 2 * once.pieces
    assert twice.earlier == once.earlier + once.pieces


def test_every_recording_has_a_row():
    rows = repeats_table([PICO, replace(PICO, requests=PICO.requests[:3])]).rows
    assert [row[:2] for row in rows] == [("pico", 60), ("pico", 3)]
