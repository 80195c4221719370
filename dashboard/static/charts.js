// Lines over rounds (uPlot) and one round's phases (a canvas).

const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// `label` null: drawn, but not in the key.
export const series = (label, colour, values, { dashed = false, faint = false, points = null } = {}) => ({ label, colour, values, dashed, faint, points });

export class Plot {
  constructor(element, key, { zero = false, whole = false, powers = false } = {}) {
    Object.assign(this, { element, key, zero, whole, powers, plot: null, shape: null });
  }

  show(at, lines) {
    this.last = [at, lines];
    const entries = lines.filter((line) => line.label !== null).map((line) => {
      const entry = document.createElement("span");
      const mark = document.createElement("i");
      mark.style.background = `var(${line.colour})`;
      if (line.dashed) mark.style.height = "3px";
      entry.append(mark, line.label);
      return entry;
    });
    this.key.replaceChildren(...entries);
    const points = at.length < 40;
    const shape = JSON.stringify([lines.map(({ colour, dashed }) => [colour, dashed]), points]);
    const data = [at, ...lines.map((line) => line.values)];
    if (this.plot && shape === this.shape) return this.plot.setData(data);
    this.plot?.destroy();
    this.shape = shape;
    const axis = { stroke: colourOf("--soft"), grid: { stroke: colourOf("--line"), width: 1 }, ticks: { stroke: colourOf("--line"), width: 1 }, font: "12px system-ui, sans-serif" };
    const powers = (self, ticks) => ticks.map((tick) => (tick === 0 ? "0" : tick.toExponential()));
    const whole = (self, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? String(tick) : ""));
    this.plot = new uPlot({
      ...this.size(),
      legend: { show: false },
      cursor: { drag: { x: true, y: false } },
      scales: {
        x: { time: false, range: (self, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) },
        y: { range: (self, low, high) => range(low, high, this.zero) },
      },
      axes: [{ ...axis, values: whole, space: 44, size: 28 }, { ...axis, size: this.powers ? 58 : 46, ...(this.whole ? { values: whole } : this.powers ? { values: powers } : {}) }],
      series: [{}, ...lines.map((line) => ({
        stroke: colourOf(line.colour), width: 2, dash: line.dashed ? [5, 4] : undefined, alpha: line.faint ? 0.75 : 1,
        points: { show: line.points ?? points, size: line.points ? 9 : 5, fill: line.faint ? colourOf("--card") : undefined },
      }))],
    }, data, this.element);
  }

  size() { return { width: Math.max(200, this.element.clientWidth), height: this.element.clientHeight }; }
  fit() { this.plot?.setSize(this.size()); }
  again() { this.shape = null; if (this.last) this.show(...this.last); }
}

function range(low, high, zero) {
  if (low === null || high === null || !Number.isFinite(low)) return [0, 1];
  const room = Math.max((high - low) * 0.08, Math.abs(high) * 0.02, 1e-6);
  return [zero ? 0 : low - room, high + room];
}

const COLOURS = { compute: "--s1", upload: "--s2", download: "--s4", apply: "--s3", check: "--s5", evaluate: "--s8", gather: "--s7", mirror: "--s6",
  compress: "--s7", seal: "--s8", commit: "--rejected", reveal: "--late", save: "--s6", swap: "--s6", prefetch: "--s4", select: "--low", post: "--rejected" };
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
      const colour = Object.hasOwn(COLOURS, phase) ? COLOURS[phase] : "--soft";
      if (!wait) used.add(phase);
      pen.fillStyle = wait ? line : colourOf(colour);
      if (wait) pen.fillRect(x(began), y + BAR / 2 - 1, x(began + seconds) - x(began), 2);
      else pen.fillRect(x(began), y, Math.max(2, x(began + seconds) - x(began)), BAR);
    }
  });
  if (told.deadline !== null) {
    pen.fillStyle = colourOf("--rejected");
    pen.fillRect(x(told.deadline) - 1, 2, 2, nodes.length * LINE + 10);
  }
  key.replaceChildren(...[...used].sort().map((phase) => keyEntry(phase, Object.hasOwn(COLOURS, phase) ? COLOURS[phase] : "--soft")));
}
