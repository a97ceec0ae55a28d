"use strict";

// Search boxes are shown only where they work.
document.documentElement.classList.add("scripted");

// A shape is one word, written with spaces or without.
const plain = (text) => text.toLowerCase().replace(/(\d) *x *(?=\d)/g, "$1x");

for (const box of document.querySelectorAll("input[type=search]")) {
  const table = document.getElementById(box.dataset.table);
  const output = document.getElementById(box.dataset.output);
  let bodies = null;

  // The rows are read when they are first searched: of ten thousand, that takes longer than opening the page.
  const read = () => Array.from(table.tBodies, (body) => ({
    body,
    rows: Array.from(body.rows)
      .filter((row) => !row.classList.contains("group"))
      .map((row) => ({ row, text: plain(row.textContent) })),
  }));

  box.addEventListener("input", () => {
    bodies ??= read();
    const words = plain(box.value).split(/\s+/).filter(Boolean);
    let shown = 0;
    let all = 0;
    for (const { body, rows } of bodies) {
      let inBody = 0;
      for (const { row, text } of rows) {
        const found = words.every((word) => text.includes(word));
        row.hidden = !found;
        inBody += found;
      }
      body.hidden = inBody === 0;
      shown += inBody;
      all += rows.length;
    }
    output.textContent = words.length ? `${shown} of ${all} rows` : "";
  });
}

// Paper has nothing to open: what is folded is printed as well, but for the long lists of digests.
let opened = [];
addEventListener("beforeprint", () => {
  opened = Array.from(document.querySelectorAll("details.printed:not([open])"));
  for (const details of opened) details.open = true;
});
addEventListener("afterprint", () => {
  for (const details of opened) details.open = false;
  opened = [];
});
