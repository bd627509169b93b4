// What is looked at is in the address, behind "#": the job, a rank, a tab. It is asked for once a second while the page is visible.

import { ask, inWords, Refused, takeToken } from "./ask.js";
import * as panel from "./panel.js";
import { beside, draw, element, mark, place, ranksShown, text } from "./ranks.js";

const $ = (id) => document.getElementById(id);
const STEP = 1000;
/** Rows of a list in one answer. */
const PAGE = 200;

let timer = null;
/** The number of the last question: an answer to another is not shown. */
let turn = 0;
let picture = null;
let selected = null;
/** What was looked at, to begin anew with another job. */
let shownJob = null;
let wasOver = false;
let shownPhase = "";
const choice = { layout: "", sort: "rank", filter: "", from: 0 };

/** What the address says. */
function here() {
  const fields = new URLSearchParams(location.hash.slice(1));
  const rank = fields.get("rank");
  const tab = fields.get("tab");
  return {
    job: fields.get("job"),
    rank: rank !== null && /^[0-9]{1,9}$/.test(rank) ? Number(rank) : null,
    tab: ["output", "stack"].includes(tab) ? tab : "state",
  };
}

/** Goes to a job, a rank, a tab. A further step can be taken back with the browser's button. */
function go({ job, rank = null, tab = "state" }, isStep = true) {
  const fields = new URLSearchParams();
  if (job) fields.set("job", job);
  if (rank !== null) fields.set("rank", rank);
  if (rank !== null && tab !== "state") fields.set("tab", tab);
  if (isStep) location.hash = `${fields}`;
  else {
    history.replaceState(null, "", `#${fields}`);
    arrive();
  }
}

/** The address has changed. */
function arrive() {
  takeToken();
  const { job, rank, tab } = here();
  if (job !== shownJob) {
    shownJob = job;
    [picture, selected, wasOver] = [null, rank, false];
    Object.assign(choice, { layout: "", sort: "rank", filter: "", from: 0 });
    for (const id of ["layout", "filter"]) $(id).value = "";
    for (const part of ["attempts-part", "report-part"]) $(part).open = false;
    $("report").textContent = "";
    $("lines").replaceChildren();
    for (const id of ["tools", "list", "grid", "legend", "pages", "odd", "none", "choose"]) $(id).hidden = true;
    text($("job-head"), job ? `Job ${job}` : "");
    text($("command"), "");
  }
  $("jobs").hidden = job !== null;
  $("job").hidden = job === null;
  $("where").hidden = job === null;
  document.title = job ? `${job} – rankrun` : "rankrun";
  if (rank !== null) selected = rank;
  panel.show(job, rank, tab);
  panel.fill(picture?.rank?.rank === rank ? picture.rank : null);
  mark(selected);
  look();
}

async function look() {
  clearTimeout(timer);
  turn += 1;
  const mine = turn;
  if (document.hidden) return;
  const { job, rank, tab } = here();
  let isOver = false;
  try {
    if (job === null) {
      const { jobs } = await ask("jobs");
      if (mine !== turn) return;
      showJobs(jobs);
    } else {
      const next = await ask(`jobs/${job}/ranks`, { ...choice, count: PAGE, rank });
      if (mine !== turn) return;
      picture = next;
      showJob();
      panel.tick(job, rank, tab);
      isOver = picture.is_over === true;
    }
    alarm("");
  } catch (error) {
    if (mine !== turn) return;
    alarm(inWords(error));
    // Asking again will not help.
    if (error instanceof Refused && [401, 403, 404].includes(error.status)) return;
  }
  $("live").hidden = isOver;
  if (!isOver) timer = setTimeout(look, job === null ? 2 * STEP : STEP);
}

function alarm(words) {
  text($("alarm"), words);
  $("alarm").hidden = words === "";
  $("live").classList.toggle("is-old", words !== "");
  text($("live"), words === "" ? "live" : "old");
}

