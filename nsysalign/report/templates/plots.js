// What both plots share: fonts and lines of the page's theme, and the switches plotly needs.

const CONFIG = { displaylogo: false, responsive: true, doubleClick: false, showTips: false,
  modeBarButtons: [["zoom2d", "pan2d", "toImage"]] };

function axis(extra) {
  return { color: theme("--ink"), gridcolor: theme("--line"), zerolinecolor: theme("--line"), linecolor: theme("--line"),
    zeroline: false, ticks: "outside", tickcolor: theme("--line"), ...extra };
}

function baseLayout(extra) {
  return { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { family: theme("--sans"), size: 12, color: theme("--ink") },
    hoverlabel: { align: "left", bgcolor: theme("--card"), bordercolor: theme("--line"), font: { family: theme("--mono"), size: 12, color: theme("--ink") } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: theme("--quiet"), activecolor: theme("--accent") }, ...extra };
}

function pattern(cause) {
  return { shape: cause.pattern, fgcolor: cause.ink, fgopacity: 0.45, size: 6, solidity: 0.25, fillmode: "overlay" };
}

// plotly forgets the layout's height when the window changes its size and asks the element instead.
function drawPlot(plot, traces, layout, config) {
  plot.style.height = `${layout.height}px`;
  return Plotly.react(plot, traces, layout, config);
}
