"""The thin faces, each with the real package and a model that is none."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import httpx2 as httpx
from agents import Agent as OpenAiAgent
from agents.tool_context import ToolContext
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from ringfence import Sandbox, SyncSandbox
from ringfence.integrations import anthropic as for_anthropic
from ringfence.integrations import langchain, openai_agents, pydantic_ai


def first_python(names: list[str]) -> str:
    return next(name for name in names if "python" in name)


def test_pydantic_ai() -> None:
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        last = messages[-1].parts[-1]
        if last.part_kind == "tool-return":
            return ModelResponse([TextPart(str(last.content))])
        name = first_python([tool.name for tool in info.function_tools])
        return ModelResponse([ToolCallPart(name, {"code": "print(6 * 7)"})])

    async def main() -> str:
        async with Sandbox() as sandbox:
            agent = Agent(FunctionModel(model), tools=await pydantic_ai.tools(sandbox))
            return str((await agent.run("go")).output)

    assert "42" in asyncio.run(main())


def test_langchain() -> None:
    with SyncSandbox() as sandbox:
        tools = {tool.name: tool for tool in langchain.tools(sandbox)}
        name = first_python(list(tools))
        call = {"type": "tool_call", "id": "1", "name": name, "args": {"code": "print(6 * 7)"}}
        assert "42" in tools[name].invoke(call).content
        assert tools[name].args["code"]["type"] == "string"


def test_openai_agents() -> None:
    async def main() -> str:
        async with Sandbox() as sandbox:
            agent = OpenAiAgent(name="a", tools=await openai_agents.tools(sandbox))
            tool: Any = next(each for each in agent.tools if "python" in each.name)
            arguments = json.dumps({"code": "print(6 * 7)"})
            context = ToolContext(None, tool_name=tool.name, tool_call_id="1", tool_arguments=arguments)
            return str(await tool.on_invoke_tool(context, arguments))

    assert "42" in asyncio.run(main())


def answers(requests: list[Any]) -> httpx.MockTransport:
    """A vendor that asks for one call, and then repeats what it got."""

    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        requests.append(body)
        message = {"id": "m", "type": "message", "role": "assistant", "model": "x", "stop_sequence": None}
        message["usage"] = {"input_tokens": 1, "output_tokens": 1}
        if len(requests) == 1:
            name = first_python([tool["name"] for tool in body["tools"]])
            use = {"type": "tool_use", "id": "t", "name": name, "input": {"code": "print(6 * 7)"}}
            return httpx.Response(200, json={**message, "content": [use], "stop_reason": "tool_use"})
        text = json.dumps(body["messages"][-1])
        content = [{"type": "text", "text": text}]
        return httpx.Response(200, json={**message, "content": content, "stop_reason": "end_turn"})

    return httpx.MockTransport(answer)


QUESTION: Any = {"model": "x", "max_tokens": 100, "messages": [{"role": "user", "content": "go"}]}


def test_anthropic_tool_runner() -> None:
    client = anthropic.Anthropic(api_key="x", http_client=httpx.Client(transport=answers([])))
    with SyncSandbox() as sandbox:
        runner = client.beta.messages.tool_runner(tools=for_anthropic.tools(sandbox), **QUESTION)
        assert "42" in str(runner.until_done().content)


def test_anthropic_tool_runner_with_asyncio() -> None:
    async def main() -> str:
        http = httpx.AsyncClient(transport=answers([]))
        client = anthropic.AsyncAnthropic(api_key="x", http_client=http)
        async with Sandbox() as sandbox:
            tools = await for_anthropic.async_tools(sandbox)
            runner = client.beta.messages.tool_runner(tools=tools, **QUESTION)
            return str((await runner.until_done()).content)

    assert "42" in asyncio.run(main())
