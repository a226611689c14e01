"""``CodeExecutionTool`` with the real shipit_agent."""

from __future__ import annotations

import inspect
import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import Server
from shipit_agent import Agent
from shipit_agent.llms.base import LLMResponse
from shipit_agent.models import ToolCall
from shipit_agent.tools.base import ToolContext
from shipit_agent.tools.code_execution import CodeExecutionTool as Original

from ringfence.integrations.shipit import CodeExecutionTool

CONTEXT = ToolContext(prompt="")


def test_it_looks_like_the_original() -> None:
    ours, original = CodeExecutionTool(), Original()
    assert ours.schema() == original.schema()
    assert ours.supported_languages() == original.supported_languages()
    assert CodeExecutionTool.LANGUAGE_ALIASES == Original.LANGUAGE_ALIASES
    assert (ours.name, ours.timeout_seconds) == ("run_code", 15)
    ours = CodeExecutionTool(name="x", description="d", prompt="p", timeout_seconds=3, workspace_root="w")
    assert (ours.name, ours.description, ours.prompt, ours.timeout_seconds) == ("x", "d", "p", 3)
    known = set(inspect.signature(Original.__init__).parameters) - {"self"}
    assert {"workspace_root", "name", "description", "prompt", "timeout_seconds"} <= known


def test_its_images_are_those_of_the_program() -> None:
    command = [os.environ["RINGFENCE_BIN"], "languages", "--json"]
    known = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    images = {each["name"]: each["image"] for each in known}
    assert CodeExecutionTool.SANDBOX_IMAGES.items() <= images.items()
    # The contract's own, but for the one that lacks its language.
    odd = {name for name, image in Original.SANDBOX_IMAGES.items() if images[name] != image}
    assert odd == {"lua"}


def test_a_snippet_writes_to_its_workspace_and_nowhere_else(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (tmp_path / "secret").write_text("secret")
    tool = CodeExecutionTool(workspace_root=work)
    done = tool.run(CONTEXT, language="py", code="open('made', 'w').write('x')\nprint('out')")
    assert done.text == "exit_code: 0\nstdout:\nout\nstderr:"
    assert (work / "made").read_text() == "x"
    assert {"language": "python", "exit_code": 0, "stdout": "out\n", "stderr": ""}.items() <= done.metadata.items()
    assert {"sandbox": False, "sandbox_image": None, "sandbox_network": False}.items() <= done.metadata.items()
    assert done.metadata["workspace_root"] == str(work) and "bash" in done.metadata["supported_languages"]
    peek = {"language": "python", "code": f"print(open({str(tmp_path / 'secret')!r}).read())"}
    outside = CodeExecutionTool(workspace_root=work, trust="full").run(CONTEXT, **peek)
    assert outside.metadata["stdout"] == "secret\n"
    inside = tool.run(CONTEXT, **peek)
    assert inside.metadata["exit_code"] == 1 and "FileNotFoundError" in inside.metadata["stderr"]


def test_a_sandbox_can_only_read_its_workspace(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("seen")
    tool = CodeExecutionTool(workspace_root=tmp_path, on="native")
    code = "cat x; pwd; echo no > y"
    done = tool.run(CONTEXT, language="shell", code=code, sandbox=True)
    assert done.metadata["stdout"] == "seen/work\n" and done.metadata["exit_code"] != 0
    assert not (tmp_path / "y").exists() and done.metadata["sandbox"] is True


def test_a_timeout_is_a_result(tmp_path: Path) -> None:
    tool = CodeExecutionTool(workspace_root=tmp_path)
    code = "print('so far', flush=True)\nwhile True: pass"
    done = tool.run(CONTEXT, language="python", code=code, timeout_seconds=1)
    assert done.metadata["exit_code"] == 124 and done.metadata["ok"] is False
    assert done.text == "exit_code: 124\nstdout:\nso far\nstderr:"


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("bash", "echo $((6 * 7))"),
        ("sh", "echo $((6 * 7))"),
        ("perl", "print 6 * 7, qq(\\n);"),
        ("python3", "print(6 * 7)"),
    ],
)
def test_languages(tmp_path: Path, language: str, code: str) -> None:
    done = CodeExecutionTool(workspace_root=tmp_path).run(CONTEXT, language=language, code=code)
    assert done.metadata["stdout"] == "42\n", done.text


def test_unknown_languages_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Unsupported language: cobol; known are bash, "):
        CodeExecutionTool(workspace_root=tmp_path).run(CONTEXT, language="cobol", code="x")


def test_without_docker_nothing_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    tool = CodeExecutionTool(workspace_root=tmp_path)
    done = tool.run(CONTEXT, language="python", code="print(1)", sandbox=True)
    assert done.text == (
        "Error: docker is not installed or not on PATH. "
        "Install Docker Desktop or call the tool without sandbox=true."
    )
    assert done.metadata["ok"] is False and done.metadata["sandbox"] is True and done.metadata["error"]
    # With auto, native takes over.
    done = CodeExecutionTool(workspace_root=tmp_path, on="auto").run(
        CONTEXT, language="python", code="print(6 * 7)", sandbox=True
    )
    assert done.text == "exit_code: 0\nstdout:\n42\nstderr:", done.metadata


def test_an_engine_that_refuses_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A socket that nobody listens at any more.
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(str(tmp_path / "sock"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path / 'sock'}")
    done = CodeExecutionTool(workspace_root=tmp_path).run(CONTEXT, language="python", code="1", sandbox=True)
    assert done.metadata["ok"] is False and "not installed" not in done.text
    assert "nothing listens there" in done.text and "systemctl start docker" in done.text, done.text


def test_it_works_on_a_server(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGFENCE_API_KEY", server.key)
    tool = CodeExecutionTool(workspace_root=tmp_path, on=server.url)
    for sandbox in (False, True):
        done = tool.run(CONTEXT, language="python", code="print(6 * 7)", sandbox=sandbox)
        assert done.metadata["stdout"] == "42\n", done.text


def test_an_agent_uses_it(tmp_path: Path) -> None:
    class Model:
        def __init__(self) -> None:
            self.asked = 0

        def complete(self, *, messages: list[Any], tools: Any = None, **_: Any) -> LLMResponse:
            self.asked += 1
            if self.asked == 1:
                call = ToolCall("run_code", {"language": "python", "code": "print(6 * 7)"}, id="1")
                return LLMResponse(tool_calls=[call])
            return LLMResponse(content=f"it said {messages[-1].content}")

    agent = Agent(llm=Model(), tools=[CodeExecutionTool(workspace_root=tmp_path)])
    assert "42" in agent.run("How much are six times seven?").output
