"""A server elsewhere: keys, sessions that are kept, and connections that break."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Server

from ringfence import Denied, NotFound, Unavailable


def test_a_key_opens_it(server: Server, make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert make(server.url, api_key=server.key).python("6 * 7").value == "42"
    with pytest.raises(Denied) as caught:
        make(server.url).python("1")
    assert caught.value.status == 401
    monkeypatch.setenv("RINGFENCE_URL", server.url)
    monkeypatch.setenv("RINGFENCE_API_KEY", server.key)
    assert make().python("6 * 7").value == "42"


def test_sessions_by_name_are_kept(server: Server, make: Callable[..., Any]) -> None:
    first = make(server.url, api_key=server.key, key="conversation-7")
    first.python("x = 41")
    ident = first.info().id
    first.close()
    second = make(server.url, api_key=server.key, key="conversation-7")
    assert second.python("x + 1").value == "42"
    third = make(server.url, api_key=server.key, session=ident)
    assert third.python("x + 2").value == "43"
    third.destroy()
    fourth = make(server.url, api_key=server.key, session=ident)
    with pytest.raises(NotFound):
        fourth.python("x")


def test_nobody_there(make: Callable[..., Any]) -> None:
    with pytest.raises(Unavailable, match="cannot reach http://127.0.0.1:1: ") as caught:
        make("http://127.0.0.1:1").python("1")
    assert caught.value.hint == "is the server running?"


def test_a_stream_outlives_the_server(server: Server, make: Callable[..., Any]) -> None:
    sandbox = make(server.url, api_key=server.key)
    code = "import os, time\nprint('first', flush=True)\n"
    code += "while not os.path.exists('go'): time.sleep(0.01)\nprint('second')"
    seen = ""
    for event in sandbox.stream(code):
        seen += event.text
        if "first" in event.text:
            server.kill()
            server.start()
            sandbox.files.write("go", "")
    assert seen == "first\nsecond\n"


def test_a_call_outlives_the_server(server: Server, make: Callable[..., Any]) -> None:
    sandbox = make(server.url, api_key=server.key)
    sandbox.files.write("note", "")

    def again() -> None:
        server.kill()
        server.start()

    timer = threading.Timer(0.5, again)
    timer.start()
    result = sandbox.bash("echo once >> note; sleep 1.5; cat note")
    timer.join()
    assert result.stdout == "once\n"


def test_connections_are_used_again(server: Server, make: Callable[..., Any]) -> None:
    sandbox = make(server.url, api_key=server.key)
    for _ in range(20):
        sandbox.python("1")
    assert len(sandbox._client._idle) == 1
