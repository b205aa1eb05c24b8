// What is chosen, and the order in which the page comes to be: words and tables first, then what is
// drawn.

const selected = { label: null, interval: null };
let redrawRuns = () => {}, redrawClocks = () => {};

// The runs as a whole whose timeline the page holds, by number.
const WHOLE = new Map(DATA.wholes.map((run) => [run.number, run]));

// Whether no label has a line of code: then it is said once, at the end of the page.
const NO_LINES = !DATA.labels.some(({ site, callers }) => site || callers.length);

// The timeline of the run, over `range` (us since the strip's zero) or all of it.
function chooseWhole(number, range, show) {
  const run = WHOLE.get(number), first = !view.picture;
  selected.interval = number;
  view.other = null;
  view.picture = wholePicture(run);
  view.range = range ? range.map((at) => at - run.start) : wholeRange(view.picture);
  $("label").value = "whole " + number;
  for (const id of ["label-fall", "source", "selection"]) fill($(id));
  $("run-strip").hidden = true;
  $("missing").textContent = missing(view.picture);
  sayFinding(run);
  $("keys-events").hidden = true;
  $("label-without").textContent = "";
  $("timeline-head").textContent = "The run";
  $("reading").textContent = `${run.name}: ${duration(run.elapsed)} from the first GPU work to ` +
    `the last, under ${DATA.recorder}.${DATA.labels.length ? " Click an interval to open it." : ""}`;
  fill($("label-fall"), waterfall({ label: run.name, elapsed: run.elapsed, parts: run.parts }));
  drawLanes();
  if (!first || show) remember(show);
  if (show) bringChosen();
  return true;
}

function drawLanes() {
  unpin();
  view.chosen = null;
  for (const id of ["lanes", "gestures", "zoom", "keys", "items", "save-svg"]) $(id).hidden = !view.picture;
  if (!view.picture) return;
  drawTimeline();
  drawItems();
}

// Whether there is such a label.
function choose(name, interval, show) {
  const label = byName(name);
  if (!label) return false;
  const fresh = selected.label !== name || WHOLE.has(selected.interval);
  const runs = DATA.runs[DATA.labels.indexOf(label)];
  const typical = interval !== null && !hasPicture(interval) && typicalFor(label, runs, interval);
  if (typical !== false && hasPicture(typical)) { // what is seen stays, or is of the same kind
    choose(name, fresh || !hasPicture(selected.interval) ? typical : selected.interval, show);
    sayNoPicture(label, runs, interval, "has no picture on this page");
    return true;
  }
  selected.label = name;
  selected.interval = interval ?? label.roles.median;
  if (fresh || view.other === selected.interval) view.other = null;
  view.picture = chosenPicture(label, runs);
  $("label").value = name;
  if (fresh) sayFinding(label);
  markSelected();
  $("timeline-head").textContent = "One interval";
  if (view.picture) view.range = wholeRange(view.picture);
  drawLanes();
  sayChoice(label);
  const asOne = (number) => ({ ...asRun(label, number), name: nameOf(label, runs, placeOf(runs, number)) });
  fill($("label-fall"), view.picture?.bands ? pairTable(asOne(selected.interval), asOne(view.other)) :
    [waterfall(asRun(label, selected.interval)),
      make("p", { class: "quiet" }, label.told.interval === selected.interval ? label.told.text :
        differenceSaid(label, runs, selected.interval))]);
  $("label-without").textContent =
    [label.predicted?.said, byOperations(pictureOf(selected.interval))].filter(Boolean).join(" ");
  if (fresh) {
    const sites = [...new Set([label.site, ...label.callers])].filter(Boolean);
    fill($("source"), sites.length ? sites.map(sourceLine) : NO_LINES ? null : make("p", { class: "quiet" },
      "The recording has no line of code for this label."));
    sayRuns();
    redrawRuns();
    if (DATA.clocks) sayClocks();
    redrawClocks();
  }
  remember(show);
  if (show) bringChosen();
  return true;
}

// `#interval-80` is a link to an interval that can be sent to somebody.
function chooseNumber(number, show) {
  if (WHOLE.has(number)) return chooseWhole(number, null, show);
  const at = DATA.runs.findIndex((runs) => runs.elapsed.some(
    (_, i) => numberOf(runs, i) === number));
  return at >= 0 && choose(DATA.labels[at].label, number, show);
}

