// From what the events read to what the kernel takes, cause by cause: the median interval of a
// label as a waterfall.

// [{cause, from, ns, down}]: each cause downwards from the largest, work of the stream last; the causes
// of the picture, under its names.
function fallSteps(label) {
  const steps = Object.entries(label.parts).filter(([, ns]) => ns > 0)
    .map(([name, ns]) => ({ cause: CAUSE[name], ns, down: true }));
  const work = LAST_STEPS.find((name) => label.parts[name] > 0);
  const last = steps.find(({ cause }) => cause.name === work);
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
  return Object.keys(parts).length ?
    { ...label, elapsed: runs.elapsed[i], parts, beside: runs.beside?.[i] || 0 } : label;
}

function fallRow(name, piece, value, hint, share = "") {
  return make("li", { title: hint || null }, make("span", { class: "name" }, name),
    make("span", { class: "track" }, piece), make("span", { class: "value" }, value),
    make("span", { class: "of" }, share));
}

function fallPiece(step, whole) {
  const piece = step.cause ? swatch(step.cause) : make("span", { class: "piece rest" });
  piece.style.left = (100 * step.from) / whole + "%";
  piece.style.width = `max(2px, ${(100 * step.ns) / whole}%)`;
  return piece;
}

// Where kernels are no part of the time, or not all of them: what ran beside it.
function meanwhile({ beside, kind }, whole) {
  const row = (...cells) => {
    const item = fallRow(...cells);
    item.classList.add("beside");
    return item;
  };
  if (beside && kind !== "host") return row(besideSum({ kind }), null, `(${duration(beside)})`,
    "what was launched inside ran on other streams: no part of this sum");
  return beside ? row(besideSum({ kind }),
    fallPiece({ cause: CAUSE.kernel, from: 0, ns: Math.min(beside, whole) }, whole), `(${duration(beside)})`,
    `kernels ran for ${duration(beside)} in all, some of it while the CPU went on`) :
    fallRow("kernels", null, "none");
}

// The steps that are printed, each with its text.
function fallTexts(label) {
  const steps = fallSteps(label), printed = addends(steps.map(({ ns }) => ns), label.elapsed);
  return steps.map((step, i) => ({ ...step, text: (step.down ? "− " : "= ") + printed[i] }))
    .filter(({ text }) => /[1-9]/.test(text));
}

function waterfall(label) {
  const whole = label.elapsed || 1, first = make("span", { class: "piece whole" });
  first.style.width = "100%";
  const stepRow = (step) => fallRow(step.cause.short, fallPiece(step, whole), step.text,
    `${step.cause.short} ${percent(step.ns / whole)}: ${step.cause.meaning}`, percent(step.ns / whole));
  const rows = fallTexts(label).map((step) => {
    const row = stepRow(step);
    row.classList.toggle("work", !step.down);
    return row;
  });
  if (!LAST_STEPS.some((name) => label.parts[name] > 0) || label.beside) rows.push(meanwhile(label, whole));
  return make("ol", { class: "fall", "aria-label":
    `${label.label}: from ${duration(label.elapsed)} measured to the kernel, cause by cause` },
    fallRow("measured", first, addends([label.elapsed], label.elapsed)[0], `what was measured, under ${DATA.recorder}`), rows);
}

// The same as rows of a drawing: [name, [number], colour].
function fallRows(label) {
  const rows = fallTexts(label).map(({ cause, text }) => [cause.short, [text], cause.colour]);
  if (label.beside) rows.push([besideSum(label), [`(${duration(label.beside)})`]]);
  return [["measured", addends([label.elapsed], label.elapsed)], ...rows];
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
