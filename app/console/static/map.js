// The map of native and translated vectors: WebGL2, or a 2D canvas where there is no WebGL2.
// It draws only when the view, the points or the colours have changed.

import { boundsOf, CanvasRenderer, Grid, readPoints } from "./map_points.js";

const POINT = [3, 5]; // diameters of a point in CSS pixels, of many items and of few
const LARGEST_POINT = 9;
const REACH = 14; // a pointer selects a point up to this many CSS pixels away
const MOST_ZOOM = 400;
const STEP = 0.12; // share of the map that an arrow key moves
const MOST_RATIO = 2; // device pixels per CSS pixel that are drawn
const MOST_PIXELS = 1.5e6; // of the 2D canvas, whose pixels the CPU writes and copies
const LABEL_DELAY = 60; // ms that a point is selected before its text is requested

// The frame with the map: it owns the view, and draws when something has changed.
class MapFrame {
  constructor(frame, points) {
    this.frame = frame;
    this.page = frame.closest("[data-map-page]");
    this.points = points;
    this.bounds = boundsOf(points.vertices);
    this.grid = new Grid(points.vertices, this.bounds);
    this.selected = -1;
    this.pointers = new Map();
    this.labels = new Map();
    this.hasTexts = true;
    this.style = { visible: [true, true], byError: false };
    this.page.querySelector('[data-map="worst"]').textContent = points.worst.toFixed(2);
    this.readColours();
    this.canvas = this.part("canvas");
    this.renderer = new CanvasRenderer(this.canvas, points);
    this.resize();
    this.reset();
    this.listen();
  }

  part(name) {
    return this.frame.querySelector(`[data-map="${name}"]`);
  }

  listen() {
    const { frame } = this;
    frame.addEventListener("pointerdown", (event) => this.press(event));
    frame.addEventListener("pointermove", (event) => this.move(event));
    for (const kind of ["pointerup", "pointercancel"]) {
      frame.addEventListener(kind, (event) => this.pointers.delete(event.pointerId));
    }
    frame.addEventListener("pointerleave", (event) => {
      if (event.pointerType !== "touch") this.select(-1); // after a tap the item stays
    });
    frame.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    frame.addEventListener("keydown", (event) => this.key(event));
    this.page.addEventListener("click", (event) => this.control(event));
    this.page.addEventListener("change", (event) => this.control(event));
    new ResizeObserver(() => this.resize()).observe(frame);
    const recolour = () => (this.readColours(), this.change());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
    new MutationObserver(recolour).observe(document.documentElement, { attributes: true });
  }

  // The legend has the colours of the theme.
  readColours() {
    this.style.colours = ["native", "translated", "small-error", "large-error"].map((name) => {
      const { color } = getComputedStyle(this.page.querySelector(`[data-map="${name}"]`));
      return color.match(/[\d.]+/g).slice(0, 3).map(Number);
    });
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.frame;
    const most = MOST_PIXELS / (width * height);
    const ratio = Math.min(devicePixelRatio || 1, MOST_RATIO, Math.sqrt(most));
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.view = { x: 0, y: 0, scale: 1, ...this.view, width, height, ratio };
    this.change();
  }

  reset() {
    const { left, right, bottom, top } = this.bounds;
    const scale = Math.min(this.view.width / (right - left), this.view.height / (top - bottom));
    this.fitted = 0.94 * scale;
    this.look((left + right) / 2, (bottom + top) / 2, this.fitted);
  }

  look(x, y, scale) {
    const { left, right, bottom, top } = this.bounds;
    this.view.x = Math.min(right, Math.max(left, x));
    this.view.y = Math.min(top, Math.max(bottom, y));
    this.view.scale = this.limit(scale);
    const zoom = Math.max(1, this.view.scale / this.fitted);
    const size = Math.min(POINT[1], Math.max(POINT[0], 300 / Math.sqrt(this.points.count)));
    this.view.size = Math.min(LARGEST_POINT, size * zoom ** 0.3);
    this.change();
  }

  limit(scale) {
    return Math.min(MOST_ZOOM * this.fitted, Math.max(this.fitted / 2, scale));
  }

  // Zooms so that the place at (left, top) of the frame stays there.
  zoom(factor, left = this.view.width / 2, top = this.view.height / 2) {
    const before = this.world(left, top);
    const scale = this.limit(this.view.scale * factor);
    const [right, up] = [left - this.view.width / 2, this.view.height / 2 - top];
    this.look(before.x - right / scale, before.y - up / scale, scale);
  }

  world(left, top) {
    const { x, y, scale, width, height } = this.view;
    return { x: x + (left - width / 2) / scale, y: y + (height / 2 - top) / scale };
  }

  change() {
    this.waiting ??= requestAnimationFrame(() => {
      this.waiting = undefined;
      this.renderer.draw(this.view, this.style);
      this.mark();
    });
  }

  inFrame(event) {
    const box = this.frame.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  press(event) {
    this.frame.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, this.inFrame(event));
    this.pick(...this.inFrame(event));
  }

