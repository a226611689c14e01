"""The sandbox skill with the real haiku.skills, pydantic-ai and console toolset."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Server
from haiku.skills.agent import SkillToolset
from haiku.skills.discovery import discover_from_entrypoints
from haiku.skills.state import SkillRunDeps
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from ringfence.integrations.haiku import SandboxState, create_skill


def converse(skill: Any, deps: Any, *calls: tuple[str, dict[str, Any]]) -> list[str]:
    """What the skill's own tools answer to a model that makes these calls."""
    answers: list[str] = []

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        last = messages[-1].parts[-1]
        if last.part_kind == "tool-return" or last.part_kind == "retry-prompt":
            answers.append(str(last.content))
        if len(answers) < len(calls):
            name, arguments = calls[len(answers)]
            return ModelResponse([ToolCallPart(name, arguments)])
        return ModelResponse([TextPart("done")])

    async def main() -> None:
        agent = Agent(FunctionModel(model), toolsets=skill.toolsets, deps_type=skill.deps_type)
        async with skill.lifespan(deps):
            await agent.run("go", deps=deps)

    asyncio.run(main())
    return answers


def test_it_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HAIKU_SKILLS_SANDBOX_WORKSPACE", str(tmp_path))
    (skill,) = [each for each in discover_from_entrypoints() if each.metadata.name == "sandbox"]
    assert skill.state_type is not None and skill.state_type().model_dump() == {"session_id": None}
    assert skill.state_namespace == "sandbox"
    assert skill.deps_type is not None and issubclass(skill.deps_type, SkillRunDeps)
    assert skill.instructions is not None and "/workspace" in skill.instructions


def test_its_tools_work(tmp_path: Path) -> None:
    skill = create_skill(workspace=tmp_path, on="native")
    deps = skill.deps_type(state=SandboxState())
    answers = converse(
        skill,
        deps,
        ("write_file", {"path": "/workspace/a.py", "content": "print(6 * 7)\nprint('x')\n"}),
        ("execute", {"command": "python3 /workspace/a.py"}),
        ("edit_file", {"path": "/workspace/a.py", "old_string": "'x'", "new_string": "'y'"}),
        ("read_file", {"path": "/workspace/a.py"}),
        ("ls", {"path": "/workspace"}),
        ("glob", {"pattern": "*.py", "path": "/workspace"}),
        ("grep", {"pattern": "print", "path": "/workspace", "output_mode": "content"}),
        ("execute", {"command": "echo no >&2; exit 3"}),
        ("read_file", {"path": "/workspace/nothing"}),
    )
    assert "42" in answers[1] and "x" in answers[1]
    assert "print('y')" in answers[3]
    assert "a.py" in answers[4] and "a.py" in answers[5] and "print(6 * 7)" in answers[6]
    assert "no" in answers[7] and "3" in answers[7]
    assert "nothing" in answers[8]
    # On the host, and whoever runs this can read it.
    assert (tmp_path / "a.py").read_text() == "print(6 * 7)\nprint('y')\n"
    assert deps.state.session_id


def test_one_id_is_one_sandbox_and_a_dead_one_is_replaced() -> None:
    skill = create_skill(on="native")
    deps = skill.deps_type(state=SandboxState())
    converse(skill, deps, ("write_file", {"path": "/workspace/x", "content": "kept"}))
    again = skill.deps_type(state=SandboxState(session_id=deps.state.session_id))
    assert "kept" in converse(skill, again, ("read_file", {"path": "/workspace/x"}))[0]
    other = skill.deps_type(state=SandboxState())
    assert "kept" not in converse(skill, other, ("read_file", {"path": "/workspace/x"}))[0]
    again.backend._sandbox.destroy()
    last = skill.deps_type(state=SandboxState(session_id=deps.state.session_id))
    assert "new" in converse(skill, last, ("execute", {"command": "echo new"}))[0]
    assert last.backend is not again.backend


def test_idle_ones_are_stopped_by_the_next_use_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAIKU_SKILLS_SANDBOX_IDLE_TIMEOUT", "77")
    skill = create_skill(on="native")
    first, second = (skill.deps_type(state=SandboxState()) for _ in range(2))
    converse(skill, first)
    assert first.backend._sandbox._session_id is None, "it starts at its first call"
    converse(skill, first, ("execute", {"command": "true"}))
    assert first.backend._sandbox.info().idle_timeout == 77
    converse(skill, second, ("execute", {"command": "true"}))
    assert first.backend.is_alive(), "it has been used a moment ago"
    first.backend.used -= 78
    converse(skill, second, ("execute", {"command": "true"}))
    assert not first.backend.is_alive() and second.backend.is_alive()


def test_it_works_on_a_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGFENCE_API_KEY", server.key)
    skill = create_skill(on=server.url)
    deps = skill.deps_type(state=SandboxState())
    assert "42" in converse(skill, deps, ("execute", {"command": "echo $((6 * 7))"}))[0]


def test_the_framework_runs_it() -> None:
    """haiku's own toolset hands the task to a sub-agent, which uses the sandbox."""
    skill = create_skill(on="native")

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        names = {tool.name for tool in info.function_tools}
        last = messages[-1].parts[-1]
        if last.part_kind == "tool-return":
            return ModelResponse([TextPart(f"it said {last.content}")])
        if "execute" in names:
            return ModelResponse([ToolCallPart("execute", {"command": "echo $((6 * 7))"})])
        name = next(iter(sorted(names & {"execute_skill"})), None)
        assert name is not None, names
        return ModelResponse([ToolCallPart(name, {"skill_name": "sandbox", "request": "six times seven"})])

    async def streamed(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        part: Any = model(messages, info).parts[0]
        if part.part_kind == "text":
            yield part.content
        else:
            yield {0: DeltaToolCall(name=part.tool_name, json_args=json.dumps(part.args))}

    skill.model = FunctionModel(model, stream_function=streamed)
    toolset = SkillToolset(skills=[skill])
    agent = Agent(FunctionModel(model), toolsets=[toolset])
    assert "42" in str(agent.run_sync("go").output)
