"""HTTP/1.1 without any input or output: what to send, and what the bytes that came back mean.

The blocking and the asyncio driver share all of this; each of them only moves bytes.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from .errors import InvalidInput, failure, unreachable

#: Longest head of an answer, and longest line of a chunk's size.
_HEAD = 64 << 10
_SIZE_LINE = 1 << 10


@dataclass(frozen=True)
class Endpoint:
    """Where a server listens: a socket in the file system, or an address."""

    socket: str | None = None
    host: str = "localhost"
    port: int = 80
    tls: bool = False
    prefix: str = ""

    @classmethod
    def of(cls, url: str) -> Endpoint:
        """Reads ``http://…``, ``https://…`` or ``unix:PATH``."""
        parts = urlsplit(url)
        if parts.scheme == "unix" and parts.path:
            return cls(socket=parts.path)
        if parts.scheme in ("http", "https") and parts.hostname:
            tls = parts.scheme == "https"
            port = parts.port or (443 if tls else 80)
            return cls(host=parts.hostname, port=port, tls=tls, prefix=parts.path.rstrip("/"))
        raise InvalidInput(
            f"{url!r} is no address of a server",
            code="invalid_input",
            hint="http://HOST:PORT, https://HOST or unix:PATH",
        )

    @property
    def authority(self) -> str:
        if self.socket is not None:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        if self.socket is not None:
            return f"unix:{self.socket}"
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.prefix}"


@dataclass(frozen=True)
class Request:
    """One request. ``patience`` is how long no byte may come; None waits for ever."""

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    patience: float | None = 60.0
    #: Whether sending it twice comes to the same.
    repeatable: bool = False

    @classmethod
    def json(cls, method: str, path: str, body: Any, **more: Any) -> Request:
        headers = {"content-type": "application/json", **more.pop("headers", {})}
        return cls(method, path, body=json.dumps(body).encode(), headers=headers, **more)

    def encode(self, endpoint: Endpoint, api_key: str | None) -> bytes:
        query = {name: _word(value) for name, value in self.query.items() if value is not None}
        target = endpoint.prefix + self.path + (f"?{urlencode(query, quote_via=quote)}" if query else "")
        headers = {"host": endpoint.authority, "user-agent": "ringfence-python", **self.headers}
        if api_key:
            headers["authorization"] = f"Bearer {api_key}"
        if self.body is not None or self.method not in ("GET", "DELETE"):
            headers["content-length"] = str(len(self.body or b""))
        lines = [f"{self.method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        if any("\r" in line or "\n" in line for line in lines):
            raise InvalidInput("a key or a header has a line break in it", code="invalid_input")
        head = "\r\n".join([*lines, ""])
        return head.encode("latin-1") + b"\r\n" + (self.body or b"")


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Response:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            raise unreachable("the server's answer is no JSON", "is this a ringfence server?") from None

    def checked(self) -> Response:
        """This answer, or the failure that it is."""
        if 200 <= self.status < 300:
            return self
        try:
            body = json.loads(self.body)
        except ValueError:
            body = None
        raise failure(body, self.status)


class Exchange:
    """One answer, read from bytes as they come."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.done = False
        self._buffer = bytearray()
        self._left: int | None = None  # bytes of the body or of a chunk; None is until the end
        self._chunked = False
        self._between = False  # the line break after a chunk is due

    @property
    def begun(self) -> bool:
        return bool(self._buffer) or self.status != 0

    @property
    def reusable(self) -> bool:
        """Whether the connection may carry another request."""
        return self.done and not self._buffer and self.headers.get("connection", "").lower() != "close"

    def receive(self, data: bytes) -> bytes:
        """What the bytes add to the body; none at all are the end of the connection."""
        if not data:
            if self.status and self._left is None and not self._chunked:
                self.done = True
                self.headers["connection"] = "close"
                return b""
            raise unreachable("the server closed the connection before its answer was complete")
        self._buffer += data
        while self.status == 0:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > _HEAD:
                    raise unreachable("the head of the server's answer is too long")
                return b""
            self._head(bytes(self._buffer[:end]).decode("latin-1"))
            del self._buffer[: end + 4]
        return self._chunks() if self._chunked else self._plain()

    def _head(self, text: str) -> None:
        first, *lines = text.split("\r\n")
        words = first.split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise unreachable("the server does not speak HTTP/1.1", "is this a ringfence server?")
        if words[1].startswith("1"):
            return  # an interim answer; the real one follows
        self.status = int(words[1])
        for line in lines:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        if self.status in (204, 304):
            self._left = 0
        elif "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._chunked, self._left = True, 0
        elif (length := self.headers.get("content-length")) is not None:
            if not length.isdigit():
                raise unreachable("the server's answer has a length that is no number")
            self._left = int(length)
        self.done = self._left == 0 and not self._chunked

    def _plain(self) -> bytes:
        size = len(self._buffer) if self._left is None else min(self._left, len(self._buffer))
        body = bytes(self._buffer[:size])
        del self._buffer[:size]
        if self._left is not None:
            self._left -= size
            self.done = self._left == 0
        return body

    def _chunks(self) -> bytes:
        body = bytearray()
        while not self.done:
            if self._left:
                size = min(self._left, len(self._buffer))
                if size == 0:
                    break
                body += self._buffer[:size]
                del self._buffer[:size]
                self._left -= size
                self._between = self._left == 0
                continue
            end = self._buffer.find(b"\r\n")
            if end < 0:
                if len(self._buffer) > _SIZE_LINE:
                    raise unreachable("the server's answer has a chunk without a size")
                break
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 2]
            if self._between:
                self._between = False
            elif self._left is None:  # a trailer, or the empty line after the last chunk
                self.done = not line
            else:
                self._size(line.split(b";")[0].strip())
        return bytes(body)

    def _size(self, text: bytes) -> None:
        try:
            size = int(text, 16)
        except ValueError:
            raise unreachable("the server's answer has a chunk without a size") from None
        self._left = size or None


def multipart(path: str, content: bytes) -> tuple[str, bytes]:
    """A form with a file and the path that it goes to: its content type and its bytes."""
    boundary = secrets.token_hex(16)
    head = (
        f'--{boundary}\r\ncontent-disposition: form-data; name="path"\r\n\r\n{path}\r\n'
        f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="file"\r\n'
        "content-type: application/octet-stream\r\n\r\n"
    )
    body = head.encode() + content + f"\r\n--{boundary}--\r\n".encode()
    return f"multipart/form-data; boundary={boundary}", body
