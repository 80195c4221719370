// What the server tells, kept and shown. Everything that peers may have written becomes text, never markup.
import { Matrix, STATES, stateOf } from "./matrix.js";
import { Plot, series, view, zoom } from "./charts.js";
import { CELLS, COLUMNS, OUTCOMES, drawAmendments, drawNumbers, seconds, takeMembers } from "./members.js";
import { begin, drawPeers, order, use } from "./peers.js";
import { drawRound, explain, explainAgain, repaintPhases, voidText } from "./round.js";
import { $, SETTLED, byName, bytes, called, codeOf, codes, keyEntry, named, paragraph, payOf, percent, short, span, store, tableOf, take, times } from "./store.js";

const POLL_MS = 2000;
const PAID_LINES = 8;
const TASK_LINES = 8;
let chosen = null; // the peer whose pay is shown beside the best paid
let lossOf = null; // the member whose rounds are shown, and its loss by round

const matrix = new Matrix($("matrix"), {
  count: () => [store.order.length, store.columns.length],
  name: (row) => called(store.order[row]),
  round: (column) => store.columns[column],
  state: (row, column) => codeOf(store.columns[column], store.order[row]),
  moved: (row, column) => { $("cell").textContent = cellText(row, column); },
  opened: (row, column) => {
    chosen = store.order[row];
    explain(chosen, store.columns[column]);
    if (!store.facts.cluster) pay(store.rounds.map((one) => one.round));
  },
});
const plots = {
  loss: new Plot($("plot-loss"), $("key-loss"), { views: true }),
  peers: new Plot($("plot-peers"), $("key-peers"), { zero: true, whole: true }),
  pay: new Plot($("plot-pay"), $("key-pay"), { zero: true }),
  busy: new Plot($("plot-busy"), $("key-busy")),
  bytes: new Plot($("plot-bytes"), $("key-bytes"), { zero: true, form: bytes }),
  seconds: new Plot($("plot-seconds"), $("key-seconds"), { zero: true }),
  tasks: new Plot($("plot-tasks"), $("key-tasks"), { alone: true }),
  rate: new Plot($("plot-rate"), $("key-rate"), { zero: true, powers: true, alone: true }),
};

function cellText(row, column) {
  const [peer, round] = [store.order[row], store.columns[column]];
  const code = codeOf(round, peer);
  const share = !round.void && payOf(round, peer) ? `, pay ${percent(payOf(round, peer))}` : "";
  const learning = round.learning.has(peer) ? `, learning, ${times(round.learning.get(peer))}` : "";
  return `${called(peer)}, round ${round.round}: ${STATES[stateOf(code)].text}${code && code !== "contributing" ? ` (${code})` : ""}${share}${learning}. ${voidText(round)}`;
}