function jobLine(job, state, ranks, words) {
  const item = element("li");
  const link = element("a");
  link.href = `#job=${job}`;
  link.append(element("span", "id mono", job), element("span", "", state), element("span", "ranks", ranks), element("span", "words mono", words));
  item.append(link);
  return item;
}

function inRanks(count) {
  return `${count} ${String(count) === "1" ? "rank" : "ranks"}`;
}

function showJobs(jobs) {
  $("no-job").hidden = jobs.length > 0;
  const key = JSON.stringify(jobs);
  if ($("running").dataset.key === key) return;
  $("running").dataset.key = key;
  const focused = document.activeElement?.closest("#running a")?.getAttribute("href");
  $("running").replaceChildren(...jobs.map((job) => {
    const attempt = ["0", "?"].includes(job.attempt) ? "" : `, attempt ${job.attempt}`;
    return jobLine(job.job, `${job.state}, ${job.since}${attempt}`, inRanks(job.ranks), job.command);
  }));
  if (focused) $("running").querySelector(`a[href="${focused}"]`)?.focus();
}

async function showEnded() {
  if (!$("ended-part").open) return;
  try {
    const { ended } = await ask("ended");
    $("no-ended").hidden = ended.length > 0;
    $("ended").replaceChildren(...ended.map((job) => {
      const when = new Date(job.started * 1000).toLocaleString(undefined, { dateStyle: "short", timeStyle: "short" });
      return jobLine(job.job, when, `exit ${job.exit_code}`, job.summary);
    }));
  } catch (error) {
    alarm(inWords(error));
  }
}

function showJob() {
  const isEnded = picture.layout === "ended";
  text($("job-head"), `Job ${shownJob}: ${picture.title ?? ""}`);
  text($("command"), picture.command ?? "");
  const lines = $("lines");
  while (lines.children.length > picture.lines.length) lines.lastElementChild.remove();
  picture.lines.forEach((line, at) => {
    const shown = lines.children[at] ?? lines.appendChild(element("p"));
    text(shown, line.text);
    shown.className = line.is_alarm ? "alarm" : "";
  });
  $("tools").hidden = isEnded || picture.layout === undefined;
  $("choose").hidden = !isEnded;
  if (picture.sorts && $("sort").options.length === 0) {
    $("sort").append(...picture.sorts.map((sort) => new Option(sort, sort)));
  }
  if (document.activeElement !== $("sort")) $("sort").value = choice.sort;
  $("sort").disabled = picture.layout === "grid";
  if (picture.layout === "list") choice.from = picture.from;
  draw(picture, selected);
  const { rank } = here();
  if (rank !== null) panel.fill(picture.rank);
  // Why it ended is what there is to see now.
  if (picture.is_over && !wasOver && !$("report-part").open && $("report").textContent === "") {
    $("report-part").open = true;
  }
  wasOver = picture.is_over === true;
  const phase = `${picture.attempt} ${picture.state} ${wasOver}`;
  if (phase !== shownPhase && $("attempts-part").open) showAttempts();
  shownPhase = phase;
}

function seconds(time) {
  if (time < 10) return `${time.toFixed(1)} s`;
  if (time < 60) return `${Math.floor(time)} s`;
  if (time < 3600) return `${Math.floor(time / 60)} min ${Math.floor(time % 60)} s`;
  return `${Math.floor(time / 3600)} h ${Math.floor((time / 60) % 60)} min`;
}

async function showAttempts() {
  if (!$("attempts-part").open || !shownJob) return;
  const job = shownJob;
  try {
    const { attempts } = await ask(`jobs/${job}/attempts`);
    if (job !== shownJob) return;
    const whole = Math.max(0.001, ...attempts.map((attempt) => attempt.ended ?? attempt.now ?? 0));
    $("attempts").replaceChildren(...attempts.map((attempt) => {
      const began = attempt.began ?? 0;
      const ended = attempt.ended ?? attempt.now ?? began;
      const item = element("li");
      item.append(element("b", "", `Attempt ${attempt.attempt}`), `: ${attempt.summary} (${seconds(began)} to ${attempt.ended === null ? "now" : seconds(ended)}) `);
      if (attempt.has_report) {
        const button = element("button", "", "Report");
        button.type = "button";
        button.addEventListener("click", () => showReport(attempt.attempt));
        item.append(button);
      }
      item.append(bar(began / whole, (ended - began) / whole, Boolean(attempt.exit_code)));
      return item;
    }));
    if (attempts.length === 0) $("attempts").append(element("li", "", "Nothing is known of its attempts."));
  } catch (error) {
    alarm(inWords(error));
  }
}

