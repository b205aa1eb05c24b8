// A comparison: a line per label, and of the chosen one both sides on one scale.

const selected = { label: null, interval: null };
const VERDICT = { slower: ["▲", "error"], faster: ["▼", "better"], unclear: ["?", "warning"],
  same: ["=", "reading"], different: ["≠", "reading"], wrong: ["✖", "error"] };

// The label that changed most, of timings that mean something; none where nothing changed clearly.
function mostChanged() {
  const more = ({ total }) => Math.abs(total.after_ns - total.before_ns);
  const clear = DATA.labels.filter(({ verdict, library }) => !library && ["slower", "faster"].includes(verdict));
  return clear.length ? clear.reduce((most, one) => (more(one) > more(most) ? one : most)) : null;
}

// The same in a sentence, and the part of it that changed most.
function changedMost() {
  const [before, after] = ["before_ns", "after_ns"], label = mostChanged();
  if (!label) return "";
  const parts = DATA.causes.filter(({ name }) => label.parts[name]).map((cause) =>
    ({ cause, ns: label.parts[cause.name][after] - label.parts[cause.name][before] }));
  const [part] = parts.sort((p, q) => Math.abs(q.ns) - Math.abs(p.ns));
  return `${label.label} changed most: ${duration(label.total[before])} → ${duration(label.total[after])}` +
    ` (${minus(label.changed)}, ${label.verdict})` + (part ? `; of its parts ${part.cause.short} changed most, ` +
    `${part.ns > 0 ? "+" : "−"}${duration(Math.abs(part.ns))}. ` : ". ");
}

// The heading of the list: how it is sorted.
function orderSaid() {
  const has = (verdict) => DATA.labels.some((label) => label.verdict === verdict && !label.library);
  const first = [has("wrong") && "wrong ones", has("slower") ? "slower ones" : has("faster") && "faster ones"].filter(Boolean);
  return `Label by label${first.length ? `, ${first.join(" first, then ")}${first.length > 1 ? "" : " first"}` : ""}${DATA.labels.some(({ library }) => library) ? "; those of libraries last" : ""}`;
}

// "-4.3 %" with the minus that the table has.
function minus(text) {
  return text.replace(/-(?=\d)/g, "−");
}

// The address keeps the label; what is zoomed is of the moment.
function remember() {
  if (document.body.dataset.ready) step(() =>
    history.replaceState(null, "", "#" + new URLSearchParams({ label: selected.label.label })));
}

function step(change) {
  try {
    change();
  } catch {
    // A page in a notebook's frame has no address of its own.
  }
}

// One side of a label: what it took and its parts, means of the middle half.
function sideOf(label, which) {
  return { name: which === "before_ns" ? DATA.sides[0].name : DATA.sides[1].name,
    elapsed: label.total[which], parts: Object.fromEntries(
      DATA.causes.map(({ name }) => [name, label.parts[name]?.[which] || 0])) };
}

function choose(label, show) {
  const [a, b] = label.pictures.map((name) => DATA.timelines[name] && pictureOf(name));
  const [, look] = VERDICT[label.verdict];
  selected.label = label;
  selected.interval = label.pictures.join("-");
  view.chosen = null;
  view.picture = a && b ? pairPicture([{ name: label.label, picture: a },
    { name: label.after, picture: b }]) : null;
  $("label").value = DATA.labels.indexOf(label);
  fill($("reading"), make("strong", null, label.label),
    ` ${duration(label.total.before_ns)} → ${duration(label.total.after_ns)} `,
    make("span", { class: `look ${look}` }, `${minus(label.changed)}, ${label.words}`),
    label.bounds ? ` (${minus(label.bounds)}); ` : "; ",
    `${label.counts[0].toLocaleString("en")} and ${plural(label.counts[1], "repetition")}`);
  fill($("reasons"), label.wrong.map(wrongLine));
  for (const id of ["lanes", "zoom", "keys", "save-svg"]) $(id).hidden = !view.picture;
  $("no-picture").textContent = view.picture ? "" :
    "This page does not hold both timelines of this label: nsysalign show RUN --label NAME.";
  if (view.picture) {
    view.range = wholeRange(view.picture);
    drawTimeline();
  }
  fill($("selection"));
  fill($("label-fall"), pairTable(sideOf(label, "before_ns"), sideOf(label, "after_ns")),
    make("p", { class: "quiet" }, "Means of the middle half of the repetitions."));
  markSelected();
  remember();
  if (show) bring($("timeline"));
}

