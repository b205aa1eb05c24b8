// From what the events read to what the kernel takes, cause by cause: the median interval of a
// label as a waterfall.

const LAST_STEPS = ["kernel", "graph", "memcpy", "memset"];

// [{name, cause, from, ns}]: each column of the terminal's table downwards from the largest, work of
// the stream last; one that holds several causes has the look of the largest.
function fallSteps(label) {
  const columns = new Map();
  for (const [name, ns] of Object.entries(label.parts).sort((p, q) => q[1] - p[1])) {
    if (ns > 0) columns.set(CAUSE[name].column, [...(columns.get(CAUSE[name].column) || []), [name, ns]]);
  }
  const steps = [...columns].map(([column, parts]) => ({ cause: CAUSE[parts[0][0]],
    name: parts.length > 1 ? column : CAUSE[parts[0][0]].short,
    ns: parts.reduce((sum, [, ns]) => sum + ns, 0), down: true,
    hint: parts.length > 1 ? parts.map(([name, ns]) =>
      `${CAUSE[name].short} ${duration(ns)}`).join(", ") : "" }));
  const work = CAUSE[LAST_STEPS.find((name) => label.parts[name] > 0)]?.column;
  const last = steps.find(({ cause }) => cause.column === work);
  const others = steps.filter((step) => step !== last).sort((p, q) => q.ns - p.ns);
  let rest = label.elapsed;
  for (const step of others) step.from = (rest -= step.ns);
  return last ? [...others, { ...last, from: 0, down: false }] : others;
}

// The label as if this interval of it were its row; the label itself where the page has no parts of
// every interval.
function asRun(label, interval) {
  const runs = DATA.runs[DATA.labels.indexOf(label)],
    i = runs.elapsed.findIndex((_, k) => numberOf(runs, k) === interval);
  const parts = i < 0 ? {} : Object.fromEntries(
    Object.entries(runs.parts).map(([cause, values]) => [cause, values[i]]));
  return Object.keys(parts).length ? { ...label, elapsed: runs.elapsed[i], parts } : label;
}

function fallRow(name, piece, value, hint) {
  return make("li", { title: hint || null }, make("span", { class: "name" }, name),
    make("span", { class: "track" }, piece), make("span", { class: "value" }, value));
}

function fallPiece(step, whole) {
  const piece = step.cause ? swatch(step.cause) : make("span", { class: "piece rest" });
  piece.style.left = (100 * step.from) / whole + "%";
  piece.style.width = `max(2px, ${(100 * step.ns) / whole}%)`;
  return piece;
}

// Where no kernel is part of the time: what ran beside it, on the clock of a host timer.
function meanwhile({ ran, others }, whole) {
  if (!ran && others) return fallRow("other streams", null, duration(others),
    "what was launched inside ran on other streams: no part of this sum");
  return ran ? fallRow("meanwhile",
    fallPiece({ cause: CAUSE.kernel, from: 0, ns: Math.min(ran, whole) }, whole), duration(ran),
    `kernels ran for ${duration(ran)} while the CPU went on, in the median interval`) :
    fallRow("kernel", null, "none");
}

function waterfall(label) {
  const whole = label.elapsed || 1, first = make("span", { class: "piece whole" });
  first.style.width = "100%";
  const rows = fallSteps(label).map((step) =>
    fallRow(step.name, fallPiece(step, whole), (step.down ? "− " : "= ") + duration(step.ns),
      step.hint || `${step.name} ${percent(step.ns / whole)}: ${step.cause.meaning}`));
  if (!LAST_STEPS.some((name) => label.parts[name] > 0)) rows.push(meanwhile(label, whole));
  return make("ol", { class: "fall", "aria-label":
    `${label.label}: from ${duration(label.elapsed)} measured to the kernel, cause by cause` },
    fallRow("measured", first, duration(label.elapsed), `what was measured, under ${DATA.recorder}`), rows);
}

// An interval by the other clocks that its trace has: the span of its operations, and their sum.
function byOperations(picture) {
  const strip = picture && !picture.whole && picture.strip;
  const work = strip ? [...strip.x.keys()].filter(
    (i) => LAST_STEPS.includes(DATA.causes[strip.c[i]].name)) : [];
  if (!work.length) return null;
  const ends = work.map((i) => strip.x[i] + strip.d[i]);
  const span = Math.max(...ends) - strip.x[work[0]];
  const sum = work.reduce((total, i) => total + strip.d[i], 0);
  return `From its first operation to the end of its last one: ${duration(span)}, ` +
    (sum === span ? "without a gap." : `${duration(sum)} with one running.`);
}
