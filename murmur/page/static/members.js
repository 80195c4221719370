// A cluster's members: where each is, what it did in a round, and the run in numbers as its members tell them.
import { $, bytes, byName, called, element, nodeName, paragraph, percent, roundsOf, short, span, store, tableOf } from "./store.js";

const STATES = {
  alive: { text: "alive", mark: "contributing" },
  unknown: { text: "not seen to beat yet", mark: "absent" },
  silent: { text: "silent", mark: "rejected" },
  stuck: { text: "stuck", mark: "rejected" },
  left: { text: "left", mark: "absent" },
  gone: { text: "gone", mark: "absent" },
};
const DOING = { join: "joining", train: "training", send: "sending", wait: "waiting", idle: "sitting out", apply: "applying" };
const GONE = { state: "gone", phase: null, round: null, step: null, last: null };

export const seconds = (count) => (count < 1 ? `${count.toFixed(2)} s` : count < 10 ? `${count.toFixed(1)} s` : count < 600 ? `${Math.round(count)} s` : `${(count / 60).toFixed(1)} min`);

// The member at a place of `store.peers`, as it is now.
export const member = (peer) => store.members.get(peer) ?? GONE;

// All who are not gone for good, and where each is.
export function takeMembers() {
  const { cluster } = store.facts;
  store.members.clear();
  store.here.clear();
  for (const one of cluster?.members ?? []) {
    const peer = store.peers.indexOf(one.member);
    if (peer < 0) continue;
    store.members.set(peer, one);
    if (one.state !== "left") store.here.add(peer);
  }
}

function now(peer) {
  const { state, phase } = member(peer);
  return state === "alive" ? DOING[phase] ?? phase : STATES[state].text;
}

function steps(peer) {
  const { state, phase, step } = member(peer);
  return state === "gone" || step === null || phase !== "train" ? null : step;
}

const last = (peer, field) => member(peer).last?.[field] ?? null;

// The columns of the table of members, as peers.js draws them.
export const COLUMNS = [
  { title: "Member", value: called },
  { title: "Now", value: now, mark: (peer) => STATES[member(peer).state].mark },
  { title: "Round", value: (peer) => member(peer).round, down: true },
  { title: "Step", value: steps, text: (n) => `${n} of ${store.facts.steps}`, down: true },
  { title: "Contributed", value: (peer) => store.totals[peer]?.contributed ?? 0, text: (n, peer) => `${n} of ${roundsOf(peer)}`, down: true },
  { title: "Loss", value: (peer) => last(peer, "loss"), text: (n) => n.toFixed(3) },
  { title: "Steps sent", value: (peer) => last(peer, "steps"), down: true },
  { title: "Trained", value: (peer) => last(peer, "seconds"), text: seconds, down: true },
  { title: "Of the round", value: (peer) => last(peer, "computed"), text: percent, down: true },
];

// What the matrix calls its cells.
export const CELLS = { contributing: "in the record", late: "too late for the record", rejected: "held another model", absent: "not in the record" };

// --- one round ---------------------------------------------------------------------------------------------------

export const OUTCOMES = { contributing: "in the record", LATE: "too late for the record", APART: "held another model" };

export function drawWork(round, rows) {
  const rest = (row) => (round?.length && row.seconds !== null ? Math.max(0, round.length - row.seconds - (row.sending ?? 0)) : null);
  const dash = (value, form = String) => (value === null ? "–" : form(value));
  const sorted = [...rows].sort((a, b) => byName(nodeName(a.member), nodeName(b.member)));
  const table = tableOf(["Member", "Update", "Loss", "Steps", "Trained", "Sent in", "Rest"], sorted.map((row) => [
    nodeName(row.member), OUTCOMES[row.outcome] ?? row.outcome ?? "claimed", dash(row.loss, (n) => n.toFixed(3)), dash(row.steps),
    dash(row.seconds, seconds), dash(row.sending, seconds), dash(rest(row), seconds),
  ]));
  $("work").replaceChildren(rows.length ? table : paragraph("Of this round no member is known."));
  const facts = round && [
    round.steps !== null && `${round.steps} inner steps`,
    round.tokens !== null && `${short(round.tokens)} tokens`,
    round.length !== null && `${seconds(round.length)} after the record before`,
    round.sent_bytes !== null && `${bytes(round.sent_bytes)} sent`,
    round.closed_by !== null && `closed by ${nodeName(round.closed_by)}`,
    round.theta !== null && `from theta ${round.theta.slice(0, 16)}`,
  ];
  $("work-note").textContent = facts ? facts.filter(Boolean).join("; ") : "";
}

