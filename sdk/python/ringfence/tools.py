"""Tools for models: named, described and answered by the server, in one of its families."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ._link import Link
from ._wire import Request

Format = Literal["mcp", "openai", "anthropic"]
Definitions = list[dict[str, Any]]


@dataclass(frozen=True)
class ToolAnswer:
    """What a tool came to: ``text`` for a model; ``content`` has its parts, pictures too."""

    text: str
    is_error: bool
    content: tuple[dict[str, Any], ...]
    structured: Any = None

    def __str__(self) -> str:
        return self.text


class Tools:
    """``sandbox.tools``."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def definitions(self, format: Format = "mcp", *, family: str = "ringfence") -> Definitions:
        """The tools of a family, as a model's API takes them."""
        request = Request("GET", "/tools", {"family": family, "format": format}, repeatable=True)
        found: Definitions = (await self._link._client.call(request)).json()["tools"]
        return found

    async def call(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, family: str = "ringfence"
    ) -> ToolAnswer:
        """Calls a tool. Code that fails has an answer that a model can act on."""
        path = await self._link._path(f"/tools/{name}")
        request = Request.json("POST", path, dict(arguments or {}), query={"family": family}, patience=None)
        body = (await self._link._client.call(request)).json()
        return ToolAnswer(
            text=body["text"],
            is_error=body["is_error"],
            content=tuple(body["content"]),
            structured=body.get("structured"),
        )