// Whose verdict is that of a repetition: its kind's, if that has a row; the label's otherwise, and of a wrong timing.
function judgedBy(label, runs, at) {
  if (label.sign === "✖") return label;
  return label.groups.find((group) =>
    kindOf(runs, placeOf(runs, group.interval)) === kindOf(runs, at)) || label;
}

// The chosen interval in words, and below its lanes all that its label has.
function sayChoice(label) {
  const runs = DATA.runs[DATA.labels.indexOf(label)], count = runs.elapsed.length;
  const at = Math.max(0, placeOf(runs, selected.interval)), judged = judgedBy(label, runs, at);
  const look = LOOK_OF[judged.sign] || "reading";
  const typical = (number) => {
    const place = placeOf(runs, number), of = label.kinds.length > 1 && judged !== label ? " of its kind" : "";
    return `#${place.toLocaleString("en")}, the typical one${of} (${duration(runs.elapsed[place])})`;
  };
  // the words are those of the interval that stands for a kind or label; of a wrong timing they hold for all
  const whose = label.sign === "✖" || selected.interval === (judged.interval ?? label.roles.median) ? "" :
    `${typical(judged.interval ?? label.roles.median)}: `;
  const name = nameOf(label, runs, at), time = duration(runs.elapsed[at]);
  const picture = view.picture?.bands ? view.picture.bands[0].picture : view.picture;
  $("keys-events").hidden = !picture || exact(picture);
  const error = picture?.error ? `±${duration(picture.error)}` : "";
  const ends = picture && (exact(picture) ? ["both ends are in the trace", error].filter(Boolean).join(", ") :
    `both events ${methodWords(picture.method)}${error ? `, ${error} (95 %)` : ""}`);
  const command = commandFor(label, runs, selected.interval);
  fill($("reading"), make("strong", null, name), ` ${time} under ${DATA.recorder}${whose ? "; " : " "}${whose}`,
    make("span", { class: `look ${look}` }, `${judged.sign} ${judged.words}`), picture ?
    make("span", { class: "ends quiet" }, ends) : ["; this page does not hold its timeline: ", make("button", { type: "button",
      onclick: (event) => copyText(command, event.currentTarget) }, "copy the command")]);
  drawRoles(label, runs, at);
  drawCompare(label, runs);
  const derived = bandsOf(view.picture || { lanes: [] }).findIndex((band) => band.picture.derived);
  const other = derived > 0 ? commandFor(label, runs, view.other) : command;
  $("missing").textContent = derived >= 0 ? `${view.picture.bands ? `${"AB"[derived]} is drawn` : "Drawn"} from its parts ` +
    `alone: calls that the GPU did not wait for, other threads and streams are not on this page (${other}).` : missing(view.picture);
  $("run-strip").hidden = false;
  if (count > 1) drawRepetitions(label, runs);
  else $("run-strip").hidden = true;
}

// The sentence, the verdict and what to change: of the label or run that is chosen; of the one that
// the page opens with, that of the whole page.
function sayFinding(about) {
  const { screen } = DATA, first = screen.label === (about.label ?? about.name);
  $("headline").textContent = (first && screen.sentence) || about.sentence || about.label || about.name;
  drawFix(first ? screen.fixes : about.fixes);
}

// The sentence, the parts and the picture of what is chosen, to share.
function whatIsChosen() {
  const whole = WHOLE.get(selected.interval), label = whole ? null : byName(selected.label);
  const { screen } = DATA, about = whole || label, first = screen.label === (label?.label ?? whole.name);
  const sentence = $("headline").textContent, fixes = first ? screen.fixes : about.fixes;
  const side = (number) => ({ ...asRun(label, number),
    name: nameOf(label, runs, placeOf(runs, number)) });
  const runs = label && DATA.runs[DATA.labels.indexOf(label)];
  const one = whole ? { ...whole, strip: pictureOf(whole.number).strip } :
    { ...side(selected.interval), strip: pictureOf(selected.interval)?.strip };
  const two = view.other === null ? null : side(view.other);
  if (view.chosen) return sharedStretch(two ? `${one.name} and ${two.name}` : one.name);
  const { head, rows } = two ? pairRows(one, two) : { head: null, rows: fallRows(one) };
  return { sentence: two ? `${sentence} A: ${one.name}, B: ${two.name}` : sentence, file: one.name, fixes,
    rows: (head ? [head, ...rows] : rows).map(([name, numbers, look]) => [name, numbers, look?.colour || look]),
    markdown: two ? markdownOfPair(sentence, one, two, fixes) : markdownOf({ ...one, sentence, fixes }) };
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
  const meanings = make("details", null, make("summary", null, "What each part means"),
    make("dl", { class: "meanings" }, DATA.causes.map(
      (cause) => make("div", null, make("dt", null, cause.short),
      make("dd", null, cause.meaning)))));
  const lines = NO_LINES && DATA.labels.length ? ["The recording has no lines of code for its labels."] : [];
  fill($("notes"), list([...unplaced, ...lines, ...DATA.notes, ...DATA.holds]), meanings);
}

