// The audit of a page: what it returns is wrong.
(() => {
  for (const details of document.querySelectorAll("details")) details.open = true;
  const problems = [];
  const shown = (e) => e.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && e.getClientRects().length > 0;
  const hidden = (e) => e.closest(".hide, .skip, thead, .find label") && e.getBoundingClientRect().width <= 2;
  const describe = (e) => `${e.tagName.toLowerCase()}.${e.className} "${(e.textContent || "").trim().slice(0, 40)}"`;

  const width = document.documentElement.scrollWidth;
  if (width > innerWidth) {
    const widest = [...document.querySelectorAll("main *, header *, aside *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".side nav"));
    problems.push(`the page is ${width} pixels wide: ${widest.slice(0, 3).map(describe)}`);
  }

  for (const table of document.querySelectorAll(".card table")) {
    const over = table.getBoundingClientRect().right - table.closest(".card").getBoundingClientRect().right;
    if (over > 0) problems.push(`a table is ${Math.round(over)} pixels wider than its card: ${describe(table)}`);
  }

  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const behind = (e) => {
    const layers = [];
    for (let x = e; x; x = x.parentElement) layers.push(rgba(getComputedStyle(x).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
  };
  const light = (c) => {
    const [r, g, b] = c.slice(0, 3).map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const seen = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || e.closest("script, noscript, option, .plot") || !shown(e) || hidden(e) || seen.has(e)) continue;
    seen.add(e);
    const style = getComputedStyle(e);
    const back = behind(e);
    const text = over(rgba(style.color), back);
    const [low, high] = [light(text), light(back)].sort((a, b) => a - b);
    const ratio = (high + 0.05) / (low + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) problems.push(`contrast ${ratio.toFixed(2)}: ${describe(e)}`);
    if (size < 11.5) problems.push(`text of ${size} pixels: ${describe(e)}`);
  }

  for (const field of document.querySelectorAll("input:not([type=hidden]), select, textarea")) {
    if (!field.labels || !field.labels.length) problems.push(`no label: ${field.name}`);
  }
  for (const e of document.querySelectorAll("a, button, summary")) {
    if (!(e.textContent.trim() || e.getAttribute("aria-label"))) problems.push(`no name: ${describe(e)}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) problems.push(`two elements have the ID ${id}`);
  for (const [what, n] of [["main", 1], ["nav", 1], ["h1", 1], ["[role=search]", 1]]) {
    if (document.querySelectorAll(what).length !== n) problems.push(`${document.querySelectorAll(what).length} of ${what}`);
  }
  return problems;
})()
