"""The two ways to move bytes: asyncio, and blocking sockets.

Everything above this file is written once, as coroutines. With :class:`BlockingIo` below it a
coroutine never waits for a loop: it runs through in one go, which is all that :func:`run` does.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from ._wire import Endpoint

T = TypeVar("T")

#: Bytes of one read.
_READ = 64 << 10
#: Seconds to reach a server.
_CONNECT = 10.0


class Pipe(Protocol):
    """A connection."""

    async def send(self, data: bytes, patience: float | None) -> None: ...

    async def receive(self, patience: float | None) -> bytes: ...

    def close(self) -> None: ...

    def is_ours(self) -> bool:
        """Whether it belongs to this process and this loop."""
        ...


class Io(Protocol):
    """What the code above needs of the world."""

    async def open(self, endpoint: Endpoint) -> Pipe: ...

    async def sleep(self, seconds: float) -> None: ...

    async def aside(self, work: Callable[[], T]) -> T:
        """Does something that blocks."""
        ...

    def lock(self) -> AbstractAsyncContextManager[Any]: ...


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise AssertionError("a coroutine over blocking sockets waited")


def iterate(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """Iterates over what never waits."""
    try:
        while True:
            try:
                item = run(items.__anext__())
            except StopAsyncIteration:
                return
            yield item
    finally:
        run(items.aclose())


class _BlockingPipe:
    def __init__(self, endpoint: Endpoint) -> None:
        self._owner = os.getpid()
        if endpoint.socket is not None:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(_CONNECT)
            self._socket.connect(endpoint.socket)
            return
        self._socket = socket.create_connection((endpoint.host, endpoint.port), _CONNECT)
        _tune(self._socket)
        if endpoint.tls:
            context = ssl.create_default_context()
            self._socket = context.wrap_socket(self._socket, server_hostname=endpoint.host)

    async def send(self, data: bytes, patience: float | None) -> None:
        self._socket.settimeout(patience)
        self._socket.sendall(data)

    async def receive(self, patience: float | None) -> bytes:
        self._socket.settimeout(patience)
        return self._socket.recv(_READ)

    def close(self) -> None:
        self._socket.close()

    def is_ours(self) -> bool:
        return self._owner == os.getpid()


class _BlockingLock:
    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


class BlockingIo:
    """For threads, which may share it."""

    async def open(self, endpoint: Endpoint) -> Pipe:
        return _BlockingPipe(endpoint)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def aside(self, work: Callable[[], T]) -> T:
        return work()

    def lock(self) -> AbstractAsyncContextManager[Any]:
        return _BlockingLock()


class _AsyncPipe:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._owner = (os.getpid(), asyncio.get_running_loop())
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes, patience: float | None) -> None:
        self._writer.write(data)
        await asyncio.wait_for(self._writer.drain(), patience)

    async def receive(self, patience: float | None) -> bytes:
        return await asyncio.wait_for(self._reader.read(_READ), patience)

    def close(self) -> None:
        if not self._owner[1].is_closed():
            self._writer.close()

    def is_ours(self) -> bool:
        return self._owner == (os.getpid(), asyncio.get_running_loop())


class AsyncIo:
    """For event loops."""

    async def open(self, endpoint: Endpoint) -> Pipe:
        if endpoint.socket is not None:
            opened = asyncio.open_unix_connection(endpoint.socket)
        else:
            context = ssl.create_default_context() if endpoint.tls else None
            opened = asyncio.open_connection(endpoint.host, endpoint.port, ssl=context)
        reader, writer = await asyncio.wait_for(opened, _CONNECT)
        if endpoint.socket is None:
            _tune(writer.get_extra_info("socket"))
        return _AsyncPipe(reader, writer)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def aside(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)

    def lock(self) -> AbstractAsyncContextManager[Any]:
        return asyncio.Lock()


def _tune(connection: socket.socket) -> None:
    """Requests are small and waited for; a server that lost its power says nothing."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
