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

  // Models, with what is computed once for each. Every input counts as one of three axes: an image is one slice, and a
  // sequence one row of it.
  const FLAT = [1, 2];
  const PANELS = {
    image: [{ axes: FLAT }],
    volume: [{ axes: FLAT }, { axes: [1, 0] }, { axes: [0, 2] }],
    clip: [{ axes: FLAT }, ...Array.from({ length: data.frames }, (_, frame) => ({ axes: FLAT, frame }))],
    sequence: [{ axes: FLAT }],
  };
  const three = (values, filler) => [...Array(3 - values.length).fill(filler), ...values];
  const thirdOf = ({ axes }) => 3 - axes[0] - axes[1];
  const models = data.models.map((entry, number) => {
    const model = { ...entry, number, section: all(".model")[number], stage: Math.floor((entry.stages.length - 1) / 2) };
    const [frames, , length] = model.size;
    model.panels = PANELS[model.kind].filter(({ frame }) => frame == null || frame < frames);
    model.isLine = model.kind === "sequence";
    if (!model.isLine) model.panels = [...model.panels, ...model.panels.filter(({ frame }) => frame == null).map(({ axes }) => ({ axes, inset: true }))];
    const fields = model.stages.filter((stage) => !stage.global).map((stage) => stage.trf.at(-1));
    model.zoom = Math.ceil(1.25 * Math.max(8, ...fields));
    if (model.isLine && fields.length && model.zoom < length / 2) model.panels = [...model.panels, { axes: FLAT, zoom: true }];
    model.stages.forEach((stage) => {
      stage.model = model;
      stage.counts = three(stage.grid, 1);
      stage.units = data.live ? unmeasured(stage) : stage.units.map((unit) => ready(unit, stage));
      stage.edges = stage.centers.map((centres, axis) => edges(centres.map((each) => each ?? 0), model.size[axis]));
    });
    return model;
  });

  function ready(unit, stage) {
    const names = Object.keys(stage.model.measures);
    return Object.assign(unit, {
      at: unit.at && three(unit.at, 0),
      trf: unit.trf.length ? three(unit.trf, [0, 0]) : [],
      numbers: Object.fromEntries(names.map((name, k) => [name, unit.numbers[k]])),
      planes: unit.planes.map((plane) => ({ ...plane, levels: bytes(plane.levels) })),
      curve: unit.curve && bytes(unit.curve),
    });
  }

  // All units of a stage before the server is asked for them.
  function unmeasured({ centers, space, counts }) {
    return Array.from({ length: counts[0] * counts[1] * counts[2] }, (_, number) => {
      const place = placeOf(counts, number), at = place.map((k, axis) => centers[axis][k]);
      return { index: place.slice(3 - space.length), at: at.includes(null) ? null : at, pending: true, trf: [], planes: [], numbers: {}, radii: [] };
    });
  }

  // The place of a unit in the grid of its stage, and back.
  function placeOf([, rows, cols], number) {
    return [Math.floor(number / (rows * cols)), Math.floor(number / cols) % rows, number % cols];
  }
  const numberOf = ([, rows, cols], [plane, row, col]) => (plane * rows + row) * cols + col;

  // From where to where the cell of each row (or column) of units reaches: half of the way to the next centre.
  function edges(centres, size) {
    const between = centres.slice(1).map((each, k) => (each + centres[k]) / 2);
    return centres.map((_, k) => [k ? between[k - 1] : -0.5, k < between.length ? between[k] : size - 0.5]);
  }

  const state = { mode: "sees", at: [0.5, 0.5, 0.5], box: null, pins: [] };

  // What a unit's levels stand for: the mass of one block, and how bright it is drawn.
  function decoded(unit) {
    if (unit.mass) return unit;
    const counts = new Uint32Array(256), mass = new Float64Array(256), bright = new Float64Array(256);
    unit.planes.forEach(({ levels }) => levels.forEach((level) => counts[level]++));
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
    return numberOf(stage.counts, model.size.map((side, axis) => {
      const at = state.at[axis] * side - 0.5;
      const distances = stage.centers[axis].map((each) => (each == null ? Infinity : Math.abs(each - at)));
      return distances.indexOf(Math.min(...distances));
    }));
  }

  // The unit that is shown: the nearest one, or the one before it as long as that is not there.
  function shownIn(model, stage) {
    const near = nearest(model, stage);
    if (!stage.units[near].pending) stage.last = near;
    return stage.last ?? near;
  }

  // The cells asked about, as first and last along each axis.
  function asked(model) {
    return model.size.map((side, axis) => {
      const ends = state.box ? [state.box[0][axis], state.box[1][axis]] : [state.at[axis], state.at[axis]];
      return ends.map((end) => clamp(Math.floor(end * side), 0, side - 1)).sort((a, b) => a - b);
    });
  }

  // The share of each unit's map that lies in these cells: the maps, transposed.
  function sharesIn(model, stage, [, rows, cols]) {
    const size = stage.block, [, height, width] = model.size;
    return stage.units.map((unit) => {
      if (!unit.planes.length) return 0;
      decoded(unit);
      const [{ blocks: [high, wide], first: [top, left], levels }] = unit.planes;
      let sum = 0;
      const part = (block, side, [first, last]) => {
        const begin = block * size, end = Math.min(begin + size, side) - 1;
        return (Math.min(end, last) - Math.max(begin, first) + 1) / (end - begin + 1);
      };
      const from = (ends, first) => Math.max(Math.floor(ends[0] / size), first);
      const to = (ends, first, count) => Math.min(Math.floor(ends[1] / size), first + count - 1);
      for (let row = from(rows, top); row <= to(rows, top, high); row++) {
        const vertical = part(row, height, rows);
        for (let col = from(cols, left); col <= to(cols, left, wide); col++) {
          sum += unit.mass[levels[(row - top) * wide + col - left]] * vertical * part(col, width, cols);
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

  // The input in grey, (planes, rows, cols), from the file in which its planes lie side by side.
  async function readPicture(model) {
    const { url, shape: [depth, height, width], columns } = model.picture;
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = make("canvas");
    [canvas.width, canvas.height] = [image.width, image.height];
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.drawImage(image, 0, 0);
    const { data: pixels } = context.getImageData(0, 0, image.width, image.height);
    // A sequence has a sample in each cell of the file.
    const [planes, wide] = model.isLine ? [width, 1] : [depth, width];
    model.grey = new Uint8ClampedArray(depth * height * width);
    for (let plane = 0, k = 0; plane < planes; plane++) {
      const top = Math.floor(plane / columns) * height, left = (plane % columns) * wide;
      for (let row = 0; row < height; row++) {
        for (let col = 0; col < wide; col++) model.grey[k++] = pixels[4 * ((top + row) * image.width + left + col)];
      }
    }
  }

  // A plane of the picture in grey, as the pixels below a map; every step-th of them.
  function ground(model, { axes, cell, step }) {
    const key = `${axes} ${step}`, kept = (model.grounds ||= {});
    if (kept[key]?.cell === cell) return kept[key].image;
    const { shape } = model.picture, strides = [shape[1] * shape[2], shape[2], 1], third = thirdOf({ axes });
    const canvas = make("canvas"), small = make("canvas");
    [canvas.height, canvas.width] = axes.map((axis) => shape[axis]);
    const plane = new ImageData(canvas.width, canvas.height);
    const start = strides[third] * clamp(Math.floor(((cell + 0.5) / model.size[third]) * shape[third]), 0, shape[third] - 1);
    for (let row = 0, k = 0; row < canvas.height; row++) {
      for (let col = 0; col < canvas.width; col++, k += 4) {
        plane.data.fill(model.grey[start + row * strides[axes[0]] + col * strides[axes[1]]], k, k + 3);
        plane.data[k + 3] = 255;
      }
    }
    canvas.getContext("2d").putImageData(plane, 0, 0);
    [small.height, small.width] = axes.map((axis) => Math.ceil(model.size[axis] / step));
    const context = small.getContext("2d", { willReadFrequently: true });
    context.drawImage(canvas, 0, 0, small.width, small.height);
    const image = context.getImageData(0, 0, small.width, small.height);
    for (let k = 0; k < image.data.length; k++) if (k % 4 < 3) image.data[k] *= DIM;
    kept[key] = { cell, image };
    return image;
  }

  function blend(pixels, k, bright) {
    const cover = COVER * bright, colour = 3 * Math.round(255 * bright);
    for (let band = 0; band < 3; band++) pixels[k + band] = pixels[k + band] * (1 - cover) + palette[colour + band] * cover;
  }

  // How many times the inset of a stage enlarges: the most of 4, 8, 16, ... that holds the maps of its units; 1 for none.
  function zoomOf(model, { units }) {
    const far = units.reduce((most, unit) => Math.max(most, unit.radii.at(-1) || 0), 0);
    const isWhole = (side, axis) => side === 1 || (model.kind === "clip" && !axis);
    const holds = (times) => model.size.every((side, axis) => isWhole(side, axis) || side / times >= Math.max(4, (2.5 * far) / model.spacing[axis]));
    let zoom = 1;
    while (far && holds(Math.max(4, 2 * zoom))) zoom = Math.max(4, 2 * zoom);
    return zoom;
  }

  // A part of an image.
  function part({ data: pixels, width }, [top, bottom], [left, right]) {
    const image = new ImageData(right - left + 1, bottom - top + 1);
    for (let row = top; row <= bottom; row++) {
      image.data.set(pixels.subarray(4 * (row * width + left), 4 * (row * width + right + 1)), 4 * (row - top) * image.width);
    }
    return image;
  }

  // A view is some panels: planes of the input, each with its map, its marks and a line of text.
  function makeView(model, element, panels, step) {
    element.classList.add("planes", model.kind);
    element.replaceChildren();
    const side = (axis) => model.size[axis] * model.spacing[axis], boxes = {};
    if (model.kind === "volume" && panels.length > 1) element.style.gridTemplateColumns = `${side(2)}fr ${side(0)}fr`;
    return panels.map((spec) => {
      const box = make("span", "", spec.inset ? "inset" : "panel"), canvas = make("canvas"), note = make("i");
      const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      svg.setAttribute("preserveAspectRatio", "none");
      svg.setAttribute("aria-hidden", "true");
      if (spec.frame != null) box.classList.add("frame");
      if (spec.zoom) box.classList.add("zoom");
      if (!model.isLine && !spec.inset) box.style.aspectRatio = `${side(spec.axes[1])} / ${side(spec.axes[0])}`;
      box.append(canvas, svg);
      if (!spec.inset) box.append(note);
      if (spec.frame == null && !spec.inset) boxes[spec.axes] = box;
      (spec.inset ? boxes[spec.axes] : element).append(box);
      return { ...spec, box, canvas, svg, note, step };
    });
  }

  // Where a panel lies: its cell along the third axis, and the cells along its own that it shows.
  function lay(panel, model, stage, unit, held) {
    const third = thirdOf(panel), seen = state.mode === "seen" && held;
    const place = (axis) => {
      // The planes of a measured unit go through the cell that the page holds of it.
      return unit.cell && !seen ? unit.cell[axis] : clamp(Math.floor(state.at[axis] * model.size[axis]), 0, model.size[axis] - 1);
    };
    const begin = (axis, count) => clamp(place(axis) - Math.floor(count / 2), 0, model.size[axis] - count);
    if (panel.frame != null) {
      if (!panel.isHeld) panel.begin = begin(0, Math.min(data.frames, model.size[0]));
      panel.cell = panel.begin + panel.frame;
    } else {
      panel.cell = place(third);
    }
    panel.own = place(third);
    panel.window = panel.axes.map((axis) => [0, model.size[axis] - 1]);
    if (panel.inset) {
      const zoom = zoomOf(model, stage);
      panel.box.hidden = zoom === 1 || state.mode === "seen" || !unit.at;
      panel.box.dataset.zoom = `${zoom} times`;
      panel.window = panel.axes.map((axis) => {
        const count = Math.ceil(model.size[axis] / zoom), first = begin(axis, count);
        return [first, first + count - 1];
      });
      // In the corner that is farthest from the unit.
      ["is-low", "is-right"].forEach((name, k) => panel.box.classList.toggle(name, place(panel.axes[k]) < model.size[panel.axes[k]] / 2));
    }
    if (panel.zoom) {
      if (!panel.isHeld) panel.begin = begin(2, model.zoom);
      panel.window[1] = [panel.begin, panel.begin + model.zoom - 1];
    }
  }

  // Draw on a panel: the picture, and over it what `bright` gives for each cell down and across.
  function paint(panel, model, bright) {
    const { canvas, window: [rows, [left, right]] } = panel;
    const step = model.isLine ? Math.ceil((right - left + 1) / 2048) : panel.inset ? 1 : panel.step;
    const whole = model.isLine ? new ImageData(Math.ceil((right - left + 1) / step), 1) : ground(model, { ...panel, step });
    const under = panel.inset ? part(whole, rows, [left, right]) : whole;
    const { width, height } = under;
    if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
    const image = new ImageData(new Uint8ClampedArray(under.data), width, height);
    for (let y = 0, k = 0; y < height; y++) {
      for (let x = 0; x < width; x++, k += 4) {
        let value = 0;
        const first = left + x * step, last = model.isLine ? Math.min(first + step - 1, right) : first;
        for (let cell = first; cell <= last; cell++) value = Math.max(value, bright(rows[0] + y * step, cell));
        image.data[k + 3] = 255;
        if (value > 0) blend(image.data, k, value);
      }
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  const planeOf = (unit, { axes, cell }) => unit.planes.find((plane) => plane.cell === cell && `${plane.axes}` === `${axes}`);

  function paintUnit(panel, model, stage, unit) {
    const plane = planeOf(unit, panel);
    if (!plane) return paint(panel, model, () => 0);
    const { bright } = decoded(unit), size = unit.block || stage.block, [high, wide] = plane.blocks, [top, left] = plane.first;
    return paint(panel, model, (y, x) => {
      const row = Math.floor(y / size) - top, col = Math.floor(x / size) - left;
      return row < 0 || col < 0 || row >= high || col >= wide ? 0 : bright[plane.levels[row * wide + col]];
    });
  }

  function paintUnits(panel, model, stage, bright) {
    const at = (axis, cell) => Math.max(0, stage.edges[axis].findIndex(([, end]) => cell <= end));
    const third = thirdOf(panel), place = [0, 0, 0];
    const [rows, cols] = panel.axes.map((axis) => Array.from({ length: model.size[axis] }, (_, cell) => at(axis, cell)));
    place[third] = at(third, panel.cell);
    paint(panel, model, (y, x) => {
      [place[panel.axes[0]], place[panel.axes[1]]] = [rows[y], cols[x]];
      return bright[numberOf(stage.counts, place)];
    });
  }

  const twice = (shape, kind) => `<${shape} class="halo"/><${shape} class="${kind}"/>`;
  const rectangle = ([[top, bottom], [left, right]]) =>
    `rect x="${left - 0.5}" y="${top - 0.5}" width="${right - left + 1}" height="${bottom - top + 1}"`;

  function cellOf(stage, number) {
    return placeOf(stage.counts, number).map((k, axis) => stage.edges[axis][k]).map(([first, end]) => [first + 0.5, end - 0.5]);
  }

  // A sequence as a curve: what lies between the smallest and the largest sample of each of some hundred columns.
  function wave(model, [first, last]) {
    const { grey } = model, count = grey.length, [, , length] = model.size, points = [];
    const sample = (cell) => ((cell + 0.5) / length) * count;
    const begin = Math.max(0, Math.floor(sample(first - 1))), end = Math.min(count, Math.ceil(sample(last + 1)));
    const step = Math.max(1, Math.floor((end - begin) / 800));
    const y = (value) => (0.07 - (0.54 * value) / 255).toFixed(4);
    for (let k = begin; k < end; k += step) {
      const part = grey.subarray(k, Math.min(k + step, end)), x = ((k + part.length / 2) / count) * length - 0.5;
      points.push(`${x.toFixed(2)},${y(Math.min(...part))}`);
      if (step > 1) points.push(`${x.toFixed(2)},${y(Math.max(...part))}`);
    }
    return `<polyline class="wave" points="${points.join(" ")}"/>`;
  }

  // The map of a unit of a sequence as a curve below the signal, which stands on the lower edge.
  function curve(unit, size, [first, last]) {
    if (!unit.curve) return "";
    const begin = unit.planes[0].first[1], points = [];
    unit.curve.forEach((value, k) => {
      const x = (begin + k + 0.5) * size - 0.5;
      if (x > first - size && x < last + size) points.push(`${x.toFixed(2)},${(0.5 - (0.36 * value) / 255).toFixed(4)}`);
    });
    return points.length ? twice(`polyline points="${points[0].split(",")[0]},0.5 ${points.join(" ")} ${points.at(-1).split(",")[0]},0.5"`, "curve") : "";
  }

  function mark(panel, model, stage, number, full) {
    const unit = stage.units[number], { axes, svg, own, window: [[top, bottom], [left, right]] } = panel, third = thirdOf(panel);
    const flat = (box) => axes.map((axis) => box[axis]), meets = (box) => box[third][0] - 0.5 <= panel.cell && panel.cell <= box[third][1] + 0.5;
    svg.setAttribute("viewBox", `${left - 0.5} ${top - 0.5} ${right - left + 1} ${bottom - top + 1}`);
    let text = model.isLine ? wave(model, panel.window[1]) : "";
    if (model.isLine && state.mode !== "seen") text += curve(unit, unit.block || stage.block, panel.window[1]);
    if (state.mode === "seen" && full !== "pin") {
      if (meets(asked(model))) text += twice(rectangle(flat(asked(model))), "probe");
    } else if (unit.at) {
      const [row, col] = flat(unit.at), [down, across] = flat(model.spacing);
      if (full && panel.frame != null) {
        if (unit.trf.length && meets(unit.trf)) text += twice(rectangle(flat(unit.trf)), "field");
      } else if (full) {
        const ring = (name) => {
          const radius = unit.numbers[name];
          if (!(radius > 0) || panel.cell !== own) return "";
          if (model.isLine) return twice(`rect x="${col - radius / across}" y="-0.6" width="${(2 * radius) / across}" height="1.2"`, `ring ${name}`);
          return twice(`ellipse cx="${col}" cy="${row}" rx="${radius / across}" ry="${radius / down}"`, `ring ${name}`);
        };
        if (unit.trf.length && meets(unit.trf)) text += twice(rectangle(flat(unit.trf)), "field");
        text += ring("r50") + ring("r90");
        const near = nearest(model, stage);
        if (full !== "pin" && near !== number && stage.units[near].pending && meets(cellOf(stage, near))) text += twice(rectangle(flat(cellOf(stage, near))), "cell");
        const wide = (right - left + 1) / (panel.inset ? 25 : 60), high = model.isLine ? 0.6 : (wide * across) / down;
        const cross = model.isLine ? `M${col} -0.5V0.5` : `M${col - wide} ${row}H${col + wide}M${col} ${row - high}V${row + high}`;
        if (panel.cell === own) text += twice(`path d="${cross}"`, "cross");
      } else {
        text += twice(rectangle(flat(cellOf(stage, number))), "cell");
      }
    }
    svg.innerHTML = text;
  }

  // What stands on a panel: which plane it is, and in a strip of frames how much of the map lies there.
  function label(panel, model, unit) {
    const third = thirdOf(panel), plane = planeOf(unit, panel), [first, last] = panel.window[1];
    const isCells = (axis) => model.spacing[axis] === 1 && [model.cell, "frames"].includes(model.units[axis]);
    const length = (cell, axis) => (isCells(axis) ? "" : ` · ${digits(cell * model.spacing[axis])} ${model.units[axis]}`);
    let text = "";
    if (panel.frame != null) text = `${panel.cell}${plane && state.mode === "sees" ? ` · ${Math.round(100 * plane.share)} %` : ""}`;
    else if (panel.zoom) text = `${first} to ${last}${isCells(2) ? "" : ` · ${digits(first * model.spacing[2])} to ${digits(last * model.spacing[2])} ${model.units[2]}`}`;
    else if (model.kind === "volume") text = `${model.axes[third]} ${panel.cell}${length(panel.cell, third)}`;
    else if (model.kind === "clip") text = `frame ${panel.cell}${length(panel.cell, third)}`;
    panel.note.textContent = text;
    panel.box.classList.toggle("is-own", panel.frame != null && panel.cell === panel.own);
  }

  // Draw a unit on all panels of a view, or with `bright` all units of its stage.
  function show(view, model, stage, number, full, bright = null) {
    const unit = stage.units[number];
    view.forEach((panel) => {
      lay(panel, model, stage, unit, full !== "pin");
      if (panel.box.hidden) return;
      if (bright) paintUnits(panel, model, stage, bright);
      else paintUnit(panel, model, stage, unit);
      mark(panel, model, stage, number, full);
      if (full && !panel.inset) label(panel, model, unit);
    });
  }

  // Numbers as text.
  const digits = (value) => (value == null ? "–" : String(Number(value.toPrecision(3))));
  const percent = (value) => (value == null ? "–" : `${Number((100 * value).toPrecision(3))} %`);
  function reading({ model }, name, value) {
    const unit = model.measures[name];
    if (value == null || unit === "%") return percent(value);
    return unit ? `${digits(value)} ${unit}` : digits(value);
  }
  const number = (unit, name) => unit.numbers[name];
  // Sides in cells; the first of a clip is in frames.
  const sidesText = (sides, { kind, cell }) =>
    kind === "clip" && cell === "px" ? `${sides[0]} frames x ${sides.slice(1).join(" x ")} px` : `${sides.join(" x ")} ${cell}`;
  const fieldText = (stage) => (stage.global ? `the whole ${stage.model.noun}` : sidesText(stage.trf, stage.model));
  const strideText = ({ stride, model }) => ([...new Set(stride)].length > 1 ? sidesText(stride.map(digits), model) : `${digits(stride[0])} ${model.cell}`);
  const unitText = (unit) => `(${unit.index.join(", ")})`;

  const ROWS = [
    ...NAMES.map((name) => [name, data.gloss[name], (stage, unit) => [reading(stage, name, number(unit, name)), number(unit, name)]]),
    ["TRF", "all that could move it", (stage) => [fieldText(stage)]],
    ["stride", "from one unit to the next", (stage) => [strideText(stage)]],
    ["unit", `${models[0].axes.filter(Boolean).join(", ")} in the stage's map`, (stage, unit) => [`${unitText(unit)} of ${stage.space.join(" x ")}`]],
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
    const wide = Math.max(...model.size.map((side, axis) => (model.kind === "clip" && !axis ? 0 : side * model.spacing[axis])));
    if (unit.pending || unit.error) return element.replaceChildren(unit.error || "…");
    if (r50 == null) return element.replaceChildren(`${stage.name}: unit ${unitText(unit)} has no gradient on this ${model.noun}.`);
    return element.replaceChildren(
      `In ${stage.name}, half of what unit ${unitText(unit)} looks at lies within `,
      make("b", reading(stage, "r50", r50)),
      ` of it (${Number((100 * r50 / wide).toPrecision(2))} % of the ${model.noun}’s ${model.isLine ? "length" : "side"}), nine tenths within ${reading(stage, "r90", number(unit, "r90"))}. `,
      own > OWN && beyond != null ? `${percent(own)} is in the unit’s own cell of ${strideText(stage)}; half of the rest lies within ${reading(stage, "context_r50", beyond)}. ` : "",
      ...(model.axes.includes("time") ? [timeText(stage, unit)] : []),
      `In theory it could look at ${fieldText(stage)}.`,
    );
  }

  // What a unit of a clip or a sequence looks at before and after its own step.
  function timeText(stage, unit) {
    const [past, now, future] = ["past", "present", "future"].map((name) => percent(number(unit, `${name}_share`)));
    return number(unit, "past_share") == null ? "" : `Of time, ${past} lies before its own step, ${now} in it and ${future} after it. `;
  }

  // What is left out of a large stage, which may be the very units that are asked for.
  const countOf = ({ space }) => space.reduce((product, side) => product * side, 1);
  const here = (stage) => {
    const count = countOf(stage);
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
  let limit = models.flatMap((m) => m.stages.flatMap((s) => s.units)).reduce((most, unit) => Math.max(most, reach(unit)), 0) || 1;

  function drawProfile(shown) {
    const svg = one(".profile"), [wide, high, left, bottom] = [360, 220, 34, 30];
    const x = (radius) => left + (radius / limit) * (wide - left - 8);
    const y = (share) => high - bottom - share * (high - bottom - 10);
    const line = (unit, kind) => {
      const points = unit.radii.map((radius, k) => `${x(radius).toFixed(1)},${y(data.enclosed[k]).toFixed(1)}`);
      return unit.radii.length ? `<polyline class="${kind}" points="${x(0)},${y(0)} ${points.join(" ")}"/>` : "";
    };
    svg.setAttribute("viewBox", `0 0 ${wide} ${high}`);
    const step = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500].find((each) => limit / each <= 7) || 1000;
    let text = [0, 0.5, 0.9].map((share) => `<line class="grid" x1="${left}" x2="${wide - 8}" y1="${y(share)}" y2="${y(share)}"/><text x="${left - 5}" y="${y(share) + 3.5}" text-anchor="end">${100 * share} %</text>`).join("");
    for (let radius = 0; radius <= limit; radius += step) text += `<text x="${x(radius)}" y="${high - bottom + 14}" text-anchor="middle">${digits(radius)}</text>`;
    text += `<text x="${wide - 8}" y="${high - 3}" text-anchor="end">distance to the unit, ${models[0].unit}</text>`;
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
          show(card.view, model, each, near, false, bright);
          card.note.textContent = found.total ? `half in ${found.half}\u00a0of\u00a0${each.units.length}` : "none of these";
          if (k === model.stage) {
            facts = found;
            show(model.view, model, each, near, true, bright);
          }
        } else {
          show(card.view, model, each, near, false);
          card.note.textContent = each.units[near].pending ? "…" : `r50 ${reading(each, "r50", number(each.units[near], "r50")).replace(" ", "\u00a0")}`;
          if (k === model.stage) show(model.view, model, each, near, true);
        }
        card.button.setAttribute("aria-pressed", k === model.stage);
      });
      one(".depth input", model.section).value = model.stage;
      one(".depth input", model.section).setAttribute("aria-valuetext", stage.name);
      one("output", model.section).textContent = stage.name;
      const text = one(".sentence", model.section), unit = stage.units[chosen];
      if (data.live && seen) {
        text.textContent = model.trouble || (model.box !== boxOf(model) ? "…" : facts.total
          ? `In ${stage.name} ${state.box ? "this box" : `this ${data.cell}`} influences unit ${unitText(stage.units[facts.strongest])} most: ${percent(facts.most)} of its total influence on the layer. Brighter cells are influenced more.`
          : `${state.box ? "This box" : `This ${data.cell}`} influences no unit of ${stage.name}.`);
      } else if (seen) {
        text.textContent = facts.total
          ? `In ${stage.name}, unit ${unitText(stage.units[facts.strongest])} looks most at ${state.box ? "this box" : `this ${data.cell}`}: ${percent(facts.most)} of its ERF lies there. The glow over each unit’s cell says how much it looks here, beside the others.${here(stage)}`
          : `No unit of ${stage.name} that is on this page looks at ${state.box ? "this box" : `this ${data.cell}`}.${here(stage)}`;
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
      const map = make("span", "", "card-map"), caption = make("figcaption"), remove = make("button", "×");
      remove.type = "button";
      remove.setAttribute("aria-label", `Remove ${pinText(each)}`);
      remove.addEventListener("click", () => {
        state.pins.splice(place, 1);
        drawPins();
      });
      show(makeView(model, map, model.panels, model.detail), model, stage, each.unit, "pin");
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

  // The place of a pointer, which lies on a panel or, once it is captured, beside the one where it was pressed.
  function point(event, model, view, begun) {
    const inside = ({ box }) => {
      const { left, right, top, bottom } = box.getBoundingClientRect();
      return event.clientX >= left && event.clientX < right && event.clientY >= top && event.clientY < bottom;
    };
    const panel = begun || view.find(inside);
    if (!panel) return {};
    const box = panel.box.getBoundingClientRect(), at = [...state.at], part = (part) => clamp(part, 0, 1 - 1e-9);
    const parts = [(event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width].map(part);
    panel.axes.forEach((axis, k) => {
      const [first, last] = panel.window[k];
      at[axis] = part((first + parts[k] * (last - first + 1)) / model.size[axis]);
    });
    if (panel.frame != null) at[0] = part((panel.cell + 0.5) / model.size[0]);
    // What the pointer is on holds still.
    view.forEach((each) => { each.isHeld = (panel.frame != null && each.frame != null) || (panel.zoom && each.zoom); });
    return { panel, at };
  }

  function listen(model) {
    const screen = one(".screen", model.section), slider = one(".depth input", model.section);
    let start = null;
    const isDrag = (event) => start && Math.hypot(event.clientX - start.x, event.clientY - start.y) > 3;
    slider.max = model.stages.length - 1;
    slider.addEventListener("input", () => { choose(model, Number(slider.value)); schedule(); });
    screen.addEventListener("pointerdown", (event) => {
      const { panel, at } = point(event, model, model.view);
      if (!panel) return;
      screen.setPointerCapture(event.pointerId);
      start = { panel, at, x: event.clientX, y: event.clientY };
      [state.at, state.box, state.active] = [start.at, null, model.number];
      schedule();
    });
    screen.addEventListener("pointermove", (event) => {
      const { at } = point(event, model, model.view, start?.panel);
      if (!at) return;
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
    screen.addEventListener("pointerleave", () => {
      model.view.forEach((panel) => { panel.isHeld = false; });
      schedule();
    });
    screen.addEventListener("keydown", (event) => {
      const step = { ArrowUp: -1, ArrowDown: 1, ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const axis = event.shiftKey ? 0 : event.key === "ArrowUp" || event.key === "ArrowDown" ? 1 : 2;
      const turn = { PageUp: -1, PageDown: 1 }[event.key];
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      state.active = model.number;
      if (step) move(model, axis, step);
      else if (turn) models.forEach((each) => choose(each, each.stage + turn));
      else if (event.key === "Enter" || event.key === " ") { if (state.mode === "sees") pin(model); }
      else if (event.key === "Escape") clear();
      else return;
      event.preventDefault();
      schedule();
    });
  }

  // To the next unit, or in the other mode by a block.
  function move(model, axis, step) {
    const stage = model.stages[model.stage];
    if (state.mode === "seen") {
      state.box = null;
      state.at[axis] = clamp(state.at[axis] + (step * stage.block) / model.size[axis], 0, 1 - 1e-9);
      return;
    }
    const place = placeOf(stage.counts, nearest(model, stage));
    place[axis] = clamp(place[axis] + step, 0, stage.counts[axis] - 1);
    const unit = stage.units[numberOf(stage.counts, place)];
    if (unit.at) state.at = unit.at.map((centre, k) => clamp((centre + 0.5) / model.size[k], 0, 1 - 1e-9));
  }

  function cards(model) {
    const step = model.detail * (model.stages.length > 6 || model.size[2] > 300 ? 2 : 1);
    model.cards = model.stages.map((stage, k) => {
      const button = make("button"), map = make("span", "", "card-map"), note = make("small");
      const view = makeView(model, map, [model.panels.find(({ zoom }) => zoom) || model.panels[0]], step);
      const size = `${stage.space.join(" x ")} units${stage.units.length < countOf(stage) ? `, ${stage.grid.join(" x ")} shown` : ""}`;
      button.type = "button";
      button.title = `${stage.name}: ${size}; TRF ${fieldText(stage)}`;
      button.append(map, make("b", stage.name), note);
      const here = (event) => {
        const { at } = point(event, model, view);
        if (at) [state.at, state.active] = [at, model.number];
        choose(model, k);
        schedule();
      };
      map.addEventListener("pointermove", here);
      map.addEventListener("pointerdown", here);
      button.addEventListener("click", () => { choose(model, k); schedule(); });
      return { button, view, note };
    });
    one(".stages", model.section).classList.toggle("many", model.stages.length > 8);
    one(".stages", model.section).append(...model.cards.map((card) => card.button));
  }

  // Live: what is shown and not there yet is asked for one by one, the first stage first, and given up when it is not
  // shown any more.
  const form = one(".choices"), seconds = {};
  const rank = (model) => model.stages[0].space.length;
  const boxOf = (model) => asked(model).slice(3 - rank(model)).join();

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
      take: (found) => takeUnit(first, found),
    };
  }

  function takeUnit({ unit, stage }, found) {
    Object.assign(unit, found.error ? found : ready(found, stage), { pending: false });
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
      if (one("[type=file]", form)) send(event.dataTransfer.files[0]);
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
      await readPicture(model);
      model.detail = model.isLine ? 1 : Math.ceil(Math.max(...model.size) / 1024);
      model.view = makeView(model, one(".screen", model.section), model.panels, model.detail);
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
