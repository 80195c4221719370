// What the server has told so far, and how numbers are written. A peer is its place in `peers`.

export const SETTLED = 10; // evaluations: gauntlet/account.py
export const store = {
  version: 0, facts: {}, rounds: [], columns: [], byNumber: new Map(), peers: [], order: [],
  codes: ["", "contributing"], totals: [],
  members: new Map(), here: new Set(), // of a cluster, by place: how each is now; and who has not left
};

export const $ = (id) => document.getElementById(id);
const letters = new Intl.Collator("en", { numeric: true });
export const byName = (a, b) => letters.compare(a, b);

export const named = (hotkey) => (Object.hasOwn(store.facts.names ?? {}, hotkey) ? store.facts.names[hotkey] : `${hotkey.slice(0, 6)}…${hotkey.slice(-4)}`);
export const called = (peer) => named(store.peers[peer]);
// Nodes of a run folder have names; of a network they are hotkeys.
export const nodeName = (node) => (node.length > 40 ? named(node) : node);

// How a peer fared in a round: "contributing", the reason why not, or "" where nobody tells. Records name only who
// contributed: a member of a cluster is absent from a round after its first one, until it is gone.
export function codeOf(round, peer) {
  const code = store.codes[round.cells[peer] ?? 0];
  if (code || !store.facts.cluster) return code;
  const { first, last } = store.totals[peer] ?? {};
  return round.round > first && (round.round < last || store.here.has(peer)) ? "MISSING" : "";
}
// How many rounds there were since a member's first one, until it was gone.
export function roundsOf(peer) {
  const { first, last } = store.totals[peer] ?? {};
  if (first === undefined) return 0;
  return 1 - first + (store.here.has(peer) ? store.columns.at(-1)?.round ?? last : last);
}
export const codes = (round) => [...round.cells].filter(Boolean).map((code) => store.codes[code]);
export const payOf = (round, peer) => round.pay[peer] ?? 0;

export function take(round) {
  const cells = new Uint16Array(store.peers.length);
  for (const peer of round.contributing) cells[peer] = 1;
  for (const found of [round.standing, round.rejected]) {
    for (const [code, peers] of Object.entries(found)) {
      let at = store.codes.indexOf(code);
      if (at < 0) at = store.codes.push(code) - 1;
      for (const peer of peers) cells[peer] = at;
    }
  }
  const pay = new Float64Array(store.peers.length);
  round.pay[0].forEach((peer, i) => { pay[peer] = round.pay[1][i]; });
  Object.assign(round, { cells, told: cells.some(Boolean), paid: round.pay[0].length > 0, pay });
  round.learning = new Map(round.learning[0].map((peer, i) => [peer, round.learning[1][i]]));
  delete round.standing; delete round.rejected; // 256 peers x 5,000 rounds are kept once
  const before = store.byNumber.get(round.round);
  if (before) {
    store.rounds[store.rounds.indexOf(before)] = round;
    count(before, -1);
  } else {
    const last = store.rounds.at(-1);
    store.rounds.push(round);
    if (last && last.round > round.round) store.rounds.sort((a, b) => a.round - b.round);
  }
  store.byNumber.set(round.round, round);
  count(round, 1);
}

// Sums over all rounds, kept up by each that comes or changes. `pay` is in whole rounds' pay.
function count(round, by) {
  round.cells.forEach((code, peer) => {
    const total = (store.totals[peer] ??= { told: 0, contributed: 0, pay: 0 });
    if (code) total.told += by;
    if (code === 1) {
      total.contributed += by;
      total.first = Math.min(total.first ?? Infinity, round.round);
      total.last = Math.max(total.last ?? -1, round.round);
    }
    if (!round.void) total.pay += by * round.pay[peer]; // what a void round computes is settled by a later one
  });
}

// --- how numbers are written -------------------------------------------------------------------------------------

export const percent = (share) => `${(100 * share).toFixed(1)} %`;
export const times = (count) => `${count} evaluation${count === 1 ? "" : "s"}`;

export function short(count) {
  for (const [unit, size] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (count >= size) return `${(count / size).toPrecision(3)} ${unit}`;
  return String(count);
}

export function span(seconds) {
  for (const [unit, size] of [["days", 86400], ["hours", 3600], ["minutes", 60]]) if (seconds >= 2 * size) return `${Math.round(seconds / size)} ${unit}`;
  return `${Math.round(seconds)} s`;
}

export function bytes(count) {
  for (const [unit, size] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (count >= size) return `${Number((count / size).toPrecision(3))} ${unit}`;
  return `${count} B`;
}

// --- elements ----------------------------------------------------------------------------------------------------

export function element(tag, text, others = {}) {
  return Object.assign(document.createElement(tag), { textContent: text }, others);
}
export const paragraph = (text) => element("p", text);

export function keyEntry(text, colour, tag = "span") {
  const entry = document.createElement(tag);
  const mark = document.createElement("i");
  mark.style.background = colour;
  entry.append(mark, text);
  return entry;
}

// A table with a heading for each column; `rows` of texts or elements, the first of each its heading.
export function tableOf(headings, rows) {
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  for (const text of headings) head.append(element("th", text, { scope: "col" }));
  const body = table.createTBody();
  for (const [first, ...others] of rows) {
    const row = body.insertRow();
    const heading = element("th", "", { scope: "row" });
    heading.append(first);
    row.append(heading);
    for (const cell of others) row.insertCell().append(cell);
  }
  return table;
}
