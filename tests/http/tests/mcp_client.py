"""Uses Ringfence by the `mcp` package and prints what it got, as JSON.

mcp_client.py MODE stdio COMMAND ARG...
mcp_client.py MODE http URL [KEY]
"""

import asyncio
import base64
import json
import sys

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

CHART = """
import matplotlib
import matplotlib.pyplot as plt
plt.plot([1, 3, 2])
plt.title('a chart')
plt.show()
"""


def server(kind, *rest):
    if kind == "stdio":
        return StdioServerParameters(command=rest[0], args=list(rest[1:]))
    if len(rest) == 1:
        return rest[0]
    headers = {"Authorization": f"Bearer {rest[1]}"}
    client = httpx2.AsyncClient(headers=headers, timeout=120)
    return streamable_http_client(rest[0], http_client=client)


def text(result):
    return "\n".join(block.text for block in result.content if block.type == "text")


async def scenario(client):
    told = {"protocol": client.protocol_version, "server": client.server_info.name}
    tools = await client.list_tools()
    told["tools"] = [tool.name for tool in tools.tools]
    told["session_in_schema"] = all("session" in t.input_schema["properties"] for t in tools.tools)

    async def call(name, arguments, **more):
        return await client.call_tool(name, arguments, **more)

    await call("python", {"code": "x = 41"})
    told["kept"] = text(await call("python", {"code": "x + 1"}))
    other = await call("python", {"code": "x", "session": "other"})
    told["other"] = text(other).splitlines()[-2:]

    chart = await call("python", {"code": CHART, "timeout": 300})
    images = [block for block in chart.content if block.type == "image"]
    told["images"] = [block.mime_type for block in images]
    told["png"] = [base64.b64decode(block.data)[:8].hex() for block in images]
    told["chart_says"] = text(chart)

    steps = []

    async def progress(done, total, message):
        steps.append((done, message))

    slow = await call("bash", {"command": "echo working; sleep 3"}, progress_callback=progress)
    told["slow"] = text(slow)
    told["steps"] = steps

    # A call that is given up ends what it runs.
    begun = asyncio.Event()

    async def seen(done, total, message):
        begun.set()

    task = asyncio.create_task(
        call("bash", {"command": "sleep 4242; touch survived", "timeout": 600}, progress_callback=seen)
    )
    await begun.wait()
    there = await call("bash", {"command": "pgrep -xf 'sleep 4242' | wc -l"})
    told["ran"] = text(there)
    task.cancel()
    try:
        await task
    except BaseException as error:
        told["cancelled"] = type(error).__name__
    for _ in range(200):
        left = text(await call("bash", {"command": "pgrep -xf 'sleep 4242' | wc -l; ls survived"}))
        if left.startswith("0"):
            break
        await asyncio.sleep(0.1)
    told["left"] = left.splitlines()[0]

    await call("write_file", {"path": "a b/note.txt", "content": "hello\n"})
    resources = (await client.list_resources()).resources
    told["resources"] = [(r.uri, r.mime_type, r.size) for r in resources]
    read = await client.read_resource("ringfence://default/a%20b/note.txt")
    told["read"] = read.contents[0].text
    templates = (await client.list_resource_templates()).resource_templates
    told["templates"] = [t.uri_template for t in templates]

    wrong = await call("python", {"code": 1})
    told["wrong"] = (wrong.is_error, text(wrong))
    try:
        await call("nope", {})
    except Exception as error:
        told["unknown"] = str(error)
    try:
        await client.read_resource("ringfence://default/nope.txt")
    except Exception as error:
        told["no_file"] = str(error)
    return told


async def main(mode, *where):
    async with Client(server(*where), mode=mode, read_timeout_seconds=300) as client:
        told = await scenario(client)
    # Whoever connects again finds what was named, and over HTTP also what was not.
    async with Client(server(*where), mode=mode, read_timeout_seconds=300) as client:
        again = await client.call_tool("python", {"code": "y = 7", "session": "named"})
    async with Client(server(*where), mode=mode, read_timeout_seconds=300) as client:
        again = await client.call_tool("python", {"code": "y", "session": "named"})
        told["named_again"] = text(again)
        own = await client.call_tool("python", {"code": "'x' in globals()"})
        told["own_again"] = text(own)
    print(json.dumps(told))


asyncio.run(main(*sys.argv[1:]))
