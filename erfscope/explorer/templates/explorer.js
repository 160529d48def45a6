(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const NAMES = Object.keys(data.gloss);
  // How much of the picture a map covers where it is strongest, and how bright the picture is below it.
  const COVER = 0.92, DIM = 0.6;
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const palette = bytes(data.colours);
  const one = (selector, within = document) => within.querySelector(selector);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const make = (tag, text = "", kind = "") => {
    const element = document.createElement(tag);
    if (text) element.textContent = text;
    if (kind) element.className = kind;
    return element;
  };
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const interpolate = (x, xs, ys) => {
    const above = xs.findIndex((each) => each >= x);
    if (above <= 0) return above === 0 ? ys[0] : ys[ys.length - 1];
    const part = (x - xs[above - 1]) / (xs[above] - xs[above - 1]);
    return ys[above - 1] + part * (ys[above] - ys[above - 1]);
  };
  const brightness = (share) => interpolate(share, data.shares, data.brightness);
  const darkToBright = [...data.brightness].reverse(), allToNone = [...data.shares].reverse();
  // The share of a map in blocks at least as strong as those of each level.
  const HELD = Array.from({ length: 256 }, (_, level) => interpolate((level - 1) / 254, darkToBright, allToNone));

  // Models, with what is computed once for each.
  const models = data.models.map((model, number) => {
    const [height, width] = model.size;
    const section = all(".model")[number];
    model.stages.forEach((stage) => {
      stage.units.forEach((unit) => { unit.levels = bytes(unit.levels); });
      if (data.live) stage.units = unmeasured(stage.centers);
      stage.px = model.px;
      stage.edges = stage.centers.map((centres, axis) => edges(centres.map((each) => each ?? 0), [height, width][axis]));
    });
    return { ...model, number, height, width, section, stage: Math.floor((model.stages.length - 1) / 2) };
  });

  // All units of a stage before the server is asked for them.
  function unmeasured([rows, cols]) {
    const unit = (index, at) => ({ index, at: at.includes(null) ? null : at, pending: true, trf: [], field: [], first: [], blocks: [0, 0], numbers: [], radii: [] });
    return rows.flatMap((row, r) => cols.map((col, c) => unit([r, c], [row, col])));
  }

  // From where to where the cell of each row (or column) of units reaches: half of the way to the next centre.
  function edges(centres, size) {
    const between = centres.slice(1).map((each, k) => (each + centres[k]) / 2);
    return centres.map((_, k) => [k ? between[k - 1] : -0.5, k < between.length ? between[k] : size - 0.5]);
  }

  const state = { mode: "sees", at: [0.5, 0.5], box: null, pins: [] };

  // What a unit's levels stand for: the mass of one block, and how bright it is drawn.
  function decoded(unit) {
    if (unit.mass) return unit;
    const counts = new Uint32Array(256), mass = new Float64Array(256), bright = new Float64Array(256);
    unit.levels.forEach((level) => counts[level]++);
    const there = [...counts.keys()].filter((level) => level && counts[level]).reverse();
    let before = 0;
    there.forEach((level, k) => {
      const held = k === there.length - 1 ? 1 : HELD[level];
      mass[level] = (held - before) / counts[level];
      bright[level] = brightness((held + before) / 2);
      before = held;
    });
    return Object.assign(unit, { mass, bright });
  }

  function nearest(model, stage) {
    const [down, across] = [model.height, model.width].map((side, axis) => {
      const at = state.at[axis] * side - 0.5;
      const distances = stage.centers[axis].map((each) => (each == null ? Infinity : Math.abs(each - at)));
      return distances.indexOf(Math.min(...distances));
    });
    return down * stage.grid[1] + across;
  }

  // The unit that is shown: the nearest one, or the one before it as long as that is not there.
  function shownIn(model, stage) {
    const near = nearest(model, stage);
    if (!stage.units[near].pending) stage.last = near;
    return stage.last ?? near;
  }

  // The pixels asked about, as first and last along each axis.
  function asked(model) {
    const sides = [model.height, model.width];
    return sides.map((side, axis) => {
      const ends = state.box ? [state.box[0][axis], state.box[1][axis]] : [state.at[axis], state.at[axis]];
      return ends.map((end) => clamp(Math.floor(end * side), 0, side - 1)).sort((a, b) => a - b);
    });
  }

  // The share of each unit's map that lies in these pixels: the maps, transposed.
  function sharesIn(model, stage, [rows, cols]) {
    const size = stage.block;
    return stage.units.map((unit) => {
      const [high, wide] = unit.blocks;
      if (!high) return 0;
      decoded(unit);
      const [top, left] = unit.first;
      let sum = 0;
      const part = (block, side, [first, last]) => {
        const begin = block * size, end = Math.min(begin + size, side) - 1;
        return (Math.min(end, last) - Math.max(begin, first) + 1) / (end - begin + 1);
      };
      const from = (ends, first) => Math.max(Math.floor(ends[0] / size), first);
      const to = (ends, first, count) => Math.min(Math.floor(ends[1] / size), first + count - 1);
      for (let row = from(rows, top); row <= to(rows, top, high); row++) {
        const vertical = part(row, model.height, rows);
        for (let col = from(cols, left); col <= to(cols, left, wide); col++) {
          const level = unit.levels[(row - top) * wide + col - left];
          sum += unit.mass[level] * vertical * part(col, model.width, cols);
        }
      }
      return sum;
    });
  }

  // How bright each of some values is drawn, by the share of their sum that is in values at least as large.
  function brightOf(values) {
    const total = values.reduce((sum, each) => sum + each, 0);
    const order = values.map((_, k) => k).sort((a, b) => values[b] - values[a]);
    const found = values.map(() => 0);
    let before = 0;
    order.forEach((k) => {
      if (values[k] > 0) found[k] = brightness((before + values[k] / 2) / total);
      before += values[k];
    });
    return found;
  }

  // The picture in grey, as the pixels below a map; every step-th of them.
  function ground(model, step) {
    const key = `ground${step}`;
    if (!model[key]) {
      const [height, width] = [Math.ceil(model.height / step), Math.ceil(model.width / step)];
      const canvas = make("canvas");
      [canvas.width, canvas.height] = [width, height];
      const context = canvas.getContext("2d", { willReadFrequently: true });
      context.drawImage(model.image, 0, 0, width, height);
      const image = context.getImageData(0, 0, width, height);
      for (let k = 0; k < image.data.length; k++) if (k % 4 < 3) image.data[k] *= DIM;
      model[key] = image;
    }
    return model[key];
  }

  function blend(pixels, k, bright) {
    const cover = COVER * bright, colour = 3 * Math.round(255 * bright);
    for (let band = 0; band < 3; band++) pixels[k + band] = pixels[k + band] * (1 - cover) + palette[colour + band] * cover;
  }

  // Draw on a canvas: the picture, and over it what `bright` gives for each pixel of the rows and columns.
  function paint(canvas, model, step, [rows, cols], bright) {
    const under = ground(model, step), { width, height } = under;
    if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
    const image = new ImageData(new Uint8ClampedArray(under.data), width, height);
    for (let y = Math.ceil(rows[0] / step); y * step <= rows[1]; y++) {
      for (let x = Math.ceil(cols[0] / step); x * step <= cols[1]; x++) {
        const value = bright(y * step, x * step);
        if (value > 0) blend(image.data, 4 * (y * width + x), value);
      }
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  function paintUnit(canvas, model, stage, unit, step) {
    const nothing = [[0, -1], [0, -1]];
    if (!unit.blocks[0]) return paint(canvas, model, step, nothing, () => 0);
    const { bright } = decoded(unit), size = stage.block, wide = unit.blocks[1];
    return paint(canvas, model, step, unit.field, (y, x) => {
      const block = (Math.floor(y / size) - unit.first[0]) * wide + Math.floor(x / size) - unit.first[1];
      return bright[unit.levels[block]];
    });
  }

  function paintUnits(canvas, model, stage, bright, step) {
    const [rows, cols] = stage.edges.map((cells, axis) => {
      const side = axis ? model.width : model.height;
      return Array.from({ length: side }, (_, k) => cells.findIndex(([, end]) => k <= end));
    });
    paint(canvas, model, step, [[0, model.height - 1], [0, model.width - 1]], (y, x) => bright[rows[y] * stage.grid[1] + cols[x]]);
  }

  const twice = (shape, kind) => `<${shape} class="halo"/><${shape} class="${kind}"/>`;
  const rectangle = ([[top, bottom], [left, right]]) =>
    `rect x="${left - 0.5}" y="${top - 0.5}" width="${right - left + 1}" height="${bottom - top + 1}"`;

  function cellOf(stage, number) {
    const [rows, cols] = stage.edges, wide = stage.grid[1];
    return [rows[Math.floor(number / wide)], cols[number % wide]].map(([first, end]) => [first + 0.5, end - 0.5]);
  }

  function mark(svg, model, stage, number, full) {
    const unit = stage.units[number];
    svg.setAttribute("viewBox", `-0.5 -0.5 ${model.width} ${model.height}`);
    let text = "";
    if (state.mode === "seen" && full !== "pin") {
      text = twice(rectangle(asked(model)), "probe");
    } else if (unit.at) {
      const [row, col] = unit.at, arm = model.width / 60;
      if (full) {
        const ring = (name) => {
          const radius = unit.numbers[NAMES.indexOf(name)];
          return radius > 0 ? twice(`circle cx="${col}" cy="${row}" r="${radius}"`, `ring ${name}`) : "";
        };
        text += unit.trf.length ? twice(rectangle(unit.trf), "field") : "";
        text += ring("r50") + ring("r90");
        const near = nearest(model, stage);
        if (full !== "pin" && near !== number && stage.units[near].pending) text += twice(rectangle(cellOf(stage, near)), "cell");
        text += twice(`path d="M${col - arm} ${row}H${col + arm}M${col} ${row - arm}V${row + arm}"`, "cross");
      } else {
        text += twice(rectangle(cellOf(stage, number)), "cell");
      }
    }
    svg.innerHTML = text;
  }

  // Numbers as text.
  const digits = (value) => (value == null ? "–" : String(Number(value.toPrecision(3))));
  const percent = (value) => (value == null ? "–" : `${Number((100 * value).toPrecision(3))} %`);
  const texts = { center_share: percent, erf_trf: digits };
  const reading = (stage, name, value) => (texts[name] ? texts[name](value) : value == null ? "–" : `${digits(value)} ${stage.px}`);
  const number = (unit, name) => unit.numbers[NAMES.indexOf(name)];
  const fieldText = (stage) => (stage.global ? "the whole picture" : `${stage.trf.join(" x ")} ${stage.px}`);
  const unitText = (unit) => `(${unit.index.join(", ")})`;

  const ROWS = [
    ...NAMES.map((name) => [name, data.gloss[name], (stage, unit) => [reading(stage, name, number(unit, name)), number(unit, name)]]),
    ["TRF", "all pixels that could move it", (stage) => [fieldText(stage)]],
    ["stride", "from one unit to the next", (stage) => [`${digits(stage.stride[0])} ${stage.px}`]],
    ["unit", "row and column in the stage's map", (stage, unit) => [`${unitText(unit)} of ${stage.space.join(" x ")}`]],
  ];

  function fill(table, heads, rows) {
    const head = make("tr");
    heads.forEach(([text, kind], k) => {
      const cell = make("th", text, k ? `num ${kind || ""}`.trim() : "");
      cell.scope = "col";
      head.append(cell);
    });
    table.tHead.replaceChildren(head);
    table.tBodies[0].replaceChildren(...rows.map(([name, gloss, cells]) => {
      const row = make("tr"), label = make("th", name);
      label.scope = "row";
      if (gloss) label.append(make("small", gloss));
      row.append(label, ...cells.map(([text, value]) => {
        const cell = make("td", text, "num");
        if (value != null) cell.dataset.value = value;
        return cell;
      }));
      return row;
    }));
  }

  // Where the unit's own cell holds much, r50 says little about how far it looks.
  const OWN = 0.3;

  function sentence(element, model, stage, unit) {
    const [r50, own, beyond] = ["r50", "center_share", "context_r50"].map((name) => number(unit, name));
    const wide = Math.max(model.width, model.height);
    if (unit.pending || unit.error) return element.replaceChildren(unit.error || "…");
    if (r50 == null) return element.replaceChildren(`${stage.name}: unit ${unitText(unit)} has no gradient on this picture.`);
    return element.replaceChildren(
      `In ${stage.name}, half of what unit ${unitText(unit)} looks at lies within `,
      make("b", `${digits(r50)} ${stage.px}`),
      ` of it (${Number((100 * r50 / wide).toPrecision(2))} % of the picture’s side), nine tenths within ${digits(number(unit, "r90"))} ${stage.px}. `,
      own > OWN && beyond != null ? `${percent(own)} is in the unit’s own cell of ${digits(stage.stride[0])} ${stage.px}; half of the rest lies within ${digits(beyond)} ${stage.px}. ` : "",
      stage.global ? "In theory it could look at the whole picture." : `In theory it could look at ${fieldText(stage)}.`,
    );
  }

  // What is left out of a large stage, which may be the very units that are asked for.
  const here = (stage) => {
    const count = stage.space[0] * stage.space[1];
    return stage.units.length < count ? ` Of its ${count} units ${stage.units.length} are on this page.` : "";
  };

  function seenFacts(stage, shares) {
    const total = shares.reduce((sum, each) => sum + each, 0), sorted = [...shares].sort((a, b) => b - a);
    const holding = (share) => {
      let sum = 0;
      return sorted.findIndex((each) => (sum += each) >= share * total) + 1;
    };
    const strongest = shares.indexOf(sorted[0]);
    return { total, strongest, most: sorted[0], half: total ? holding(0.5) : 0, tenths: total ? holding(0.9) : 0, any: shares.filter((each) => each > 0).length };
  }

  // What is shown of the units of a stage that see these pixels; live, what the server has said of them.
  function seenIn(model, stage) {
    if (stage.seen) return stage.seen;
    const shares = data.live ? stage.units.map(() => 0) : sharesIn(model, stage, asked(model));
    return { bright: brightOf(shares), facts: seenFacts(stage, shares) };
  }

  const reach = (unit) => 1.03 * (unit.radii.at(-1) || 0);
  let limit = models.flatMap((m) => m.stages.flatMap((s) => s.units)).reduce((most, unit) => Math.max(most, reach(unit)), 1);

  function drawProfile(shown) {
    const svg = one(".profile"), [wide, high, left, bottom] = [360, 220, 34, 30];
    const x = (radius) => left + (radius / limit) * (wide - left - 8);
    const y = (share) => high - bottom - share * (high - bottom - 10);
    const line = (unit, kind) => {
      const points = unit.radii.map((radius, k) => `${x(radius).toFixed(1)},${y(data.enclosed[k]).toFixed(1)}`);
      return unit.radii.length ? `<polyline class="${kind}" points="${x(0)},${y(0)} ${points.join(" ")}"/>` : "";
    };
    svg.setAttribute("viewBox", `0 0 ${wide} ${high}`);
    const step = [1, 2, 5, 10, 20, 50, 100, 200, 500].find((each) => limit / each <= 7) || 1000;
    let text = [0, 0.5, 0.9].map((share) => `<line class="grid" x1="${left}" x2="${wide - 8}" y1="${y(share)}" y2="${y(share)}"/><text x="${left - 5}" y="${y(share) + 3.5}" text-anchor="end">${100 * share} %</text>`).join("");
    for (let radius = 0; radius <= limit; radius += step) text += `<text x="${x(radius)}" y="${high - bottom + 14}" text-anchor="middle">${radius}</text>`;
    text += `<text x="${wide - 8}" y="${high - 3}" text-anchor="end">distance to the unit, ${models[0].px}</text>`;
    models.forEach((model) => model.stages.forEach((stage) => { text += line(stage.units[shownIn(model, stage)], "others"); }));
    state.pins.forEach((pin) => { text += line(unitOf(pin), "pin"); });
    shown.forEach(({ unit }, k) => { text += line(unit, `m${k}`); });
    svg.innerHTML = text;
    one(".reading figcaption").replaceChildren(
      "Share of the ERF within a distance of the unit: ",
      ...shown.flatMap(({ model, stage }, k) => [k ? ", " : "", make("span", `${models.length > 1 ? `${model.label} ` : ""}${stage.name}`, `m${k}-key`)]),
      `; thin: the other stages at this place${state.pins.length ? "; dashed: pinned units" : ""}.`,
    );
  }

  const unitOf = (pin) => models[pin.model].stages[pin.stage].units[pin.unit];

  function draw() {
    scheduled = false;
    const seen = state.mode === "seen";
    const shown = models.map((model) => {
      const stage = model.stages[model.stage], chosen = shownIn(model, stage);
      const screen = one(".screen", model.section);
      let facts = null;
      model.stages.forEach((each, k) => {
        const card = model.cards[k], near = k === model.stage ? chosen : shownIn(model, each);
        if (seen) {
          const { bright, facts: found } = seenIn(model, each);
          paintUnits(card.canvas, model, each, bright, card.step);
          card.note.textContent = found.total ? `half in ${found.half}\u00a0of\u00a0${each.units.length}` : "none of these";
          if (k === model.stage) {
            facts = found;
            paintUnits(one("canvas", screen), model, each, bright, 1);
          }
        } else {
          paintUnit(card.canvas, model, each, each.units[near], card.step);
          card.note.textContent = each.units[near].pending ? "…" : `r50 ${reading(each, "r50", number(each.units[near], "r50")).replace(" ", "\u00a0")}`;
          if (k === model.stage) paintUnit(one("canvas", screen), model, each, each.units[near], 1);
        }
        mark(card.svg, model, each, near, false);
        card.button.setAttribute("aria-pressed", k === model.stage);
      });
      mark(one("svg", screen), model, stage, chosen, true);
      one(".depth input", model.section).value = model.stage;
      one(".depth input", model.section).setAttribute("aria-valuetext", stage.name);
      one("output", model.section).textContent = stage.name;
      const text = one(".sentence", model.section), unit = stage.units[chosen];
      if (data.live && seen) {
        text.textContent = model.trouble || (model.box !== boxOf(model) ? "…" : facts.total
          ? `In ${stage.name} ${state.box ? "this box" : "this pixel"} influences unit ${unitText(stage.units[facts.strongest])} most: ${percent(facts.most)} of its total influence on the layer. Brighter cells are influenced more.`
          : `${state.box ? "This box" : "This pixel"} influences no unit of ${stage.name}.`);
      } else if (seen) {
        text.textContent = facts.total
          ? `In ${stage.name}, unit ${unitText(stage.units[facts.strongest])} looks most at ${state.box ? "this box" : "this pixel"}: ${percent(facts.most)} of its ERF lies there. The glow over each unit’s cell says how much it looks here, beside the others.${here(stage)}`
          : `No unit of ${stage.name} that is on this page looks at ${state.box ? "this box" : "this pixel"}.${here(stage)}`;
      } else {
        sentence(text, model, stage, unit);
      }
      screen.setAttribute("aria-label", `${model.label}, ${stage.name}: ${text.textContent}`);
      screen.dataset.unit = unit.index.join(",");
      return { model, stage, unit, chosen, facts };
    });
    const heads = [["", ""], ...shown.map(({ model, stage }, k) => [models.length > 1 ? `${model.label} · ${stage.name}` : stage.name, `m${k}-key`])];
    const rows = seen
      ? [
        ["strongest unit", data.live ? "that is moved most" : "whose ERF has most of it", (s) => [s.facts.total ? unitText(s.stage.units[s.facts.strongest]) : "–"]],
        ["its share", data.live ? "of how much all units are moved" : "of that unit’s ERF in these pixels", (s) => [percent(s.facts.most), s.facts.most]],
        ["half", "units that hold half of all these shares", (s) => [`${s.facts.half} of ${s.stage.units.length}`, s.facts.half]],
        ["nine tenths", "the same for nine tenths", (s) => [`${s.facts.tenths} of ${s.stage.units.length}`, s.facts.tenths]],
        ["any", data.live ? "units that are moved at all" : "units with any of their ERF there", (s) => [`${s.facts.any} of ${s.stage.units.length}`, s.facts.any]],
      ].map(([name, gloss, cell]) => [name, gloss, shown.map(cell)])
      : ROWS.map(([name, gloss, cell]) => [name, gloss, shown.map(({ stage, unit }) => cell(stage, unit))]);
    fill(one(".numbers"), heads, rows);
    if (!seen) drawProfile(shown);
    if (data.live) pursue();
  }

  let scheduled = false;
  const schedule = () => {
    if (!scheduled) requestAnimationFrame(draw);
    scheduled = true;
  };

  function pin(model) {
    const entry = { model: model.number, stage: model.stage, unit: nearest(model, model.stages[model.stage]) };
    if (!state.pins.some((each) => JSON.stringify(each) === JSON.stringify(entry))) state.pins.push(entry);
    drawPins();
  }

  function drawPins() {
    const there = state.pins.length > 0;
    one(".pins").hidden = one("#clear").hidden = !there;
    document.body.classList.toggle("has-pins", there);
    one(".pin-maps").replaceChildren(...state.pins.map((each, place) => {
      const model = models[each.model], stage = model.stages[each.stage], figure = make("figure");
      const map = make("span", "", "card-map"), canvas = make("canvas"), caption = make("figcaption"), remove = make("button", "×");
      const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      remove.type = "button";
      remove.setAttribute("aria-label", `Remove ${pinText(each)}`);
      remove.addEventListener("click", () => {
        state.pins.splice(place, 1);
        drawPins();
      });
      paintUnit(canvas, model, stage, unitOf(each), 1);
      mark(svg, model, stage, each.unit, "pin");
      map.append(canvas, svg);
      caption.append(make("span", pinText(each)), remove);
      figure.append(map, caption);
      return figure;
    }));
    const cells = (cell) => state.pins.map((each) => cell(models[each.model].stages[each.stage], unitOf(each)));
    fill(one(".pin-numbers"), [["", ""], ...state.pins.map((each) => [pinText(each), ""])], ROWS.map(([name, , cell]) => [name, "", cells(cell)]));
    schedule();
  }

  const pinText = (each) => `${models.length > 1 ? `${models[each.model].label} ` : ""}${models[each.model].stages[each.stage].name} ${unitText(unitOf(each))}`;
  const choose = (model, stage) => { model.stage = clamp(stage, 0, model.stages.length - 1); };

  function clear() {
    state.pins = [];
    drawPins();
  }

  function point(event, element) {
    const box = element.getBoundingClientRect();
    return [(event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width].map((part) => clamp(part, 0, 1 - 1e-9));
  }

  function listen(model) {
    const screen = one(".screen", model.section), slider = one(".depth input", model.section);
    let start = null;
    const isDrag = (event) => start && Math.hypot(event.clientX - start.x, event.clientY - start.y) > 3;
    slider.max = model.stages.length - 1;
    slider.addEventListener("input", () => { choose(model, Number(slider.value)); schedule(); });
    screen.addEventListener("pointerdown", (event) => {
      screen.setPointerCapture(event.pointerId);
      start = { at: point(event, screen), x: event.clientX, y: event.clientY };
      [state.at, state.box, state.active] = [start.at, null, model.number];
      schedule();
    });
    screen.addEventListener("pointermove", (event) => {
      const at = point(event, screen);
      state.active = model.number;
      if (state.mode === "seen" && isDrag(event)) state.box = [start.at, at];
      if (state.mode === "sees" || isDrag(event) || !state.box) state.at = at;
      schedule();
    });
    screen.addEventListener("pointerup", (event) => {
      if (start && !isDrag(event) && state.mode === "sees" && event.pointerType === "mouse") pin(model);
      start = null;
    });
    screen.addEventListener("pointercancel", () => { start = null; });
    screen.addEventListener("keydown", (event) => {
      const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      const turn = { PageUp: -1, PageDown: 1 }[event.key];
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      state.active = model.number;
      if (steps) move(model, steps);
      else if (turn) models.forEach((each) => choose(each, each.stage + turn));
      else if (event.key === "Enter" || event.key === " ") { if (state.mode === "sees") pin(model); }
      else if (event.key === "Escape") clear();
      else return;
      event.preventDefault();
      schedule();
    });
  }

  // To the next unit, or in the other mode by a block.
  function move(model, steps) {
    const stage = model.stages[model.stage], sides = [model.height, model.width];
    if (state.mode === "seen") {
      state.box = null;
      state.at = state.at.map((part, axis) => clamp(part + (steps[axis] * stage.block) / sides[axis], 0, 1 - 1e-9));
      return;
    }
    const now = nearest(model, stage), [rows, cols] = stage.grid;
    const row = clamp(Math.floor(now / cols) + steps[0], 0, rows - 1), col = clamp((now % cols) + steps[1], 0, cols - 1);
    const unit = stage.units[row * cols + col];
    if (unit.at) state.at = unit.at.map((centre, axis) => clamp((centre + 0.5) / sides[axis], 0, 1 - 1e-9));
  }

  function cards(model) {
    const step = model.stages.length > 6 || model.width > 300 ? 2 : 1;
    model.cards = model.stages.map((stage, k) => {
      const button = make("button"), map = make("span", "", "card-map"), canvas = make("canvas"), note = make("small");
      const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      const size = `${stage.space.join(" x ")} units${stage.units.length < stage.space[0] * stage.space[1] ? `, ${stage.grid.join(" x ")} shown` : ""}`;
      button.type = "button";
      button.title = `${stage.name}: ${size}; TRF ${fieldText(stage)}`;
      map.append(canvas, svg);
      button.append(map, make("b", stage.name), note);
      const here = (event) => {
        [state.at, state.active] = [point(event, map), model.number];
        choose(model, k);
        schedule();
      };
      map.addEventListener("pointermove", here);
      map.addEventListener("pointerdown", here);
      button.addEventListener("click", () => { choose(model, k); schedule(); });
      return { button, canvas, svg, note, step };
    });
    one(".stages", model.section).classList.toggle("many", model.stages.length > 8);
    one(".stages", model.section).append(...model.cards.map((card) => card.button));
  }

  // Live: what is shown and not there yet is asked for one by one, the first stage first, and given up when it is not
  // shown any more.
  const form = one(".choices"), seconds = {};
  const boxOf = (model) => asked(model).join();

  function missing() {
    if (state.mode === "seen") {
      const model = models.find((each) => each.box !== boxOf(each)), box = model && boxOf(model);
      return model && {
        query: [["model", model.number], ["box", box], ...model.stages.map((stage) => ["stage", stage.name])],
        path: "field",
        text: "which units these pixels move",
        take: (found) => takeField(model, box, found),
      };
    }
    const units = [
      ...models.map((model) => [model, model.stages[model.stage]]),
      ...state.pins.map((each) => [models[each.model], models[each.model].stages[each.stage], unitOf(each)]),
      ...models.flatMap((model) => model.stages.map((stage) => [model, stage])),
    ].map(([model, stage, unit]) => ({ model, stage, unit: unit || stage.units[nearest(model, stage)] }));
    const first = units.find(({ unit }) => unit.pending);
    return first && {
      query: [["model", first.model.number], ["stage", first.stage.name], ["unit", first.unit.index.join()]],
      path: "unit",
      text: `unit ${unitText(first.unit)} of ${first.stage.name}`,
      take: (found) => takeUnit(first.unit, found),
    };
  }

  function takeUnit(unit, found) {
    Object.assign(unit, found, { pending: false, levels: bytes(found.levels || "") });
    limit = Math.max(limit, reach(unit));
    if (state.pins.some((each) => unitOf(each) === unit)) drawPins();
  }

  function takeField(model, box, found) {
    [model.box, model.trouble] = [box, found.error];
    model.stages.forEach((stage, k) => {
      const moved = found.error ? stage.units.map(() => 0) : [...new Float32Array(bytes(found.stages[k]).buffer)];
      const total = moved.reduce((sum, each) => sum + each, 0) || 1, shares = moved.map((each) => each / total);
      stage.seen = { bright: brightOf(shares), facts: seenFacts(stage, shares) };
    });
  }

  async function pursue() {
    const job = state.gone ? null : missing(), key = job && job.query.join("&");
    if (key === (state.asking && state.asking.key)) return;
    if (state.asking) state.asking.abort();
    state.asking = null;
    if (!job) return;
    const control = new AbortController(), kind = `${job.path} ${job.query[1]}`, since = performance.now();
    const asking = { key, since, text: job.text, before: seconds[kind], abort: () => control.abort() };
    state.asking = asking;
    try {
      // A pointer that crosses units asks for none of them.
      await new Promise((done) => { setTimeout(done, 30); });
      const reply = await fetch(`${job.path}?${new URLSearchParams([...new FormData(form), ...job.query])}`, { signal: control.signal });
      job.take(await reply.json());
      seconds[kind] = (performance.now() - since) / 1000;
    } catch (error) {
      if (error.name === "AbortError") return;
      complain("erfscope does not answer any more: start it again, and open the address that it shows.");
      state.gone = true;
    }
    if (state.asking === asking) state.asking = null;
    schedule();
  }

  function complain(text) {
    one("#trouble").textContent = text;
    one("#trouble").hidden = false;
  }

  // A picture of the reader's own, and the page of it.
  async function send(file) {
    if (!file) return;
    state.sending = { text: file.name, since: performance.now() };
    const found = await fetch(`picture?name=${encodeURIComponent(file.name)}`, { method: "POST", body: file })
      .then((reply) => reply.json())
      .catch(() => ({ error: `${file.name} did not arrive: it may be too large, or erfscope has ended.` }));
    state.sending = null;
    if (found.error) return complain(found.error);
    form.elements.picture.value = found.picture;
    return form.requestSubmit();
  }

  // What takes longer than half a second says so, beside what it took before.
  function showProgress() {
    const work = state.sending || state.asking, elapsed = work ? (performance.now() - work.since) / 1000 : 0;
    one(".busy").classList.toggle("is-long", elapsed > 0.5);
    if (elapsed <= 0.5) return;
    one(".busy span").textContent = `${work.text}: ${elapsed.toFixed(1)} s`;
    if (work.before) one(".busy progress").value = Math.min(elapsed / work.before, 0.99);
    else one(".busy progress").removeAttribute("value");
  }

  function listenToChoices() {
    all("select[name=layer]", form).forEach((chosen, k) => {
      const found = models[k].stages.findIndex((stage) => stage.name === chosen.value);
      if (found >= 0) choose(models[k], found);
    });
    // The place of the pointer outlives a choice.
    if (sessionStorage.at) state.at = JSON.parse(sessionStorage.at);
    // So does the focus, for the next key.
    const { focus } = sessionStorage;
    sessionStorage.removeItem("focus");
    if (focus) form.elements[focus].focus({ preventScroll: true });
    form.addEventListener("submit", () => {
      sessionStorage.at = JSON.stringify(state.at);
      const place = [...form.elements].indexOf(document.activeElement);
      if (place >= 0) sessionStorage.focus = place;
    });
    form.addEventListener("change", ({ target }) => (target.type === "file" ? send(target.files[0]) : form.requestSubmit()));
    document.addEventListener("dragover", (event) => event.preventDefault());
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      send(event.dataTransfer.files[0]);
    });
    setInterval(showProgress, 100);
  }

  function legend() {
    const scale = one(".scale"), stops = Array.from({ length: 17 }, (_, k) => 3 * Math.round((255 * k) / 16));
    scale.style.background = `linear-gradient(to left, ${stops.map((k) => `rgb(${palette.slice(k, k + 3).join(" ")})`).join(", ")})`;
    data.shares.slice(1, -1).forEach((share, k) => {
      const tick = make("i", `${100 * share} %`);
      tick.style.right = `${100 * data.brightness[k + 1]}%`;
      tick.style.transform = "translateX(50%)";
      scale.append(tick);
    });
  }

  async function start() {
    await Promise.all(models.map(async (model) => {
      model.image = new Image();
      model.image.src = model.picture;
      await model.image.decode();
      cards(model);
      listen(model);
    }));
    all("input[name=mode]").forEach((input) => input.addEventListener("change", () => {
      [state.mode, state.box] = [input.value, null];
      document.body.classList.toggle("seen", state.mode === "seen");
      one("#pin").disabled = state.mode === "seen";
      schedule();
    }));
    one("#pin").addEventListener("click", () => pin(models[state.active || 0]));
    one("#clear").addEventListener("click", clear);
    legend();
    if (data.live) listenToChoices();
    draw();
    document.body.dataset.ready = "";
  }
  start();
})();
