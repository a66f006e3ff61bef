"use strict";
// The page is complete without this: it adds sorting, the slider, the choice of theme, and the place in the contents.

const all = (selector, within = document) => [...within.querySelectorAll(selector)];

function themeButton(button) {
  const names = ["automatic", "light", "dark"];
  const store = (name) => { try { localStorage.setItem("puidrec-theme", name); } catch { /* a file may have no store */ } };
  const stored = () => { try { return localStorage.getItem("puidrec-theme"); } catch { return null; } };
  const set = (name) => {
    if (name === "automatic") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    button.textContent = `Theme: ${name}`;
    button.value = name;
  };
  set(names.includes(stored()) ? stored() : "automatic");
  button.hidden = false;
  button.addEventListener("click", () => {
    const next = names[(names.indexOf(button.value) + 1) % names.length];
    set(next);
    store(next);
  });
}

function sortable(table) {
  const collator = new Intl.Collator(undefined, { numeric: true });
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const first = [...body.rows];
  const key = (row, k) => {
    const cell = row.cells[k];
    return "v" in cell.dataset ? Number(cell.dataset.v) : cell.textContent.trim();
  };
  const missing = (value) => value === "" || value === "–";
  const sort = (k, ascending) => {
    const rows = first.map((row) => [key(row, k), row]);
    const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b
      : typeof a === "number" ? -1 : typeof b === "number" ? 1 : collator.compare(a, b);
    rows.sort(([a], [b]) => missing(a) || missing(b) ? missing(a) - missing(b) : ascending ? compare(a, b) : compare(b, a));
    body.append(...rows.map(([, row]) => row));
    heads.forEach((head, j) => head.setAttribute("aria-sort", j === k ? (ascending ? "ascending" : "descending") : "none"));
  };
  heads.forEach((head, k) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    const numeric = head.classList.contains("number");
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      sort(k, now === "none" ? !numeric : now === "descending");
    });
  });
}

function envelope(root) {
  const { panels, choices } = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
  const slider = root.querySelector("input[type=range]");
  const says = root.querySelector(".says");
  const inputs = (name) => all(`input[name="${root.id}-${name}"]`, root);
  const picked = (name) => choices[name][Number((inputs(name).find((one) => one.checked) || { value: 0 }).value)];
  const offer = (name, there) => inputs(name).forEach((one) => {
    one.parentElement.classList.toggle("off", !there.includes(choices[name][Number(one.value)]));
  });
  const find = () => {
    const panel = panels.find((one) => one.label === picked("quantity"));
    const band = panel.bands.findIndex((one) => one.label === picked("band"));
    return [panels.indexOf(panel), Math.max(band, 0)];
  };
  const move = (drawing, at) => {
    const svg = drawing.querySelector("svg.chart");
    const [x, low, high] = ["xs", "lows", "highs"].map((name) => svg.dataset[name].split(",")[at]);
    all(".cursor line", svg).forEach((line) => { line.setAttribute("x1", x); line.setAttribute("x2", x); });
    const dots = all(".cursor circle", svg);
    dots.forEach((dot) => dot.setAttribute("cx", x));
    all(".cursor-range, .cursor-dot", svg).forEach((part) => part.setAttribute("display", low === "" ? "none" : "inline"));
    if (low === "") return;
    dots[0].setAttribute("cy", low);
    dots[1].setAttribute("cy", high);
    const range = svg.querySelector(".cursor-range");
    range.setAttribute("y1", low);
    range.setAttribute("y2", high);
  };
  let shown = -1;
  const update = () => {
    const [p, b] = find();
    const panel = panels[p];
    if (p !== shown) {
      const share = shown < 0 ? null : slider.value / Math.max(slider.max, 1);
      slider.max = panel.x.length - 1;
      slider.value = share === null ? panel.start : Math.round(share * slider.max);
      offer("band", panel.bands.map((one) => one.label));
      shown = p;
    }
    const at = Number(slider.value);
    all(".drawing", root).forEach((one) => { one.hidden = one.dataset.panel !== String(p) || one.dataset.band !== String(b); });
    move(root.querySelector(`.drawing[data-panel="${p}"][data-band="${b}"]`), at);
    says.textContent = panel.bands[b].says[at];
    root.querySelector(".slider .at").textContent = panel.x[at];
    slider.setAttribute("aria-valuetext", `Γ = ${panel.x[at]}`);
  };
  const drag = (event) => {
    const svg = event.target.closest("svg.chart");
    if (!svg || (event.type === "pointermove" && event.buttons !== 1)) return;
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
    const far = svg.dataset.xs.split(",").map((one) => Math.abs(Number(one) - x));
    slider.value = far.indexOf(Math.min(...far));
    update();
  };
  root.querySelector(".drawings").addEventListener("pointerdown", drag);
  root.querySelector(".drawings").addEventListener("pointermove", drag);
  all(".controls, .slider", root).forEach((one) => { one.hidden = false; });
  root.addEventListener("input", update);
  update();
}

function scrollRegions() {
  const regions = all(".scroll");
  const check = () => regions.forEach((one) => {
    if (one.scrollWidth > one.clientWidth || one.scrollHeight > one.clientHeight) one.tabIndex = 0;
    else one.removeAttribute("tabindex");
  });
  check();
  addEventListener("resize", check);
}

function contents(links) {
  const link = new Map(links.map((one) => [one.hash.slice(1), one]));
  const visible = new Set();
  const watch = new IntersectionObserver((entries) => {
    entries.forEach((one) => one.isIntersecting ? visible.add(one.target.id) : visible.delete(one.target.id));
    const current = [...link.keys()].find((id) => visible.has(id));
    link.forEach((one, id) => { if (id === current) one.setAttribute("aria-current", "true"); else one.removeAttribute("aria-current"); });
  }, { rootMargin: "-10% 0px -70% 0px" });
  link.forEach((_, id) => watch.observe(document.getElementById(id)));
}

all("button.theme").forEach(themeButton);
all("table[data-sortable]").forEach(sortable);
all(".envelope").forEach(envelope);
scrollRegions();
contents(all(".contents a"));
addEventListener("beforeprint", () => all("details").forEach((one) => { one.open = true; }));
