"""The event stream reader: line ends, splits, comments, names, ends."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.sse import Event, Reader

ODD = "a\u2028b\u2029c\u0085d\x0b\x0c\x1c"  # each ends a line for str.splitlines()


def read_all(*pieces: bytes) -> list[Event]:
    reader = Reader()
    events = [event for index, piece in enumerate(pieces) for event in reader.feed(index * 10, index, piece)]
    last = reader.end()
    return events if last is None else [*events, last]


def data(*pieces: bytes) -> list[bytes]:
    return [event.data for event in read_all(*pieces)]


@pytest.mark.parametrize(
    ("stream", "expected", "why"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"], "several events in a read"),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"], "CR LF ends a line"),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"], "CR alone ends a line"),
        (b"data:a\n\n", [b"a"], "the space is optional"),
        (b"data:  a\n\n", [b" a"], "only one space is dropped"),
        (b"data: a\ndata: b\n\n", [b"a\nb"], "data lines are joined with a line feed"),
        (b": ping\n\n:\n\nretry: 1\n\nid: 3\n\n", [], "blocks without data dispatch nothing"),
        (b"data\n\ndata:\n\n", [], "an empty data field carries nothing"),
        (b": busy\ndata: a\nid: 2\n\n", [b"a"], "a comment inside a block does not lose the block"),
        (b"event: message\ndata: a\n\nevent: error\ndata: b\n\n", [b"a", b"b"], "message and error are read"),
        (b"event: progress\ndata: x\n\ndata: a\n\n", [b"a"], "a private event is skipped, and its name forgotten"),
        (b"\xef\xbb\xbfdata: a\xef\xbb\xbf\n\n", [b"a\xef\xbb\xbf"], "one leading byte-order mark is dropped"),
        (f"data: {ODD}\n\n".encode(), [ODD.encode()], "no other character separates"),
        (b"data: [DONE]\n\n\x00\x01", [b"[DONE]"], "bytes after the last event are no event"),
    ],
)  # fmt: skip
def test_streams_read_by_the_standard_however_they_are_cut(stream: bytes, expected: list[bytes], why: str) -> None:
    """Whole, byte by byte, and cut in two anywhere, a stream holds the same events."""
    assert expected == data(stream), why
    assert expected == data(*(stream[i : i + 1] for i in range(len(stream)))), why
    for cut in range(len(stream) + 1):
        assert expected == data(stream[:cut], stream[cut:]), (why, cut)


LETTERS = st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])  # half surrogates have no UTF-8


@given(
    payloads=st.lists(st.text(LETTERS, min_size=1).map(str.encode), max_size=8),
    end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    cuts=st.lists(st.integers(0, 400), max_size=10),
)
def test_what_was_sent_comes_out_however_it_is_cut(payloads: list[bytes], end: bytes, cuts: list[int]) -> None:
    """Nothing depends on where reads end."""
    stream = b"".join(b"data: " + payload + end + end for payload in payloads)
    borders = [0, *sorted(cuts), len(stream)]
    assert payloads == data(*(stream[a:b] for a, b in itertools.pairwise(borders)))


def test_an_event_has_the_stamp_and_the_number_of_the_read_that_completed_it() -> None:
    """Not of the read that began it, and two events of one read can be told."""
    events = read_all(b"data: a\n\ndata: b\n\nda", b"ta: c\n", b"\n")
    assert [Event(0, 0, b"a"), Event(0, 0, b"b"), Event(20, 2, b"c")] == events


def test_an_event_without_its_blank_line_is_told_apart() -> None:
    """At the end of the stream it is given, marked."""
    assert [Event(0, 0, b"a"), Event(10, 1, b"b", terminated=False)] == read_all(b"data: a\n\n", b"data: b\n")
    assert [Event(0, 0, b"b", terminated=False)] == read_all(b"data: b")


def test_a_cut_between_cr_and_lf_loses_no_last_event() -> None:
    """The line feed of an unfinished event's line end is no blank line."""
    cut = [Event(0, 0, b"a", terminated=False)]
    assert [event._replace(stamp_ns=0, read=0) for event in read_all(b"data: a\r", b"\n")] == cut
    assert read_all(b"data: a\r\n") == cut


def test_a_line_may_be_as_long_as_memory() -> None:
    """A 64 MB line in reads of 64 KB costs no more than its bytes."""
    size, piece = 64 << 20, b"x" * (64 << 10)
    assert [size] == [len(event.data) for event in read_all(b"data: ", *[piece] * 1024, b"\n\n")]
