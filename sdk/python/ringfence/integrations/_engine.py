"""The little that the axio face asks of a Docker engine itself."""

from __future__ import annotations

import json
from typing import Any

from .._client import Client
from .._io import AsyncIo
from .._wire import Endpoint, Request
from ..errors import RingfenceError

#: On containers of this face.
LABEL = "axio-sandbox"


async def ping(url: str) -> None:
    """Raises what the original raises when nobody is there."""
    try:
        await _ask(url, "/_ping")
    except RingfenceError as error:
        raise RuntimeError(f"Docker daemon not available at {url!r}: {error}") from error


async def container(url: str, name: str) -> dict[str, Any] | None:
    """What the engine says of a container, by its name or id; None where there is none."""
    try:
        found: dict[str, Any] = json.loads(await _ask(url, f"/containers/{name}/json"))
    except RingfenceError as error:
        if error.status == 404:
            return None
        raise
    return found


async def marked(url: str, mark: str) -> str:
    """The id of the container that was made with this mark."""
    filters = json.dumps({"label": [f"{LABEL}={mark}"]})
    (found,) = json.loads(await _ask(url, "/containers/json", all=1, filters=filters))
    return str(found["Id"])


async def _ask(url: str, path: str, **query: Any) -> bytes:
    endpoint = Endpoint.of(url.replace("tcp://", "http://", 1))
    client = Client(lambda: endpoint, None, AsyncIo())
    try:
        return (await client.call(Request("GET", path, query, patience=10))).body
    finally:
        client.close()
