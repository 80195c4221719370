// Lines over rounds (uPlot) and one round's phases (a canvas).

const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// `label` null: drawn, but not in the key.
export const series = (label, colour, values, { dashed = false, faint = false, points = null } = {}) => ({ label, colour, values, dashed, faint, points });

const TABLE_ROUNDS = 200;

// What all charts over rounds show: from and to a round, null for all. It lasts, and stands in the page's address.
export const zoom = {
  range: null, plots: new Set(), changed: () => {},
  set(range) {
    if (JSON.stringify(range) === JSON.stringify(this.range)) return;
    this.range = range;
    for (const plot of this.plots) plot.zoomed();
    this.changed(range);
  },
};

// How a loss is drawn. It stands in the page's address, too.
export const view = {
  names: ["log", "smooth"], on: new Set(), plots: new Set(), changed: () => {},
  set(names) {
    const on = new Set(names.filter((name) => this.names.includes(name)));
    if (on.size === this.on.size && [...on].every((name) => this.on.has(name))) return;
    this.on = on;
    for (const plot of this.plots) plot.again();
    this.changed([...on]);
  },
};

// The mean of the values that a round and those before it have, `count` rounds in all; null where a round has none.
export function smoothed(values, count) {
  return values.map((value, i) => {
    if (typeof value !== "number") return value;
    const near = values.slice(Math.max(0, i + 1 - count), i + 1).filter((one) => typeof one === "number");
    return near.reduce((sum, one) => sum + one, 0) / near.length;
  });
}
const SMOOTHED_SHARE = 20; // of the rounds, one part in so many; five rounds at least

export class Plot {
  constructor(element, key, { zero = false, whole = false, powers = false, alone = false, views = false, form = shown } = {}) {
    Object.assign(this, { element, key, zero, whole, powers, form, plot: null, shape: null });
    if (!alone) zoom.plots.add(this); // its rounds are not the others'
    if (views) this.offerViews();
    this.numbers = document.createElement("details");
    const summary = document.createElement("summary");
    summary.textContent = "Numbers";
    this.numbers.append(summary);
    this.numbers.addEventListener("toggle", () => this.tabulate());
    element.after(this.numbers);
  }

