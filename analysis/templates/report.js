"use strict";
(() => {
  const units = { "µs": 1e-6, ms: 1e-3, s: 1, KiB: 1024, MiB: 1024 ** 2, GiB: 1024 ** 3 };
  const key = (cell) => {
    const text = cell.textContent.trim();
    const found = text.replace(/−/g, "-").match(/^[+±]?(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*(µs|ms|s|KiB|MiB|GiB)?/);
    return found ? Number(found[1]) * (units[found[2]] ?? 1) : text.toLowerCase();
  };
  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    return a < b ? -1 : a > b ? 1 : 0;
  };
  const sort = (head, column) => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = head.closest("table").tBodies[0];
    const rows = [...body.rows].map((row) => [key(row.cells[column]), row]);
    rows.sort(([a], [b]) => (up ? compare(a, b) : compare(b, a)));
    for (const [, row] of rows) {
      row.classList.remove("ruled");
      body.append(row);
    }
  };
  for (const head of document.querySelectorAll("thead th")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.addEventListener("click", () => sort(head, head.cellIndex));
    head.replaceChildren(button);
  }
  addEventListener("beforeprint", () => {
    for (const folded of document.querySelectorAll("details")) folded.open = true;
  });
})();
