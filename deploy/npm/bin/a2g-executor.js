#!/usr/bin/env node
// Becomes the program of the package for this platform, which npm installs as an optional dependency.
'use strict';
const { spawn } = require('node:child_process');
const { accessSync, constants } = require('node:fs');
const { dirname, join } = require('node:path');
const { isatty } = require('node:tty');
const name = `a2g-executor-${process.platform}-${process.arch}-gnu`;
const image = 'use the container image, which docs/install.md describes';
function explain() {
  if (process.platform !== 'linux' || !['x64', 'arm64'].includes(process.arch)) {
    return `a2g-executor runs on Linux (x64, arm64), not on ${process.platform} ${process.arch}: ${image}`;
  }
  process.report.excludeNetwork = true;
  if (!process.report.getReport().header.glibcVersionRuntime) {
    return `the package ${name} needs glibc 2.28 or newer, but the C library here is another one (musl): ${image}`;
  }
  return `the package ${name} is missing or incomplete: npm leaves it out with --omit=optional, --no-optional or ` +
    `--libc=musl, and if node_modules comes from another platform; run: npm install --include=optional a2g-executor, or ` +
    `name both packages if you install files`;
}
let program;
try {
  program = join(dirname(require.resolve(`${name}/package.json`)), 'bin', 'a2g-executor');
  accessSync(program, constants.X_OK);
} catch {
  process.stderr.write(`error: ${explain()}\n`);
  process.exit(1);
}
const words = process.argv.slice(2);
if (process.execve) process.execve(program, [program, ...words], process.env); // Node.js 22.15: does not return
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) {
  // Before there is a child, so that no signal ends this process alone. A terminal sends its SIGINT to both.
  process.on(signal, () => (signal === 'SIGINT' && isatty(0)) || child.kill(signal));
}
const child = spawn(program, words, { stdio: 'inherit' });
child.on('exit', (code, signal) => {
  if (signal) process.removeAllListeners(signal).kill(process.pid, signal);
  process.exitCode = code ?? 1;
});
