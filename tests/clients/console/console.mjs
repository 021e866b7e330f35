// A browser for the tests of the console. It reads commands from standard input, one JSON object a line, and answers each
// with one line: `{"ok": value}` or `{"error": text}`. The first line says that the browser runs. The end of the input
// ends the browser.
//
// Arguments: the folder of the libraries; the base URL; a folder for the browser's profile and the screenshots.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const CHROMIUM = "/usr/bin/chromium";
const TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
// Limits of one command, less than that of the test, so that the test shows the command's error.
const TIMEOUT_MS = 60_000;
const POLL_MS = 50;
const HEIGHT = 900;

const [installed, base, folder] = process.argv.slice(2);
const require = createRequire(`${installed}/`);
const { default: puppeteer } = await import(pathToFileURL(require.resolve("puppeteer-core")));
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const browser = await puppeteer.launch({
  executablePath: CHROMIUM,
  // A pipe instead of a port: no other program can drive the browser, and it ends with this one.
  pipe: true,
  protocolTimeout: TIMEOUT_MS,
  userDataDir: join(folder, "profile"),
  args: [
    // The sandbox does not run as root, which continuous integration is. The pages are the project's own.
    "--no-sandbox",
    // In containers, /dev/shm is often too small for the browser.
    "--disable-dev-shm-usage",
    // A foreign request is reported but never leaves the machine.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
  ],
});

// What the pages did since the last report.
const emptyReport = () => ({ foreign: [], console: [], csp: [], exceptions: [], failed: [], dialogs: [], popups: [] });
let report = emptyReport();
let acceptsDialogs = false;
let hasJavaScript = true;
let bytes = 0;

function isForeign(url) {
  const { protocol, host } = new URL(url.replace(/^ws/, "http"));
  return !["about:", "blob:", "data:"].includes(protocol) && `${protocol}//${host}` !== new URL(base).origin;
}

// Reports what a page does. The protocol's own events work without JavaScript, too.
async function watch(page) {
  const record = (list, value) => void report[list].push(value);
  page.setDefaultTimeout(TIMEOUT_MS);
  page.on("request", (request) => isForeign(request.url()) && record("foreign", request.url()));
  page.on("console", (message) => {
    const { url = "" } = message.location();
    // The browser asks for this icon by itself, at a time of its choice.
    if (message.type() === "error" && !url.endsWith("/favicon.ico")) record("console", `${message.text()} (${url})`);
  });
  page.on("pageerror", (error) => record("exceptions", String(error?.message ?? error)));
  page.on("requestfailed", (request) => {
    const reason = request.failure()?.errorText;
    // A page that is left ends its event stream this way.
    if (reason !== "net::ERR_ABORTED") record("failed", `${request.url()}: ${reason}`);
  });
  page.on("dialog", async (dialog) => {
    record("dialogs", `${dialog.type()}: ${dialog.message()}`);
    await (acceptsDialogs ? dialog.accept() : dialog.dismiss());
  });
  page.on("popup", (popup) => record("popups", popup?.url() ?? "unknown"));
  const session = await page.createCDPSession();
  session.on("Network.webSocketCreated", ({ url }) => isForeign(url) && record("foreign", url));
  session.on("Network.loadingFinished", ({ encodedDataLength }) => void (bytes += encodedDataLength));
  session.on("Audits.issueAdded", ({ issue }) => {
    const violation = issue.details.contentSecurityPolicyIssueDetails;
    if (violation) record("csp", `${violation.violatedDirective}: ${violation.blockedURL ?? "inline"}`);
  });
  await session.send("Network.enable");
  await session.send("Audits.enable");
  return session;
}

const page = (await browser.pages())[0];
const session = await watch(page);
const appearance = { scheme: "light", width: 1600 };
await setAppearance();

async function setAppearance() {
  await page.setViewport({ width: appearance.width, height: HEIGHT });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: appearance.scheme }]);
}

// Asks again until the answer is truthy. A navigation in between only delays the answer.
async function poll(what, ask) {
  const deadline = Date.now() + TIMEOUT_MS;
  let last = "";
  while (Date.now() < deadline) {
    try {
      const answer = await ask();
      if (answer) return answer;
    } catch (error) {
      last = `: ${error.message}`;
    }
    await sleep(POLL_MS);
  }
  throw new Error(`waited ${TIMEOUT_MS} ms in vain for ${what}${last}; the page says:\n${await pageText()}`);
}

const pageText = () => page.evaluate(() => document.body?.innerText ?? "");

// Waits for the only visible element with this role and accessible name, as a screen reader knows them.
function element({ role, name, within }) {
  const quote = name.includes('"') ? "'" : '"';
  const selector = `aria/[name=${quote}${name}${quote}][role="${role}"]`;
  return poll(`one visible ${role} "${name}"`, async () => {
    const root = within ? await page.$(within) : page;
    const found = (await root?.$$(selector)) ?? [];
    const visible = await Promise.all(found.map((handle) => handle.isVisible()));
    const elements = found.filter((_, index) => visible[index]);
    if (elements.length > 1) throw new Error(`there are ${elements.length}`);
    return elements[0];
  });
}

