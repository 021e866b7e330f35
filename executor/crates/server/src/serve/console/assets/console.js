// Counts down to the times at which verdicts expire. The pages work without it.
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
