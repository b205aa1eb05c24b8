// A comparison: every label's change with its bounds, then the causes of the chosen label.

const VERDICT = {
  slower: ["▲", "error"], faster: ["▼", "better"], unclear: ["?", "warning"],
  same: ["=", "reading"], different: ["≠", "reading"],
};
const chosen = { label: null };

function share(ns, before) {
  return before ? (100 * ns) / before : ns ? 100 : 0;
}

function signed(value, text) {
  return (value > 0 ? "+" : "") + text;
}

function microSigned(ns) {
  return Math.abs(ns) < 5 ? "." : signed(ns, micro(ns)); // less than its last digit
}

function bars(label) {
  const scale = Math.max(label.total.before_ns, label.total.after_ns, 1);
  const bar = ([name, which]) => {
    const part = ({ name: cause }) => [cause, label.parts[cause]?.[which] || 0];
    const budget = { parts: Object.fromEntries(DATA.causes.map(part)),
      elapsed: label.total[which] || 1 };
    return make("div", null, make("span", { class: "site" }, name),
      budgetBar(budget, scale, 220));
  };
  return make("div", { class: "pair" }, [["A", "before_ns"], ["B", "after_ns"]].map(bar));
}

const number = (key, text, value, show, hint) => ({ key, text, number: true, value, show, hint });
const COLUMNS = [
  { key: "label", text: "label", value: (l) => l.label },
  { key: "verdict", text: "verdict", value: (l) => Object.keys(VERDICT).indexOf(l.verdict) },
  number("share", "change", (l) => share(l.total.change_ns, l.total.before_ns),
    (l) => l.changed),
  number("before", "A us", (l) => l.total.before_ns, (l) => micro(l.total.before_ns), DATA.before),
  number("after", "B us", (l) => l.total.after_ns, (l) => micro(l.total.after_ns), DATA.after),
  number("change", "change us", (l) => l.total.change_ns, (l) => microSigned(l.total.change_ns)),
  { key: "bounds", text: "bounds" },
  { key: "bars", text: "budgets" },
  number("count", "n A, B", (l) => Math.min(l.count_before, l.count_after),
    (l) => `${l.count_before}, ${l.count_after}`),
];

function row(label) {
  const [mark, look] = VERDICT[label.verdict];
  const special = {
    label: () => labelCell(label, () => choose(label, true), label.label_after === label.label ?
      null : make("span", { class: "site" }, "B: " + label.label_after)),
    verdict: () => make("td", { class: "verdict " + look },
      make("span", { "aria-hidden": "true" }, mark + " "), label.why),
    bounds: () => make("td", { class: "number" }, label.bounds),
    bars: () => make("td", { class: "budget" }, bars(label)),
  };
  const cells = COLUMNS.map((column) =>
    special[column.key]?.() ?? make("td", { class: "number" }, column.show(label)));
  const element = make("tr", { class: label.library ? "library" : null }, cells);
  if (label === chosen.label) element.setAttribute("aria-current", "true");
  return element;
}

function draw() {
  const labels = shownLabels(COLUMNS, (l) => `${l.label} ${l.label_after} ${l.site} ${l.verdict}`);
  fillLabels($("table"), "Change of every label that is in both", COLUMNS, labels, row, draw);
}

function choose(label, show) {
  const { total } = label, [mark] = VERDICT[label.verdict];
  chosen.label = label;
  draw();
  $("label-head").textContent = "What changed in " + label.label;
  $("label-reading").textContent = `${mark} ${label.verdict}: ${duration(total.before_ns)} → ` +
    `${duration(total.after_ns)}, ${label.changed}, bounds ${label.bounds}.`;
  const line = (name, change) => [name, micro(change.before_ns), micro(change.after_ns),
    microSigned(change.change_ns),
    `${microSigned(change.low_ns)} to ${microSigned(change.high_ns)}`.replace(". to .", "."),
    change.clear ? "yes" : "no"];
  const rows = DATA.causes.filter((cause) => label.parts[cause.name]).map((cause) => {
    const colour = swatch(cause);
    colour.classList.add("mark");
    return line(make("span", { class: "named" }, colour, " " + cause.short),
      label.parts[cause.name]);
  });
  const numbers = ["A us", "B us", "change us", "bounds us"];
  const heads = [{ text: "cause" }, ...numbers.map((text) => ({ text, number: true })),
    { text: "clear" }];
  fillTable($("causes"), "Change of every cause of " + label.label, heads,
    [line(make("strong", null, "total"), total), ...rows]);
  if (show) {
    bring($("label"));
    $("label-head").focus({ preventScroll: true });
  }
}

function start() {
  showSections();
  const fact = ([key, value]) => make("div", null, make("dt", null, key), make("dd", null, value));
  fill($("environment"), [["A", DATA.before], ["B", DATA.after]].map(fact));
  $("summary").textContent = DATA.summary;
  $("method").textContent = DATA.method;
  const item = (text) => make("li", null, text);
  fill($("confounders"), DATA.confounders.map((text) => item(make("strong", null, text))));
  fill($("remarks"), DATA.remarks.map(item));
  const only = (names, at) => make("p", null, `Only in ${"AB"[at]}: `,
    names.flatMap((name, i) => [i ? ", " : "", make("code", null, name)]));
  const sides = [DATA.only_before, DATA.only_after];
  fill($("only-list"), sides.map((names, at) => (names.length ? only(names, at) : null)));
  $("only").hidden = !sides.some((names) => names.length);
  if (DATA.labels.length) {
    legend();
    choose(DATA.labels[0], false);
    $("filter").addEventListener("input", draw);
  } else for (const id of ["changes", "label"]) $(id).hidden = true;
  document.body.dataset.ready = "true";
}

start();
