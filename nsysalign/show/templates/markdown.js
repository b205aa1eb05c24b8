// What is chosen as Markdown, for an issue or a review: the twin of show/markdown.py, to the letter.
// Two repetitions, or a label of two runs: their parts beside each other.

const CELLS = 72;

function escaped(text) {
  return text.replace(/([\\`*[\]<>|~#])/g, "\\$1");
}

function exactMicro(ns) {
  return (ns / 1e3).toLocaleString("en", { minimumFractionDigits: 3, maximumFractionDigits: 3 });
}

// What is neither CPU, GPU nor calls.
const REST = "▁";

// The letter of a column in the bar and in the table.
function letterOf(column) {
  return DATA.causes.find((cause) => cause.column === column).fill.trim() || REST;
}

// The breakdown to scale: of each column as many letters as its share of the time (show/markdown.py, `bar`).
function textBar(strip, elapsed) {
  if (!strip || !elapsed) return "";
  const columns = DATA.columns.filter((column) => DATA.causes.some((cause) => cause.column === column));
  const edge = (k) => Math.floor(k * elapsed / CELLS);
  const cells = Array.from({ length: CELLS }, () => columns.map(() => 0));
  let first = 0; // the cell in which a piece begins
  strip.x.forEach((x, i) => {
    const at = columns.indexOf(DATA.causes[strip.c[i]].column);
    const begin = x - strip.x[0], end = begin + strip.d[i];
    while (first < CELLS - 1 && edge(first + 1) <= begin) first += 1;
    for (let k = first; k < CELLS && edge(k) < end; k += 1) {
      cells[k][at] += Math.max(0, Math.min(end, edge(k + 1)) - Math.max(begin, edge(k)));
    }
  });
  return fairCells(cells).map((at) => letterOf(columns[at])).join("");
}

// Which column each cell shows: every column gets as many as it has time, each where it has waited longest.
function fairCells(cells) {
  const totals = cells[0].map((_, at) => cells.reduce((sum, cell) => sum + cell[at], 0));
  const left = apportion(cells.length, totals), waiting = totals.map(() => 0);
  return cells.map((cell) => {
    cell.forEach((ns, at) => { waiting[at] += ns; });
    const open = [...left.keys()].filter((at) => left[at]);
    const best = open.reduce((one, at) => (waiting[at] > waiting[one] ? at : one));
    left[best] -= 1;
    waiting[best] -= cell.reduce((sum, ns) => sum + ns, 0);
    return best;
  });
}

// `total` split in proportion to weights, by largest remainders.
function apportion(total, weights) {
  const whole = weights.reduce((sum, weight) => sum + weight, 0);
  const out = weights.map((weight) => Math.floor((weight * total) / whole));
  const rest = weights.map((weight, at) => [(weight * total) % whole, at]).sort((p, q) => q[0] - p[0]);
  const missing = total - out.reduce((sum, n) => sum + n, 0);
  for (const [, at] of rest.slice(0, missing)) out[at] += 1;
  return out;
}

// `about`: {sentence, fixes, elapsed, parts, strip, name, kind, beside}.
function markdownOf({ sentence, fixes, elapsed, parts, strip, name, kind, beside }) {
  const lines = [`**${escaped(sentence)}**`, ""], drawn = textBar(strip, elapsed);
  if (drawn) lines.push("    " + drawn, "    0" + `${exactMicro(elapsed)} us`.padStart(CELLS - 1), "");
  lines.push("| | part | us | share |", "|---|---|--:|--:|");
  for (const cause of byTime(parts)) lines.push(`| ${letterOf(cause.column)} | ${cause.short} | ` +
    `${exactMicro(parts[cause.name])} | ${percent(parts[cause.name] / Math.max(elapsed, 1))} |`);
  lines.push(`| | **measured** | **${exactMicro(elapsed)}** | |`, "");
  if (beside) lines.push(besideSentence(kind, beside), "");
  lines.push(...fixLines(fixes));
  return [...lines, escaped(`${name}; ${DATA.title}; ${DATA.about}`)].join("\n") + "\n";
}

function fixLines(fixes) {
  return fixes.flatMap((fix) => [`**${fix.purpose}:** ${escaped(fix.sentence)}`, "",
    ...(fix.code.length ? [...fix.code.map((line) => "    " + line), ""] : [])]);
}

function besideSentence(kind, ns) {
  const where = kind === "host" ? "in all, some of it while the CPU went on" : "on other streams";
  return `Beside this sum kernels ran for ${exactMicro(ns)} us ${where}.`;
}

function byTime(parts) {
  return DATA.causes.filter(({ name }) => parts[name])
    .sort((p, q) => parts[q.name] - parts[p.name]);
}

// A row of a table with both sides, ns.
function pairLine(head, p, q) {
  const signed = (ns) => (ns > 0 ? "+" : "") + exactMicro(ns).replace("-", "−");
  return `| ${head} | ${exactMicro(p)} | ${exactMicro(q)} | ${signed(q - p)} |`;
}

const PAIR_HEAD = ["| part, us | A | B | B − A |", "|---|--:|--:|--:|"];

// `before`, `after`: {name, elapsed, parts, kind, beside}.
function markdownOfPair(sentence, before, after, fixes = []) {
  const both = Object.fromEntries(DATA.causes.map(({ name }) =>
    [name, Math.max(before.parts[name] || 0, after.parts[name] || 0)]));
  const beside = [before, after].flatMap((side, k) => (side.beside ?
    [`${"AB"[k]}: ${besideSentence(side.kind, side.beside)}`, ""] : []));
  return [`**${escaped(sentence)}**`, "", `A: ${escaped(before.name)}, B: ${escaped(after.name)}`, "", ...PAIR_HEAD,
    ...byTime(both).map(({ name, short }) => pairLine(short, before.parts[name] || 0, after.parts[name] || 0)),
    pairLine("**measured**", before.elapsed, after.elapsed), "", ...beside, ...fixLines(fixes),
    escaped(`${DATA.title}; ${DATA.about}`)].join("\n") + "\n";
}

// A chosen stretch (`stretch()`) of what is called `name`, in one picture or in both.
function markdownOfStretch({ from, to, sides, items }, name) {
  const length = to - from, [one, two] = sides.map((parts) => new Map(parts.map((part) => [part.name, part.ns])));
  const names = [...new Set(sides.flat().map((part) => part.name))];
  const table = two ? [...PAIR_HEAD, ...names.map((part) => pairLine(part, one.get(part) || 0, two.get(part) || 0)),
    pairLine("**selected**", length, length)] :
    ["| part | us | share |", "|---|--:|--:|", ...names.map((part) =>
      `| ${part} | ${exactMicro(one.get(part))} | ${percent(one.get(part) / Math.max(length, 1))} |`),
    `| **selected** | **${exactMicro(length)}** | |`];
  const ran = items.length ? ["| in it | times | us |", "|---|--:|--:|", ...items.slice(0, MOST_ITEMS).map((item) =>
    `| ${item.call ? "call " : ""}${escaped(item.name)} | ${item.count.toLocaleString("en")} | ${exactMicro(item.ns)} |`),
    ...(items.length > MOST_ITEMS ? [`| and ${plural(items.length - MOST_ITEMS, "more name")} | | |`] : []), ""] : [];
  return [`**${escaped(stretchSaid({ from, to }, name))}**`, "", ...table, "", ...ran,
    escaped(`${DATA.title}; ${DATA.about}`)].join("\n") + "\n";
}

function stretchSaid({ from, to }, name) {
  return `${name}: ${exactMicro(to - from)} us, from ${exactMicro(from)} to ${exactMicro(to)} us`;
}

// The same as rows of a drawing.
function stretchRows({ from, to, sides }) {
  const length = addends([to - from], to - from)[0];
  if (sides.length > 1) {
    const names = [...new Set(sides.flat().map((part) => part.name))];
    const of = (k, name) => sides[k].find((part) => part.name === name) || { ns: 0 };
    const text = (ns) => (ns / 1e3).toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })
      .replace("-", "−");
    return [["selected, us", ["A", "B", "B − A"]], ...names.map((name) => {
      const [p, q] = [of(0, name).ns, of(1, name).ns];
      return [name, [text(p), text(q), (q > p ? "+" : "") + text(q - p)], (of(0, name).colour || of(1, name).colour)];
    }), ["selected", [text(to - from), text(to - from), text(0)]]];
  }
  const texts = addends(sides[0].map(({ ns }) => ns), to - from);
  return [["selected", [length]], ...sides[0].map(({ name, colour }, i) => [name, [texts[i]], colour])
    .filter(([, [text]]) => /[1-9]/.test(text))];
}

// A sentence in lines of whole words.
function inLines(text, letters) {
  return text.split(" ").reduce((lines, word) => {
    const last = lines.at(-1);
    if (last && last.length + 1 + word.length <= letters) lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(cut(word, letters));
    return lines;
  }, []);
}

// A text in lines of so many letters, whole.
function inPieces(text, letters) {
  return Array.from({ length: Math.ceil(text.length / letters) }, (_, i) =>
    text.slice(i * letters, (i + 1) * letters));
}

function sharedStretch(name) {
  const chosen = stretch();
  return { sentence: stretchSaid(chosen, name), rows: stretchRows(chosen), file: name,
    markdown: markdownOfStretch(chosen, name) };
}

// The sentence, the picture and the sum as one drawing that needs nothing else.  `rows`: [name, numbers, colour].
function svgOf(sentence, rows, fixes = []) {
  const plot = $("lanes").querySelector("svg"), copy = plot.cloneNode(true);
  const names = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "fill-opacity",
    "stroke-opacity", "font-size", "font-weight", "font-family", "text-anchor", "paint-order"];
  const plain = (from, to) => {
    const style = getComputedStyle(from);
    for (const name of names) to.setAttribute(name, style.getPropertyValue(name).replaceAll('"', ""));
    to.removeAttribute("class");
    [...from.children].forEach((child, i) => plain(child, to.children[i]));
  };
  // names that were cut to their blocks, in full below the picture: nobody can point at a saved one
  const cutNames = new Map([...copy.querySelectorAll("[data-full]")].map((name) =>
    [name.getAttribute("data-full"), name.textContent]));
  for (const name of copy.querySelectorAll("[data-full]")) name.removeAttribute("data-full");
  plain(plot, copy);
  const [wide, tall] = [plot.clientWidth, plot.clientHeight], lines = inLines(sentence, 104);
  const change = fixes.flatMap((fix) => [...inLines(`${fix.purpose}: ${fix.sentence}`, 150)
    .map((words) => [words, "sans-serif"]), ...fix.code.map((code) => ["  " + code, "monospace"])]);
  const foot = 18 + 22 * lines.length, top = foot + 18 * change.length, ink = theme("--ink"), text = (x, y, words, more = {}) =>
    svg("text", { x, y, fill: ink, "font-size": 13, "font-family": "sans-serif", ...more }, words);
  const defs = $("patterns").firstElementChild.cloneNode(true);
  plain($("patterns").firstElementChild, defs);
  const most = Math.max(...rows.map(([, numbers]) => numbers.length)), room = 170 + 100 * most;
  const sum = rows.flatMap(([name, numbers, colour], i) => [
    colour ? svg("rect", { x: wide + 20, y: top + 22 * i + 10, width: 14, height: 12, fill: colour }) : "",
    text(wide + 40, top + 22 * i + 20, name),
    numbers.map((number, k) => text(wide + room - 100 * (numbers.length - 1 - k), top + 22 * i + 20, number,
      { "text-anchor": "end", "font-family": "monospace" }))]).flat();
  copy.setAttribute("y", top);
  const full = [...cutNames].flatMap(([name, short]) => inPieces(`${short}: ${name}`, Math.floor((wide + room) / 7)));
  const under = Math.max(top + tall, top + 22 * rows.length + 24) + 8, height = under + 16 * full.length + 24;
  const whole = svg("svg", { xmlns: "http://www.w3.org/2000/svg", width: wide + room + 20, height,
    viewBox: `0 0 ${wide + room + 20} ${height}` }, defs,
  svg("rect", { width: wide + room + 20, height, fill: theme("--card") }),
  lines.map((line, i) => text(12, 24 + 22 * i, line, { "font-size": 17, "font-weight": 600 })),
  change.map(([words, face], i) => text(12, foot + 10 + 18 * i, words, { "font-family": face, style: "white-space: pre" })),
  copy, sum.filter(Boolean),
  full.map((words, i) => text(12, under + 12 + 16 * i, words, { "font-size": 11, "font-family": "monospace" })),
  text(12, height - 8, `${DATA.title}; ${DATA.about}`, { "font-size": 11, fill: theme("--quiet") }));
  return new XMLSerializer().serializeToString(whole);
}

function saveFile(name, text, type) {
  const link = make("a", { download: name, href: URL.createObjectURL(new Blob([text], { type })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// `chosen()`: what is to be shared, {markdown, sentence, rows, file}.
function listenToShare(chosen) {
  $("copy-markdown").addEventListener("click",
    (event) => copyText(chosen().markdown, event.currentTarget));
  $("save-svg").addEventListener("click", () => {
    const { sentence, rows, file, fixes } = chosen();
    saveFile(`${file.replace(/[^\w.-]+/g, "_").slice(0, 60) || "nsysalign"}.svg`,
      svgOf(sentence, rows, fixes), "image/svg+xml");
  });
}
