// From what the events read to what the kernel takes, cause by cause: the median interval of a
// label as a waterfall.

const LAST_STEPS = ["kernel", "graph", "memcpy", "memset"];

// [{name, cause, from, ns}]: each cause downwards from the largest, what is too small to see as one
// step, work of the
// stream last.
function fallSteps(label) {
  const parts = Object.entries(label.parts).filter(([, ns]) => ns > 0).sort((p, q) => q[1] - p[1]);
  const last = LAST_STEPS.find((name) => label.parts[name] > 0),
    others = parts.filter(([name]) => name !== last);
  let small = others.filter(([, ns]) => ns < 0.01 * label.elapsed);
  // one that is next to nothing goes together with its neighbour
  if (small.length === 1 && small[0][1] < 0.003 * label.elapsed) small = others.slice(-2);
  const few = small.length < 2;
  let rest = label.elapsed;
  const steps = (few ? others : others.filter((part) => !small.includes(part)))
    .map(([name, ns]) => ({ name: CAUSE[name].short, cause: CAUSE[name], from: (rest -= ns), ns,
      down: true }));
  if (!few) {
    const sum = small.reduce((total, [, ns]) => total + ns, 0);
    steps.push({ name: `${small.length} more`, cause: null, from: rest - sum, ns: sum, down: true,
      hint: small.map(([name, ns]) => `${CAUSE[name].short} ${duration(ns)}`).join(", ") });
  }
  if (last) steps.push({ name: CAUSE[last].short, cause: CAUSE[last], from: 0,
    ns: label.parts[last], down: false });
  return steps;
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
function meanwhile({ ran }, whole) {
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
    fallRow("measured", first, duration(label.elapsed), "what was measured, profiled"), rows);
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
