"""The MCP door as the protocol's own Python library sees it. It fails where an answer is not as expected.

Arguments: the folder of the tools' files, as tools name it and as this script does; then a URL, or a command.
"""

import json
import os
import sys
import uuid
from functools import partial
from pathlib import Path

import anyio
from mcp import Client, MCPError, StdioServerParameters
from mcp.types import ElicitResult

ESCALATES = "-----BEGIN PRIVATE KEY-----"
# The code of a missing resource.
MISSING = {"2026-07-28": -32602, "2025-11-25": -32002}

guest, host, target, *words = sys.argv[1:]
host = Path(host)


async def lists_tools(client, _name):
    tools = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}
    assert tools["search_text"].read_only_hint and tools["write_file"].destructive_hint, tools
    assert client.server_info.name == "a2g-executor" and client.instructions


async def writes_a_file_and_reads_the_receipt(client, name):
    result = await client.call_tool("write_file", {"path": f"{guest}/{name}", "content": "hi"})
    assert not result.is_error and result.structured_content["path"] == f"{guest}/{name}", result
    uri = f"a2g://receipts/{result.meta['a2g/intent_id']}"
    listed = await client.list_resources()
    assert any(resource.uri == uri for resource in listed.resources), listed
    report = json.loads((await client.read_resource(uri)).contents[0].text)
    assert (report["status"], report["result"]) == ("SUCCESS", result.structured_content), report


async def approves_a_call(client, name):
    result = await client.call_tool("write_file", {"path": f"{guest}/{name}-approved", "content": ESCALATES})
    assert not result.is_error, result
    assert (host / f"{name}-approved").read_text() == ESCALATES


async def cancels_a_call(client, name):
    def runs():
        return (host / "runs").stat().st_size if (host / "runs").exists() else 0

    before, meta = runs(), {"a2g/intent_id": str(uuid.uuid4())}
    async with anyio.create_task_group() as group:
        group.start_soon(partial(client.call_tool, "gate", {"path": f"{guest}/x"}, meta=meta))
        while runs() == before:
            await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    while True:
        try:
            receipt = await client.read_resource(f"a2g://receipts/{meta['a2g/intent_id']}")
            break
        except MCPError as error:  # there is none yet
            assert error.code == MISSING[name], error
            await anyio.sleep(0.01)
    assert json.loads(receipt.contents[0].text)["status"] == "ABORTED", receipt


async def gets_progress(client, _name):
    seen = []

    async def progress(*report):
        seen.append(report)

    result = await client.call_tool("search_text", {"path": guest, "pattern": "hi"}, progress_callback=progress)
    assert not result.is_error, result
    numbers = [number for number, _total, _message in seen]
    assert len(seen) > 1 and numbers == sorted(set(numbers)), seen
    assert seen[-1][1] == 100, seen


STEPS = (lists_tools, writes_a_file_and_reads_the_receipt, approves_a_call, cancels_a_call, gets_progress)


async def main():
    server = StdioServerParameters(command=target, args=words, env=dict(os.environ)) if words else target
    for revision, mode in (("2026-07-28", "auto"), ("2025-11-25", "legacy")):
        asked = []

        async def approve(_context, form):
            asked.append(form.message)
            return ElicitResult(action="accept", content={"decision": "approve"})

        async with Client(server, mode=mode, elicitation_callback=approve) as client:
            assert client.protocol_version == revision, client.protocol_version
            for step in STEPS:
                print(revision, step.__name__, flush=True)
                await step(client, revision)
        assert len(asked) == 1 and ESCALATES in asked[0], asked


anyio.run(main)
