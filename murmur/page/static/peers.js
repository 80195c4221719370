// All peers as a table: what is typed filters it and the matrix, a heading sorts both.
import { STATES, stateOf } from "./matrix.js";
import { $, SETTLED, byName, called, codeOf, element, payOf, percent, store } from "./store.js";

const OF_NETWORK = [
  { title: "Peer", value: (peer) => called(peer) },
  { title: "Now", value: (peer) => outcome(peer) },
  { title: "Contributed", value: (peer) => total(peer).contributed, text: (n, peer) => `${n} of ${total(peer).told}`, down: true },
  { title: "Pay now", value: (peer) => (paid ? payOf(paid, peer) : null), text: percent, down: true },
  { title: "Pay in all", value: (peer) => total(peer).pay, text: (sum) => sum.toFixed(2), down: true },
  { title: "Evaluations", value: evaluations, text: (n) => (n >= SETTLED ? `${SETTLED} or more` : `${n}: learning`), down: true },
];
let columns = OF_NETWORK;
let kind = "peer";
const sort = { column: 0, down: false };
const rows = new Map(); // peer -> its row
let [told, paid] = [null, null]; // the last rounds that tell of peers, and of settled pay
let reached = null; // the peer whose link Tab comes to: of 256 it is one
let changed = () => {};

const total = (peer) => store.totals[peer] ?? { told: 0, contributed: 0, pay: 0 };

function outcome(peer) {
  const code = told ? codeOf(told, peer) : "";
  const state = stateOf(code);
  const shown = state === "rejected" || state === "low" || state === "passed" ? ` (${code})` : "";
  return code ? STATES[state].text + shown : null;
}

function evaluations(peer) {
  if (!told || !codeOf(told, peer)) return null;
  return told.learning.get(peer) ?? SETTLED;
}

// Which peers are shown, and in which order: `store.order`.
export function order() {
  told = store.rounds.findLast((round) => round.told && round.void !== null) ?? store.rounds.findLast((round) => round.told) ?? null;
  paid = store.rounds.findLast((round) => round.paid && !round.void) ?? null;
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const { value } = columns[sort.column];
  const by = store.peers.map((hotkey, peer) => ({ peer, name: called(peer), value: value(peer) }));
  const found = by.filter(({ peer, name }) => {
    const text = words.length ? `${name} ${store.peers[peer]} ${columns[1].value(peer) ?? ""}`.toLowerCase() : "";
    return words.every((word) => text.includes(word));
  });
  const way = sort.down ? -1 : 1;
  found.sort((a, b) => {
    if ((a.value === null) !== (b.value === null)) return a.value === null ? 1 : -1; // what is not known comes last
    const first = a.value === null ? 0 : typeof a.value === "string" ? byName(a.value, b.value) : a.value - b.value;
    return way * first || byName(a.name, b.name);
  });
  store.order = found.map(({ peer }) => peer);
}

export function drawPeers() {
  const body = $("peers").tBodies[0];
  const shown = store.order.map(rowOf);
  if (shown.length !== body.rows.length || shown.some((row, i) => row !== body.rows[i])) body.replaceChildren(...shown);
  if (!store.order.includes(reached)) reached = store.order[0] ?? null;
  for (const [peer, row] of rows) linkOf(row).tabIndex = peer === reached ? 0 : -1;
  const all = store.peers.length;
  const count = words(shown.length, all);
  if ($("filtered").textContent !== count) $("filtered").textContent = count;
}

const words = (found, all) => (found === all ? `${all} ${kind}${all === 1 ? "" : "s"}` : `${found || "none"} of ${all} ${kind}s`);

const linkOf = (row) => row.cells[0].firstChild;

function key(event) {
  const steps = { ArrowUp: -1, ArrowDown: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
  if (!Object.hasOwn(steps, event.key)) return;
  event.preventDefault();
  const at = Math.max(0, Math.min(store.order.length - 1, store.order.indexOf(reached) + steps[event.key]));
  linkOf(rows.get(reached)).tabIndex = -1;
  reached = store.order[at];
  linkOf(rows.get(reached)).tabIndex = 0;
  linkOf(rows.get(reached)).focus();
}

function rowOf(peer) {
  if (!rows.has(peer)) {
    const row = document.createElement("tr");
    const name = element("th", "", { scope: "row" });
    name.append(element("a", "", { href: `#peer=${store.peers[peer]}` }));
    row.append(name, ...columns.slice(1).map(() => document.createElement("td")));
    rows.set(peer, row);
  }
  const row = rows.get(peer);
  columns.forEach(({ value, text = String, mark }, i) => {
    const own = value(peer);
    const cell = i ? row.cells[i] : linkOf(row);
    const shown = own === null ? "–" : text(own, peer);
    if (cell.textContent !== shown) cell.textContent = shown;
    if (mark) cell.dataset.mark = mark(peer);
  });
  return row;
}

function headings() {
  const head = $("peers").tHead.rows[0];
  head.replaceChildren();
  columns.forEach(({ title, down = false }, i) => {
    const button = element("button", title, { type: "button" });
    button.addEventListener("click", () => {
      sort.down = sort.column === i ? !sort.down : down;
      sort.column = i;
      marks();
      changed();
    });
    const cell = element("th", "", { scope: "col" });
    cell.append(button);
    head.append(cell);
  });
  marks();
}

function marks() {
  [...$("peers").tHead.rows[0].cells].forEach((cell, i) => cell.setAttribute("aria-sort", i !== sort.column ? "none" : sort.down ? "descending" : "ascending"));
}

// Show these columns of peers that are called so.
export function use(found, word) {
  [columns, kind] = [found, word];
  Object.assign(sort, { column: 0, down: false });
  rows.clear();
  headings();
}

// `again`: called when another order, or another filter, is asked for.
export function begin(again) {
  changed = again;
  headings();
  $("filter").addEventListener("input", () => changed());
  $("peers").tBodies[0].addEventListener("keydown", key);
}
