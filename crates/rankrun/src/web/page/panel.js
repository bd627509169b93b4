// One rank: its state, its output, its stack. Output and stack are asked for when they are opened.

import { ask, inWords } from "./ask.js";
import { element, text } from "./ranks.js";

const $ = (id) => document.getElementById(id);
const TABS = ["state", "output", "stack"];
/** Characters of output that are shown. */
const MOST = 400000;

let open = null;
let at = null;
let isAsking = false;
let isComplete = false;

/** Shows a rank of a job, or nothing. */
export function show(job, rank, tab) {
  const wanted = rank === null ? null : `${job} ${rank} ${tab}`;
  if (wanted === open) return;
  const isFirst = open === null;
  open = wanted;
  $("panel").hidden = wanted === null;
  if (wanted === null) return;
  text($("panel-head"), `Rank ${rank}`);
  for (const name of TABS) {
    $(name).hidden = name !== tab;
    $(`tab-${name}`).setAttribute("aria-selected", String(name === tab));
    $(`tab-${name}`).tabIndex = name === tab ? 0 : -1;
  }
  if (isFirst) $("panel").focus({ preventScroll: true });
  [at, isComplete] = [null, false];
  $("output").querySelector("pre").replaceChildren();
  $("output").querySelector(".note").hidden = true;
  if (tab === "output") follow(job, rank);
  if (tab === "stack") look(job, rank);
}

/** What the last picture says of the rank. */
export function fill(known) {
  const list = $("state").querySelector("dl");
  if (!known) {
    list.replaceChildren(element("dd", "", "Nothing more is known of it."));
    text($("last"), "");
    return;
  }
  const names = known.fields.map(([name]) => name).join();
  if (list.dataset.names !== names || list.children.length !== 2 * known.fields.length) {
    list.dataset.names = names;
    list.replaceChildren(...known.fields.flatMap(([name]) => [element("dt", "", name), element("dd")]));
  }
  known.fields.forEach(([, value], number) => text(list.children[2 * number + 1], value));
  $("last").hidden = known.last === "";
  text($("last"), known.last);
}

/** Asks for more output, if that is open. */
export function tick(job, rank, tab) {
  if (rank !== null && tab === "output" && !isComplete) follow(job, rank);
}

async function follow(job, rank) {
  if (isAsking) return;
  const mine = open;
  isAsking = true;
  let said;
  try {
    said = await ask(`jobs/${job}/output`, { rank, at });
  } catch (error) {
    said = { none: inWords(error) };
  }
  isAsking = false;
  if (open !== mine) {
    // Another rank was opened meanwhile.
    const [otherJob, otherRank, tab] = (open ?? "").split(" ");
    if (tab === "output") follow(otherJob, otherRank);
    return;
  }
  const note = $("output").querySelector(".note");
  const pre = $("output").querySelector("pre");
  const words = said.none ?? (said.is_cut ? "Older output is kept too: \"rankrun logs\" prints it." : "");
  if (at === null || said.none) {
    text(note, words);
    note.hidden = words === "";
  }
  pre.hidden = said.none !== undefined;
  if (said.none !== undefined) return;
  const isAtEnd = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 40;
  said.pieces.forEach((piece) => add(pre, piece));
  while (pre.textContent.length > MOST) pre.firstElementChild.remove();
  if (at === null && pre.childElementCount === 0 && said.is_over) add(pre, { from: "rankrun", text: "It wrote nothing." });
  at = said.at;
  isComplete = said.is_over;
  if (isAtEnd) pre.scrollTop = pre.scrollHeight;
}

function add(pre, piece) {
  if (piece.redraws) withdraw(pre, piece.from);
  const last = pre.lastElementChild;
  if (last?.className === piece.from && last.textContent.length < 20000) last.append(piece.text);
  else pre.append(element("span", piece.from, piece.text));
}

/** Removes the unfinished line of a stream, which is drawn again. */
function withdraw(pre, from) {
  const last = pre.lastElementChild;
  if (last?.className !== from) return;
  const words = last.textContent;
  last.textContent = words.slice(0, words.lastIndexOf("\n") + 1);
}

/** Asks where the rank is. */
export async function look(job, rank) {
  const mine = open;
  const pre = $("stack").querySelector("pre");
  text(pre, "Looking into the rank ...");
  $("again").disabled = true;
  let words;
  try {
    words = (await ask(`jobs/${job}/stack`, { rank })).lines.join("\n");
  } catch (error) {
    words = inWords(error);
  }
  if (open !== mine) return;
  $("again").disabled = false;
  text(pre, words);
}

/** The tab beside another. */
export function nextTab(tab, step) {
  return TABS[(TABS.indexOf(tab) + step + TABS.length) % TABS.length];
}
