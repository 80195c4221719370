// One round in full: what each validator says of a peer, the validators side by side, and the phases of all nodes.
import { drawPhases } from "./charts.js";
import { STATES, stateOf } from "./matrix.js";
import { account as memberAccount, drawWork } from "./members.js";
import { $, SETTLED, byName, codeOf, called, element, keyEntry, named, nodeName, paragraph, percent, store, tableOf, times } from "./store.js";

async function detail(number) {
  const answer = await fetch(`api/rounds/${number}`);
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error ?? `status ${answer.status}`);
  return told;
}

// --- why ---------------------------------------------------------------------------------------------------------

const NUMBERS = [["weight", "pay", percent], ["peer_score", "PeerScore"], ["mu", "rating"], ["proof", "proof of computation"],
  ["work", "work: steps that it is known to make", percent], ["repeated", "rounds repeated"], ["unproven", "of these not as shown"],
  ["score", "LossScore, averaged"], ["gap", "gap in this round"],
  ["presence", "presence: share of rounds"], ["evaluations", "evaluations"],
  ["contributed", "rounds contributed"], ["faults", "faults"], ["penalty", "penalty"]];

let explained = null; // [peer, the round's number], while it is shown

export async function explain(peer, round) {
  explained = [peer, round.round];
  await fill(peer, round);
  $("why").focus();
  $("why").scrollIntoView({ block: "nearest" });
}

// What is said of a round goes on coming: what is shown of it follows.
export function explainAgain(numbers) {
  if (explained !== null && numbers.includes(explained[1])) fill(explained[0], store.byNumber.get(explained[1]));
}

async function fill(peer, round) {
  const hotkey = store.peers[peer];
  $("h-why").textContent = `${called(peer)} in round ${round.round}: ${STATES[stateOf(codeOf(round, peer))].text}`;
  $("why").hidden = false;
  $("why-void").textContent = voidText(round);
  const asked = explained;
  let blocks;
  try {
    const told = await detail(round.round);
    const said = told.peers[hotkey] ?? {};
    if (store.facts.cluster) blocks = [memberAccount(told.members.find((row) => row.member === hotkey))];
    else blocks = Object.entries(said).map(([validator, row]) => account(nodeName(validator), row));
    for (const [validator, code] of Object.entries(told.unread)) blocks.push(paragraph(`${nodeName(validator)}: ${UNREAD[code] ?? code}`));
    if (!blocks.length) blocks.push(paragraph("No validator has reported on this hotkey in this round (yet)."));
  } catch (fault) {
    blocks = [paragraph(`Why is not to be had: ${fault.message}`)];
  }
  if (explained !== asked) return; // closed meanwhile, or another one is asked for
  $("why-body").replaceChildren(...blocks, element("a", `all rounds of ${hotkey}`, { href: `#peer=${hotkey}` }));
}

export const voidText = (round) => (round?.void ? `Round ${round.round} is void. ${round.why_void}` : "");

function account(validator, row) {
  const block = document.createElement("div");
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
  block.append(element("h3", validator), paragraph(outcome), paragraph(sure), table);
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

$("close-why").addEventListener("click", () => { explained = null; $("why").hidden = true; $("matrix").focus(); });
$("why").addEventListener("keydown", (event) => { if (event.key === "Escape") $("close-why").click(); });

// --- the validators side by side ---------------------------------------------------------------------------------

const NAMES_SHOWN = 8;

function drawValidators(rows) {
  const thetas = rows.map((row) => row.theta).filter((theta) => theta !== null);
  const most = thetas.find((theta) => 2 * thetas.filter((other) => other === theta).length > thetas.length);
  const all = new Set(rows.flatMap((row) => known(row) ?? []));
  const table = tableOf(["Validator", "Stake", "Vote", "Model", "Names", "Report", "Weights", "Last seen"], rows.map((row) => [
    nodeName(row.validator),
    row.stake === null ? "–" : percent(row.stake),
    row.vote === null ? "–" : row.vote === "abstains" ? "abstains" : `in block ${row.voted_in}`,
    row.theta === null ? "–" : `${row.theta.slice(0, 8)}${most !== undefined && row.theta !== most ? ", unlike most" : ""}`,
    names(row, all),
    row.unobserved !== null ? `not observed (${row.unobserved})` : row.reported ? "published" : row.unread !== null ? UNREAD[row.unread] ?? row.unread : "–",
    row.not_set ?? (row.set_in === null ? "–" : `set in block ${row.set_in}`),
    row.last_round === null ? "–" : `round ${row.last_round}`,
  ]));
  $("validators").replaceChildren(rows.length ? table : paragraph("Of this round no validator is known."));
}

// Whom it names where all of that is known, else some; and whom others name and it does not.
const known = ({ named: count, peers, first }) => (count === null ? null : peers ?? (first?.length === count ? first : null));

function names(row, all) {
  const { named: count, first } = row;
  if (count === null) return "–";
  const own = known(row);
  if (own === null) return first?.length ? `${count}, among them ${list(first)}` : String(count);
  const missing = [...all].filter((peer) => !own.includes(peer));
  return `${count}${count && count <= NAMES_SHOWN ? `: ${list(own)}` : ""}${missing.length ? `; not ${list(missing)}` : ""}`;
}

function list(hotkeys) {
  const told = hotkeys.map(named).sort(byName);
  return told.length > NAMES_SHOWN ? `${told.slice(0, NAMES_SHOWN).join(", ")} …` : told.join(", ");
}

// --- phases ------------------------------------------------------------------------------------------------------

const PHASES_OF_NETWORK = "Of this round no node has said what it spent its time on. A network that is read from outside tells no more than seconds of training.";
const PHASES_OF_CLUSTER = "A bucket does not tell what members spend the rest of their time on; their own events do.";
let shown = null;
export async function drawRound() {
  const told = store.rounds.filter((round) => round.void !== null);
  if (!told.length) return;
  const field = $("phases-round");
  if ($("phases-follow").checked) field.value = told.at(-1).round;
  const number = Number(field.value);
  const round = store.byNumber.get(number);
  const asked = round ? `${number}/${round.version}` : null;
  if (asked !== null && asked === shown?.asked) return;
  $("round-void").textContent = voidText(round);
  try {
    const found = await detail(number);
    if (Number(field.value) !== number) return; // another one was asked for meanwhile
    shown = { asked, ...found };
    if (store.facts.cluster) drawWork(round, shown.members);
    else drawValidators(shown.validators);
    $("phases-note").textContent = Object.keys(shown.phases).length ? "" : store.facts.cluster ? PHASES_OF_CLUSTER : PHASES_OF_NETWORK;
  } catch (fault) {
    shown = null;
    $("validators").replaceChildren();
    $("work").replaceChildren();
    $("phases-note").textContent = `Round ${field.value}: ${fault.message}.`;
  }
  repaintPhases();
}

export function repaintPhases() {
  if (shown === null) return;
  const any = Object.keys(shown.phases).length > 0;
  $("phases").hidden = !any;
  $("h-spans").hidden = $("key-phases").hidden = !any && Boolean(store.facts.cluster);
  $("phases-of").textContent = !any ? "" : `seconds since the first node began${shown.deadline === null ? "" : "; the line is the deadline of commitments"}`;
  drawPhases($("phases").querySelector("canvas"), $("phases").clientWidth, shown, $("key-phases"), keyEntry);
}

$("phases-round").addEventListener("change", () => { $("phases-follow").checked = false; drawRound(); });
$("phases-follow").addEventListener("change", drawRound);