/** When an attempt was, within the job. */
function bar(from, length, hasFailed) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "bar");
  svg.setAttribute("viewBox", "0 0 100 4");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const part = (x, width, name) => {
    const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [key, value] of Object.entries({ x: x * 100, y: 0, width: Math.max(0.5, width * 100), height: 4, class: name })) {
      rect.setAttribute(key, value);
    }
    return rect;
  };
  svg.append(part(0, 1, "whole"), part(from, length, hasFailed ? "failed" : ""));
  return svg;
}

async function showReport(attempt) {
  const job = shownJob;
  $("report-part").open = true;
  let words;
  try {
    words = (await ask(`jobs/${job}/report`, { attempt })).text;
  } catch (error) {
    words = inWords(error);
  }
  if (job === shownJob) text($("report"), words);
}

/** Another choice of ranks. */
function choose(change) {
  Object.assign(choice, { from: 0 }, change);
  look();
}

function select(rank) {
  if (rank === undefined || rank === null) return;
  selected = rank;
  mark(rank);
  place(rank)?.scrollIntoView({ block: "nearest" });
  const { job, rank: open, tab } = here();
  if (open !== null) go({ job, rank, tab }, false);
}

function nextOdd(step) {
  const odd = (picture?.odd ?? []).map((row) => row.rank);
  if (odd.length === 0) return;
  const at = odd.indexOf(selected);
  const from = at >= 0 ? at + step : step > 0 ? 0 : odd.length - 1;
  select(odd[(from + odd.length) % odd.length]);
}

function nextSort() {
  const sorts = picture?.sorts ?? [];
  if (picture?.layout === "grid" || sorts.length === 0) return;
  choose({ sort: sorts[(sorts.indexOf(choice.sort) + 1) % sorts.length] });
}

function otherLayout() {
  const layout = picture?.layout === "grid" ? "list" : "grid";
  $("layout").value = layout;
  choose({ layout });
}

function back() {
  const { job, rank } = here();
  if (rank !== null) {
    go({ job });
    ($("grid").hidden ? $("list") : $("grid")).focus({ preventScroll: true });
  } else if (choice.filter !== "") {
    $("filter").value = "";
    choose({ filter: "" });
  } else if (job !== null) go({ job: null });
}

/** Moves by lines, or by ranks. At the end of a page of the list comes the next page. */
function move(lines, ranks = 0) {
  const shown = ranksShown();
  if (shown.length === 0) return;
  const at = shown.indexOf(selected);
  if (at < 0) return select(shown[0]);
  if (ranks !== 0) return select(shown[Math.min(Math.max(at + ranks, 0), shown.length - 1)]);
  if (picture.layout === "list" && lines > 0 && at === shown.length - 1 && !$("after").disabled && !$("pages").hidden) {
    return choose({ from: picture.from + PAGE });
  }
  return select(beside(selected, lines));
}

const KEYS = {
  ArrowUp: () => move(-1), k: () => move(-1), ArrowDown: () => move(1), j: () => move(1),
  ArrowLeft: () => move(0, -1), h: () => move(0, -1), ArrowRight: () => move(0, 1), l: () => move(0, 1),
  PageUp: () => move(-10), PageDown: () => move(10),
  Home: () => select(ranksShown()[0]), g: () => select(ranksShown()[0]), End: () => select(ranksShown().at(-1)), G: () => select(ranksShown().at(-1)),
  n: () => nextOdd(1), N: () => nextOdd(-1),
  Enter: () => openTab("state"), s: () => openTab("stack"), O: () => openTab("output"),
  v: otherLayout, o: nextSort, "!": () => choose({ sort: choice.sort === "odd first" ? "rank" : "odd first" }),
  "/": () => $("filter").focus(), q: back, Escape: back,
};

