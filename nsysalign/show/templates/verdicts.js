// The cards: what costs most first, each rule once, with every label that it explains.

const SEVERITY = {
  error: ["✖", "error"], warning: ["▲", "warning"], info: ["●", "note"],
};
const CARDS_AT_FIRST = 6, MOST_SAME = 6;

function byName(name) {
  return DATA.labels.find((item) => item.label === name);
}

function card(item) {
  const [mark, word] = SEVERITY[item.severity] || SEVERITY.info, [entry, ...same] = item.findings,
    label = byName(entry.label);
  return make(
    "article", { class: "card " + word, "data-card": DATA.cards.indexOf(item) },
    make("p", { class: "kicker" }, make("span", { "aria-hidden": "true" }, mark + " "), word,
      " · " + item.rule,
      item.lost ? make("span", { class: "lost" }, `could save ${duration(item.lost)} over the run`) : null),
    make("h3", null, entry.title),
    label ? make("p", { class: "where" }, make("button",
      { type: "button", class: "link", onclick: () => choose(label.label, null, true) },
      label.label),
      entry.site && entry.site !== label.label ? [" ", make("code", null, entry.site)] : null,
      `, ${plural(label.count, "interval")}, ${duration(label.total)} ` +
        `${label.count > 1 ? "in all " : ""}under ${DATA.recorder}`) :
      make("p", { class: "where" }, entry.label),
    sourceLine(entry.site),
    label ? waterfall(asRun(label, entry.interval)) : null,
    label?.predicted?.said ?
      make("p", { class: "without" }, label.predicted.said) : null,
    label?.host ?
      make("p", { class: "without" }, "The CPU meanwhile: " + label.host) : null,
    ...advice(entry),
    rerun(entry),
    evidence(entry),
    entry.saved_by ? make("p", { class: "without" }, `Could save at most ${duration(entry.loss_ns)}: ${entry.saved_by}.`) : null,
    same.length ? sameIn(same, word === "error") : null,
    label ? intervalLink(entry, label) : null,
  );
}

// A call site and what its line says, where the run was recorded with its lines of code.
function sourceLine(site) {
  return DATA.source[site] ? make("pre", { class: "source" },
    make("span", { class: "quiet" }, site + "  "), make("code", null, DATA.source[site])) : null;
}

// Two kinds of advice, each a sentence and code to copy: to measure the GPU's time, to make the
// program faster.
function advice(entry) {
  return entry.advice.map(({ purpose, sentence, code }) =>
    make("div", { class: "advice" + (purpose.endsWith("faster") ? " faster" : "") },
    make("p", null, make("strong", null, `To ${purpose}: `),
      sentence[0].toLowerCase() + sentence.slice(1)),
      code.length ? make("pre", null, make("code", null, code.join("\n"))) : null));
}

function evidence(entry) {
  if (!entry.evidence.length) return null;
  return make("details", { class: "evidence" }, make("summary", null, "Evidence"),
    make("dl", null, entry.evidence.map(([what, number]) =>
      make("div", null, make("dt", null, what), make("dd", null, number)))));
}

// What a second run of the script with one change said.
function rerun(entry) {
  if (!entry.confirmation) return null;
  const [mark, look] = { confirmed: ["✔ ", "better"], refuted: ["✖ ", "error"] }[
    entry.confirmation.split(":")[0]] || ["", ""];
  return make("p", { class: "rerun " + look }, mark + entry.confirmation);
}

// `whole`: with the sentence and the place of each, else with what it could save.
function sameIn(entries, whole) {
  const item = (entry) => make("li", { title: entry.title }, byName(entry.label)
    ? make("button", { type: "button", class: "link",
      onclick: () => choose(entry.label, entry.interval < 0 ? null : entry.interval, true) },
      entry.label) : entry.label,
  whole ? [" ", entry.title.replace(entry.label, "").trim(), " ",
    entry.site && entry.site !== entry.label ? make("code", null, entry.site) : null] :
    entry.loss_ns ? ` could save ${duration(entry.loss_ns)}` : "");
  const rest = entries.length - MOST_SAME;
  return make("div", { class: "same" }, make("span", null, "The same in:"),
    make("ul", { class: whole ? "whole" : null }, entries.slice(0, MOST_SAME).map(item),
    rest > 0 ? make("li", null, `${rest} more, in the table ${whole ? "above" : "below"}`) : null));
}

// A real link: it can be copied, opened in another tab, and followed from the keyboard.
function intervalLink(entry, label) {
  const number = entry.interval < 0 ? label.roles.median : entry.interval;
  const go = (event) => {
    event.preventDefault();
    choose(entry.label, number, true);
  };
  return make("a", { class: "button", href: `#interval-${number}`, onclick: go },
    "Show the interval", make("span", { class: "unseen" },
    ` of ${entry.label}: ${entry.rule}`));
}

// To the first card that speaks of a label, opened if it is folded.
function bringFinding(name) {
  const item = DATA.cards.find((one) => one.findings.some((entry) => entry.label === name));
  const place = document.querySelector(`[data-card="${DATA.cards.indexOf(item)}"]`);
  if (!place) return;
  remember(true);
  bring(place);
}

// A card of which only the first line is seen until it is opened.
function folded(item) {
  const [mark, word] = SEVERITY[item.severity] || SEVERITY.info,
    details = make("details", { class: "folded " + word, "data-card": DATA.cards.indexOf(item) },
    make("summary", null, make("span", { class: "kicker" },
      make("span", { "aria-hidden": "true" }, mark + " "), item.rule),
      make("span", { class: "title" }, item.findings[0].title),
      make("span", { class: "lost" }, item.lost ? `could save ${duration(item.lost)} over the run` : "")));
  details.fillIn = () => { if (details.children.length === 1) details.append(card(item)); };
  details.addEventListener("toggle", () => { if (details.open) details.fillIn(); });
  return details;
}

// Open: that a number is not what is meant, why, and where, is read without a click.
function drawWrong() {
  const wrong = DATA.cards.filter((item) => item.severity === "error");
  if (!wrong.every(({ findings: [entry] }) => entry.verdict === "wrong")) $("wrong-head").textContent = "Errors";
  fill($("wrong-cards"), wrong.map(card));
  $("wrong").hidden = !wrong.length;
}

function drawVerdicts() {
  const costly = DATA.cards.filter((item) => item.severity !== "error");
  $("costly-head").append(` (${costly.length})`);
  $("verdicts").hidden = !costly.length && (DATA.labels.length || DATA.cards.length);
  const open = costly.filter((item) => !item.library).slice(0, CARDS_AT_FIRST);
  fill($("cards"), open.map(card));
  fill($("more-cards"), costly.filter((item) => !open.includes(item)).map(folded));
  const said = DATA.cards.some((item) => item.lost) ?
    ["Could save: what would go away over the run if the advice were followed, at most."] : [];
  if (DATA.next) said.push(
    "Findings are read from one trace; none is confirmed unless it says so. To test one, " +
    `run the script again with one change: ${DATA.next}`);
  $("cards-note").textContent = said.join(" ");
  if (!DATA.cards.length) fill($("cards"), make("p", null,
    "No interval was placed: see the notes at the end of the page."));
}

// On paper the findings are open; afterwards they are as they were.
function listenToPrint() {
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...$("verdicts").querySelectorAll("details.fold, details.folded")].filter((one) => !one.open);
    for (const one of opened) {
      one.fillIn?.();
      one.open = true;
    }
  });
  addEventListener("afterprint", () => { for (const one of opened) one.open = false; });
}
