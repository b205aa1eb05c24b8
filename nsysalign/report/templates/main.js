// What is chosen, and the order in which the page comes to be: words and tables first, plots when plotly is there.

const selected = { label: null, interval: null };

// The number of an interval back to its name; `held` are the intervals whose timeline is in the page.
const HELD = new Map(DATA.labels.map((label) => [label.label, []]));
DATA.runs.forEach((runs, at) => {
  runs.elapsed.forEach((elapsed, i) => {
    const number = numberOf(runs, i);
    if (DATA.timelines[number]) HELD.get(DATA.labels[at].label).push({ number, name: nameOf(DATA.labels[at], runs, i), elapsed });
  });
});

function choose(label, interval, show) {
  const item = DATA.labels.find((candidate) => candidate.label === label);
  if (!item) return;
  const held = HELD.get(label), fresh = selected.label !== label;
  const wanted = [interval, item.roles.median, item.roles.slowest, item.roles.first, held[0]?.number];
  selected.label = label;
  selected.interval = wanted.find((number) => number !== null && DATA.timelines[number]) ?? null;
  view.picture = selected.interval === null ? null : DATA.timelines[selected.interval];
  $("label").value = label;
  drawChoice(item, held, interval);
  markSelected();
  $("lanes").hidden = !view.picture;
  if (view.picture) {
    view.range = wholeRange(view.picture);
    drawTimeline();
    drawPieces();
    drawItems();
  }
  if (fresh) drawRuns();
  if (fresh && against.drawn) drawAgainst();
  if (fresh) drawClocks();
  if (show) bring($("timeline"));
}

// `#interval-80` is a link to an interval that can be sent to somebody.
function chooseNumber(number, show) {
  const at = DATA.runs.findIndex((runs) => runs.elapsed.some((_, i) => numberOf(runs, i) === number));
  if (at >= 0) choose(DATA.labels[at].label, number, show);
  return at >= 0;
}

function fromHash(show) {
  const asked = /^#interval-(\d+)$/.exec(location.hash);
  return asked !== null && chooseNumber(Number(asked[1]), show);
}

function drawChoice(label, held, asked) {
  fill($("roles"), ["median", "slowest", "first"].map((role) => make("button", {
    type: "button", disabled: !DATA.timelines[label.roles[role]],
    title: DATA.timelines[label.roles[role]] ? null : "this page does not hold its timeline", "aria-pressed": String(label.roles[role] === selected.interval),
    onclick: () => choose(label.label, label.roles[role], false),
  }, role)));
  fill($("interval"), held.map((item) => {
    const option = make("option", { value: item.number }, `${item.name}  ${duration(item.elapsed)}`);
    option.selected = item.number === selected.interval;
    return option;
  }));
  $("interval").disabled = !held.length;
  const chosen = held.find((item) => item.number === selected.interval);
  const absent = asked !== null && asked !== undefined && asked !== selected.interval ? "The page does not hold the interval you chose; this is another one of its label. " : "";
  $("reading").textContent = chosen
    ? `${absent}${chosen.name}: ${duration(chosen.elapsed)}, events placed within ± ${duration(view.picture.error)} (${view.picture.method}).`
    : "The page holds no timeline of this label: see the remarks at the end of the page.";
}

function drawHeader() {
  $("title").textContent = DATA.title;
  fill($("environment"), DATA.environment.map(([key, value]) => make("div", null, make("dt", null, key), make("dd", null, value))));
}

function drawRemarks() {
  const list = (items) => make("ul", null, items.map((item) => make("li", null, item)));
  const unplaced = DATA.unaligned.map((reason) => `${plural(reason.count, "interval")} could not be placed: ${reason.reason} (${reason.names.join(", ")}${reason.count > reason.names.length ? ", …" : ""})`);
  const meanings = make("details", null, make("summary", null, "What each cause means"),
    make("dl", { class: "meanings" }, DATA.causes.map((cause) => make("div", null, make("dt", null, cause.short), make("dd", null, cause.meaning)))));
  fill($("notes"), list([...unplaced, ...DATA.notes, ...DATA.holds]), meanings);
}

function start() {
  drawHeader();
  legend();
  drawVerdicts();
  drawTable();
  drawRemarks();
  fill($("label"), DATA.labels.map((label) => make("option", { value: label.label }, label.label)));
  $("filter").addEventListener("input", drawTable);
  for (const radio of document.querySelectorAll("input[name=scale]")) radio.addEventListener("change", drawTable);
  $("label").addEventListener("change", () => choose($("label").value, null, false));
  $("interval").addEventListener("change", () => choose(selected.label, Number($("interval").value), false));
  $("pieces").addEventListener("toggle", drawPieces);
  $("items").addEventListener("toggle", drawItems);
  $("runs-table").addEventListener("toggle", drawRunsTable);
  $("page-back").addEventListener("click", () => turnPage(-1));
  $("page-on").addEventListener("click", () => turnPage(1));
  addEventListener("hashchange", () => fromHash(true));
  if (fromHash(false)) return;
  if (DATA.focus !== null) return chooseNumber(DATA.focus, false);
  const first = DATA.verdicts.find((verdict) => DATA.labels.some((label) => label.label === verdict.label));
  if (first) choose(first.label, first.interval < 0 ? null : first.interval, false);
}

start();
document.addEventListener("DOMContentLoaded", () => {
  if (!DATA.labels.length) {
    for (const id of ["timeline", "runs", "labels"]) $(id).hidden = true;
    return;
  }
  listenToTimeline();
  drawRuns();
  watchAgainst();
  watchClocks();
  const redraw = () => { drawTimeline(); drawRuns(); if (against.drawn) drawAgainst(); drawClocks(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  // plotly draws for the screen's width: on paper everything is as wide as an A4 page lying on its side.
  const fitPlots = (width) => document.querySelectorAll(".plot:not([hidden])").forEach((plot) => plot.data && Plotly.relayout(plot, width ? { autosize: false, width: plot.classList.contains("square") ? 860 : width } : { autosize: true, width: null }));
  // What is drawn as one block and which names fit depends on the width.
  let resized = 0;
  addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(drawTimeline, 150); });
  addEventListener("beforeprint", () => fitPlots(1380));
  addEventListener("afterprint", () => { fitPlots(null); redraw(); });
  document.body.dataset.ready = "true";
});
