// A table of labels: sorted by any column that has a value, filtered by text.

const sorting = { key: null, down: false };

function labelHead(column, redraw) {
  if (!column.value) return make("th", { scope: "col" }, column.text);
  const state = sorting.key !== column.key ? "none" : sorting.down ? "descending" : "ascending";
  const press = () => {
    if (sorting.key === column.key) sorting.down = !sorting.down;
    else Object.assign(sorting, { key: column.key, down: Boolean(column.number) });
    redraw();
  };
  const button = make("button", { type: "button", title: column.hint || null, onclick: press },
    column.text,
    column.note ? make("small", null, column.note) : null,
      column.unit ? make("span", { class: "unseen" }, " " + column.unit) : null,
    make("span", { "aria-hidden": "true" }, {
      none: "", ascending: " ↑", descending: " ↓" }[state]));
  button.dataset.key = column.key;
  return make("th", { scope: "col", "aria-sort": state, class: column.number ? "number" : null },
    button);
}

// Labels whose text has every word of the filter, in the order of the column that was chosen.
function shownLabels(columns, text) {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const labels = DATA.labels.filter((label) =>
    words.every((word) => text(label).toLowerCase().includes(word)));
  const column = columns.find((item) => item.key === sorting.key), sign = sorting.down ? -1 : 1;
  if (column) {
    labels.sort((a, b) => {
      const [x, y] = [column.value(a), column.value(b)];
      return sign * (typeof x === "string" ? x.localeCompare(y) : x - y);
    });
  }
  return labels;
}

function fillLabels(table, caption, columns, labels, row, redraw, most = Infinity) {
  const focused = document.activeElement && document.activeElement.dataset.key;
  fill(table, make("caption", { class: "unseen" }, caption),
    make("thead", null, make("tr", null, columns.map((column) => labelHead(column, redraw)))),
      make("tbody", null, labels.slice(0, most).map(row)));
  // Redrawing replaced the button that was pressed: the keyboard stays where it was.
  if (focused) table.querySelector(`button[data-key="${focused}"]`)?.focus();
  $("shown").textContent = labels.length === DATA.labels.length ? plural(labels.length, "label") :
    `${labels.length} of ${plural(DATA.labels.length, "label")}`;
}

function labelCell(label, press, mark) {
  const site = label.site && !label.label.includes(label.site) ?
    make("span", { class: "site" }, label.site) : null;
  return make("th", { scope: "row" }, make("button",
    { type: "button", class: "link", onclick: press }, label.label), mark, site,
    label.library ? make("span", { class: "site" }, "timed by a library") : null);
}
