(() => {
  "use strict";
  // What an address names, or what is printed, is not folded away.
  const unfold = (fold) => { fold.open = true; };
  const named = () => {
    const place = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    place?.querySelectorAll("details.fold").forEach(unfold);
    if (place) place.scrollIntoView();
  };
  addEventListener("hashchange", named);
  addEventListener("beforeprint", () => document.querySelectorAll("details.fold").forEach(unfold));
  named();
})();

(() => {
  "use strict";
  // The scale and the range in force stand on the root, which maps that are shown a second time inherit from.
  document.querySelector(".controls")?.addEventListener("change", ({ target }) => {
    document.documentElement.dataset[target.name] = target.value;
  });
})();

(() => {
  "use strict";
  const table = document.querySelector("table.results");
  if (!table) return;
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const asked = [...body.rows];
  const next = { none: "ascending", ascending: "descending", descending: "none" };

  // What is missing comes last, whichever way the rest is sorted.
  const compare = (column, numeric, sign) => (one, two) => {
    const [a, b] = [one, two].map((row) => row.cells[column]?.dataset.sort ?? "");
    if (a === "" || b === "") return (a === "") - (b === "");
    const [x, y] = [Number(a), Number(b)];
    const difference = numeric && !Number.isNaN(x) && !Number.isNaN(y) ? x - y : a.localeCompare(b, "en", { numeric: true });
    return sign * difference;
  };

  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const order = next[head.getAttribute("aria-sort")];
      heads.forEach((each) => each.setAttribute("aria-sort", each === head ? order : "none"));
      const sign = order === "descending" ? -1 : 1;
      const rows = order === "none" ? asked : [...asked].sort(compare(column, head.dataset.kind === "number", sign));
      body.append(...rows);
    });
  });
})();
