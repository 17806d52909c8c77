// What the pages can do without and are nicer with: times in the reader's zone, tables that fit a narrow screen, and an
// overview that refreshes itself.
"use strict";
(() => {
  const format = new Intl.DateTimeFormat(undefined, {
    year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
  });
  const dress = (root) => {
    for (const time of root.querySelectorAll("time[datetime]")) time.textContent = format.format(new Date(time.dateTime));
    for (const table of root.querySelectorAll("table")) {
      const titles = [...table.tHead.rows[0].cells].map((each) => each.textContent);
      for (const row of table.tBodies[0].rows) {
        for (const cell of row.cells) if (cell.colSpan === 1) cell.dataset.title = titles[cell.cellIndex];
      }
      table.classList.add("stacks");
    }
    for (const zone of root.querySelectorAll("[data-zone]")) zone.textContent = format.resolvedOptions().timeZone;
  };
  dress(document);

  const live = () => document.querySelector("[data-refresh]");
  if (!live() || !window.htmx) return;
  const say = (text) => { const state = live().querySelector("[data-state]"); if (state) state.textContent = text; };
  const isRead = () => !getSelection().isCollapsed || live().contains(document.activeElement);
  const refresh = () => { if (live() && !document.hidden && !isRead()) htmx.trigger(live(), "refresh"); };
  let open = [];
  document.addEventListener("htmx:beforeSwap", () => { open = [...live().querySelectorAll("details[open]")].map((each) => each.id); });
  document.addEventListener("htmx:afterSettle", () => {
    dress(document);
    for (const id of open) { const each = document.getElementById(id); if (each) each.open = true; }
  });
  for (const event of ["htmx:responseError", "htmx:sendError"]) {
    document.addEventListener(event, () => say("not refreshed: the console did not answer"));
  }
  document.addEventListener("visibilitychange", refresh);
  setInterval(refresh, live().dataset.refresh * 1000);
})();
