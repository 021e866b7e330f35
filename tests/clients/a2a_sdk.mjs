// The A2A door as the protocol's own JavaScript library sees it. It fails where an answer is not as expected.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// The library is installed elsewhere, in the folder that is named second.
const [url, installed] = process.argv.slice(2);
const library = createRequire(`${installed}/`).resolve("@a2a-js/sdk/client");
const { A2AClient } = await import(pathToFileURL(library));

const client = await A2AClient.fromCardUrl(`${url}/.well-known/agent-card.json`);
const message = (part, more = {}) => ({
  message: { kind: "message", role: "user", messageId: randomUUID(), parts: [part], ...more },
});
const call = (tool, args) => ({ kind: "data", data: { tool, arguments: args } });

const written = await client.sendMessage(message(call("write_file", { path: "/workspace/a", content: "hi" })));
assert.deepEqual([written.result.kind, written.result.status.state], ["task", "completed"]);

const kinds = [];
let ended = false;
for await (const event of client.sendMessageStream(message(call("read_file", { path: "/workspace/a" })))) {
  kinds.push(event.kind);
  ended = event.final === true && event.status.state === "completed";
}
assert.equal(kinds[0], "task");
assert.ok(kinds.includes("artifact-update") && ended, kinds.join(" "));

const { result: text } = await client.sendMessage(message({ kind: "text", text: "hello" }));
assert.equal(text.status.state, "input-required");
const more = { taskId: text.id, contextId: text.contextId };
const { result: on } = await client.sendMessage(message(call("read_file", { path: "/workspace/a" }), more));
assert.deepEqual([on.id, on.status.state], [text.id, "completed"]);
const { result: kept } = await client.getTask({ id: text.id });
assert.equal(kept.artifacts[0].parts[0].data.content, "hi");

const { result: other } = await client.sendMessage(message({ kind: "text", text: "bye" }));
const { result: cancelled } = await client.cancelTask({ id: other.id });
assert.equal(cancelled.status.state, "canceled");

// An error of a streaming method arrives as an error, with its code.
const fails = async (events) => {
  for await (const event of events) assert.fail(`not an error: ${JSON.stringify(event)}`);
  assert.fail("the stream has no event");
};
await assert.rejects(fails(client.resubscribeTask({ id: randomUUID() })), /Task not found.*\(Code: -32001\)/);
for (const part of [call("no_such_tool", {})]) {
  await assert.rejects(fails(client.sendMessageStream(message(part))), /\(Code: -32602\)/);
}
