// The cards at the top: what a reader should know first, each with its evidence and the interval that shows it.

const SEVERITY = {
  error: ["✖", "error"], warning: ["▲", "warning"], info: ["●", "note"], reading: ["◆", "reading"],
};
const CARDS_AT_FIRST = 6;

function card(verdict) {
  const [mark, word] = SEVERITY[verdict.severity] || SEVERITY.info;
  const label = DATA.labels.find((item) => item.label === verdict.label);
  const evidence = verdict.evidence.length
    ? make("dl", { class: "evidence" }, verdict.evidence.map(([what, number]) => make("div", null, make("dt", null, what), make("dd", null, number))))
    : null;
  const place = verdict.site && verdict.site !== verdict.label ? make("code", null, verdict.site) : null;
  return make(
    "article", { class: "card " + word },
    make("p", { class: "kicker" }, make("span", { "aria-hidden": "true" }, mark + " "), word,
      verdict.rule ? " · " + verdict.rule : "", " · ", make("strong", null, verdict.label), place ? " " : null, place),
    make("h3", null, verdict.title),
    label ? budgetBar(label, label.elapsed || 1, 380) : null,
    verdict.explanation ? make("p", { class: "explanation" }, verdict.explanation) : null,
    evidence,
    verdict.advice ? make("p", { class: "advice" }, make("strong", null, "Change: "), verdict.advice) : null,
    verdict.confirmation ? make("p", { class: "confirmation" }, verdict.confirmation) : null,
    label ? intervalLink(verdict, label) : null,
  );
}

// A real link: it can be copied, opened beside, and followed from the keyboard.
function intervalLink(verdict, label) {
  const number = verdict.interval < 0 ? label.roles.median : verdict.interval;
  const go = (event) => {
    event.preventDefault();
    history.replaceState(null, "", `#interval-${number}`);
    choose(verdict.label, number, true);
  };
  return make("a", { class: "button", href: `#interval-${number}`, onclick: go }, "Show the interval");
}

function drawVerdicts() {
  const cards = DATA.verdicts.map((verdict, at) => {
    const element = card(verdict);
    element.hidden = at >= CARDS_AT_FIRST;
    return element;
  });
  fill($("cards"), cards);
  const more = cards.length - CARDS_AT_FIRST;
  if (more > 0) {
    const button = make("button", { type: "button", class: "more", onclick: () => {
      for (const element of cards) element.hidden = false;
      cards[CARDS_AT_FIRST].tabIndex = -1; // focusable by script only
      cards[CARDS_AT_FIRST].focus();
      button.remove();
    } }, `Show ${more} more`);
    $("cards").after(button);
  }
  if (!cards.length) fill($("cards"), make("p", null, "No interval was placed: see the remarks at the end of the page."));
}
