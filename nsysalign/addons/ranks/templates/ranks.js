// A comparison of ranks: the verdict, a row per label, links to the ranks' own pages.

showSections();
$("verdict-head").textContent = DATA.verdict.text;
$("advice").textContent = DATA.verdict.advice ? "Change: " + DATA.verdict.advice : "";
fill($("environment"),
  make("div", null, make("dt", null, "compared"), make("dd", null, DATA.title)));
fillTable($("table"), "Every label on all ranks",
  [...DATA.heads.map((text, k) => ({ text, number: k > 0 })), { text: "what the ranks say" }],
  DATA.labels);
fill($("ranks"), DATA.ranks.flatMap((rank) => [rank.href ?
  make("a", { href: rank.href, title: rank.source }, rank.name) : rank.name, " "]));
fill($("notes"), DATA.notes.map((note) => make("li", null, note)));
document.body.dataset.ready = "true";
