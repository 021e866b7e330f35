// Counts down to the times at which verdicts expire, keeps people from approving what they have not seen, copies texts, and
// repeats events. The pages work without it.
"use strict";
function remaining(until) {
  const seconds = Math.floor((Date.parse(until) - Date.now()) / 1000);
  if (seconds <= 0) return "expired";
  if (seconds < 120) return `in ${seconds} s`;
  return seconds < 7200 ? `in ${Math.floor(seconds / 60)} min` : `in ${Math.floor(seconds / 3600)} h`;
}
setInterval(() => {
  for (const time of document.querySelectorAll("time[data-until]")) {
    time.textContent = remaining(time.dataset.until);
  }
  for (const notice of document.querySelectorAll("[data-expires]")) {
    if (!notice.hidden || Date.parse(notice.dataset.expires) > Date.now()) continue;
    notice.hidden = false;
    for (const button of document.querySelectorAll("form.decision button, form.bar button")) button.disabled = true;
  }
}, 1000);

// Until this page has been visible for a second, nothing is approved, committed or undone: another page, window or tab may
// have lain above it.
const MIN_VISIBLE_MS = 1000;
let visibleSince = performance.now();
function becomeVisible() {
  visibleSince = performance.now();
  for (const button of document.querySelectorAll(".actions button.primary")) button.classList.toggle("again");
}
document.addEventListener("visibilitychange", () => document.hidden || becomeVisible());
addEventListener("pageshow", becomeVisible);
addEventListener("focus", becomeVisible);
document.addEventListener("submit", (event) => {
  if (!event.submitter?.matches(".actions button.primary")) return;
  if (!document.hidden && performance.now() - visibleSince >= MIN_VISIBLE_MS) return;
  event.preventDefault();
  document.querySelector(".early").hidden = false;
});

// Copies a text. Without HTTPS, a browser offers no clipboard to pages of other machines: the text is then selected.
async function copy(button) {
  const text = document.getElementById(button.dataset.copy);
  getSelection().selectAllChildren(text);
  try {
    await navigator.clipboard.writeText(text.textContent);
    button.textContent = "Copied";
  } catch {
    text.focus();
    button.textContent = document.execCommand("copy") ? "Copied" : "Selected: copy it with the keyboard";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 3000);
}
for (const button of document.querySelectorAll("button[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", () => copy(button));
}

// An element that is being replaced hears no event, so its replacement gets the event instead.
const missed = new Map();
htmx.createEventSource = (url) => {
  const source = new EventSource(url);
  for (const name of ["inbox", "runs", "changes"]) {
    source.addEventListener(name, () => {
      for (const element of document.querySelectorAll(`[hx-trigger*="sse:${name}"]`)) {
        if (element.matches(".htmx-request, .htmx-added")) missed.set(element.id, `sse:${name}`);
      }
    });
  }
  return source;
};
document.addEventListener("htmx:load", ({ target }) => {
  if (target.id === "waiting" || target.id === "waiting-changes") {
    let count = 0;
    for (const { dataset } of document.querySelectorAll("nav [data-count]")) count += Number(dataset.count);
    document.title = (count ? `(${count}) ` : "") + document.title.replace(/^\(\d+\) /, "");
  }
  const event = missed.get(target.id);
  if (missed.delete(target.id)) htmx.trigger(target, event);
});
