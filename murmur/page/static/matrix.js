// Peers x rounds on a canvas: only what is in sight is drawn, however long the run.

export const STATES = {
  contributing: { text: "contributing", mark: "" },
  passed: { text: "active, not selected", mark: "" },
  low: { text: "active, score too low", mark: "" },
  late: { text: "late", mark: "L" },
  rejected: { text: "rejected", mark: "×" },
  absent: { text: "absent", mark: "·" },
  unknown: { text: "not known in this round", mark: "" },
};
const CODES = { contributing: "contributing", NOT_SELECTED: "passed", NOT_ELIGIBLE: "passed", NOT_AGREED: "passed", LOW_SCORE: "low", LATE: "late", MISSING: "absent" };
// Two letters for a reason, where a cell has room for them.
const SHORT = { WRONG_SIZE: "WS", UNSIGNED: "US", WRONG_RUN: "WR", UNREVEALED: "UR", BAD_KEY: "BK", OUT_OF_SYNC: "OS", MALFORMED: "MF",
  NORM: "NO", COPY: "CO", LATE: "LT", LOW_SCORE: "LS", NOT_SELECTED: "NS", NOT_ELIGIBLE: "NE", NOT_AGREED: "NA" };

export const stateOf = (code) => (code === "" ? "unknown" : Object.hasOwn(CODES, code) ? CODES[code] : "rejected");

const [TOP, HEIGHT, MIN_WIDTH, MAX_WIDTH, LETTERS_FROM] = [20, 20, 9, 34, 20];

export class Matrix {
  // `world`: count() -> [peers, rounds], name(row), round(column) -> round, state(row, column) -> code, moved(row, column), opened(row, column)
  constructor(element, world) {
    this.element = element;
    this.world = world;
    this.canvas = element.querySelector("canvas");
    this.extent = element.querySelector("#extent");
    this.cursor = null;
    this.atEnd = true; // keep the newest round in sight until somebody scrolls away
    element.addEventListener("scroll", () => {
      this.atEnd = element.scrollLeft + element.clientWidth >= element.scrollWidth - 2;
      this.soon();
    }, { passive: true });
    element.addEventListener("pointermove", (event) => this.point(event, false));
    element.addEventListener("click", (event) => this.point(event, true));
    element.addEventListener("keydown", (event) => this.key(event));
    element.addEventListener("focus", () => { if (!this.cursor) this.move(0, Infinity); });
  }

  draw() {
    const [rows, columns] = this.world.count();
    const { element } = this;
    const width = element.clientWidth;
    this.gutter = Math.min(150, Math.max(84, Math.round(width * 0.14)));
    this.width = Math.max(MIN_WIDTH, Math.min(MAX_WIDTH, Math.floor((width - this.gutter - 2) / Math.max(columns, 12))));
    const [full, tall] = [this.gutter + columns * this.width + 2, TOP + rows * HEIGHT + 2];
    this.extent.style.width = `${full}px`;
    this.extent.style.height = `${tall}px`;
    element.style.height = `${tall + (full > width ? 16 : 0)}px`;
    if (this.atEnd) element.scrollLeft = full;
    this.paint();
  }

  soon() {
    this.waiting ??= requestAnimationFrame(() => { this.waiting = undefined; this.paint(); });
  }

