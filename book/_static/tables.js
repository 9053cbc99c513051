// Tables of results: a click on a column's head sorts by it (again: the other way round, then as
// printed), and a method's name typed over one table leaves its rows in all of the page's tables.
// A box that is scrolled sideways is marked. Where scripts are off, every table is left as it is.
addEventListener("DOMContentLoaded", () => {
  const tables = [...document.querySelectorAll("table:is(.beside, .rules, .linked)")];

  // "≠ 87.9 ± 0.4 (n=3) a" is 87.9; a cell without a number of its own has none.
  const number = (text) => parseFloat(text.replace("≠", "").trim().replace("−", "-"));
  const words = (a, b) => a.localeCompare(b, undefined, { numeric: true });
  const sortable = (table) => {
    const body = table.tBodies[0];
    const rows = [...body.rows].filter((row) => !row.querySelector("th em"));
    const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
    if (rows.length < 2 || rows.some((row) => row.cells.length !== heads.length)) return;
    const last = [...body.rows].filter((row) => !rows.includes(row)); // of all rows, never sorted
    heads.forEach((head, column) => {
      const texts = new Map(rows.map((row) => [row, row.cells[column].textContent.trim()]));
      const numbers = column > 0 && [...texts.values()].some((text) => !isNaN(number(text)));
      const states = ["none", "descending", "ascending"];
      if (!numbers || head.textContent.includes("rank")) states.splice(1, 2, "ascending", "descending");
      const empty = (row) => (numbers ? isNaN(number(texts.get(row))) : !texts.get(row));
      const sorted = (sign) => rows.slice().sort((a, b) => {
        if (empty(a) || empty(b)) return empty(a) - empty(b);
        const [left, right] = [texts.get(a), texts.get(b)];
        return sign * (numbers ? number(left) - number(right) : words(left, right));
      });
      const button = document.createElement("button");
      button.append(...head.childNodes);
      head.replaceChildren(button);
      head.ariaSort = "none";
      button.addEventListener("click", () => {
        const state = states[(states.indexOf(head.ariaSort) + 1) % 3];
        for (const other of heads) other.ariaSort = "none";
        head.ariaSort = state;
        body.append(...(state === "none" ? rows : sorted(state === "ascending" ? 1 : -1)), ...last);
      });
    });
  };

  const boxes = [];
  const filter = (asked) => {
    const names = asked.toLowerCase().split(",").map((name) => name.trim()).filter(Boolean);
    for (const row of tables.flatMap((table) => [...table.tBodies[0].rows])) {
      const own = row.cells[0].textContent.toLowerCase();
      row.hidden = names.length > 0 && !row.querySelector("th em") && !names.some((n) => own.includes(n));
    }
    for (const box of boxes) box.value = asked;
  };
  const filterable = (table) => {
    if (table.tBodies[0].rows.length < 4 || table.closest("details")) return;
    if ([...table.tHead.rows].at(-1).cells[0].textContent.trim() === "row") return;
    const label = document.createElement("label");
    const box = document.createElement("input");
    Object.assign(box, { type: "search", placeholder: "FedBN, ADCOL" });
    label.className = "table-filter";
    label.append("Only methods named ", box);
    box.addEventListener("input", () => filter(box.value));
    boxes.push(box);
    table.parentElement.before(label);
  };
  const watch = new ResizeObserver((seen) => seen.forEach(({ target }) =>
    target.classList.toggle("wide", target.scrollWidth > target.clientWidth + 1)));
  for (const box of document.querySelectorAll(".cell_output .output.text_html, .table-scroll")) watch.observe(box);
  tables.forEach(sortable);
  tables.forEach(filterable);
});
