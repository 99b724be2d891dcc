"use strict";
// Every two seconds the parts of a page that are marked data-live are fetched again.
// A part in which somebody types is left alone; the log stays where it was scrolled to.

const PAUSE_MS = 2000;

function replace(part, next) {
  const open = [...part.querySelectorAll("details")].map(details => details.open);
  const log = part.querySelector("pre"), scrolled = log ? log.scrollTop : 0;
  const atEnd = log && log.scrollTop + log.clientHeight >= log.scrollHeight - 30;
  part.innerHTML = next.innerHTML;
  part.querySelectorAll("details").forEach((details, n) => { details.open = open[n] || false; });
  const fresh = part.querySelector("pre");
  if (log && fresh) fresh.scrollTop = atEnd ? fresh.scrollHeight : scrolled;
}

async function refresh(parts) {
  const answer = await fetch(location.pathname + location.search, {headers: {Accept: "text/html"}});
  if (answer.redirected) location.reload();  // to the login
  if (!answer.ok) throw new Error(answer.statusText);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of parts) {
    const next = page.getElementById(part.id), active = document.activeElement;
    const typing = part.contains(active) && active.matches("input, select, textarea");
    if (next && !typing && next.innerHTML !== part.innerHTML) replace(part, next);
  }
}

async function poll() {
  const parts = document.querySelectorAll("[data-live]"), note = document.getElementById("connection");
  try {
    if (!document.hidden) await refresh(parts);
    note.textContent = "";
  } catch {
    note.textContent = "The server does not answer; this page tries again.";
  }
  setTimeout(poll, PAUSE_MS);
}

document.addEventListener("DOMContentLoaded", () => {
  const log = document.getElementById("log");
  if (log) log.scrollTop = log.scrollHeight;
  if (document.querySelector("[data-live]")) setTimeout(poll, PAUSE_MS);
});
