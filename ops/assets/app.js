// The dashboard works without this file. It adds the key for the search, keeps refreshes from
// disturbing whoever reads or writes, and draws the charts.
"use strict";

document.addEventListener("keydown", (event) => {
  const typing = event.target instanceof Element && event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    document.getElementById("find").select();
  }
  if (event.key === "Escape" && event.target instanceof Element) {
    const open = event.target.closest("details.act[open]");
    if (open) {
      open.open = false;
      open.querySelector("summary").focus();
    }
  }
});

// One form of a page is open at a time, and its first field has the focus.
document.addEventListener("toggle", (event) => {
  if (!event.target.matches("details.act[open]")) return;
  for (const other of document.querySelectorAll("details.act[open]")) if (other !== event.target) other.open = false;
  const field = event.target.querySelector("input:not([type=hidden]):not([type=checkbox]), textarea");
  if (field) field.focus();
}, true);

// A refresh waits while the page is hidden, and while the focus is where it would be lost.
document.addEventListener("htmx:beforeRequest", (event) => {
  const trigger = event.detail.elt.getAttribute("hx-trigger") || "";
  if (!trigger.startsWith("every")) return;
  const inside = document.activeElement && document.activeElement.closest("[data-live]");
  if (document.hidden || inside || String(getSelection())) event.preventDefault();
});

const current = document.querySelector(".nav [aria-current]");
if (current && current.offsetParent) {
  const strip = current.closest("nav");
  strip.scrollLeft = current.offsetLeft - (strip.clientWidth - current.offsetWidth) / 2;
}

// A change of many letters takes its next step by itself, until the user leaves the page.
const more = document.querySelector("form[data-continue]");
if (more) setTimeout(() => more.requestSubmit(), 500);

const charts = [];

function color(name) {
  const probe = document.createElement("i");
  probe.className = name;
  document.querySelector(".legend").append(probe);
  const value = getComputedStyle(probe).backgroundColor;
  probe.remove();
  return value;
}

function options(width) {
  const text = getComputedStyle(document.querySelector("figcaption")).color;
  const axis = { stroke: text, font: "11px system-ui, sans-serif", grid: { stroke: color("grid"), width: 1 }, ticks: { show: false } };
  const line = (scale, name, more) => Object.assign({ scale, stroke: color(name), width: 1.75, points: { show: false }, spanGaps: true }, more);
  return {
    width, height: 150, legend: { show: false }, cursor: { show: false }, padding: [8, 4, 0, 4],
    scales: { rate: { range: (u, low, high) => [0, Math.max(1, high * 1.15)] }, waiting: { range: (u, low, high) => [0, Math.max(4, high * 1.15)] } },
    axes: [
      Object.assign({}, axis, { grid: { show: false }, space: 80, size: 26, values: (u, times) => times.map((t) => new Date(t * 1000).toLocaleTimeString([], { hour12: false })) }),
      Object.assign({}, axis, { scale: "rate", size: 44, values: (u, values) => values.map((v) => v >= 10000 ? v / 1000 + "k" : v) }),
      Object.assign({}, axis, { scale: "waiting", side: 1, size: 44, grid: { show: false }, values: (u, values) => values.map((v) => v >= 10000 ? v / 1000 + "k" : v) }),
    ],
    series: [{}, line("rate", "c1", {}), line("rate", "c2", {}), line("waiting", "c3", { dash: [4, 3] })],
  };
}

async function update(figure) {
  if (document.hidden) return;
  const answer = await fetch(figure.dataset.chart, { headers: { Accept: "application/json" } });
  if (!answer.ok) return;
  const c = await answer.json();
  const data = [c.times, c.written, c.delivered, c.waiting];
  const plot = figure.querySelector(".plot");
  if (!figure.chart) {
    figure.chart = new uPlot(options(plot.clientWidth), data, plot);
    new ResizeObserver(() => figure.chart.setSize({ width: plot.clientWidth, height: 150 })).observe(plot);
  } else {
    figure.chart.setData(data);
  }
}

for (const figure of document.querySelectorAll("[data-chart]")) charts.push(figure);
const draw = () => charts.forEach((figure) => update(figure).catch(() => {}));
if (charts.length) {
  draw();
  setInterval(draw, 2000);
}