// Below the first screen every section is folded; what opens one draws what is in it.
function foldSections() {
  for (const section of document.querySelectorAll("#main > section")) {
    const head = section.querySelector("h2");
    if (["timeline", "labels", "wrong"].includes(section.id) || !head) continue;
    const rest = [...section.childNodes].filter((node) => node !== head);
    section.append(make("details", { class: "fold" }, make("summary", null, head), rest));
    section.classList.add("filled");
  }
}

// The first screen at once, then section by section, each drawn before the next one begins: nothing
// that was seen moves, no task is long, and the page answers in between.
async function start() {
  foldSections();
  for (const draw of stages()) {
    draw();
    await shown();
  }
  document.body.dataset.ready = "true";
}

function stages() {
  const measured = DATA.labels.length > 0;
  for (const id of ["whole", "labels", "breakdown", "runs"]) $(id).hidden = !measured;
  $("timeline").hidden = !measured && !WHOLE.size;
  const first = () => {
    for (const id of ["timeline", "labels", "wrong"]) $(id).classList.add("filled");
    legend();
    if (!$("timeline").hidden) chooseFirst();
    drawWrong();
    if (measured) {
      drawRows();
      whenStacked(drawRows);
    }
  };
  const tables = measured ? [startStrip, ...tableStages()] : [];
  listenToPrint();
  return [first, drawVerdicts, ...tables,
    () => { startKernels(); startAnswers(); startBaseline(); drawHeader(); drawRemarks(); },
    ...SECTIONS.map(([, , draw]) => draw), () => {
      if (!measured) for (const id of ["verdicts", "kernels", "answers"]) open($(id));
      arrive();
    }];
}

function chooseFirst() {
  fill($("label"), [...WHOLE.values()].map((run) =>
    make("option", { value: "whole " + run.number }, `the whole of ${run.name}`)),
  DATA.labels.map((label) => make("option", { value: label.label }, label.label)));
  $("label").parentElement.hidden = $("label").options.length < 2;
  listen();
  const redrawLanes = whenSeen($("lanes"), drawTimeline, true);
  whenSeen($("repetitions"), () => {
    const label = byName(selected.label);
    if (label && !$("run-strip").hidden) drawRepetitions(label, DATA.runs[DATA.labels.indexOf(label)]);
  }, true);
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
  const { label, interval } = DATA.screen;
  if (DATA.focus !== null) chooseNumber(DATA.focus, false);
  else if (byName(label)) choose(label, interval, false);
  else choose(DATA.labels[0].label, null, false);
  // what the sentence is about is what is drawn
  if (DATA.focus === null && WHOLE.has(interval)) chooseWhole(interval, null, false);
}

// Where a link leads, once everything above it has its place.
function arrive() {
  if (!follow(true) && DATA.focus !== null) bringChosen();
  // Back to a step of ours: the browser knows where the page was
  addEventListener("popstate", (event) => {
    if (location.hash) follow(!event.state);
    else if (view.picture) chooseDefault();
  });
}

function listen() {
  listenToFind();
  $("filter").addEventListener("input", () => { drawTable(); remember(); });
  $("label").addEventListener("change", () => {
    const [, whole] = /^whole (\d+)$/.exec($("label").value) || [];
    if (whole && !byName($("label").value)) chooseWhole(Number(whole), null, false);
    else choose($("label").value, null, false);
  });
  $("items").addEventListener("toggle", drawItems);
  $("runs-table").addEventListener("toggle", drawRunsTable);
  listenToTimeline();
  listenToRepetitions();
  listenToShare(whatIsChosen);
  $("copy-table").addEventListener("click",
    () => copyText(tableText($("budgets")), $("copy-table")));
}

start();
