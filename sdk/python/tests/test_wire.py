"""HTTP and events from bytes, however they are cut."""

from __future__ import annotations

import pytest

from ringfence import InvalidInput, NotFound, Unavailable
from ringfence._events import Flow
from ringfence._wire import Endpoint, Exchange, Request, Response, multipart


def read(answer: bytes, step: int) -> tuple[Exchange, bytes]:
    exchange, body = Exchange(), b""
    for at in range(0, len(answer), step):
        body += exchange.receive(answer[at : at + step])
    return exchange, body


PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nhel\r\n2;note=1\r\nlo\r\n0\r\ntrailer: x\r\n\r\n"
)
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN


@pytest.mark.parametrize("answer", [PLAIN, CHUNKED, INTERIM])
@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_answers_are_read_however_they_are_cut(answer: bytes, step: int) -> None:
    exchange, body = read(answer, step)
    assert (exchange.status, body, exchange.done, exchange.reusable) == (200, b"hello", True, True)


def test_an_answer_without_a_length_lasts_until_the_end() -> None:
    exchange, body = read(b"HTTP/1.1 200 OK\r\n\r\nhello", 4)
    assert not exchange.done
    assert exchange.receive(b"") == b""
    assert (body, exchange.done, exchange.reusable) == (b"hello", True, False)


def test_no_content_has_no_body() -> None:
    exchange, body = read(b"HTTP/1.1 204 No Content\r\n\r\n", 5)
    assert (exchange.status, body, exchange.reusable) == (204, b"", True)


def test_bytes_after_an_answer_are_never_taken_for_the_next_one() -> None:
    exchange, body = read(PLAIN + b"HTTP/1.1 200 OK", 1000)
    assert (body, exchange.done, exchange.reusable) == (b"hello", True, False)


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000,
    ],
)
def test_what_is_no_answer_is_refused(answer: bytes) -> None:
    with pytest.raises(Unavailable):
        read(answer, 100)


def test_half_an_answer_is_no_answer() -> None:
    exchange, _ = read(PLAIN[:-1], 100)
    with pytest.raises(Unavailable, match="before its answer was complete"):
        exchange.receive(b"")


def test_requests() -> None:
    request = Request("GET", "/files", {"path": "ä b&c", "recursive": True, "depth": None})
    encoded = request.encode(Endpoint.of("http://[::1]:8080/api/"), "secret").decode()
    lines = encoded.split("\r\n")
    assert lines[0] == "GET /api/files?path=%C3%A4%20b%26c&recursive=true HTTP/1.1"
    assert "host: [::1]:8080" in lines
    assert "authorization: Bearer secret" in lines
    assert "content-length: 0" not in lines


def test_a_key_can_not_smuggle_a_header() -> None:
    with pytest.raises(InvalidInput):
        Request("GET", "/").encode(Endpoint(), "x\r\nevil: 1")


@pytest.mark.parametrize("url", ["", "localhost:8080", "ftp://x", "unix:", "http://"])
def test_bad_addresses(url: str) -> None:
    with pytest.raises(InvalidInput, match="is no address of a server"):
        Endpoint.of(url)


@pytest.mark.parametrize("url", ["unix:/run/x.sock", "https://example.com", "http://h:81/p"])
def test_addresses(url: str) -> None:
    assert str(Endpoint.of(url)) == url


def test_failures_keep_code_hint_and_place() -> None:
    body = b'{"detail": [{"loc": ["body", "timeout_seconds"], "msg": "must be more"}], "code": "invalid_input"}'
    with pytest.raises(InvalidInput, match="timeout_seconds: must be more") as caught:
        Response(422, {}, body).checked()
    assert (caught.value.code, caught.value.status) == ("invalid_input", 422)
    with pytest.raises(NotFound) as missing:
        Response(404, {}, b'{"detail": "no such session", "code": "not_found", "hint": "make one"}').checked()
    assert (missing.value.message, missing.value.hint) == ("no such session", "make one")
    with pytest.raises(Unavailable, match="status 502"):
        Response(502, {}, b"<html>bad gateway").checked()


def test_a_form_carries_any_bytes() -> None:
    content = bytes(range(256)) + b"\r\n--ringfence--\r\n"
    kind, body = multipart("a/b.bin", content)
    boundary = kind.split("boundary=")[1].encode()
    parts = body.split(b"--" + boundary)
    assert parts[2].split(b"\r\n\r\n", 1)[1] == content + b"\r\n"


def test_events_survive_every_cut() -> None:
    stream = (
        b": hello\n\nevent: stdout\nid: 3.0.0\ndata: {\"text\": \"one\"}\n\n"
        b'event: done\nid: 3.0.1\ndata: {"return_code": 0}\n\n'
    )
    for cut in range(len(stream)):
        flow = Flow(Request("POST", "/jobs"), Request("GET", "/events"), None)
        assert flow.request() == Request("POST", "/jobs")
        events = flow.feed(stream[:cut])
        again = flow.request()
        if events and again is not None:
            assert again.method == "GET" and again.headers["last-event-id"] == events[-1].position
            rest = stream[stream.index(b"event: done") :]
        else:
            rest = stream
        if again is not None:
            events += flow.feed(rest)
        assert [event.kind for event in events] == ["stdout", "done"]
        assert flow.request() is None


def test_events_that_never_come_end_in_an_error() -> None:
    flow = Flow(Request("POST", "/jobs"), Request("GET", "/events"), None)
    with pytest.raises(Unavailable, match="broke off"):
        for _ in range(100):
            flow.request()


def test_who_has_seen_events_has_patience() -> None:
    """A server that is started again takes longer than a moment."""
    flow = Flow(Request("POST", "/jobs"), Request("GET", "/events"), None)
    flow.request()
    flow.feed(b'event: stdout\nid: 3.0.0\ndata: {"text": "one"}\n\n')
    pauses = []
    with pytest.raises(Unavailable, match="broke off"):
        for _ in range(100):
            pauses.append(flow.pause)
            flow.request()
    assert sum(pauses) > 5 and max(pauses) <= 3
    assert pauses[:-1] == sorted(pauses[:-1])
