// What is chosen, and the order in which the page comes to be: words and tables first, then what is
// drawn.

const selected = { label: null, interval: null };
let redrawRuns = () => {}, redrawClocks = () => {};

// The number of an interval back to its name; `held` are the intervals whose timeline is in the
// page.
const HELD = new Map(DATA.labels.map((label) => [label.label, []]));
DATA.runs.forEach((runs, at) => {
  runs.elapsed.forEach((elapsed, i) => {
    const number = numberOf(runs, i);
    if (DATA.timelines[number]) HELD.get(DATA.labels[at].label)
      .push({ number, name: nameOf(DATA.labels[at], runs, i), elapsed });
  });
});

// The runs as a whole whose timeline the page holds, by number.
const WHOLE = new Map(DATA.wholes.map((run) => [run.number, run]));

// The timeline of the run, over `range` (us since the strip's zero) or all of it.
function chooseWhole(number, range, show) {
  const run = WHOLE.get(number), first = !view.picture;
  selected.interval = number;
  view.picture = wholePicture(run);
  view.range = range ? range.map((at) => at - run.start) : wholeRange(view.picture);
  $("label").value = "whole " + number;
  for (const id of ["roles", "interval", "label-fall", "source"]) fill($(id));
  $("interval").parentElement.hidden = $("keys-events").hidden = true;
  $("label-without").textContent = "";
  $("timeline-head").textContent = "The run";
  $("reading").textContent = `${run.name}: ${duration(run.elapsed)} from the first GPU work to ` +
    `the last, under nsys.${DATA.labels.length ? " Click an interval to open it." : ""}`;
  drawLanes();
  if (!first || show) remember(show);
  if (show) bring($("timeline"));
  return true;
}

function drawLanes() {
  $("lanes").hidden = !view.picture;
  $("pieces").hidden = !view.picture?.strip;
  if (!view.picture) return;
  drawTimeline();
  drawPieces();
  drawItems();
}

// Whether there is such a label.
function choose(label, interval, show) {
  const item = byName(label);
  if (!item) return false;
  const held = HELD.get(label), fresh = selected.label !== label || WHOLE.has(selected.interval);
  const wanted = [interval, item.roles.median, item.roles.slowest, item.roles.first,
    held[0]?.number];
  selected.label = label;
  selected.interval = wanted.find((number) => number !== null && DATA.timelines[number]) ?? null;
  view.picture = selected.interval === null ? null : DATA.timelines[selected.interval];
  $("label").value = $("go-label").value = label;
  drawChoice(item, held, interval);
  if (fresh) markSelected();
  $("timeline-head").textContent = "One interval";
  if (view.picture) view.range = wholeRange(view.picture);
  drawLanes();
  fill($("label-fall"), waterfall(asRun(item, selected.interval)));
  $("label-without").textContent =
    [DATA.predicted[item.label]?.said, byOperations(view.picture)].filter(Boolean).join(" ");
  if (fresh) {
    fill($("source"), [item.site, ...item.callers].map(sourceLine));
    sayRuns();
    redrawRuns();
    if (DATA.clocks) sayClocks();
    redrawClocks();
  }
  remember(show);
  if (show) bring($("timeline"));
  return true;
}

// `#interval-80` is a link to an interval that can be sent to somebody.
function chooseNumber(number, show) {
  if (WHOLE.has(number)) return chooseWhole(number, null, show);
  const at = DATA.runs.findIndex((runs) => runs.elapsed.some(
    (_, i) => numberOf(runs, i) === number));
  return at >= 0 && choose(DATA.labels[at].label, number, show);
}

function drawChoice(label, held, asked) {
  fill($("roles"), ["median", "slowest", "first"].map((role) => make("button", {
    type: "button", disabled: !DATA.timelines[label.roles[role]],
    title: DATA.timelines[label.roles[role]] ? null : "this page does not hold its timeline",
      "aria-pressed": String(label.roles[role] === selected.interval),
    onclick: () => choose(label.label, label.roles[role], false),
  }, role)));
  fill($("interval"), held.map((item) => {
    const option = make("option", { value: item.number },
      `${item.name}  ${duration(item.elapsed)}`);
    option.selected = item.number === selected.interval;
    return option;
  }));
  $("interval").parentElement.hidden = !held.length;
  $("keys-events").hidden = !view.picture || exact(view.picture);
  const chosen = held.find((item) => item.number === selected.interval);
  const absent = asked !== null && asked !== undefined &&
    asked !== selected.interval ?
    "The page does not hold the timeline of the interval you chose; this is another one of its " +
    "label. " : "";
  $("reading").textContent = chosen
    ? `${absent}${chosen.name}: ${duration(chosen.elapsed)} under nsys; ` + (exact(view.picture) ?
      "both ends are in the trace" + (view.picture.error ?
      `, ±${duration(view.picture.error)}.` : ".") : "its events are placed within " +
      `±${duration(view.picture.error)} (${methodWords(view.picture.method)}).`)
    : "The page holds no timeline of this label: see the notes at the end of the page.";
}

// How the two events were placed, in words.
function methodWords(method) {
  return { clock: "by the events' own clock", bounds: "between the work before and after them",
    "event-trace": "by the GPU's timestamps", inferred: "a pair inferred from the trace",
  }[method] || method;
}

// A host timer or an NVTX range: it has no events.
function exact(picture) {
  return picture.method === "exact";
}

function drawHeader() {
  fill($("environment"), DATA.environment.map(
    ([key, value]) => make("div", null, make("dt", null, key), make("dd", null, value))));
}

