"use strict";
// Pages that stay up to date: parts marked data-live are fetched again when the server says that something has changed, and a
// run's page follows its log and its values. All text goes in as text.

const LINES = 5000, POINTS = 1500;

// Return whether all parts are as the server has them; one in which somebody types is left alone.
async function refresh() {
  const answer = await fetch(location.pathname + location.search, {headers: {Accept: "text/html"}});
  if (!answer.ok || answer.redirected) return true;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  let complete = true;
  for (const part of document.querySelectorAll("[data-live]")) {
    const next = fresh.getElementById(part.id);
    if (!next || next.innerHTML === part.innerHTML) continue;
    if (part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea")) {
      complete = false;
      continue;
    }
    const open = [...part.querySelectorAll("details")].map(details => details.open);
    part.replaceWith(document.importNode(next, true));
    document.querySelectorAll(`#${part.id} details`).forEach((details, n) => { details.open = open[n] || false; });
  }
  return complete;
}

const pause = milliseconds => new Promise(over => setTimeout(over, milliseconds));

// A stream that was refused is not tried again by itself.
function retry(source, follow) {
  if (source.readyState === EventSource.CLOSED) setTimeout(follow, 2000);
}

function followTopic(topic) {
  let again = false, busy = false;
  const source = new EventSource(`/web/changes/${topic}`);
  source.onerror = () => retry(source, () => followTopic(topic));
  source.addEventListener("changed", async () => {
    again = true;
    if (busy) return;  // what has changed meanwhile is fetched afterwards
    busy = true;
    while (again) {
      again = false;
      again = !await refresh().catch(() => false) || again;
      await pause(700);
    }
    busy = false;
  });
}

function put(name, text) {
  const place = document.querySelector(`[data-fact="${name}"]`);
  if (place) place.textContent = text;
  return place;
}

function seconds(value) {
  if (value === null) return "";
  if (value < 60) return `${value.toFixed(1)} s`;
  const all = Math.round(value), two = n => String(n).padStart(2, "0");
  return `${Math.floor(all / 3600)}:${two(Math.floor(all / 60) % 60)}:${two(all % 60)}`;
}

const plain = value => value === null ? "" : Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3)
  ? value.toExponential(2) : String(Number(value.toPrecision(4)));

