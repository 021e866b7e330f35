// just-bash: a shell for each call, which sees the folder through its own file system.

import { Bash, OverlayFs } from "just-bash";
import { DATA, main, version } from "./common.mjs";

const CODE = (port) => ({
  nothing: "echo 2",
  read: "cat /etc/passwd",
  connect: `curl -s http://127.0.0.1:${port}/`,
});

async function run(script, fs) {
  const ended = await new Bash(fs ? { fs } : {}).exec(script);
  if (ended.exitCode !== 0) throw new Error(ended.stderr);
  return ended.stdout;
}

await main({
  version: version("just-bash"),
  fresh: "a shell and its files",
  workloads: { list: async () => () => run("ls /data", new OverlayFs({ root: DATA, mountPoint: "/data" })) },
  attempt: (action, port) => run(CODE(port)[action]),
});
