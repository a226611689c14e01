"""Requests and events over any :class:`~ringfence._io.Io`: reuse, repetition, resumption."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

from ._events import Flow
from ._io import Io, Pipe
from ._wire import Endpoint, Exchange, Request, Response
from .errors import RingfenceError, Unavailable, unreachable
from .results import Event

#: Waits between the tries of a request that may be repeated.
_PAUSES = (0.05, 0.2, 0.8)


class Client:
    """The way to one server, found at the first use."""

    def __init__(self, find: Callable[[], Endpoint], api_key: str | None, io: Io) -> None:
        self.io = io
        self._find = find
        self._endpoint: Endpoint | None = None
        self._api_key = api_key
        self._idle: list[Pipe] = []

    async def _where(self) -> Endpoint:
        """Found once: a forked child still talks to the server that its parent found."""
        if self._endpoint is None:
            self._endpoint = await self.io.aside(self._find)
        return self._endpoint

    async def send(self, request: Request) -> Response:
        """The answer, whatever its status."""
        endpoint = await self._where()
        pauses = iter(_PAUSES if request.repeatable else ())
        while True:
            exchange = Exchange()
            body = bytearray()
            try:
                async for chunk in self._chunks(endpoint, request, exchange):
                    body += chunk
                return Response(exchange.status, exchange.headers, bytes(body))
            except (OSError, EOFError, Unavailable) as error:
                pause = next(pauses, None)
                if pause is None:
                    raise _lost(endpoint, error) from error
                await self.io.sleep(pause)

    async def call(self, request: Request) -> Response:
        """The answer, or the failure that it is."""
        return (await self.send(request)).checked()

    async def events(self, flow: Flow) -> AsyncGenerator[Event, None]:
        """The events of a job. A reader that is cut off comes back and misses nothing; one that
        goes away early ends the job, if it was started for this reader."""
        try:
            while (request := flow.request()) is not None:
                endpoint = await self._where()
                exchange = Exchange()
                chunks = self._chunks(endpoint, request, exchange)
                try:
                    async for chunk in chunks:
                        if exchange.status != 200:
                            body = bytearray(chunk)
                            async for more in chunks:
                                body += more
                            Response(exchange.status, exchange.headers, bytes(body)).checked()
                        for event in flow.feed(chunk):
                            yield event
                except (OSError, EOFError, Unavailable) as error:
                    if isinstance(error, Unavailable) and error.status is not None:
                        raise
                finally:
                    await chunks.aclose()
                if not flow.done:
                    await self.io.sleep(flow.pause)
        finally:
            if flow.cancel is not None and not flow.done:
                await self.forget(flow.cancel)

    async def forget(self, request: Request) -> None:
        """Sends what matters to nobody if it fails: the server ends by itself what nobody reads."""
        try:
            await self.send(request)
        except RingfenceError:
            pass

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> Pipe | None:
        while self._idle:
            pipe = self._idle.pop()
            if pipe.is_ours():
                return pipe
            # A parent's, from before a fork: what one of us reads, the other misses. Or a loop's
            # that has ended. Nobody here may say anything on it.
            pipe.close()
        return None

    async def _chunks(
        self, endpoint: Endpoint, request: Request, exchange: Exchange
    ) -> AsyncGenerator[bytes, None]:
        """The body of an answer as it comes, over a connection that waited or a new one."""
        encoded = request.encode(endpoint, self._api_key)
        waited = self._take()
        pipe = waited
        try:
            while True:
                if pipe is None:
                    pipe = await self.io.open(endpoint)
                try:
                    await pipe.send(encoded, request.patience)
                    data = await pipe.receive(request.patience)
                    if data or pipe is not waited:
                        break
                except ConnectionError:
                    if pipe is not waited:
                        raise
                # It was closed while it waited, so nobody has read this request.
                pipe.close()
                pipe = None
            while True:
                yield exchange.receive(data)
                if exchange.done:
                    break
                data = await pipe.receive(request.patience)
            if exchange.reusable:
                self._idle.append(pipe)
                pipe = None
        finally:
            if pipe is not None:
                pipe.close()


def _lost(endpoint: Endpoint, error: Exception) -> Unavailable:
    if isinstance(error, Unavailable):
        return error
    # In Python 3.10 asyncio's is a class of its own, and says nothing.
    if isinstance(error, TimeoutError) or not str(error):
        return unreachable(f"{endpoint} does not answer")
    return unreachable(f"cannot reach {endpoint}: {error}", "is the server running?")