function wrongLine(text) {
  return make("li", { class: "error look" }, "✖ " + text);
}

function labelRow(label, at, name) {
  const [mark, look] = VERDICT[label.verdict];
  const scale = Math.max(label.total.before_ns, label.total.after_ns, 1);
  const bars = ["before_ns", "after_ns"].map((which) =>
    budgetBar(sideOf(label, which), scale, roomOfBar()));
  const item = make("li", null,
    make("span", { class: `sign ${look} look`, "aria-hidden": "true" }, mark),
    make("button", { type: "button", class: "link", title: label.label,
      onclick: () => choose(label, true) }, name),
    make("div", { class: "pair" }, bars),
    make("span", { class: "value" },
      `${duration(label.total.before_ns)} → ${duration(label.total.after_ns)}`),
    make("span", { class: `words ${look} look` }, `${minus(label.changed)} `,
      make("span", { class: "quiet" }, minus(label.bounds))),
    make("span", { class: "value saving" }, label.words),
    label.wrong.length ? make("span", { class: "reason" }, label.wrong.join(" ")) : null);
  item.dataset.label = at;
  return item;
}

function start() {
  showSections();
  $("headline").textContent = changedMost() + DATA.summary;
  fill($("environment"), DATA.sides.map(({ name, about }, k) => make("div", null,
    make("dt", null, "AB"[k]), make("dd", null, `${name} (${about})`))));
  const items = (texts) => texts.map((text) => make("li", null, text));
  fill($("wrong"), [...DATA.wrong, DATA.more_wrong].filter(Boolean).map(wrongLine));
  fill($("confounders"), DATA.confounders.map((text) => make("li", { class: "warning look" }, "! " + text)));
  fill($("remarks"), items(DATA.remarks));
  $("method").textContent = DATA.method;
  fill($("only-list"), DATA.only.map((names, k) => (names.length ? make("p", null,
    `Only in ${"AB"[k]}: `, names.flatMap((name, i) => [i ? ", " : "", make("code", null, name)])) : null)));
  for (const id of ["timeline", "labels-head", "legend", "rows-head", "method"]) $(id).hidden = !DATA.labels.length;
  $("label").parentElement.hidden = $("find").parentElement.hidden = !DATA.labels.length;
  if (DATA.labels.length) startLabels();
  document.body.dataset.ready = "true";
}

function drawRows() {
  const names = cutApart(DATA.labels.map(({ label }) => label), stacked() ? 90 : 60);
  fill($("rows"), DATA.labels.map((label, at) => labelRow(label, at, names[at])));
  markSelected();
}

function markSelected() {
  for (const row of $("rows").children) {
    if (row.dataset.label === String(DATA.labels.indexOf(selected.label))) row.setAttribute("aria-current", "true");
    else row.removeAttribute("aria-current");
  }
}

function startLabels() {
  $("labels-head").textContent = orderSaid();
  legend();
  fill($("label"), DATA.labels.map(({ label }, at) => make("option", { value: at }, label)));
  $("label").addEventListener("change", () => choose(DATA.labels[$("label").value], false));
  drawRows();
  whenStacked(drawRows);
  $("find").addEventListener("input", () => { found.at = -1; if (view.picture) drawTimeline(); });
  $("find").addEventListener("keydown", (event) => { if (event.key === "Enter") nextFound(); });
  listenToTimeline();
  listenToShare(() => {
    const { label } = selected, sides = ["before_ns", "after_ns"].map((which) => sideOf(label, which));
    if (view.chosen) return sharedStretch(label.label);
    const sentence = `${label.wrong.map((text) => `${text} `).join("")}${label.label}: ${duration(label.total.before_ns)} → ` +
      `${duration(label.total.after_ns)}, ${minus(label.changed)}, ${label.words}`;
    const { head, rows } = pairRows(...sides);
    return { sentence, rows: [head, ...rows].map(([name, numbers, cause]) => [name, numbers, cause?.colour]),
      file: label.label, markdown: markdownOfPair(sentence, ...sides) };
  });
  const redraw = whenSeen($("lanes"), drawTimeline, true);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  const wanted = new URLSearchParams(location.hash.slice(1)).get("label");
  choose(DATA.labels.find(({ label }) => label === wanted) || mostChanged() || DATA.labels[0], false);
}

start();