  paint() {
    const { element, canvas, world, gutter, width } = this;
    const [rows, columns] = world.count();
    const [across, down] = [element.clientWidth, element.clientHeight];
    const scale = devicePixelRatio || 1;
    if (canvas.width !== Math.round(across * scale) || canvas.height !== Math.round(down * scale)) {
      canvas.width = Math.round(across * scale);
      canvas.height = Math.round(down * scale);
      canvas.style.width = `${across}px`;
      canvas.style.height = `${down}px`;
    }
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const [fill, ink] = [{}, {}];
    for (const state of Object.keys(STATES)) [fill[state], ink[state]] = [colour(`--${state}`), colour(`--on-${state}`)];
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.fillStyle = colour("--card");
    pen.fillRect(0, 0, across, down);
    const [left, top] = [element.scrollLeft, element.scrollTop];
    const [firstColumn, firstRow] = [Math.max(0, Math.floor(left / width)), Math.max(0, Math.floor(top / HEIGHT))];
    const lastColumn = Math.min(columns, Math.ceil((left + across - gutter) / width));
    const lastRow = Math.min(rows, Math.ceil((top + down - TOP) / HEIGHT));
    pen.textBaseline = "middle";
    pen.textAlign = "center";
    pen.font = "11px system-ui, sans-serif";
    for (let row = firstRow; row < lastRow; row++) {
      const y = TOP + row * HEIGHT - top;
      for (let column = firstColumn; column < lastColumn; column++) {
        const x = gutter + column * width - left;
        const code = world.state(row, column);
        const state = stateOf(code);
        if (state === "unknown") continue;
        pen.fillStyle = fill[state];
        pen.fillRect(x + 1, y + 1, width - 2, HEIGHT - 2);
        const mark = width >= LETTERS_FROM && Object.hasOwn(SHORT, code) ? SHORT[code] : STATES[state].mark;
        if (mark) {
          pen.fillStyle = ink[state];
          pen.fillText(mark, x + width / 2, y + HEIGHT / 2 + 0.5);
        }
      }
    }
    if (this.cursor) {
      const [row, column] = this.cursor;
      pen.strokeStyle = colour("--ink");
      pen.lineWidth = 2;
      pen.strokeRect(gutter + column * width - left + 1, TOP + row * HEIGHT - top + 1, width - 2, HEIGHT - 2);
    }
    // names and numbers stay in place, over the cells that scroll below them
    pen.fillStyle = colour("--card");
    pen.fillRect(0, 0, gutter - 1, down);
    pen.fillRect(0, 0, across, TOP - 1);
    pen.font = "12px system-ui, sans-serif";
    pen.fillStyle = colour("--ink");
    pen.textAlign = "left";
    pen.save();
    pen.beginPath();
    pen.rect(0, TOP, gutter - 6, down);
    pen.clip();
    for (let row = firstRow; row < lastRow; row++) pen.fillText(world.name(row), 0, TOP + row * HEIGHT - top + HEIGHT / 2);
    pen.restore();
    pen.fillStyle = colour("--soft");
    pen.textAlign = "center";
    const step = [1, 2, 5, 10, 20, 50, 100, 200, 500].find((one) => one * width >= 34) ?? 1000;
    for (let column = firstColumn; column < lastColumn; column++) {
      const { round: number, void: isVoid } = world.round(column);
      const x = gutter + column * width - left + width / 2;
      if (x < gutter) continue;
      pen.fillStyle = colour(isVoid ? "--rejected" : "--soft");
      if (isVoid) pen.fillRect(x - width / 2 + 1, TOP - 3, width - 2, 2);
      if (number % step === 0) pen.fillText(String(number), x, TOP / 2);
    }
  }

  point(event, open) {
    const box = this.element.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    if (x < this.gutter || y < TOP) return;
    const [row, column] = [Math.floor((y - TOP + this.element.scrollTop) / HEIGHT), Math.floor((x - this.gutter + this.element.scrollLeft) / this.width)];
    const [rows, columns] = this.world.count();
    if (row >= rows || column >= columns) return;
    if (open || this.cursor?.[0] !== row || this.cursor?.[1] !== column) this.place(row, column);
    if (open) this.world.opened(row, column);
  }

  key(event) {
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], PageUp: [0, -20], PageDown: [0, 20], Home: [0, -Infinity], End: [0, Infinity] };
    if (event.key === "Enter" || event.key === " ") {
      if (this.cursor) this.world.opened(...this.cursor);
    } else if (Object.hasOwn(steps, event.key)) {
      const [row, column] = this.cursor ?? [0, 0];
      this.move(row + steps[event.key][0], column + steps[event.key][1]);
    } else return;
    event.preventDefault();
  }

  move(row, column) {
    const [rows, columns] = this.world.count();
    if (!rows || !columns) return;
    const within = (value, count) => Math.max(0, Math.min(count - 1, value));
    this.place(within(row, rows), within(column, columns));
    const { element, gutter, width } = this;
    const [x, y] = [this.cursor[1] * width, this.cursor[0] * HEIGHT];
    if (x < element.scrollLeft) element.scrollLeft = x;
    if (x + width > element.scrollLeft + element.clientWidth - gutter) element.scrollLeft = x + width - element.clientWidth + gutter;
    if (y < element.scrollTop) element.scrollTop = y;
    if (y + HEIGHT > element.scrollTop + element.clientHeight - TOP) element.scrollTop = y + HEIGHT - element.clientHeight + TOP;
  }

  place(row, column) {
    this.cursor = [row, column];
    this.world.moved(row, column);
    this.soon();
  }
}
