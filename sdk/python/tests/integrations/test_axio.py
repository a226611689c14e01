"""``DockerSandbox`` with the real axio: run with 0.9.5 and with the newest."""

from __future__ import annotations

import asyncio
import os
from importlib.metadata import version
from typing import Any

import pytest
from axio.agent import Agent
from axio.context import MemoryContextStore
from axio.exceptions import HandlerError
from axio.testing import StubTransport, make_text_response, make_tool_use_response
from conftest import Server

from ringfence import InvalidInput
from ringfence.integrations.axio import DockerSandbox

NEW = version("axio") != "0.9.5"
FILE, READ, FOLDER = ("path", "path", "path") if NEW else ("file_path", "filename", "directory")


def test_this_is_the_release_that_was_meant() -> None:
    assert version("axio") == os.environ.get("AXIO", "0.12.2")


def test_the_six_tools_answer_as_they_should() -> None:
    async def main() -> None:
        async with DockerSandbox(on="native") as sandbox:
            tools = {tool.name: tool for tool in sandbox.tools}
            assert list(tools) == ["shell", "write_file", "read_file", "list_files", "run_python", "patch_file"]
            assert await tools["shell"](command="echo out; echo err >&2; exit 3") == (
                "out\n\n[stderr]\nerr\n\n[exit code: 3]"
            )
            assert await tools["shell"](command="true") == "(no output)"
            assert await tools["shell"](command="sleep 9", timeout=1) == "[timeout after 1s]"
            assert await tools["shell"](command="cat; pwd", stdin="in ", cwd="/tmp") == "in /tmp"
            wrote = await tools["write_file"](**{FILE: "a/b.txt", "content": "one\ntwo\nthree\n"})
            assert wrote == "Wrote 14 bytes to /workspace/a/b.txt"
            assert await tools["read_file"](**{READ: "a/b.txt"}) == "one\ntwo\nthree\n"
            numbered = await tools["read_file"](
                **{READ: "a/b.txt", "start_line": 2, "end_line": 3, "line_numbers": True}
            )
            assert numbered == "2\ttwo\n3\tthree\n"
            assert await tools["read_file"](**{READ: "a/b.txt", "max_chars": 3}) == "one\n...[truncated]"
            await sandbox.write_file("/tmp/long", "é" * 40_000)
            long = await tools["read_file"](**{READ: "/tmp/long"})
            assert long == "é" * 40_000 if NEW else long == "é" * 32_768 + "\n...[truncated]"
            await sandbox.exec("rm /tmp/long; printf '\\377' > bin")
            assert await tools["read_file"](**{READ: "bin"}) == "Encoded binary data HEX: ff"
            patched = await tools["patch_file"](
                **{FILE: "a/b.txt", "from_line": 2, "to_line": 2, "content": "2"}
            )
            assert patched == "3 lines written to /workspace/a/b.txt"
            assert await sandbox.read_file_bytes("/workspace/a/b.txt") == b"one\n2\nthree\n"
            await sandbox.exec("chmod 755 a; chmod 640 bin; TZ=UTC touch -d '2026-03-01 13:05' a bin")
            assert await tools["list_files"](**{FOLDER: "."}) == (
                "drwxr-xr-x        0 Mar 01 13:05 a/\n-rw-r-----        1 Mar 01 13:05 bin"
            )
            assert await tools["list_files"](**{FOLDER: "/tmp"}) == "(empty directory)"
            assert await tools["run_python"](code="print(6 * 7)") == "42"
            assert "ZeroDivisionError" in await tools["run_python"](code="1/0")
            with pytest.raises(HandlerError, match="nothing"):
                await tools["read_file"](**{READ: "nothing"})

    asyncio.run(main())


def test_files_are_anywhere_and_methods_are_there() -> None:
    async def main() -> None:
        sandbox = DockerSandbox(on="native", env={"A": "b"})
        for name in ("tools", "container_id"):
            with pytest.raises(RuntimeError, match="must be used as an async context manager"):
                getattr(sandbox, name)
        async with sandbox:
            assert await sandbox.write_file("/tmp/x/y.sh", "echo $A", 0o755) == "Wrote 7 bytes to /tmp/x/y.sh"
            assert await sandbox.exec("stat -c %a /tmp/x/y.sh; sh /tmp/x/y.sh") == "755\nb"
            assert await sandbox.exec("cat", stdin="hello") == "hello"
            assert await sandbox.exec("echo x; sleep 600", timeout=1) == "[timeout after 1s]"
            assert await sandbox.exec("true") == "(no output)"
            assert await sandbox.exec("echo out; echo err >&2; exit 3") == (
                "out\n\n[stderr]\nerr\n\n[exit code: 3]"
            )
            assert sandbox.container_id

    asyncio.run(main())


def test_it_works_on_a_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGFENCE_API_KEY", server.key)

    async def main() -> str:
        async with DockerSandbox(on=server.url) as sandbox:
            return await sandbox.exec("echo $((6 * 7))")

    assert asyncio.run(main()) == "42"


def test_an_agent_uses_it() -> None:
    async def main() -> Any:
        async with DockerSandbox(on="native") as sandbox:
            transport = StubTransport(
                [
                    make_tool_use_response("run_python", tool_input={"code": "print(6 * 7)"}),
                    make_text_response("done"),
                ]
            )
            context = MemoryContextStore()
            agent = Agent(system="You compute.", tools=sandbox.tools, transport=transport)
            answer = await agent.run("How much are six times seven?", context)
            return answer, await context.get_history()

    answer, history = asyncio.run(main())
    assert answer == "done" and "42" in str(history)


def test_what_only_containers_have_is_refused_without_one() -> None:
    with pytest.raises(InvalidInput, match="cap_add, user: only containers have that"):
        DockerSandbox(on="native", user="nobody", cap_add=["CHOWN"])


def test_without_an_engine_it_says_so() -> None:
    async def main() -> None:
        async with DockerSandbox("unix:///nonexistent/docker.sock"):
            pass

    with pytest.raises(RuntimeError, match="Docker daemon not available at 'unix:///nonexistent/docker.sock': "):
        asyncio.run(main())