// What a member did in a round, in the card of a cell.
export function account(row) {
  if (!row) return paragraph("It has no claim in this round, as far as is known.");
  const numbers = [
    ["loss in training", row.loss?.toFixed(3)], ["inner steps", row.steps], ["trained for", row.seconds === null ? null : seconds(row.seconds)],
    ["share of the round", row.computed === null ? null : percent(row.computed)], ["sent in", row.sending === null ? null : seconds(row.sending)],
  ];
  const table = document.createElement("table");
  for (const [label, value] of numbers) {
    if (value === null || value === undefined) continue;
    const line = table.insertRow();
    line.insertCell().textContent = label;
    line.insertCell().textContent = String(value);
  }
  return table;
}

// --- the run in numbers ------------------------------------------------------------------------------------------

export function drawNumbers() {
  const { cluster, round_seconds: length, schedule, object_bytes: size, model_bytes: model, ended } = store.facts;
  const decided = store.rounds.filter((round) => round.void !== null);
  const trained = decided.filter((round) => round.train_loss !== null);
  const last = decided.at(-1);
  const states = Object.keys(STATES).map((state) => [state, cluster.members.filter((one) => one.state === state)]).filter(([, found]) => found.length);
  $("n-contributing-note").textContent = states.map(([state, found]) => `${found.length} ${STATES[state].text}`).join(", ");
  if (size) $("n-bytes").textContent = bytes(size);
  if (size && model) $("n-bytes-note").textContent = `${Math.round(model / size)} times smaller than the model`;
  if (!last) return;
  $("n-round").textContent = last.round;
  const busy = decided.findLast((round) => round.computed !== null);
  $("n-round-note").textContent = [length && `${seconds(length)} each`, busy && `members trained ${Math.round(100 * busy.computed)} % of the time`].filter(Boolean).join("; ");
  if (trained.length) {
    $("n-loss").textContent = trained.at(-1).train_loss.toFixed(3);
    $("n-loss-note").textContent = trained.length > 1 ? `from ${trained[0].train_loss.toFixed(2)} in round ${trained[0].round}` : "nats a token";
  }
  const here = new Set([...last.cells.keys()].filter((peer) => last.cells[peer]));
  for (const peer of store.here) here.add(peer);
  $("n-contributing").textContent = `${last.contributing.length} of ${Math.max(here.size, last.active ?? 0)}`;
  const tokens = decided.reduce((sum, round) => sum + (round.tokens ?? 0), 0);
  $("n-tokens").textContent = tokens ? short(tokens) : "–";
  const left = schedule ? Math.max(0, schedule.rounds.at(-1) - schedule.here) : 0;
  const ahead = left && length ? `${left} rounds to the end as planned, ${span(left * length)}` : "";
  $("n-tokens-note").textContent = ended ? "the run has ended" : ahead;
}

export function drawAmendments() {
  const { amendments } = store.facts.cluster;
  $("amendments").hidden = amendments.length === 0;
  $("amendments-list").replaceChildren(...amendments.map(({ number, from_round: from, changes, last }) => {
    const fields = Object.entries(changes).flatMap(([table, found]) => Object.entries(found).map(([field, value]) => `${table}.${field} = ${JSON.stringify(value)}`));
    const when = last ? (from === null ? "the next record is the last one" : `round ${from - 1} was the last one`) : from === null ? "from the round after the next record on" : `from round ${from} on`;
    return element("li", `${number}: ${[when, fields.join(", ")].filter(Boolean).join(": ")}`);
  }));
}
