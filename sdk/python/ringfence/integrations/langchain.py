"""Tools for LangChain: ``model.bind_tools(tools(sandbox))``."""

from __future__ import annotations

from typing import Any

from langchain_core.tools import BaseTool, StructuredTool, ToolException

from ..blocking import SyncSandbox


def tools(sandbox: SyncSandbox, family: str = "ringfence") -> list[BaseTool]:
    """The tools of a family, over this sandbox. Threads may share it."""
    return [
        _tool(sandbox, family, each) for each in sandbox.tools.definitions("mcp", family=family)
    ]


def _tool(sandbox: SyncSandbox, family: str, definition: dict[str, Any]) -> BaseTool:
    name: str = definition["name"]

    def call(**arguments: Any) -> str:
        answer = sandbox.tools.call(name, arguments, family=family)
        if answer.is_error:
            raise ToolException(answer.text)
        return answer.text

    return StructuredTool.from_function(
        call,
        name=name,
        description=definition["description"],
        args_schema=definition["inputSchema"],
        infer_schema=False,
        handle_tool_error=True,
    )