  offerViews() {
    view.plots.add(this);
    this.buttons = view.names.map((name) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = name;
      button.addEventListener("click", () => view.set(view.on.has(name) ? [...view.on].filter((one) => one !== name) : [...view.on, name]));
      return button;
    });
    const bar = document.createElement("div");
    bar.className = "views";
    bar.append(...this.buttons);
    this.key.before(bar);
  }

  // The lines as they are drawn. The table has the values themselves.
  drawn(at, lines) {
    const count = Math.max(5, Math.round(at.length / SMOOTHED_SHARE));
    const smooth = this.buttons !== undefined && view.on.has("smooth");
    this.buttons?.forEach((button) => {
      button.setAttribute("aria-pressed", view.on.has(button.textContent));
      button.title = button.textContent === "smooth" ? `the mean of a round and the ${count - 1} before it` : "a logarithmic scale";
    });
    return smooth ? lines.map((line) => ({ ...line, values: smoothed(line.values, count) })) : lines;
  }

  show(at, told) {
    this.last = [at, told];
    const lines = this.lines = this.drawn(at, told);
    const log = this.buttons !== undefined && view.on.has("log");
    this.entries = lines.map((line) => {
      if (line.label === null) return null;
      const entry = document.createElement("span");
      const mark = document.createElement("i");
      const value = document.createElement("b");
      mark.style.background = `var(${line.colour})`;
      if (line.dashed) mark.style.height = "3px";
      entry.append(mark, line.label, value);
      return entry;
    });
    this.where = document.createElement("b");
    this.key.replaceChildren(...this.entries.filter((entry) => entry !== null), this.where);
    this.tabulate();
    const points = at.length < 40;
    const shape = JSON.stringify([lines.map(({ colour, dashed }) => [colour, dashed]), points, log]);
    const data = [at, ...lines.map((line) => line.values)];
    if (this.plot && shape === this.shape) {
      this.plot.setData(data);
      return this.zoomed();
    }
    this.plot?.destroy();
    this.shape = shape;
    const axis = { stroke: colourOf("--soft"), grid: { stroke: colourOf("--line"), width: 1 }, ticks: { stroke: colourOf("--line"), width: 1 }, font: "12px system-ui, sans-serif" };
    const whole = (self, ticks) => ticks.map(integer);
    this.plot = new uPlot({
      ...this.size(),
      legend: { show: false },
      cursor: { drag: { x: true, y: false, setScale: false }, sync: zoom.plots.has(this) ? { key: "rounds" } : undefined },
      hooks: { setCursor: [(self) => this.point(self.cursor.idx)], setSelect: [(self) => this.selected(self)] },
      scales: {
        x: { time: false, range: (self, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) },
        y: log ? { distr: 3, range: (self, low, high) => [low * 0.95, high * 1.05] } : { range: (self, low, high) => range(low, high, this.zero) },
      },
      axes: [{ ...axis, values: whole, space: 44, size: 28 }, { ...axis, size: this.powers || this.form !== shown ? 58 : 52, ...this.ticks(log) }],
      series: [{}, ...lines.map((line) => ({
        stroke: colourOf(line.colour), width: 2, dash: line.dashed ? [5, 4] : undefined, alpha: line.faint ? 0.75 : 1,
        points: { show: line.points ?? points, size: line.points ? 9 : 5, fill: line.faint ? colourOf("--card") : undefined },
      }))],
    }, data, this.element);
    this.plot.over.addEventListener("dblclick", () => (zoom.plots.has(this) ? zoom.set(null) : this.plot.setData(data)));
    this.zoomed();
  }

  // The values under the pointer, in the key.
  point(index) {
    const [at] = this.last, lines = this.lines;
    const here = index !== null && index !== undefined && at[index] !== undefined;
    this.where.textContent = here ? `round ${at[index]}` : "";
    this.entries.forEach((entry, i) => {
      if (entry === null) return;
      const own = here ? lines[i].values[index] ?? (lines[i + 1]?.label === null ? lines[i + 1].values[index] : null) : null; // a line may go on as another
      entry.lastChild.textContent = typeof own === "number" ? this.form(own) : "";
    });
  }

  selected(plot) {
    if (plot.select.width < 4) return;
    const [from, to] = [plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x")];
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    if (zoom.plots.has(this)) zoom.set([Math.floor(from), Math.ceil(to)]);
    else plot.setScale("x", { min: from, max: to });
  }

  zoomed() {
    if (!this.plot || !zoom.plots.has(this) || !this.last[0].length) return;
    const [first, last] = [this.last[0][0], this.last[0].at(-1)];
    const [min, max] = zoom.range ?? [first, last];
    this.plot.setScale("x", { min, max });
  }

  // For whoever sees no chart: the newest rounds as a table, made when it is opened.
  tabulate() {
    this.numbers.querySelector("table")?.remove();
    if (!this.numbers.open || !this.last) return;
    const [at, lines] = this.last;
    const told = lines.filter((line) => line.label !== null);
    const table = document.createElement("table");
    const head = table.createTHead().insertRow();
    for (const text of ["round", ...told.map((line) => line.label)]) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = text;
      head.append(cell);
    }
    for (let i = at.length - 1; i >= Math.max(0, at.length - TABLE_ROUNDS); i -= 1) {
      const row = table.insertRow();
      row.insertCell().textContent = at[i];
      for (const line of told) row.insertCell().textContent = typeof line.values[i] === "number" ? this.form(line.values[i]) : "";
    }
    this.numbers.append(table);
  }

  ticks(log) {
    const text = log ? roundOnes : this.whole ? integer : this.powers ? (tick) => (tick === 0 ? "0" : tick.toExponential()) : this.form !== shown ? this.form : null;
    return text && { values: (self, ticks) => ticks.map(text) };
  }

  size() { return { width: Math.max(200, this.element.clientWidth), height: this.element.clientHeight }; }
  fit() { this.plot?.setSize(this.size()); }
  again() { this.shape = null; if (this.last) this.show(...this.last); }
}

