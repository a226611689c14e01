"""Server-sent events of a job, without any input or output."""

from __future__ import annotations

import json
from dataclasses import replace

from ._wire import Request
from .errors import failure, unreachable
from .results import Event

#: How often a reader that was cut off comes back without having seen anything new; fewer times
#: where it has seen nothing at all, for then there may be no server.
_TRIES = 8
_FIRST_TRIES = 3
#: The longest wait between two tries, in seconds.
_LONGEST = 3.0


class Flow:
    """The events of one job, across as many connections as it takes.

    A driver asks for :meth:`request`, feeds what comes, and asks again until there is none.
    """

    def __init__(self, first: Request, again: Request, cancel: Request | None) -> None:
        #: Sent when whoever reads goes away before the end.
        self.cancel = cancel
        self.done = False
        self._next: Request = first
        self._again = again
        self._position = ""
        self._buffer = bytearray()
        self._tries = 0

    def request(self) -> Request | None:
        """What to send now; None after the last event."""
        if self.done:
            return None
        if self._tries > (_TRIES if self._position else _FIRST_TRIES):
            raise unreachable("the events of the job broke off", "the server may have stopped")
        self._tries += 1
        self._buffer.clear()
        return self._next

    @property
    def pause(self) -> float:
        """Seconds until the next try: twice the last ones, while nothing new comes."""
        return float(min(0.05 * 2**self._tries, _LONGEST))

    def feed(self, data: bytes) -> list[Event]:
        """The events that these bytes complete."""
        self._buffer += data
        events = []
        while not self.done and (end := self._buffer.find(b"\n\n")) >= 0:
            block = bytes(self._buffer[:end]).decode(errors="replace")
            del self._buffer[: end + 2]
            if (event := self._event(block)) is not None:
                events.append(event)
        return events

    def _event(self, block: str) -> Event | None:
        fields: dict[str, str] = {}
        for line in block.split("\n"):
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        if "event" not in fields:
            return None  # a sign of life
        data = json.loads(fields.get("data", "{}"))
        kind = fields["event"]
        if kind == "failure":
            self.done = True
            raise failure(data)
        position = fields.get("id", self._position)
        if position != self._position:  # each connection begins with an event that brings nothing new
            self._tries = 0
        self._position = position
        headers = {**self._again.headers, "last-event-id": self._position}
        self._next = replace(self._again, headers=headers)
        self.done = kind == "done"
        return Event(kind, data, self._position)  # type: ignore[arg-type]
