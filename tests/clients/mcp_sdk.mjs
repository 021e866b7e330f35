// The MCP door as the protocol's own JavaScript library sees it. It fails where an answer is not as expected.
//
// Arguments: the folder of the library; the folder of the tools' files, as tools name it and as this script does; then a
// URL, or a command.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { readFileSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const [installed, guest, host, target, ...words] = process.argv.slice(2);
const require = createRequire(`${installed}/`);
const { Client, ProtocolError, StreamableHTTPClientTransport } = require("@modelcontextprotocol/client");
const { StdioClientTransport } = require("@modelcontextprotocol/client/stdio");

const ESCALATES = "-----BEGIN PRIVATE KEY-----";

async function listsTools(client) {
  const { tools } = await client.listTools();
  const hints = (name) => tools.find((tool) => tool.name === name).annotations;
  assert.ok(hints("search_text").readOnlyHint && hints("write_file").destructiveHint);
  assert.equal(client.getServerVersion().name, "a2g-executor");
  assert.ok(client.getInstructions());
}

async function writesAFileAndReadsTheReceipt(client, name) {
  const result = await client.callTool({ name: "write_file", arguments: { path: `${guest}/${name}`, content: "hi" } });
  assert.equal(result.structuredContent?.path, `${guest}/${name}`, JSON.stringify(result));
  const uri = `a2g://receipts/${result._meta["a2g/intent_id"]}`;
  const { resources } = await client.listResources();
  assert.ok(resources.some((resource) => resource.uri === uri), JSON.stringify(resources));
  const { contents } = await client.readResource({ uri });
  const report = JSON.parse(contents[0].text);
  assert.deepEqual([report.status, report.result], ["SUCCESS", result.structuredContent]);
}

async function approvesACall(client, name) {
  const call = { name: "write_file", arguments: { path: `${guest}/${name}-approved`, content: ESCALATES } };
  const result = await client.callTool(call);
  assert.ok(!result.isError, JSON.stringify(result));
  assert.equal(readFileSync(`${host}/${name}-approved`, "utf8"), ESCALATES);
}

async function cancelsACall(client) {
  const runs = () => statSync(`${host}/runs`, { throwIfNoEntry: false })?.size ?? 0;
  const [before, intent, abort] = [runs(), randomUUID(), new AbortController()];
  const call = { name: "gate", arguments: { path: `${guest}/x` }, _meta: { "a2g/intent_id": intent } };
  const ended = assert.rejects(client.callTool(call, { signal: abort.signal }));
  while (runs() === before) await sleep(10);
  abort.abort();
  await ended;
  for (;;) {
    try {
      const { contents } = await client.readResource({ uri: `a2g://receipts/${intent}` });
      return assert.equal(JSON.parse(contents[0].text).status, "ABORTED");
    } catch (error) {
      if (!(error instanceof ProtocolError)) throw error;
      assert.equal(error.code, -32602, error.message); // there is none yet; the library makes this of -32002, too
      await sleep(10);
    }
  }
}

async function getsProgress(client) {
  const seen = [];
  // The library's own handler would lose reports that arrive together with the result (its issue 2580).
  client.setNotificationHandler("notifications/progress", ({ params }) => void seen.push(params));
  const call = { name: "search_text", arguments: { path: guest, pattern: "hi" } };
  const result = await client.callTool(call, { onprogress: () => {} });
  assert.ok(!result.isError, JSON.stringify(result));
  const rises = seen.every(({ progress }, index) => index === 0 || progress > seen[index - 1].progress);
  assert.ok(seen.length > 1 && rises && seen.at(-1).total === 100, JSON.stringify(seen));
}

const STEPS = [listsTools, writesAFileAndReadsTheReceipt, approvesACall, cancelsACall, getsProgress];

for (const [revision, mode] of [["2026-07-28", "auto"], ["2025-11-25", "legacy"]]) {
  const options = { capabilities: { elicitation: { form: {} } }, versionNegotiation: { mode } };
  const client = new Client({ name: "tests", version: "1" }, options);
  const asked = [];
  client.setRequestHandler("elicitation/create", ({ params }) => {
    asked.push(params.message);
    return { action: "accept", content: { decision: "approve" } };
  });
  const transport = words.length
    ? new StdioClientTransport({ command: target, args: words, env: process.env })
    : new StreamableHTTPClientTransport(new URL(target));
  await client.connect(transport);
  assert.equal(client.getNegotiatedProtocolVersion(), revision);
  for (const step of STEPS) {
    console.log(revision, step.name);
    await step(client, revision);
  }
  await client.close();
  assert.ok(asked.length === 1 && asked[0].includes(ESCALATES), JSON.stringify(asked));
}