function element(name, attributes = {}, text = "") {
  const made = name.startsWith("svg:") ? document.createElementNS("http://www.w3.org/2000/svg", name.slice(4)) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

// --- curves: a chart a key, a line a split
const series = new Map();
let drawing = false;

function collect(values) {
  for (const [step, , key, value, split] of values) {
    if (value === null || key === "epoch" || key === "epochs") continue;
    const name = key.replace(/^(train|val|test)_/, "");
    if (!series.has(name)) series.set(name, new Map());
    const lines = series.get(name);
    if (!lines.has(split)) lines.set(split, []);
    lines.get(split).push([step, value]);
  }
  if (!drawing && document.getElementById("curves")) { drawing = true; requestAnimationFrame(draw); }
}

function thinned(points) {
  const stride = Math.ceil(points.length / POINTS);
  return stride < 2 ? points : points.filter((_, n) => n % stride === 0 || n === points.length - 1);
}

// lines: points by name; a name is a split, or in a comparison a run's number and a split
function chart(name, lines) {
  const kindOf = line => {
    const [run, split] = line.includes("|") ? line.split("|") : ["", line];
    return run ? `run${run}${split === "train" ? "" : " dashed"}` : ["train", "val", "test"].includes(split) ? split : "train";
  };
  const every = [...lines.values()].flat();
  const bounds = n => every.reduce(([low, high], p) => [Math.min(low, p[n]), Math.max(high, p[n])], [Infinity, -Infinity]);
  const [left, right] = bounds(0), [low, high] = bounds(1);
  const x = v => 100 * (v - left) / (right - left || 1), y = v => 97 - 94 * (v - low) / (high - low || 1);
  const figure = element("figure", {class: "curve"}), title = element("figcaption", {}, name);
  const svg = element("svg:svg", {viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": `${name} by step`});
  for (const at of [0, 50, 100]) svg.append(element("svg:line", {class: "axis", x1: 0, x2: 100, y1: at, y2: at}));
  const legend = element("span");
  for (const [split, points] of lines) {
    const kind = kindOf(split);
    const ordered = thinned([...points].sort((a, b) => a[0] - b[0]));
    const drawn = ordered.length > 1 ? ordered : [ordered[0], ordered[0]];
    const line = element("svg:polyline", {class: `${kind}${ordered.length > 1 ? "" : " dot"}`,
      points: drawn.map(p => `${x(p[0])},${y(p[1])}`).join(" ")});
    svg.append(line);
    legend.append(element("span", {class: `legend ${kind}`}, ` ${split.split("|").at(-1)} ${plain(ordered.at(-1)[1])}`));
  }
  title.append(legend);
  const hint = element("span", {class: "hint", "aria-hidden": "true"});  // the values under the pointer
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect(), at = left + (right - left) * (event.clientX - box.left) / (box.width || 1);
    const nearest = points => points.reduce((best, p) => Math.abs(p[0] - at) < Math.abs(best[0] - at) ? p : best);
    hint.textContent = [...lines].map(([split, points]) => { const p = nearest(points); return `${split.split("|").at(-1)} ${plain(p[1])} at step ${p[0]}`; }).join(", ");
  });
  svg.addEventListener("pointerleave", () => { hint.textContent = ""; });
  const scale = element("div", {class: "scale"});
  scale.append(element("span", {}, `step ${left}`), element("span", {}, `${plain(low)} to ${plain(high)}`), element("span", {}, `step ${right}`));
  figure.append(title, svg, scale, hint);
  return figure;
}

function draw() {
  drawing = false;
  const curves = document.getElementById("curves"), first = ["loss", "images_per_sec", curves.dataset.monitor.replace("val_", "")];
  const charts = names => names.map(name => chart(name, series.get(name)));
  const rest = [...series.keys()].filter(name => !first.includes(name)).sort();
  curves.replaceChildren(...charts(first.filter((name, n) => series.has(name) && first.indexOf(name) === n)));
  document.getElementById("rest").replaceChildren(...charts(rest));
  document.getElementById("more").hidden = !rest.length;
}

function drawCompared(root) {
  for (const [key, lines] of Object.entries(JSON.parse(root.dataset.curves))) {
    root.append(chart(key, new Map(lines.map(({run, split, points}) => [`${run}|${split}`, points]))));
  }
}

// --- log
function addLines(lines) {
  const log = document.getElementById("log"), atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 30;
  const rows = document.createDocumentFragment();
  for (const [attempt, n, line] of lines) {
    if (n === 1 && attempt > 1) rows.append(element("span", {class: "hint"}, `--- attempt ${attempt} ---\n`));
    rows.append(element("span", {"data-line": `${attempt}.${n}`}, `${line}\n`));
  }
  log.append(rows);
  while (log.childElementCount > LINES) log.firstChild.remove();
  if (atEnd) log.scrollTop = log.scrollHeight;
}

// --- a run
let run = null, ahead = 0;  // seconds by which the server's clock is ahead of this one

function showTime() {
  if (run) put("took", run.started_at === null ? "" : seconds((run.finished_at ?? Date.now() / 1000 + ahead) - run.started_at));
}

function showState(state) {
  const changed = document.querySelector('[data-fact="state"]').textContent !== state.state;
  run = state;
  ahead = run.now - Date.now() / 1000;
  put("state", run.state).className = `state ${run.state}`;
  put("epoch", run.epoch === null ? "" : `${run.epoch + 1}${run.epochs ? ` of ${run.epochs}` : ""}`);
  put("predicted_s", seconds(run.predicted_s));
  put("best_value", plain(run.best_value));
  for (const name of ["step", "reason", "placement", "place"]) put(name, run[name] ?? "");
  showTime();
  if (changed) refresh().catch(() => {});
}

function followRun(address, after) {
  const source = new EventSource(`${address}?after=${after}`), note = document.getElementById("connection");
  const on = (name, use) => source.addEventListener(name, event => {
    after = event.lastEventId || after;
    use(JSON.parse(event.data));
  });
  on("log", addLines);
  on("metric", collect);
  on("state", showState);
  on("end", () => {
    source.close();
    note.textContent = "";
    refresh().catch(() => {});
  });
  source.onopen = () => { note.textContent = ""; };
  source.onerror = () => {
    note.textContent = "The connection is lost; the page comes back by itself and misses nothing.";
    retry(source, () => followRun(address, after));
  };
}

// The plan of a waiting run changes while the run itself does not.
async function followPlan() {
  for (;;) {
    await pause(2000);
    if (run?.state === "queued") await refresh().catch(() => {});
  }
}

document.addEventListener("DOMContentLoaded", () => {
  const root = document.getElementById("run"), topic = document.body.dataset.topic.trim();
  if (root) {
    followRun(root.dataset.events, root.dataset.after);
    setInterval(showTime, 1000);
    followPlan();
  } else if (topic) followTopic(topic);
  const compared = document.getElementById("compared");
  if (compared) drawCompared(compared);
});
