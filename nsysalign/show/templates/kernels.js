// The kernels of the chosen label, or of the run: where the analysis has such a table.

const kernels = { label: null, rows: [] };

function startKernels() {
  const { names, ...columns } = DATA.kernels;
  kernels.rows = columns.label.map((_, i) => {
    const row = Object.fromEntries(Object.keys(columns).map((key) => [key, columns[key][i]]));
    return { ...row, label: names[row.label], kernel: names[row.kernel] };
  });
  const labels = [...new Set(kernels.rows.map((row) => row.label))];
  $("kernels").hidden = !labels.length;
  if (!labels.length) return;
  kernels.label = labels.find((label) => !byName(label)) ?? labels[0]; // the run as a whole first
  fill($("kernel-label"), labels.map((label) =>
    make("option", { value: label, selected: label === kernels.label ? "" : null }, label)));
  $("kernel-label").addEventListener("change",
    () => { kernels.label = $("kernel-label").value; drawKernels(); });
  drawKernels();
}

function drawKernels() {
  const rows = kernels.rows.filter((row) => row.label === kernels.label);
  const names = shortNames(rows.map((row) => row.kernel));
  const share = (row) => {
    const bar = swatch(CAUSE[row.kind] || CAUSE.kernel);
    bar.style.width = `${Math.max(1, Math.min(100, 100 * row.share))}%`;
    return make("span", { class: "share" }, bar, make("span", null, percent(row.share || 1e-6)));
  };
  fillTable($("kernels").querySelector("table"), `Kernels of ${kernels.label}`,
    [{ text: "kernel" }, ...["count", "total us",
      "median us"].map((text) => ({ text, number: true })), { text: byName(kernels.label) ? "of its time" : "of the run" },
      { text: "idle before us", number: true }],
    rows.map((row, i) => [make("code", { title: row.kernel }, names[i]),
      row.count.toLocaleString("en"), micro(row.total_ns), micro(row.median_ns), share(row),
      micro(row.idle_before_ns ?? null)]));
}
