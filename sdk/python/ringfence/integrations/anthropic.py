"""Tools for the tool runners of ``anthropic``.

``client.beta.messages.tool_runner(…, tools=tools(sandbox))`` with a :class:`~ringfence.SyncSandbox`;
``async_tools`` with a :class:`~ringfence.Sandbox` is for the client with asyncio.
"""

from __future__ import annotations

from typing import Any

from anthropic.lib.tools import BetaAsyncFunctionTool, BetaFunctionTool, ToolError

from ..blocking import SyncSandbox
from ..sandbox import Sandbox
from ..tools import ToolAnswer


def tools(sandbox: SyncSandbox, family: str = "ringfence") -> list[BetaFunctionTool[Any]]:
    """The tools of a family, over this sandbox. Pictures come back as pictures."""
    return [
        _tool(sandbox, family, each) for each in sandbox.tools.definitions("anthropic", family=family)
    ]


async def async_tools(sandbox: Sandbox, family: str = "ringfence") -> list[BetaAsyncFunctionTool[Any]]:
    """The same for asyncio."""
    found = await sandbox.tools.definitions("anthropic", family=family)
    return [_async_tool(sandbox, family, each) for each in found]


def _tool(sandbox: SyncSandbox, family: str, definition: dict[str, Any]) -> BetaFunctionTool[Any]:
    def call(**arguments: Any) -> Any:
        return _blocks(sandbox.tools.call(definition["name"], arguments, family=family))

    return BetaFunctionTool(call, **_about(definition))


def _async_tool(sandbox: Sandbox, family: str, definition: dict[str, Any]) -> BetaAsyncFunctionTool[Any]:
    async def call(**arguments: Any) -> Any:
        return _blocks(await sandbox.tools.call(definition["name"], arguments, family=family))

    return BetaAsyncFunctionTool(call, **_about(definition))


def _about(definition: dict[str, Any]) -> dict[str, Any]:
    return {key: definition[key] for key in ("name", "description", "input_schema")}


def _blocks(answer: ToolAnswer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for part in answer.content:
        if part["type"] == "image":
            source = {"type": "base64", "media_type": part["media_type"], "data": part["data"]}
            blocks.append({"type": "image", "source": source})
        else:
            blocks.append({"type": "text", "text": part["text"]})
    if answer.is_error:
        raise ToolError(answer.text)
    return blocks