function drawRemarks() {
  const list = (items) => make("ul", null, items.map((item) => make("li", null, item)));
  const unplaced = DATA.unaligned.map((reason) =>
    `${plural(reason.count, "interval")} could not be placed: ${reason.reason} ` +
    `(${reason.names.join(", ")}${reason.count > reason.names.length ? ", …" : ""})`);
  const meanings = make("details", null, make("summary", null, "What each cause means"),
    make("dl", { class: "meanings" }, DATA.causes.map(
      (cause) => make("div", null, make("dt", null, cause.short),
      make("dd", null, cause.meaning)))));
  fill($("notes"), list([...unplaced, ...DATA.notes, ...DATA.holds]), meanings);
}

// Section by section from the top, each drawn and shown before the next one begins: nothing that
// was seen moves, no task is
// long, and the page answers in between.
async function start() {
  const measured = DATA.labels.length, there = { title: true, verdicts: true, remarks: true,
    whole: measured, labels: measured, runs: measured, timeline: measured || WHOLE.size,
    kernels: DATA.kernels.names.length, clocks: DATA.clocks };
  for (const [id, key] of SECTIONS) there[id] = DATA[key]?.length;
  $("bar").querySelector(".brand").textContent = cut(DATA.title.split(",")[0], 24);
  for (const link of document.querySelectorAll("#bar a")) {
    if (!there[link.hash.slice(1)]) link.remove();
  }
  for (const [ids, draw] of stages()) {
    draw();
    for (const id of ids) $(id)?.classList.add("filled");
    await shown();
  }
  document.body.dataset.ready = "true";
}

function stages() {
  const rest = [["kernels", "answers", "clocks", "baseline", "remarks"],
    () => { startKernels();
      for (const [id, , draw] of SECTIONS) { $(id).classList.add("filled"); draw(); }
      startAnswers();
    startBaseline(); drawHeader(); drawRemarks(); }];
  drawHeadline();
  for (const id of ["whole", "against", "labels", "timeline", "runs"]) $(id)
    .hidden = !DATA.labels.length;
  $("go-label").parentElement.hidden = !DATA.labels.length;
  if (!DATA.labels.length) {
    $("timeline").hidden = !WHOLE.size;
    const whole = [["timeline"], chooseFirst];
    return [[["verdicts"], drawVerdicts], ...(WHOLE.size ? [whole] : []), rest, [[], arrive]];
  }
  return [
    [["whole"], () => { legend(); startStrip(); }],
    [["verdicts"], drawVerdicts],
    [["against"], drawDumbbells],
    ...tableStages(),
    [["timeline", "runs"], chooseFirst],
    rest,
    [[], arrive],
  ];
}

function chooseFirst() {
  for (const id of ["label", "go-label"]) fill($(id), DATA.labels.map((label) =>
    make("option", { value: label.label }, label.label)));
  for (const run of WHOLE.values()) $("label").prepend(
    make("option", { value: "whole " + run.number }, `the whole of ${run.name}`));
  $("label").parentElement.hidden = $("label").options.length < 2;
  listen();
  // drawings ask how wide they are
  for (const id of ["timeline", "runs"]) $(id).classList.add("filled");
  const redrawLanes = whenSeen($("lanes"), drawTimeline, true);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change",
    () => { strip.redraw(); redrawLanes(); });
  chooseDefault();
  if (!DATA.labels.length) return;
  redrawRuns = whenSeen($("iterations"), drawRuns);
  redrawClocks = watchClocks();
}

// What a page without an address opens on.
function chooseDefault() {
  if (!DATA.labels.length) return chooseWhole(DATA.wholes[0].number, null, false);
  const known = DATA.cards.filter((item) => byName(item.entries[0].label));
  // what loses most and can be changed
  const first = (known.find((item) => item.severity === "warning") || known[0])?.entries[0];
  if (DATA.focus !== null) chooseNumber(DATA.focus, false);
  else if (first) choose(first.label, first.interval < 0 ? null : first.interval, false);
  else choose(DATA.labels[0].label, null, false);
}

// Where a link leads, once everything above it has its place.
function arrive() {
  if (!follow(true) && DATA.focus !== null) bring($("timeline"));
  // Back to a step of ours: the browser knows where the page was
  addEventListener("popstate", (event) => {
    if (location.hash) follow(!event.state);
    else if (view.picture) chooseDefault();
  });
}

function listen() {
  $("find").addEventListener("input", () => { found.at = -1; drawTimeline(); });
  $("find").addEventListener("keydown", (event) => { if (event.key === "Enter") nextFound(); });
  $("by-name").addEventListener("change", drawTimeline);
  $("filter").addEventListener("input", () => { drawTable(); remember(); });
  for (const radio of document.querySelectorAll("input[name=scale]")) radio.addEventListener(
    "change", () => drawTable());
  $("label").addEventListener("change", () => {
    const [, whole] = /^whole (\d+)$/.exec($("label").value) || [];
    if (whole && !byName($("label").value)) chooseWhole(Number(whole), null, false);
    else choose($("label").value, null, false);
  });
  $("go-label").addEventListener("change", () => choose($("go-label").value, null, true));
  $("interval").addEventListener("change", () =>
    choose(selected.label, Number($("interval").value), false));
  $("pieces").addEventListener("toggle", drawPieces);
  $("items").addEventListener("toggle", drawItems);
  $("runs-table").addEventListener("toggle", drawRunsTable);
  $("page-back").addEventListener("click", () => turnPage(-1));
  $("page-on").addEventListener("click", () => turnPage(1));
  listenToTimeline();
  startCopy();
}

start();