async function ask() {
  try {
    let more = true;
    while (more) {
      const answer = await fetch(`api/page?since=${store.version}&peers=${store.peers.length}`);
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const told = await answer.json();
      if (told.session !== (store.facts.session ?? told.session)) return location.reload(); // another run, or the server was started again
      more = told.more;
      const changed = told.rounds.length > 0 || JSON.stringify(told.names) !== JSON.stringify(store.facts.names);
      store.peers.push(...told.peers);
      for (const round of told.rounds) take(round);
      explainAgain(told.rounds.map((round) => round.round));
      store.version = told.version;
      delete told.rounds;
      store.facts = told;
      show(changed);
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
  const moved = ofWhat();
  $("health").dataset.state = facts.state;
  if ($("sentence").textContent !== facts.sentence) $("sentence").textContent = facts.sentence;
  rate(facts.schedule);
  if (facts.cluster) {
    drawNumbers();
    drawAmendments();
  }
  if (moved && !changed) arrange();
  if (!changed) return;
  if (!facts.cluster) numbers();
  store.columns = rounds.filter((round) => round.told || round.void !== null);
  arrange();
  const at = rounds.map((round) => round.round);
  const tested = rounds.filter((round) => round.tested !== null);
  loss(at, tested);
  tasks(tested);
  const decided = (r, count) => (r.void === null ? null : count);
  plots.peers.show(at, [series(facts.cluster ? "claimed" : "active", "--s1", rounds.map((r) => (facts.cluster ? decided(r, r.active) : r.active)), { dashed: true }), series("contributing", "--contributing", rounds.map((r) => decided(r, r.contributing.length)))]);
  phases(at);
  if (facts.cluster) busy(at);
  else pay(at);
  sent(at);
  drawRound();
  if (peerShown !== null) byAddress();
}


// A network on a chain, or a cluster: what the other one has is hidden. Returns whether members have changed.
let membersShown = "";
function ofWhat() {
  const { cluster } = store.facts;
  const kind = cluster ? "cluster" : "network";
  if (document.body.dataset.kind !== kind) {
    document.body.dataset.kind = kind;
    for (const part of document.querySelectorAll("[data-of]")) part.hidden = part.dataset.of !== kind;
    if (cluster) {
      for (const [state, text] of Object.entries(CELLS)) STATES[state].text = text;
      use(COLUMNS, "member");
    }
    keyOfMatrix();
  }
  if (!cluster) return false;
  takeMembers();
  const now = JSON.stringify(cluster.members);
  const moved = now !== membersShown;
  membersShown = now;
  return moved;
}

function loss(at, tested) {
  const { rounds } = store;
  const checkpoints = tested.length ? [series("held out, of checkpoints evaluated", "--s3", rounds.map((r) => r.tested?.loss ?? null), { points: true })] : [];
  if (!store.facts.cluster) return plots.loss.show(at, [series("held out, after the round", "--s1", rounds.map((r) => r.loss)), series("in training", "--s2", rounds.map((r) => r.train_loss), { dashed: true }), ...checkpoints]);
  const end = (i) => rounds.map((r) => r.loss_range?.[i] ?? null);
  const own = lossOf ? [series(lossOf.name, "--s4", rounds.map((r) => lossOf.losses.get(r.round) ?? null))] : [];
  plots.loss.show(at, [
    series("in training, median of the members", "--s1", rounds.map((r) => r.train_loss)),
    series("lowest and highest member", "--s2", end(0), { dashed: true, faint: true }), series(null, "--s2", end(1), { dashed: true, faint: true }),
    ...own, ...checkpoints,
  ]);
}

function phases(at) {
  const { rounds, facts } = store;
  const lines = ["compute", "upload", "download", "apply"].map((phase, i) => series(phase, `--s${i + 1}`, rounds.map((r) => r.seconds[phase])));
  if (facts.cluster) lines.push(series("whole round", "--s5", rounds.map((r) => r.length), { dashed: true }));
  const known = ({ values }) => values.some((value) => value !== null);
  plots.seconds.show(at, facts.cluster ? lines.filter(known) : lines);
}

function busy(at) {
  const of = (share) => (typeof share === "number" ? 100 * share : null);
  plots.busy.show(at, [
    series("median of the members", "--s1", store.rounds.map((r) => of(r.computed))),
    series("the least", "--s2", store.rounds.map((r) => of(r.computed_range?.[0])), { dashed: true }),
  ]);
}

// The peers, filtered and in order, in the table and in the matrix.
function arrange() {
  const pointed = matrix.cursor && store.order[matrix.cursor[0]];
  order();
  if (matrix.cursor) {
    const row = store.order.indexOf(pointed);
    matrix.cursor = row < 0 ? null : [row, matrix.cursor[1]];
  }
  matrix.draw();
  drawPeers();
}

// All submissions of a round: as the miners' events have it, else by how many had committed.
function sent(at) {
  const { object_bytes: size, model_bytes: model } = store.facts;
  const own = store.rounds.some((round) => round.sent_bytes !== null);
  const each = store.rounds.map((round) => (own ? round.sent_bytes : size && round.active !== null ? size * round.active : null));
  const all = each.reduce((sum, count) => sum + (count ?? 0), 0);
  plots.bytes.show(at, [series(store.facts.cluster ? "updates" : own ? "submissions" : "submissions, by commitments", "--s1", each)]);
  const whole = size && model ? `; the same as fp32 models would be ${bytes((all / size) * model)}` : "";
  $("bytes-note").textContent = all ? `${bytes(all)} in all${whole}` : "";
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
  const states = codes(last);
  const rejected = states.filter((code) => ["rejected", "late"].includes(stateOf(code))).length;
  const absent = states.filter((code) => stateOf(code) === "absent").length;
  $("n-contributing-note").textContent = last.void ? last.why_void : [rejected && `${rejected} rejected`, absent && `${absent} absent`].filter(Boolean).join(", ") || "nobody rejected";
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
  const shown = ([state]) => (store.facts.cluster ? Object.hasOwn(CELLS, state) : state !== "unknown");
  const list = Object.entries(STATES).filter(shown).map(([state, { text }]) => keyEntry(text, `var(--${state})`, "li"));
  $("key-matrix").replaceChildren(...list);
}

function pay(at) {
  const recent = store.rounds.filter((round) => round.paid).slice(-20);
  const total = new Map();
  for (const round of recent) round.pay.forEach((share, peer) => share && total.set(peer, (total.get(peer) ?? 0) + share));
  const best = [...total.keys()].sort((a, b) => total.get(b) - total.get(a)).slice(0, PAID_LINES);
  if (chosen !== null && !best.includes(chosen)) best.splice(PAID_LINES - 1, 1, chosen);
  best.sort((a, b) => byName(called(a), called(b)));
  const last = recent.at(-1);
  const lines = best.flatMap((peer, i) => {
    const sure = (round) => !round.learning.has(peer);
    // What a void round computes is settled by a later one.
    const value = (round) => (round.paid && !round.void ? 100 * payOf(round, peer) : null);
    const count = last?.learning.get(peer);
    const label = `${called(peer)}${count === undefined ? "" : `: learning, ${times(count)}`}`;
    const settled = store.rounds.map((round) => (sure(round) ? value(round) : null));
    const learning = store.rounds.map((round, j) => (!sure(round) || (j > 0 && !sure(store.rounds[j - 1])) ? value(round) : null));
    return [series(label, `--s${i + 1}`, settled), series(null, `--s${i + 1}`, learning, { dashed: true, faint: true })];
  });
  plots.pay.show(at, lines);
  const more = total.size - best.length;
  const learns = store.rounds.some((round) => best.some((peer) => round.learning.has(peer)));
  $("pay-note").textContent = [
    learns && `dashed: uncertain, fewer than ${SETTLED} evaluations behind it`,
    more > 0 && `the ${best.length} best paid of ${total.size}; a click in the matrix adds a peer`,
  ].filter(Boolean).join("; ");
}

// --- what is shown, by the page's address: #peer=HOTKEY, #rounds=FROM-TO, #loss=log,smooth -------------------------

let peerShown = null;
async function byAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const span = /^(\d{1,10})-(\d{1,10})$/.exec(asked.get("rounds") ?? "");
  zoom.set(span ? [Number(span[1]), Number(span[2])] : null);
  view.set((asked.get("loss") ?? "").split(","));
  const peer = asked.get("peer");
  $("peer").hidden = peer === null;
  if (peer === null) {
    peerShown = null;
    return draw(null);
  }
  const body = $("peer-body");
  try {
    const answer = await fetch(`api/peers/${encodeURIComponent(peer)}`);
    const told = await answer.json();
    if (!answer.ok) throw new Error(told.error ?? `status ${answer.status}`);
    $("h-peer").textContent = `${told.name ?? named(told.hotkey)}: ${told.rounds.length} rounds`;
    $("peer-json").href = `api/peers/${encodeURIComponent(told.hotkey)}`;
    if (store.facts.cluster) return memberRounds(told, peer);
    const paid = told.rounds.reduce((sum, round) => sum + (round.pay ?? 0), 0);
    const counted = told.rounds.filter((round) => round.outcome === "contributing" && !round.void).length;
    const table = tableOf(["Round", "Outcome", "Pay", "Evaluations"], told.rounds.toReversed().map((round) => [
      String(round.round),
      round.void ? `void: ${store.byNumber.get(round.round)?.why_void ?? ""} (${round.outcome ?? "–"})` : round.outcome ?? "–",
      round.pay === null ? "" : percent(round.pay),
      round.evaluations === null ? "" : round.evaluations < SETTLED ? `${round.evaluations}: not evaluated enough to be sure` : String(round.evaluations),
    ]));
    body.replaceChildren(paragraph(`${told.hotkey}: contributed to ${counted} rounds, ${paid.toFixed(2)} rounds' whole pay so far`), table);
  } catch (fault) {
    body.replaceChildren(paragraph(`${peer}: ${fault.message}`));
  }
  if (peerShown !== peer) $("peer").scrollIntoView({ block: "nearest" });
  peerShown = peer;
}

// A member of a cluster: all its rounds, and its own line in the chart of the loss.
function memberRounds(told, peer) {
  const dash = (value, form = String) => (value === null ? "–" : form(value));
  const table = tableOf(["Round", "Update", "Loss", "Steps", "Trained", "Sent in"], told.rounds.toReversed().map((round) => [
    String(round.round), OUTCOMES[round.outcome] ?? round.outcome, dash(round.loss, (n) => n.toFixed(3)), dash(round.steps), dash(round.seconds, seconds), dash(round.sending, seconds),
  ]));
  const count = told.rounds.filter((round) => round.outcome === "contributing").length;
  $("peer-body").replaceChildren(paragraph(`${told.hotkey}: contributed to ${count} rounds`), table);
  if (peerShown !== peer) $("peer").scrollIntoView({ block: "nearest" });
  peerShown = peer;
  draw({ name: told.name ?? named(told.hotkey), losses: new Map(told.rounds.map((round) => [round.round, round.loss])) });
}
function draw(member) {
  const before = lossOf;
  lossOf = member;
  if (store.facts.cluster && (before || member)) loss(store.rounds.map((round) => round.round), store.rounds.filter((round) => round.tested !== null));
}
addEventListener("hashchange", byAddress);
function address(name, value) {
  const asked = new URLSearchParams(location.hash.slice(1));
  if (value) asked.set(name, value);
  else asked.delete(name);
  history.replaceState(null, "", `${location.pathname}${asked.size ? `#${asked}` : ""}`);
}
view.changed = (names) => address("loss", names.join(","));
zoom.changed = (range) => {
  address("rounds", range?.join("-"));
  $("zoom-note").textContent = range ? `rounds ${range[0]} to ${range[1]}; a double click shows all` : "";
};
$("close-peer").addEventListener("click", () => { location.hash = ""; });

let width = 0;
addEventListener("resize", () => {
  if (width === innerWidth) return; // a phone's address bar only
  width = innerWidth;
  requestAnimationFrame(() => { matrix.draw(); repaintPhases(); for (const plot of Object.values(plots)) plot.fit(); });
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { matrix.draw(); repaintPhases(); for (const plot of Object.values(plots)) plot.again(); });
begin(arrange);
byAddress();
ask();
