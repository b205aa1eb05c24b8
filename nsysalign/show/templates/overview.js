// The whole run: one sentence, its breakdown as a bar, and every interval in time, a row per
// label, coloured by cause.

const MOST_STRIP_ROWS = 16, STRIP_ROW = 22, STRIP_BAR = 16, STRIP_AXIS = 42;
const strip = { rows: [], whole: [0, 1], from: 0, to: 1, redraw: () => {} };

function drawWhole() {
  $("whole-reading").textContent = DATA.headline.text;
  if (!DATA.headline.elapsed) return;
  const bar = budgetBar(DATA.headline, DATA.headline.elapsed, 900);
  fill($("headline-bar"), bar);
}

// The labels that took most time, with the share of each cause in every pixel of the row.
function startStrip() {
  drawWhole();
  const order = DATA.labels.map((label, at) => ({ label, runs: DATA.runs[at] }))
    .sort((p, q) => q.label.total - p.label.total);
  strip.rows = order.slice(0, MOST_STRIP_ROWS);
  strip.from = Infinity, strip.to = -Infinity;
  for (const { runs } of strip.rows) {
    for (let i = 0; i < runs.start.length; i += 1) {
      strip.from = Math.min(strip.from, runs.start[i]);
      strip.to = Math.max(strip.to, runs.start[i] + runs.elapsed[i] / 1e3);
    }
  }
  if (!(strip.to > strip.from)) strip.to = strip.from + 1;
  strip.whole = [strip.from, strip.to];
  const names = cutApart(strip.rows.map(({ label }) => label.label), narrow() ? 13 : 38);
  fill($("strip-labels"), strip.rows.map(({ label }, at) => make("li", null,
    make("button", { type: "button", class: "link", title: label.label,
      onclick: () => choose(label.label, null, true) }, names[at]))));
  const rest = order.length - strip.rows.length;
  $("strip-note").textContent = rest ?
    `The ${plural(rest, "label")} that took least time ${rest === 1 ? "is" : "are"} left out.` : "";
  const canvas = $("strip");
  // nothing below it moves when it is drawn
  canvas.style.height = strip.rows.length * STRIP_ROW + STRIP_AXIS + "px";
  canvas.addEventListener("pointermove", (event) => {
    const hit = stripAt(event);
    canvas.classList.toggle("pointing", Boolean(hit));
    if (!hit) return hideTip();
    const { label, runs } = hit.row, parts = PRESENT.filter(
      (cause) => runs.parts[cause.name]?.[hit.i])
      .sort((p, q) => runs.parts[q.name][hit.i] - runs.parts[p.name][hit.i]);
    const elapsed = runs.elapsed[hit.i], since = (runs.start[hit.i] - zeroOfRun()) * 1e3;
    const share = (cause) => percent(runs.parts[cause.name][hit.i] / Math.max(1, elapsed));
    showTip([nameOf(label, runs, hit.i), `${duration(elapsed)} under ${DATA.recorder}, ` +
      `${duration(since)} after the first GPU work`,
    parts.slice(0, 4).map((cause) => `${cause.short} ${share(cause)}`).join(", ")],
    event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("click", (event) => {
    const hit = stripAt(event);
    if (hit) choose(hit.row.label.label, numberOf(hit.row.runs, hit.i), true);
  });
  strip.redraw = whenSeen(canvas, drawStrip);
  const axis = { ready: () => true, range: () => [strip.from, strip.to],
    frame: () => ({ left: 0, right: canvas.clientWidth }), to: zoomStrip,
    fit: () => zoomStrip(strip.whole) };
  zoomable(canvas, axis);
  $("strip-fit").addEventListener("click", axis.fit);
  $("strip-run").hidden = !WHOLE.size;
  $("strip-run").addEventListener("click", () => chooseWhole(DATA.wholes[0].number,
    $("strip-fit").disabled ? null : [strip.from, strip.to], true));
}

function zeroOfRun() {
  return DATA.wholes[0]?.start ?? strip.whole[0];
}

// What of the run the strip shows: never less than a microsecond, never more than all of it.
function zoomStrip([from, to]) {
  const [low, high] = strip.whole, length = Math.min(high - low, Math.max(1, to - from));
  strip.from = Math.min(Math.max(low, from), high - length);
  strip.to = strip.from + length;
  $("strip-fit").disabled = length === high - low;
  drawStrip();
}

function stripAt(event) {
  const box = $("strip").getBoundingClientRect(),
    row = strip.rows[Math.floor((event.clientY - box.top) / STRIP_ROW)];
  if (!row) return null;
  const us = (strip.to - strip.from) / box.width, at = strip.from + (event.clientX - box.left) * us;
  let best = null, nearest = 6 * us;
  row.runs.start.forEach((start, i) => {
    const away = Math.max(start - at, at - start - row.runs.elapsed[i] / 1e3, 0);
    if (away < nearest) { nearest = away; best = i; }
  });
  return best === null ? null : { row, i: best };
}

function drawStrip() {
  const bottom = strip.rows.length * STRIP_ROW, width = $("strip").clientWidth,
    scale = width / (strip.to - strip.from), past = strip.from - zeroOfRun();
  const pen = penOn($("strip"), width, bottom + STRIP_AXIS);
  axisOn(pen, past, past + strip.to - strip.from, (us) => (us - past) * scale, bottom, width, 0);
  pen.fillText("since the first GPU work", 0, bottom + 36);
  strip.rows.forEach((row, at) => stripRow(pen, row.runs,
    at * STRIP_ROW + (STRIP_ROW - STRIP_BAR) / 2, scale, Math.ceil(width)));
}

// Time of each cause in every pixel, then the pixels: as many as there are, however many the
// intervals.
function stripRow(pen, runs, top, scale, width) {
  const causes = PRESENT.filter((cause) => runs.parts[cause.name]),
    columns = causes.map((cause) => runs.parts[cause.name]);
  const sums = new Float64Array((width + 1) * Math.max(1, causes.length)),
    used = new Uint8Array(width + 1);
  for (let i = 0; i < runs.start.length; i += 1) {
    const begin = (runs.start[i] - strip.from) * scale, end = begin + runs.elapsed[i] / 1e3 * scale;
    if (end < 0) continue;
    const from = Math.max(0, Math.floor(begin)),
      to = Math.min(width, Math.max(from, Math.ceil(end) - 1));
    for (let x = from; x <= to; x += 1) {
      used[x] = 1;
      for (let k = 0; k < causes.length; k += 1) sums[x * causes.length + k] += columns[k][i] / (
        to - from + 1);
    }
  }
  for (let x = 0; x <= width; x += 1) {
    if (!used[x]) continue;
    let sum = 0, y = top;
    for (let k = 0; k < causes.length; k += 1) sum += sums[x * causes.length + k];
    if (!sum) { pen.fillStyle = theme("--range"); pen.fillRect(x, top, 1, STRIP_BAR); }
    for (let k = 0; k < causes.length && sum; k += 1) {
      const share = (STRIP_BAR * sums[x * causes.length + k]) / sum;
      pen.fillStyle = causes[k].colour;
      pen.fillRect(x, y, 1, share);
      y += share;
    }
  }
}
