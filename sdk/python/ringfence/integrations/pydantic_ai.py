"""Tools for pydantic-ai: ``Agent(model, tools=await tools(sandbox))``."""

from __future__ import annotations

import base64
from collections.abc import Callable, Coroutine
from typing import Any

from pydantic_ai import BinaryContent, ModelRetry, Tool

from ..sandbox import Sandbox


async def tools(sandbox: Sandbox, family: str = "ringfence") -> list[Tool[Any]]:
    """The tools of a family, over this sandbox. Pictures come back as pictures."""
    return [
        Tool.from_schema(
            _function(sandbox, family, each["name"]),
            name=each["name"],
            description=each["description"],
            json_schema=each["inputSchema"],
        )
        for each in await sandbox.tools.definitions("mcp", family=family)
    ]


def _function(sandbox: Sandbox, family: str, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def call(**arguments: Any) -> str | list[str | BinaryContent]:
        answer = await sandbox.tools.call(name, arguments, family=family)
        if answer.is_error:
            raise ModelRetry(answer.text)
        pictures = [
            BinaryContent(base64.b64decode(part["data"]), media_type=part["media_type"])
            for part in answer.content
            if part["type"] == "image"
        ]
        return [answer.text, *pictures] if pictures else answer.text

    return call