const COMMANDS = {
  // The time-out includes the load event, which an open event stream does not delay.
  async goto({ path }) {
    bytes = 0;
    const response = await page.goto(new URL(path, base).href, { waitUntil: "load" });
    return { status: response?.status() ?? 0, path: currentPath(), bytes };
  },
  path: async () => currentPath(),
  async click(target) {
    await (await element(target)).click();
  },
  // Replaces the content of a field, key by key.
  async fill({ text, ...target }) {
    const field = await element(target);
    await field.focus();
    await field.evaluate((node) => node.select?.());
    await page.keyboard.press("Delete");
    await page.keyboard.type(text);
  },
  async select({ value, ...target }) {
    await (await element(target)).select(value);
  },
  async press({ key }) {
    await page.keyboard.press(key);
  },
  // Shows another tab, and then this one again.
  async switch_tabs() {
    const other = await browser.newPage();
    await other.bringToFront();
    await page.waitForFunction(() => document.hidden, { polling: POLL_MS });
    await page.bringToFront();
    await page.waitForFunction(() => !document.hidden, { polling: POLL_MS });
    await other.close();
  },
  // The role and name of the element that has the focus. Some versions of Chromium end a name with a space.
  async focused() {
    const handle = await page.evaluateHandle(() => document.activeElement);
    const node = await page.accessibility.snapshot({ root: handle.asElement(), interestingOnly: false });
    return { role: node?.role ?? "", name: node?.name?.trim() ?? "" };
  },
  // The visible texts of all elements that a selector finds.
  texts: ({ selector }) => page.$$eval(selector, (nodes) => nodes.map((node) => node.innerText.trim())),
  async wait_for_text({ text }) {
    await poll(`the text "${text}"`, async () => (await pageText()).includes(text));
  },
  async wait_for_no_text({ text }) {
    await poll(`the end of the text "${text}"`, async () => !(await pageText()).includes(text));
  },
  async wait_for_path({ path }) {
    await poll(`the path ${path}`, () => currentPath() === path);
  },
  // Evaluates an expression in the page. The protocol does it even where the page's policy forbids scripts.
  evaluate: async ({ expression }) => (await page.evaluate(expression)) ?? null,
  async javascript({ enabled }) {
    hasJavaScript = enabled;
    await page.setJavaScriptEnabled(enabled);
  },
  // Accepts or dismisses the dialogs that follow.
  async dialogs({ accept }) {
    acceptsDialogs = accept;
  },
  // Colour scheme and width. Returns `true` if the page must be scrolled sideways.
  async appearance(changes) {
    Object.assign(appearance, changes);
    await setAppearance();
    return page.evaluate(() => document.documentElement.scrollWidth > document.documentElement.clientWidth);
  },
  async screenshot({ name }) {
    const path = join(folder, `${name}-${appearance.scheme}-${appearance.width}.png`);
    await page.screenshot({ path, fullPage: true });
    return path;
  },
  async axe() {
    // The checks wait for timers. The scripts of a page that was loaded without JavaScript do not run afterwards.
    await page.setJavaScriptEnabled(true);
    await page.evaluate(axe);
    // `target-size` is off unless it is named.
    const options = { runOnly: { type: "tag", values: TAGS }, rules: { "target-size": { enabled: true } } };
    const result = await page.evaluate((options) => axe.run(document, options), options);
    await page.setJavaScriptEnabled(hasJavaScript);
    const short = ({ id, impact, help, nodes }) =>
      ({ rule: id, impact: impact ?? "", help, targets: nodes.map(({ target }) => target.flat().join(" ")) });
    const { violations, incomplete, passes } = result;
    return { violations: violations.map(short), undecided: incomplete.map(short), passed: passes.length };
  },
  cookies: () => browser.cookies(),
  async report() {
    // A round trip: the events that the browser sent before its answer are recorded.
    await session.send("Runtime.evaluate", { expression: "0" });
    const past = report;
    report = emptyReport();
    return past;
  },
};

// The path with its query.
function currentPath() {
  const { pathname, search } = new URL(page.url());
  return pathname + search;
}

const answer = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
answer({ ok: { browser: browser.process().pid, version: await browser.version() } });
for await (const line of createInterface({ input: process.stdin })) {
  const { do: name, ...words } = JSON.parse(line);
  try {
    const command = COMMANDS[name];
    if (!command) throw new Error("there is no such command");
    answer({ ok: (await command(words)) ?? null });
  } catch (error) {
    answer({ error: `${line}: ${error.message}` });
  }
}
await browser.close();
