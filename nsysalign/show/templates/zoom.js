// Zooming a plot in time, by wheel and mouse.  An axis is {ready, range, frame, to, fit}:
// what is seen, between which pixels, and how to see something else.

function zoomBy(axis, factor, centre = 0.5) {
  const [a, b] = axis.range(), at = a + (b - a) * centre;
  if ((b - a) * factor < 0.01) return; // ten nanoseconds across is closer than the clock
  axis.to([at - (at - a) * factor, at + (b - at) * factor]);
}

function panBy(axis, share) {
  const [a, b] = axis.range(), step = (b - a) * share;
  axis.to([a + step, b + step]);
}

function zoomable(plot, axis) {
  // The time under the pointer, as a share of the frame.
  const share = (event) => {
    const box = plot.getBoundingClientRect(), { left, right } = axis.frame();
    return Math.min(1, Math.max(0, (event.clientX - box.left - left) / (right - left)));
  };
  plot.addEventListener("wheel", (event) => {
    if (!axis.ready() || !event.ctrlKey) return; // a plain wheel scrolls the page
    event.preventDefault();
    zoomBy(axis, event.deltaY > 0 ? 1.25 : 0.8, share(event));
  }, { passive: false });
  plot.addEventListener("dblclick", () => axis.ready() && axis.fit());
  dragToZoom(plot, axis, share);
}

// A mouse drags a stretch to zoom into; the click that ends it is none.
function dragToZoom(plot, axis, share) {
  let from = null, band = null, dragged = false;
  plot.addEventListener("pointerdown", (event) => {
    dragged = false;
    if (!axis.ready() || event.button || event.pointerType === "touch") return;
    from = event;
    plot.setPointerCapture(event.pointerId);
  });
  const stretch = (event) => [share(from), share(event)].sort((p, q) => p - q);
  plot.addEventListener("pointermove", (event) => {
    if (!from || Math.abs(event.clientX - from.clientX) < 4) return;
    unpin();
    const { left, right } = axis.frame(), [a, b] = stretch(event), [low, high] = axis.range(),
      box = plot.getBoundingClientRect();
    band ||= document.body.appendChild(make("div", { class: "band" }));
    Object.assign(band.style, { left: `${box.left + left + a * (right - left)}px`,
      width: `${(b - a) * (right - left)}px`, top: `${box.top}px`, height: `${box.height}px` });
    showTip([duration((b - a) * (high - low) * 1e3)], event.clientX, event.clientY);
  });
  const end = () => { band?.remove(); band = from = null; };
  plot.addEventListener("pointerup", (event) => {
    dragged = band !== null;
    const [a, b] = from ? stretch(event) : [0, 0], [low, high] = axis.range();
    end();
    if (!dragged) return;
    hideTip();
    const range = [low + a * (high - low), low + b * (high - low)];
    if (event.shiftKey && axis.select) axis.select(range);
    else if (range[1] - range[0] > 0.01) axis.to(range);
  });
  for (const lost of ["pointercancel", "lostpointercapture"]) plot.addEventListener(lost, end);
  plot.addEventListener("click", (event) => {
    if (dragged) event.stopImmediatePropagation();
    dragged = false;
  }, { capture: true });
}
