// What the server tells, kept and shown. Everything that peers may have written becomes text, never markup.
import { Matrix, STATES, stateOf } from "./matrix.js";
import { Plot, drawPhases, series, zoom } from "./charts.js";

const POLL_MS = 2000;
const SETTLED = 10; // evaluations: gauntlet/account.py
const PAID_LINES = 8;
const TASK_LINES = 8;
const $ = (id) => document.getElementById(id);

const store = { version: 0, facts: {}, rounds: [], columns: [], byNumber: new Map(), peers: [], rows: new Map() };
let chosen = null; // the peer whose pay is shown beside the best paid

export const called = (peer) => (Object.hasOwn(store.facts.names ?? {}, peer) ? store.facts.names[peer] : `${peer.slice(0, 6)}…${peer.slice(-4)}`);

const matrix = new Matrix($("matrix"), {
  count: () => [store.peers.length, store.columns.length],
  name: (row) => called(store.peers[row]),
  round: (column) => store.columns[column],
  state: (row, column) => store.columns[column].cells.get(store.peers[row]) ?? "",
  moved: (row, column) => { $("cell").textContent = cellText(row, column); },
  opened: (row, column) => explain(store.peers[row], store.columns[column]),
});
const plots = {
  loss: new Plot($("plot-loss"), $("key-loss")),
  peers: new Plot($("plot-peers"), $("key-peers"), { zero: true, whole: true }),
  pay: new Plot($("plot-pay"), $("key-pay"), { zero: true }),
  seconds: new Plot($("plot-seconds"), $("key-seconds"), { zero: true }),
  tasks: new Plot($("plot-tasks"), $("key-tasks"), { alone: true }),
  rate: new Plot($("plot-rate"), $("key-rate"), { zero: true, powers: true, alone: true }),
};

