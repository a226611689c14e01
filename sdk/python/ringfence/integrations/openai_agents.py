"""Tools for the OpenAI Agents SDK: ``Agent(name=…, tools=await tools(sandbox))``."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from agents import FunctionTool, Tool

from ..sandbox import Sandbox


async def tools(sandbox: Sandbox, family: str = "ringfence") -> list[Tool]:
    """The tools of a family, over this sandbox."""
    return [
        FunctionTool(
            name=each["name"],
            description=each["description"],
            params_json_schema=each["inputSchema"],
            on_invoke_tool=_function(sandbox, family, each["name"]),
            # Optional arguments are optional: strict schemas would demand them all.
            strict_json_schema=False,
        )
        for each in await sandbox.tools.definitions("mcp", family=family)
    ]


def _function(sandbox: Sandbox, family: str, name: str) -> Callable[..., Coroutine[Any, Any, str]]:
    async def call(_context: Any, arguments: str) -> str:
        given = json.loads(arguments) if arguments else {}
        return (await sandbox.tools.call(name, given, family=family)).text

    return call