function openTab(tab) {
  const { job, rank, tab: now } = here();
  const wanted = rank ?? selected ?? ranksShown()[0];
  if (wanted === undefined) return;
  if (rank === wanted && now === "stack" && tab === "stack") panel.look(job, rank);
  else go({ job, rank: wanted, tab }, rank === null);
}

/** Moves the focus among the jobs. */
function nextJob(step) {
  const links = [...document.querySelectorAll(".jobs a")].filter((link) => link.getClientRects().length > 0);
  const at = links.indexOf(document.activeElement);
  links[at < 0 ? 0 : Math.min(Math.max(at + step, 0), links.length - 1)]?.focus();
}

function press(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || $("help").open) return;
  const { target, key } = event;
  if (target.matches("input, select")) {
    if (key === "Escape" || (key === "Enter" && target === $("filter"))) {
      if (key === "Escape" && target === $("filter")) {
        target.value = "";
        choose({ filter: "" });
      }
      target.blur();
      event.preventDefault();
    }
    return;
  }
  if (key === "?") {
    event.preventDefault();
    return $("help").showModal();
  }
  // These work as everywhere where something else has the focus.
  if (key === "Enter" && target.matches("button, a, summary")) return;
  if (target.matches("[role=tab]") && ["ArrowLeft", "ArrowRight"].includes(key)) {
    const { job, rank, tab } = here();
    const next = panel.nextTab(tab, key === "ArrowRight" ? 1 : -1);
    go({ job, rank, tab: next }, false);
    $(`tab-${next}`).focus();
    return event.preventDefault();
  }
  const scrolls = target.matches("pre") && ["ArrowUp", "ArrowDown", "PageUp", "PageDown", "Home", "End"].includes(key);
  if (scrolls) return;
  if (here().job === null) {
    const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[key];
    if (step === undefined) return;
    nextJob(step);
    return event.preventDefault();
  }
  if (Object.hasOwn(KEYS, key)) {
    KEYS[key]();
    event.preventDefault();
  }
}

function clicked(event) {
  const target = event.target.closest("[data-rank]");
  if (!target || target.dataset.rank === "") return;
  const { job, rank: open } = here();
  const rank = Number(target.dataset.rank);
  selected = rank;
  go({ job, rank, tab: here().tab }, open === null);
}

addEventListener("hashchange", arrive);
document.addEventListener("visibilitychange", look);
document.addEventListener("keydown", press);
for (const id of ["list", "grid", "odd"]) $(id).addEventListener("click", clicked);
$("sort").addEventListener("change", () => choose({ sort: $("sort").value }));
$("layout").addEventListener("change", () => choose({ layout: $("layout").value }));
$("filter").addEventListener("input", () => choose({ filter: $("filter").value }));
$("before").addEventListener("click", () => choose({ from: Math.max(0, picture.from - PAGE) }));
$("after").addEventListener("click", () => choose({ from: picture.from + PAGE }));
$("close").addEventListener("click", back);
$("again").addEventListener("click", () => panel.look(here().job, here().rank));
for (const tab of ["state", "output", "stack"]) {
  $(`tab-${tab}`).addEventListener("click", () => go({ ...here(), tab }, false));
}
$("choose").addEventListener("submit", (event) => {
  event.preventDefault();
  const rank = Number($("choose-rank").value);
  if (Number.isInteger(rank) && rank >= 0) go({ job: shownJob, rank, tab: "output" });
});
$("ended-part").addEventListener("toggle", showEnded);
$("attempts-part").addEventListener("toggle", showAttempts);
$("report-part").addEventListener("toggle", () => {
  if ($("report-part").open && $("report").textContent === "") showReport(null);
});
$("help-button").addEventListener("click", () => $("help").showModal());
arrive();
