"""The A2A door as the protocol's own Python library sees it. It fails where an answer is not as expected."""

import asyncio
import sys
import uuid

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.client.errors import A2AClientJSONRPCError
from a2a.types import DataPart, Message, Part, Role, TaskIdParams, TaskQueryParams, TaskState, TextPart


def message(part, **more):
    return Message(role=Role.user, message_id=uuid.uuid4().hex, parts=[Part(root=part)], **more)


def call(tool, **arguments):
    return DataPart(data={"tool": tool, "arguments": arguments})


async def last(events):
    """The task as it is after the last event, and how many there were."""
    count, task = 0, None
    async for event in events:
        count, task = count + 1, event[0] if isinstance(event, tuple) else event
    return count, task


async def converse(http, card, streaming):
    client = ClientFactory(ClientConfig(httpx_client=http, streaming=streaming)).create(card)
    count, task = await last(client.send_message(message(call("write_file", path="/workspace/a", content="hi"))))
    assert task.status.state == TaskState.completed and task.artifacts, task
    assert count > 1 if streaming else count == 1, count
    kept = await client.get_task(TaskQueryParams(id=task.id))
    assert kept.status.state == TaskState.completed and kept.history, kept

    _, task = await last(client.send_message(message(TextPart(text="hello"))))
    assert task.status.state == TaskState.input_required, task
    more = {"task_id": task.id, "context_id": task.context_id}
    _, continued = await last(client.send_message(message(call("read_file", path="/workspace/a"), **more)))
    assert (continued.id, continued.status.state) == (task.id, TaskState.completed), continued
    assert continued.artifacts[0].parts[0].root.data["content"] == "hi", continued

    _, task = await last(client.send_message(message(TextPart(text="bye"))))
    cancelled = await client.cancel_task(TaskIdParams(id=task.id))
    assert cancelled.status.state == TaskState.canceled, cancelled
    try:
        await client.cancel_task(TaskIdParams(id=task.id))
    except Exception as error:  # the library has several
        assert "-32002" in str(error), error
    else:
        raise AssertionError("a task was canceled twice")


async def code(events):
    """The code and the message of the error that a stream is."""
    try:
        async for event in events:
            raise AssertionError(f"not an error: {event}")
    except A2AClientJSONRPCError as error:
        return error.error.code, error.error.message
    raise AssertionError("the stream has no event")


async def fail(http, card):
    """An error of a streaming method arrives as an error, with its code."""
    client = ClientFactory(ClientConfig(httpx_client=http, streaming=True)).create(card)
    found, said = await code(client.resubscribe(TaskIdParams(id=str(uuid.uuid4()))))
    assert found == -32001 and said.startswith("Task not found"), said
    for part in (call("no_such_tool"),):
        found, said = await code(client.send_message(message(part)))
        assert found == -32602, said


async def main(url):
    async with httpx.AsyncClient(timeout=60) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        assert card.protocol_version == "0.3.0" and any(skill.id == "write_file" for skill in card.skills), card
        for streaming in (False, True):
            await converse(http, card, streaming)
        await fail(http, card)


asyncio.run(main(sys.argv[1]))
