// Counts down to the times at which verdicts expire, copies texts, and repeats events. The pages work without it.
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
}, 1000);

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
  for (const name of ["inbox", "runs"]) {
    source.addEventListener(name, () => {
      for (const element of document.querySelectorAll(`[hx-trigger*="sse:${name}"]`)) {
        if (element.matches(".htmx-request, .htmx-added")) missed.set(element.id, `sse:${name}`);
      }
    });
  }
  return source;
};
document.addEventListener("htmx:load", ({ target }) => {
  const event = missed.get(target.id);
  if (missed.delete(target.id)) htmx.trigger(target, event);
});