function cellText(row, column) {
  const [peer, round] = [store.peers[row], store.columns[column]];
  const code = round.cells.get(peer) ?? "";
  const pay = round.pay[peer] ? `, pay ${percent(round.pay[peer])}` : "";
  const learning = round.learning[peer] !== undefined ? `, learning, ${times(round.learning[peer])}` : "";
  return `${called(peer)}, round ${round.round}: ${STATES[stateOf(code)].text}${code && code !== "contributing" ? ` (${code})` : ""}${pay}${learning}`;
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;
const times = (count) => `${count} evaluation${count === 1 ? "" : "s"}`;

function short(count) {
  for (const [unit, size] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (count >= size) return `${(count / size).toPrecision(3)} ${unit}`;
  return String(count);
}

function span(seconds) {
  for (const [unit, size] of [["days", 86400], ["hours", 3600], ["minutes", 60]]) if (seconds >= 2 * size) return `${Math.round(seconds / size)} ${unit}`;
  return `${Math.round(seconds)} s`;
}

function bytes(count) {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (count >= size) return `${(count / size).toPrecision(3)} ${unit}`;
  return `${count} B`;
}

function take(round) {
  round.cells = new Map();
  for (const peer of round.contributing) round.cells.set(peer, "contributing");
  for (const [peer, why] of Object.entries(round.standing)) round.cells.set(peer, why);
  for (const [peer, why] of Object.entries(round.rejected)) round.cells.set(peer, why);
  delete round.standing; delete round.rejected; // 256 peers x 5,000 rounds are kept once
  if (!store.byNumber.has(round.round)) {
    const last = store.rounds.at(-1);
    store.rounds.push(round);
    if (last && last.round > round.round) store.rounds.sort((a, b) => a.round - b.round);
  } else store.rounds[store.rounds.indexOf(store.byNumber.get(round.round))] = round;
  store.byNumber.set(round.round, round);
  for (const peer of round.cells.keys()) if (!store.rows.has(peer)) { store.rows.set(peer, true); store.peers.push(peer); }
}

async function ask() {
  try {
    let more = true;
    while (more) {
      const answer = await fetch(`api/rounds?since=${store.version}`);
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const told = await answer.json();
      if (told.version < store.version) return location.reload(); // another run, or the server was started again
      more = told.more;
      const changed = told.rounds.length > 0;
      const named = JSON.stringify(told.names) !== JSON.stringify(store.facts.names);
      for (const round of told.rounds) take(round);
      store.version = told.version;
      delete told.rounds;
      store.facts = told;
      if (named || changed) store.peers.sort((a, b) => called(a).localeCompare(called(b), "en", { numeric: true }));
      show(changed || named);
      if (more) await new Promise(requestAnimationFrame);
    }
    $("asked").textContent = store.facts.ended ? "The run has ended." : `Live, asked at ${new Date().toLocaleTimeString()}.`;
  } catch (fault) {
    $("asked").textContent = `The server does not answer (${fault.message}): is it still running? Shown is what was known.`;
  }
  setTimeout(ask, POLL_MS);
}

function show(changed) {
  const { facts, rounds } = store;
  document.title = `Murmuration ${facts.run ?? ""}`;
  $("run").textContent = facts.run ?? "";
  $("health").dataset.state = facts.state;
  if ($("sentence").textContent !== facts.sentence) $("sentence").textContent = facts.sentence;
  rate(facts.schedule);
  if (!changed) return;
  numbers();
  store.columns = rounds.filter((round) => round.cells.size > 0 || round.void !== null);
  matrix.draw();
  keyOfMatrix();
  const at = rounds.map((round) => round.round);
  const tested = rounds.filter((round) => round.tested !== null);
  plots.loss.show(at, [
    series("held out, after the round", "--s1", rounds.map((r) => r.loss)),
    series("in training", "--s2", rounds.map((r) => r.train_loss), { dashed: true }),
    ...(tested.length ? [series("held out, of checkpoints evaluated", "--s3", rounds.map((r) => r.tested?.loss ?? null), { points: true })] : []),
  ]);
  tasks(tested);
  plots.peers.show(at, [series("active", "--s1", rounds.map((r) => r.active), { dashed: true }), series("contributing", "--contributing", rounds.map((r) => (r.void === null ? null : r.contributing.length)))]);
  plots.seconds.show(at, ["compute", "upload", "download", "apply"].map((phase, i) => series(phase, `--s${i + 1}`, rounds.map((r) => r.seconds[phase]))));
  pay(at);
  phases();
  if (peerShown !== null) byAddress();
}

// Only rounds whose state was evaluated: a line from one to the next.
function tasks(tested) {
  const names = [...new Set(tested.flatMap((round) => Object.keys(round.tested.tasks)))].sort();
  $("tasks").hidden = names.length === 0;
  if (!names.length) return;
  const lines = names.slice(0, TASK_LINES).map((name, i) => {
    const values = tested.map((round) => round.tested.tasks[name] ?? null);
    return series(`${name.split(",")[0]} ${values.findLast((value) => value !== null).toPrecision(4)}`, `--s${i + 1}`, values, { points: true });
  });
  plots.tasks.show(tested.map((round) => round.round), lines);
  $("tasks-note").textContent = names.length > TASK_LINES ? `${names.length - TASK_LINES} more are in /api/rounds` : "";
}

let rateShown = null;
function rate(schedule) {
  const asked = JSON.stringify(schedule ?? null);
  if (asked === rateShown) return;
  rateShown = asked;
  $("rate").hidden = !schedule;
  if (!schedule) return;
  const here = Math.min(schedule.here, schedule.rounds.at(-1));
  const after = schedule.rounds.findIndex((round) => round >= here);
  const at = [...schedule.rounds];
  const rates = [...schedule.rates];
  if (at[after] !== here) { // a point of its own, between two of the line
    const share = (here - at[after - 1]) / (at[after] - at[after - 1]);
    at.splice(after, 0, here);
    rates.splice(after, 0, rates[after - 1] + share * (rates[after] - rates[after - 1]));
  }
  const mark = at.map((round, i) => (i === after ? rates[i] : null));
  plots.rate.show(at, [series("planned", "--s1", rates, { points: false }), series(`here: ${mark[after].toPrecision(3)}, after ${schedule.here} rounds`, "--rejected", mark, { points: true })]);
}

function numbers() {
  const decided = store.rounds.filter((round) => round.void !== null);
  const measured = store.rounds.filter((round) => round.loss !== null);
  const last = decided.at(-1);
  if (!last) return;
  $("n-round").textContent = last.round;
  const voids = decided.filter((round) => round.void).length;
  const length = store.facts.round_seconds;
  const each = length && `${length < 120 ? `${Math.round(length)} s` : `${(length / 60).toFixed(1)} min`} each`;
  const { first_deadline: first, round_blocks: every } = store.facts;
  const after = last.decided !== null && first !== null && `decided ${last.decided - first - last.round * every} blocks after the deadline`;
  const told = decided.findLast((round) => round.computed !== null);
  const busy = told && `miners trained ${Math.round(100 * told.computed)} % of the time`;
  const wrong = decided.reduce((sum, round) => sum + (round.guesses.wrong ?? 0), 0);
  const guessed = wrong + decided.reduce((sum, round) => sum + (round.guesses.right ?? 0), 0);
  const guesses = guessed > 0 && `${wrong || "none"} of ${guessed} expected selections wrong`;
  $("n-round-note").textContent = [`${voids || "none"} void`, each, after, busy, guesses].filter(Boolean).join("; ");
  if (measured.length) {
    $("n-loss").textContent = measured.at(-1).loss.toFixed(3);
    $("n-loss-note").textContent = measured.length > 1 ? `from ${measured[0].loss.toFixed(2)} in round ${measured[0].round}` : "nats a token";
  }
  const tested = store.rounds.findLast((round) => round.tested !== null);
  if (!measured.length && tested) {
    $("n-loss").textContent = tested.tested.loss.toFixed(3);
    $("n-loss-note").textContent = `evaluated after round ${tested.round}`;
  }
  const trained = store.rounds.findLast((round) => round.train_loss !== null);
  if (!measured.length && !tested && trained) $("n-loss-note").textContent = `not published; in training ${trained.train_loss.toFixed(3)}`;
  $("n-contributing").textContent = last.void ? "void" : `${last.contributing.length} of ${last.active ?? "?"}`;
  const codes = [...last.cells.values()];
  const rejected = codes.filter((code) => ["rejected", "late"].includes(stateOf(code))).length;
  const absent = codes.filter((code) => stateOf(code) === "absent").length;
  $("n-contributing-note").textContent = [rejected && `${rejected} rejected`, absent && `${absent} absent`].filter(Boolean).join(", ") || "nobody rejected";
  const { round_tokens: tokens, schedule } = store.facts;
  const work = decided.reduce((sum, round) => sum + round.contributing.length, 0);
  $("n-tokens").textContent = tokens ? short(tokens * work) : "–";
  const left = schedule && Math.max(0, schedule.rounds.at(-1) - schedule.here);
  const ahead = left && length ? `${left} rounds to the end as planned, ${span(left * length)}` : left === 0 ? "all rounds as planned are done" : "";
  $("n-tokens-note").textContent = store.facts.ended ? "the run has ended" : ahead;
  const size = store.facts.object_bytes ?? last.payload_bytes;
  if (size) $("n-bytes").textContent = bytes(size);
  if (size && store.facts.model_bytes) $("n-bytes-note").textContent = `${Math.round(store.facts.model_bytes / size)} times smaller than the model`;
}

function keyOfMatrix() {
  const list = Object.entries(STATES).filter(([state]) => state !== "unknown").map(([state, { text }]) => keyEntry(text, `var(--${state})`, "li"));
  $("key-matrix").replaceChildren(...list);
}

export function keyEntry(text, colour, tag = "span") {
  const entry = document.createElement(tag);
  const mark = document.createElement("i");
  mark.style.background = colour;
  entry.append(mark, text);
  return entry;
}

function pay(at) {
  const recent = store.rounds.filter((round) => Object.keys(round.pay).length).slice(-20);
  const total = new Map();
  for (const round of recent) for (const [peer, share] of Object.entries(round.pay)) total.set(peer, (total.get(peer) ?? 0) + share);
  const best = [...total.keys()].sort((a, b) => total.get(b) - total.get(a)).slice(0, PAID_LINES);
  if (chosen !== null && !best.includes(chosen)) best.splice(PAID_LINES - 1, 1, chosen);
  best.sort((a, b) => called(a).localeCompare(called(b), "en", { numeric: true }));
  const last = recent.at(-1);
  const lines = best.flatMap((peer, i) => {
    const sure = (round) => round.learning[peer] === undefined;
    // What a void round computes is settled by a later one.
    const value = (round) => (Object.keys(round.pay).length && !round.void ? 100 * (round.pay[peer] ?? 0) : null);
    const count = last?.learning[peer];
    const label = `${called(peer)}${count === undefined ? "" : `: learning, ${times(count)}`}`;
    const settled = store.rounds.map((round) => (sure(round) ? value(round) : null));
    const learning = store.rounds.map((round, j) => (!sure(round) || (j > 0 && !sure(store.rounds[j - 1])) ? value(round) : null));
    return [series(label, `--s${i + 1}`, settled), series(null, `--s${i + 1}`, learning, { dashed: true, faint: true })];
  });
  plots.pay.show(at, lines);
  const more = total.size - best.length;
  const learns = store.rounds.some((round) => best.some((peer) => round.learning[peer] !== undefined));
  $("pay-note").textContent = [
    learns && `dashed: uncertain, fewer than ${SETTLED} evaluations behind it`,
    more > 0 && `the ${best.length} best paid of ${total.size}; a click in the matrix adds a peer`,
  ].filter(Boolean).join("; ");
}

// --- one round in full -------------------------------------------------------------------------------------------

async function detail(number) {
  const answer = await fetch(`api/rounds/${number}`);
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error ?? `status ${answer.status}`);
  return told;
}

const NUMBERS = [["weight", "pay", percent], ["peer_score", "PeerScore"], ["mu", "rating"], ["proof", "proof of computation"],
  ["worth", "worth: progress in honest ones"], ["score", "LossScore, averaged"], ["gap", "gap in this round"],
  ["progress", "progress of the round before"], ["presence", "presence: share of rounds"], ["evaluations", "evaluations"],
  ["contributed", "rounds contributed"], ["faults", "faults"], ["penalty", "penalty"]];

async function explain(peer, round) {
  chosen = peer;
  const code = round.cells.get(peer) ?? "";
  $("h-why").textContent = `${called(peer)} in round ${round.round}: ${STATES[stateOf(code)].text}`;
  const body = $("why-body");
  $("why").hidden = false;
  try {
    const told = await detail(round.round);
    const said = told.peers[peer] ?? {};
    const blocks = Object.entries(said).map(([validator, row]) => account(nodeName(validator), row));
    for (const [validator, code] of Object.entries(told.unread)) blocks.push(paragraph(`${nodeName(validator)}: ${UNREAD[code] ?? code}`));
    body.replaceChildren(...(blocks.length ? blocks : [paragraph("No validator has reported on this hotkey in this round (yet).")]));
  } catch (fault) {
    body.replaceChildren(paragraph(`Why is not to be had: ${fault.message}`));
  }
  const all = document.createElement("a");
  all.href = `#peer=${peer}`;
  all.textContent = `all rounds of ${peer}`;
  body.append(all);
  $("why").focus();
  $("why").scrollIntoView({ block: "nearest" });
  pay(store.rounds.map((one) => one.round));
}

function account(validator, row) {
  const block = document.createElement("div");
  const title = document.createElement("h3");
  title.textContent = validator;
  const outcome = row.rejected ? `rejected, ${row.rejected}: ${row.detail ?? ""}` : row.standing ? MEANING[row.standing] ?? row.standing : row.contributing ? "contributing" : "not judged";
  const sure = (row.evaluations ?? 0) < SETTLED ? (row.evaluations ? `learning, ${times(row.evaluations)}` : "not evaluated yet") : `${times(row.evaluations)}`;
  const table = document.createElement("table");
  for (const [field, label, form] of NUMBERS) {
    const value = row[field];
    if (typeof value !== "number") continue;
    const line = table.insertRow();
    line.insertCell().textContent = label;
    const shown = form ? form(value) : Number.isInteger(value) ? String(value) : value.toPrecision(4);
    line.insertCell().textContent = field === "mu" && typeof row.sigma === "number" ? `${value.toFixed(2)} ± ${row.sigma.toFixed(2)}` : shown;
  }
  block.append(title, paragraph(outcome), paragraph(sure), table);
  return block;
}

const MEANING = {
  NOT_ELIGIBLE: "NOT_ELIGIBLE: it was never evaluated",
  LOW_SCORE: "LOW_SCORE: its work helps too little, or its proof of computation is too low",
  NOT_AGREED: "NOT_AGREED: it passed, and was not selected: too few validators name it, or others go first by the chain's incentive",
  NOT_SELECTED: "NOT_SELECTED: good enough, but others go first",
};

const UNREAD = {
  MISSING: "it has not published a report of this round (yet)",
  MALFORMED: "MALFORMED: what it has published is no report of this round that it signed",
  TOO_LARGE: "TOO_LARGE: what it has published is larger than any report",
  REFUSED: "REFUSED: its bucket leads nowhere that may be followed",
  UNAVAILABLE: "UNAVAILABLE: its bucket did not answer",
  NOT_KEPT: "its report was read and is not kept here: murmur explain and murmur audit say more",
};

// Nodes of a run folder have names; of a network they are hotkeys.
const nodeName = (node) => (node.length > 40 ? called(node) : node);

function paragraph(text) {
  const element = document.createElement("p");
  element.textContent = text;
  return element;
}

$("close-why").addEventListener("click", () => { $("why").hidden = true; $("matrix").focus(); });
$("why").addEventListener("keydown", (event) => { if (event.key === "Escape") $("close-why").click(); });

// --- one peer, by the page's address: #peer=HOTKEY, and #rounds=FROM-TO ---------------------------------------------

let peerShown = null;
async function byAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const span = /^(\d{1,10})-(\d{1,10})$/.exec(asked.get("rounds") ?? "");
  zoom.set(span ? [Number(span[1]), Number(span[2])] : null);
  const peer = asked.get("peer");
  $("peer").hidden = peer === null;
  if (peer === null) return void (peerShown = null);
  const body = $("peer-body");
  try {
    const answer = await fetch(`api/peers/${encodeURIComponent(peer)}`);
    const told = await answer.json();
    if (!answer.ok) throw new Error(told.error ?? `status ${answer.status}`);
    $("h-peer").textContent = `${told.name ?? called(told.hotkey)}: ${told.rounds.length} rounds`;
    $("peer-json").href = `api/peers/${encodeURIComponent(told.hotkey)}`;
    const paid = told.rounds.reduce((sum, round) => sum + (round.pay ?? 0), 0);
    const counted = told.rounds.filter((round) => round.outcome === "contributing" && !round.void).length;
    const table = document.createElement("table");
    const head = table.createTHead().insertRow();
    for (const text of ["round", "outcome", "pay", "evaluations"]) head.append(Object.assign(document.createElement("th"), { textContent: text, scope: "col" }));
    for (const round of told.rounds.toReversed()) {
      const row = table.insertRow();
      const sure = round.evaluations === null ? "" : round.evaluations < SETTLED ? `${round.evaluations}: not evaluated enough to be sure` : String(round.evaluations);
      for (const text of [round.round, round.void ? `void (${round.outcome ?? "-"})` : round.outcome ?? "-", round.pay === null ? "" : percent(round.pay), sure]) row.insertCell().textContent = text;
    }
    body.replaceChildren(paragraph(`${told.hotkey}: contributed to ${counted} rounds, ${paid.toFixed(2)} rounds' whole pay so far`), table);
  } catch (fault) {
    body.replaceChildren(paragraph(`${peer}: ${fault.message}`));
  }
  if (peerShown !== peer) $("peer").scrollIntoView({ block: "nearest" });
  peerShown = peer;
}
addEventListener("hashchange", byAddress);
zoom.changed = (range) => {
  const asked = new URLSearchParams(location.hash.slice(1));
  if (range) asked.set("rounds", range.join("-"));
  else asked.delete("rounds");
  history.replaceState(null, "", `${location.pathname}${asked.size ? `#${asked}` : ""}`);
  $("zoom-note").textContent = range ? `rounds ${range[0]} to ${range[1]}; a double click shows all` : "";
};
$("close-peer").addEventListener("click", () => { location.hash = ""; });

let phasesOf = null;
async function phases() {
  const told = store.rounds.filter((round) => round.void !== null);
  if (!told.length) return;
  const field = $("phases-round");
  if ($("phases-follow").checked) field.value = told.at(-1).round;
  const number = Number(field.value);
  const round = store.byNumber.get(number);
  const asked = round ? `${number}/${round.version}` : null;
  if (asked !== null && asked === phasesOf?.asked) return;
  try {
    phasesOf = { asked, ...(await detail(number)) };
    $("phases-note").textContent = Object.keys(phasesOf.phases).length ? "" : "Of this round no node has said what it spent its time on. A network that is read from outside tells no more than seconds of training.";
  } catch (fault) {
    phasesOf = null;
    $("phases-note").textContent = `Round ${field.value}: ${fault.message}.`;
  }
  repaintPhases();
}

function repaintPhases() {
  if (phasesOf === null) return;
  const any = Object.keys(phasesOf.phases).length > 0;
  $("phases").hidden = !any;
  $("phases-of").textContent = !any ? "" : `round ${phasesOf.round}, seconds since the first node began; the line is the deadline of commitments`;
  drawPhases($("phases").querySelector("canvas"), $("phases").clientWidth, phasesOf, $("key-phases"), keyEntry);
}

$("phases-round").addEventListener("change", () => { $("phases-follow").checked = false; phases(); });
$("phases-follow").addEventListener("change", phases);

let width = 0;
addEventListener("resize", () => {
  if (width === innerWidth) return; // a phone's address bar only
  width = innerWidth;
  requestAnimationFrame(() => { matrix.draw(); repaintPhases(); for (const plot of Object.values(plots)) plot.fit(); });
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { matrix.draw(); repaintPhases(); for (const plot of Object.values(plots)) plot.again(); });
byAddress();
ask();
