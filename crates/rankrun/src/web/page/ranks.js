// The ranks as a list or as a grid. What is shown of each is decided by the server; elements are made once and changed where they differ.

const $ = (id) => document.getElementById(id);

export function text(element, words) {
  if (element.textContent !== words) element.textContent = words;
}

export function element(name, className, words) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (words !== undefined) made.textContent = words;
  return made;
}

/** The ranks that are shown, in order; with the place of each in the grid. */
let shown = [];
let heads = "";

export function ranksShown() {
  return shown;
}

/** Draws a picture. `select` is called with the rank that is clicked. */
export function draw(picture, selected) {
  const isGrid = picture.layout === "grid";
  const isList = picture.layout === "list";
  $("list").hidden = !isList;
  $("grid").hidden = !isGrid;
  $("legend").hidden = !isGrid;
  $("none").hidden = !(isGrid || isList) || picture.chosen > 0;
  if (isList) drawList(picture);
  if (isGrid) drawGrid(picture);
  if (!isList && !isGrid) shown = [];
  drawOdd(picture);
  drawPages(picture);
  mark(selected);
}

function drawOdd(picture) {
  const odd = (picture.odd ?? []).filter(() => picture.layout === "grid");
  $("odd").hidden = odd.length === 0;
  const key = JSON.stringify(odd);
  if ($("odd").dataset.key === key) return;
  $("odd").dataset.key = key;
  const buttons = odd.map((row) => {
    const button = element("button", row.tone, `${row.rank} ${row.last}`);
    button.type = "button";
    button.dataset.rank = row.rank;
    return button;
  });
  $("odd").replaceChildren(element("span", "", "Odd ranks:"), ...buttons);
}

function drawPages(picture) {
  const rows = picture.layout === "list" ? picture.rows.length : 0;
  $("pages").hidden = rows === 0 || rows === picture.chosen;
  if ($("pages").hidden) return;
  text($("range"), `${picture.from + 1} to ${picture.from + rows} of ${picture.chosen}`);
  $("before").disabled = picture.from === 0;
  $("after").disabled = picture.from + rows >= picture.chosen;
}

function drawList(picture) {
  const key = JSON.stringify(picture.columns);
  const table = $("list").firstElementChild;
  if (key !== heads) {
    heads = key;
    const row = element("tr");
    row.append(element("th", "mark"));
    row.firstElementChild.append(hiddenWords("odd"));
    for (const column of picture.columns) {
      const head = element("th", `${column.is_number ? "number" : ""} rest${column.rest}`, column.title);
      head.scope = "col";
      row.append(head);
    }
    row.append(element("th", "last", "LAST LINE"));
    table.tHead.replaceChildren(row);
    table.tBodies[0].replaceChildren();
  }
  const byNode = picture.sort === "rank" && picture.has_nodes;
  const wanted = [];
  let node = null;
  for (const row of picture.rows) {
    if (byNode && row.node !== node) {
      node = row.node;
      wanted.push({ node });
    }
    wanted.push(row);
  }
  const body = table.tBodies[0];
  while (body.rows.length > wanted.length) body.lastElementChild.remove();
  wanted.forEach((row, at) => {
    let line = body.rows[at];
    if (!line || (line.dataset.rank === undefined) !== (row.rank === undefined)) {
      const made = row.rank === undefined ? nodeLine(picture.columns) : rankLine(picture.columns);
      if (line) line.replaceWith(made);
      else body.append(made);
      line = made;
    }
    if (row.rank === undefined) text(line.cells[0], row.node);
    else fill(line, row);
  });
  shown = picture.rows.map((row) => row.rank);
}

function hiddenWords(words) {
  const made = element("span", "", words);
  made.hidden = true;
  return made;
}

function nodeLine(columns) {
  const line = element("tr", "node");
  line.append(element("td"));
  line.firstElementChild.colSpan = columns.length + 2;
  return line;
}

function rankLine(columns) {
  const line = element("tr");
  line.dataset.rank = "";
  line.append(element("td", "mark"));
  for (const column of columns) line.append(element("td", `${column.is_number ? "number" : ""} rest${column.rest}`));
  line.append(element("td", "last"));
  return line;
}