  move(event) {
    const now = this.inFrame(event);
    const before = this.pointers.get(event.pointerId);
    if (!before) return this.pick(...now);
    const spread = this.spread();
    this.pointers.set(event.pointerId, now);
    const share = 1 / this.pointers.size;
    const [right, down] = [(now[0] - before[0]) * share, (now[1] - before[1]) * share];
    const { x, y, scale } = this.view;
    this.look(x - right / scale, y + down / scale, scale);
    if (spread) this.zoom(this.spread() / spread, ...this.middle());
  }

  middle() {
    const places = [...this.pointers.values()];
    return [0, 1].map((axis) => places.reduce((sum, at) => sum + at[axis], 0) / places.length);
  }

  // The distance of two fingers; 0 with one.
  spread() {
    const [first, second] = this.pointers.values();
    return second ? Math.hypot(first[0] - second[0], first[1] - second[1]) : 0;
  }

  wheel(event) {
    event.preventDefault();
    const lines = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1;
    const speed = (event.ctrlKey ? 0.01 : 0.0016) * lines; // with ctrl it is a trackpad's pinch
    this.zoom(Math.exp(-speed * event.deltaY), ...this.inFrame(event));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target !== this.frame) return;
    const { x, y, scale, width, height } = this.view;
    const pans = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    if (event.key in pans) {
      const [right, up] = pans[event.key];
      this.look(x + (right * STEP * width) / scale, y + (up * STEP * height) / scale, scale);
    } else if ("+=".includes(event.key)) this.zoom(1.4);
    else if ("-_".includes(event.key)) this.zoom(1 / 1.4);
    else if (["0", "Home"].includes(event.key)) this.reset();
    else return;
    event.preventDefault();
    this.pick(width / 2, height / 2, Math.min(width, height) / 2);
  }

  control(event) {
    const { name, value, checked } = event.target;
    if (event.type === "click") {
      const action = event.target.closest("button")?.dataset.map;
      if (action === "nearer") this.zoom(1.5);
      else if (action === "farther") this.zoom(1 / 1.5);
      else if (action === "reset") this.reset();
      return;
    }
    if (name === "colour") this.style.byError = value === "error";
    if (name === "native") this.style.visible[0] = checked;
    if (name === "translated") this.style.visible[1] = checked;
    this.page.dataset.colour = this.style.byError ? "error" : "kind";
    this.change();
  }

  pick(left, top, reach = REACH) {
    const { x, y } = this.world(left, top);
    this.select(this.grid.nearest(x, y, reach / this.view.scale, this.style.visible));
  }

  select(point) {
    const item = point < 0 ? -1 : point >> 1;
    if (item === this.selected) return;
    this.selected = item;
    this.mark();
    this.describe();
  }

  // Joins the two points of the selected item.
  mark() {
    const overlay = this.part("overlay");
    overlay.toggleAttribute("hidden", this.selected < 0);
    if (this.selected < 0) return;
    const { x, y, scale, width, height, size } = this.view;
    const [line, native, translated] = overlay.children;
    for (const [index, circle] of [native, translated].entries()) {
      const at = 8 * this.selected + 4 * index;
      const left = width / 2 + (this.points.vertices[at] - x) * scale;
      const top = height / 2 - (this.points.vertices[at + 1] - y) * scale;
      circle.setAttribute("cx", left);
      circle.setAttribute("cy", top);
      circle.setAttribute("r", size / 2 + 3);
      line.setAttribute(`x${index + 1}`, left);
      line.setAttribute(`y${index + 1}`, top);
    }
  }

  describe() {
    const { selected, points } = this;
    const panel = this.part("item");
    panel.hidden = selected < 0;
    clearTimeout(this.timer);
    if (selected < 0) return;
    const row = points.rows[selected];
    const cosine = (1 - points.errors[selected]).toFixed(3);
    this.part("item-cosine").textContent = `cosine ${cosine}`;
    this.part("item-text").textContent = this.labels.get(row) ?? `Row ${row}`;
    if (this.hasTexts && !this.labels.has(row)) {
      this.timer = setTimeout(() => this.readText(row), LABEL_DELAY);
    }
  }

  async readText(row) {
    const answer = await fetch(`${this.frame.dataset.items}&row=${row}`).catch(() => null);
    if (!answer?.ok) return;
    const { text } = await answer.json();
    if (text === null) this.hasTexts = false; // nor have the other items
    else this.labels.set(row, text);
    if (this.points.rows[this.selected] === row) this.describe();
  }
}

async function show(frame) {
  const status = frame.querySelector('[data-map="status"]');
  const answer = await fetch(frame.dataset.points).catch(() => null);
  if (!answer?.ok) {
    const why = answer ? `The server answered ${answer.status}.` : "The server did not answer.";
    status.textContent = `The points could not be loaded. ${why} Reload the page.`;
    return;
  }
  const points = readPoints(await answer.arrayBuffer());
  status.hidden = true;
  new MapFrame(frame, points);
  frame.dataset.count = points.count;
}

for (const frame of document.querySelectorAll("[data-points]")) show(frame);
