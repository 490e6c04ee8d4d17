// What the map draws: the points of an answer, the way to find one, and how they are drawn.

const CELLS = 160; // cells of the grid on each side

// The points of an answer. Point 2i is the native vector of item i, point 2i + 1 its translation.
export function readPoints(buffer) {
  const numbers = new Float32Array(buffer);
  const count = numbers[0];
  const native = numbers.subarray(1, 1 + 2 * count);
  const translated = numbers.subarray(1 + 2 * count, 1 + 4 * count);
  const errors = numbers.subarray(1 + 4 * count, 1 + 5 * count);
  const rows = numbers.subarray(1 + 5 * count, 1 + 6 * count);
  const vertices = new Float32Array(8 * count);
  for (let i = 0; i < count; i++) {
    vertices.set([native[2 * i], native[2 * i + 1], 0, errors[i]], 8 * i);
    vertices.set([translated[2 * i], translated[2 * i + 1], 1, errors[i]], 8 * i + 4);
  }
  const sorted = errors.slice().sort();
  const worst = Math.max(sorted[Math.floor(0.99 * (count - 1))] || 0, 1e-6);
  return { count, vertices, errors, rows, worst };
}

// Finds the nearest point without reading all points.
export class Grid {
  constructor(vertices, bounds) {
    this.vertices = vertices;
    this.bounds = bounds;
    const count = vertices.length / 4;
    this.starts = new Uint32Array(CELLS * CELLS + 1);
    const cellOf = new Uint32Array(count);
    for (let i = 0; i < count; i++) {
      cellOf[i] = this.column(vertices[4 * i]) + CELLS * this.line(vertices[4 * i + 1]);
      this.starts[cellOf[i] + 1]++;
    }
    for (let cell = 0; cell < CELLS * CELLS; cell++) this.starts[cell + 1] += this.starts[cell];
    const next = this.starts.slice();
    this.points = new Uint32Array(count);
    for (let i = 0; i < count; i++) this.points[next[cellOf[i]]++] = i;
  }

  column(x) {
    return this.cell((x - this.bounds.left) / (this.bounds.right - this.bounds.left));
  }

  line(y) {
    return this.cell((y - this.bounds.bottom) / (this.bounds.top - this.bounds.bottom));
  }

  cell(share) {
    return Math.min(CELLS - 1, Math.max(0, Math.floor(share * CELLS)));
  }

  // The nearest visible point within `reach`, or -1.
  nearest(x, y, reach, visible) {
    let best = -1;
    let least = reach * reach;
    for (let line = this.line(y - reach); line <= this.line(y + reach); line++) {
      const from = this.starts[line * CELLS + this.column(x - reach)];
      const to = this.starts[line * CELLS + this.column(x + reach) + 1];
      for (let place = from; place < to; place++) {
        const i = this.points[place];
        if (!visible[i % 2]) continue;
        const dx = this.vertices[4 * i] - x;
        const dy = this.vertices[4 * i + 1] - y;
        const square = dx * dx + dy * dy;
        if (square < least) [best, least] = [i, square];
      }
    }
    return best;
  }
}

// Writes pixels itself, because 40,000 calls of a 2D context take longer than a frame.
export class CanvasRenderer {
  constructor(canvas, points) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { willReadFrequently: true }); // in the CPU's memory
    this.points = points;
  }

  draw(view, style) {
    const { width, height } = this.canvas;
    if (this.image?.width !== width || this.image.height !== height) {
      this.image = this.context.createImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    this.pixels.fill(0);
    const { vertices, worst } = this.points;
    const shades = this.shades(style);
    const [half, spans] = this.disc(Math.max(1, Math.round(view.size * view.ratio)));
    const scale = view.scale * view.ratio;
    const [left, top] = [width / 2 - view.x * scale, height / 2 + view.y * scale];
    for (let at = 0; at < vertices.length; at += 4) {
      const kind = vertices[at + 2];
      if (!style.visible[kind]) continue;
      const x = Math.round(left + vertices[at] * scale) - half;
      const y = Math.round(top - vertices[at + 1] * scale) - half;
      if (x < 0 || y < 0 || x + spans.length >= width || y + spans.length >= height) continue;
      const error = Math.min(255, Math.round((255 * vertices[at + 3]) / worst));
      const colour = style.byError ? shades[2 + error] : shades[kind];
      for (let line = 0; line < spans.length; line++) {
        const start = (y + line) * width + x + spans[line];
        const end = start + spans.length - 2 * spans[line];
        for (let pixel = start; pixel < end; pixel++) this.pixels[pixel] = colour;
      }
    }
    this.context.putImageData(this.image, 0, 0);
  }

  // The colours as pixels: of the kinds, and of 256 errors.
  shades(style) {
    const pack = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
    const [native, translated, small, large] = style.colours;
    const shades = [pack(native), pack(translated)];
    for (let i = 0; i < 256; i++) {
      const share = i / 255;
      shades.push(pack(small.map((value, c) => Math.round(value + (large[c] - value) * share))));
    }
    return shades;
  }

  // A disc of that diameter: half of it, and for each line the pixels that stay empty on each side.
  disc(diameter) {
    const spans = [];
    for (let line = 0; line < diameter; line++) {
      const away = line + 0.5 - diameter / 2;
      const reach = Math.sqrt(Math.max(0, (diameter / 2 - 0.25) ** 2 - away ** 2));
      spans.push(Math.min(Math.floor((diameter - 1) / 2), Math.round(diameter / 2 - reach - 0.1)));
    }
    return [Math.floor(diameter / 2), spans];
  }
}

// The smallest rectangle with all points.
export function boundsOf(vertices) {
  const bounds = { left: Infinity, right: -Infinity, bottom: Infinity, top: -Infinity };
  for (let at = 0; at < vertices.length; at += 4) {
    bounds.left = Math.min(bounds.left, vertices[at]);
    bounds.right = Math.max(bounds.right, vertices[at] + 1e-6);
    bounds.bottom = Math.min(bounds.bottom, vertices[at + 1]);
    bounds.top = Math.max(bounds.top, vertices[at + 1] + 1e-6);
  }
  return bounds;
}