function fill(line, row) {
  if (line.dataset.rank !== String(row.rank)) {
    line.dataset.rank = row.rank;
    line.id = `rank-${row.rank}`;
  }
  text(line.cells[0], row.is_odd ? "!" : "");
  row.cells.forEach((words, at) => text(line.cells[at + 1], words));
  text(line.cells[row.cells.length + 1], row.last);
  // The mark, the number and the state have the colour.
  if (line.dataset.tone !== row.tone) {
    for (const cell of [0, 1, 2].map((at) => line.cells[at])) {
      cell.classList.remove("good", "odd", "bad", "held", "dim");
      cell.classList.add(row.tone);
    }
    line.dataset.tone = row.tone;
  }
}

function drawGrid(picture) {
  const grid = $("grid");
  const key = JSON.stringify(picture.nodes.map((node) => [node.name, node.ranks]));
  if (grid.dataset.key !== key) {
    grid.dataset.key = key;
    grid.replaceChildren(...picture.nodes.map(nodeBlock));
    const most = Math.max(0, ...picture.nodes.map((node) => node.ranks.length));
    const name = Math.max(0, ...picture.nodes.map((node) => node.name.length));
    // As many nodes in a line as there is room for, of sixteen ranks in a line at most where there are several nodes.
    const cells = picture.nodes.length > 1 ? Math.min(most, 16) : most;
    grid.style.setProperty("--block", `${cells * 1.5 + Math.min(name, 20) * 0.55 + 1}rem`);
    shown = picture.nodes.flatMap((node) => node.ranks);
  }
  const cells = grid.getElementsByTagName("i");
  let at = 0;
  for (const node of picture.nodes) {
    for (const mark of node.marks) {
      const cell = cells[at];
      at += 1;
      if (cell.dataset.mark === mark) continue;
      cell.dataset.mark = mark;
      cell.textContent = mark;
      cell.className = picture.tones[mark];
      const word = picture.legend.find(([character]) => character === mark)?.[1] ?? "";
      cell.setAttribute("aria-label", `rank ${cell.dataset.rank}: ${word}`);
      cell.title = `rank ${cell.dataset.rank}: ${word}`;
    }
  }
  const legend = JSON.stringify(picture.legend);
  if ($("legend").dataset.key !== legend) {
    $("legend").dataset.key = legend;
    $("legend").replaceChildren(...picture.legend.map(([mark, word, count]) => {
      const item = element("li");
      item.append(element("b", picture.tones[mark], mark), `${count} ${word}`);
      return item;
    }));
  }
}

function nodeBlock(node) {
  const block = element("div", "node");
  const cells = element("div", "cells");
  cells.setAttribute("role", "group");
  cells.setAttribute("aria-label", node.name);
  for (const rank of node.ranks) {
    const cell = element("i");
    cell.dataset.rank = rank;
    cell.id = `cell-${rank}`;
    cell.setAttribute("role", "option");
    cells.append(cell);
  }
  block.append(element("span", "", node.name), cells);
  return block;
}

/** Marks the selected rank. */
export function mark(rank) {
  for (const old of document.querySelectorAll("#list .selected, #grid .selected")) {
    if (old.dataset.rank !== String(rank)) {
      old.classList.remove("selected");
      old.removeAttribute("aria-selected");
    }
  }
  const one = place(rank);
  if (one) {
    one.classList.add("selected");
    one.setAttribute("aria-selected", "true");
    if (one.tagName === "I") $("grid").setAttribute("aria-activedescendant", one.id);
  }
}

/** The element of a rank that is shown. */
export function place(rank) {
  return $("grid").hidden ? $(`rank-${rank}`) : $(`cell-${rank}`);
}

/** The rank that is so many lines below another, in a grid the nearest of that line. */
export function beside(rank, lines) {
  const at = shown.indexOf(rank);
  if ($("grid").hidden) return shown[Math.min(Math.max(at + lines, 0), shown.length - 1)];
  const places = shown.map((other) => place(other).getBoundingClientRect());
  const own = places[at];
  const tops = [...new Set(places.map((box) => Math.round(box.top)))].sort((one, other) => one - other);
  const line = tops.indexOf(Math.round(own.top)) + lines;
  const top = tops[Math.min(Math.max(line, 0), tops.length - 1)];
  let best = at;
  let distance = Infinity;
  places.forEach((box, other) => {
    const away = Math.abs(box.left - own.left);
    if (Math.round(box.top) === top && away < distance) [best, distance] = [other, away];
  });
  return shown[best];
}