// On a logarithmic scale: uPlot leaves some ticks without a value (null), and begins at the scale's own end.
const roundOnes = (tick) => {
  const near = tick === null ? NaN : Number(tick.toPrecision(1));
  return Math.abs(near / tick - 1) < 1e-9 ? String(near) : "";
};
const integer = (tick) => (Number.isInteger(tick) ? String(tick) : "");
const shown = (value) => (Number.isInteger(value) ? String(value) : value.toPrecision(4));

function range(low, high, zero) {
  if (low === null || high === null || !Number.isFinite(low)) return [0, 1];
  const room = Math.max((high - low) * 0.08, Math.abs(high) * 0.02, 1e-6);
  return [zero ? 0 : low - room, high + room];
}

// In the order of a round. None has the deadline's red; neighbours in hue differ in lightness.
export const PHASES = ["reveal", "download", "prefetch", "gather", "check", "evaluate", "select", "post", "mirror", "apply", "swap", "save", "compute", "compress", "seal", "commit", "upload"];
const dark = () => matchMedia("(prefers-color-scheme: dark)").matches;
export function colourOfPhase(phase) {
  const place = PHASES.indexOf(phase);
  if (place < 0) return colourOf("--soft");
  const light = (place % 2 ? 34 : 58) + (dark() ? 14 : 0);
  return `hsl(${28 + Math.round((place * 300) / PHASES.length)} 62% ${light}%)`;
}
const [NAME, LINE, BAR, FOOT] = [110, 24, 14, 22];

export function drawPhases(canvas, across, told, key, keyEntry) {
  const nodes = Object.keys(told.phases).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const ends = nodes.flatMap((node) => told.phases[node].map((phase) => phase.began + phase.seconds));
  const longest = Math.max(1e-3, told.deadline ?? 0, ...ends);
  const down = nodes.length * LINE + FOOT + 14;
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(across * scale);
  canvas.height = Math.round(down * scale);
  canvas.style.width = `${across}px`;
  canvas.style.height = `${down}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const [soft, ink, line] = ["--soft", "--ink", "--line"].map(colourOf);
  const x = (seconds) => NAME + (seconds / longest) * (across - NAME - 12);
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  const step = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 3600].find((one) => (longest / one) * 52 < across - NAME) ?? 7200;
  pen.textAlign = "center";
  for (let at = 0; at <= longest; at += step) {
    pen.fillStyle = line;
    pen.fillRect(x(at), 12, 1, nodes.length * LINE);
    pen.fillStyle = soft;
    pen.fillText(step < 1 ? at.toFixed(1) : String(Math.round(at)), x(at), down - FOOT / 2);
  }
  const used = new Set();
  nodes.forEach((node, row) => {
    const y = 12 + row * LINE + (LINE - BAR) / 2;
    pen.textAlign = "left";
    pen.fillStyle = ink;
    pen.save();
    pen.beginPath();
    pen.rect(0, y - 6, NAME - 6, LINE);
    pen.clip();
    pen.fillText(node, 0, y + BAR / 2);
    pen.restore();
    for (const { phase, began, seconds } of told.phases[node]) {
      const wait = phase === "wait";
      if (!wait) used.add(phase);
      pen.fillStyle = wait ? line : colourOfPhase(phase);
      if (wait) pen.fillRect(x(began), y + BAR / 2 - 1, x(began + seconds) - x(began), 2);
      else pen.fillRect(x(began), y, Math.max(2, x(began + seconds) - x(began)), BAR);
    }
  });
  if (told.deadline !== null) {
    pen.fillStyle = colourOf("--rejected");
    pen.fillRect(x(told.deadline) - 1, 2, 2, nodes.length * LINE + 10);
  }
  key.replaceChildren(...[...used].sort().map((phase) => keyEntry(phase, colourOfPhase(phase))));
}
