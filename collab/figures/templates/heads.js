"use strict";
// data: {layers: [name], heads, sentences: [label], scores: {name: {sign, meaning}}, models: [{title, name,
//   heads: [[number]], scores: {name: [[value]]}, maps: [[{queries, keys, weights}]]}]}; lists of layers have null where a layer is dropped.
const data = JSON.parse(document.getElementById("data").textContent);
const chosen = { sentence: 0, show: "", layer: 0, head: 0 };
const panels = [];

function element(parent, name, properties = {}) {
  const made = document.createElement(name);
  Object.assign(made, properties);
  parent.append(made);
  return made;
}

function drawn(parent, name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

// Weights in 255ths, (H, T, S), from base64.
function unpacked(map) {
  if (map && !map.bytes) map.bytes = Uint8Array.from(atob(map.weights), (letter) => letter.charCodeAt(0));
  return map;
}

// Whether a layer had no such head in the original either: layers may have different numbers of heads.
function lacks(model, layer, head) {
  return model.totals[layer] !== null && head >= model.totals[layer];
}

function weightsOf(model, layer, head) {
  const place = model.heads[layer] ? model.heads[layer].indexOf(head) : -1;
  const map = unpacked(model.maps[chosen.sentence][layer]);
  if (place < 0 || !map) return null;
  const size = map.queries.length * map.keys.length;
  return { queries: map.queries, keys: map.keys, bytes: map.bytes.subarray(place * size, (place + 1) * size) };
}

function thumbnail(cell, weights) {
  const canvas = element(cell, "canvas", { width: weights.keys.length, height: weights.queries.length });
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  const color = matchMedia("(prefers-color-scheme: dark)").matches ? [86, 180, 233] : [0, 114, 178];
  weights.bytes.forEach((value, place) => image.data.set([...color, Math.round(255 * Math.sqrt(value / 255))], 4 * place));
  context.putImageData(image, 0, 0);
}

// The smallest and the largest value of a score, over all models, so that their colours compare.
function rangeOf(name) {
  const values = data.models.flatMap((model) => (model.scores[name] || []).flatMap((row) => row || []));
  return [Math.min(...values), Math.max(...values)];
}

function drawGrid(model, grid) {
  grid.replaceChildren();
  grid.style.gridTemplateColumns = `auto repeat(${data.heads}, minmax(0, 1fr))`;
  element(grid, "span");
  for (let head = 0; head < data.heads; head++) element(grid, "span", { textContent: data.heads > 16 ? "" : head });
  const [low, high] = chosen.show ? rangeOf(chosen.show) : [0, 1];
  data.layers.forEach((name, layer) => {
    element(grid, "span", { textContent: layer, title: name });
    for (let head = 0; head < data.heads; head++) {
      const place = model.heads[layer] ? model.heads[layer].indexOf(head) : -1;
      if (lacks(model, layer, head)) {
        element(grid, "div");
        continue;
      }
      if (place < 0) {
        const why = model.heads[layer] ? "pruned" : "dropped with its layer";
        element(grid, "div", { className: "gone", title: `layer ${layer}, head ${head}: ${why}` });
        continue;
      }
      const cell = element(grid, "button", { type: "button", title: `layer ${layer}, head ${head}` });
      cell.setAttribute("aria-label", cell.title);
      cell.classList.toggle("chosen", layer === chosen.layer && head === chosen.head);
      cell.onclick = () => choose({ layer, head });
      if (!chosen.show) {
        thumbnail(cell, weightsOf(model, layer, head));
        continue;
      }
      const scores = model.scores[chosen.show];
      const value = scores && scores[layer] ? scores[layer][place] : null;
      if (value === null) continue;
      const part = high > low ? (value - low) / (high - low) : 0.5;
      const share = Math.round(100 * (data.scores[chosen.show].sign > 0 ? part : 1 - part));
      cell.style.background = `color-mix(in srgb, var(--accent) ${share}%, var(--card))`;
      cell.style.color = share > 55 ? "var(--back)" : "var(--text)";
      cell.title += `: ${value.toPrecision(4)}`;
      if (data.heads <= 16) cell.textContent = share;
    }
  });
}

function shortened(token) {
  return token.length > 16 ? `${token.slice(0, 15)}…` : token;
}

// Tokens that attend on the left, those attended to on the right, and lines as strong as the weights.
function drawHead(model, panel) {
  panel.view.replaceChildren();
  panel.facts.replaceChildren();
  panel.heading.textContent = `Layer ${chosen.layer}, head ${chosen.head}`;
  const weights = weightsOf(model, chosen.layer, chosen.head);
  if (!weights) {
    const gone = model.heads[chosen.layer] ? "This head was pruned." : "This layer was dropped.";
    const why = lacks(model, chosen.layer, chosen.head) ? "This layer has no such head." : gone;
    element(panel.view, "p", { textContent: why });
    return;
  }
  const { queries, keys, bytes } = weights;
  const row = 20;
  const height = row * Math.max(queries.length, keys.length);
  const svg = drawn(panel.view, "svg", { viewBox: `0 0 400 ${height}`, role: "img" });
  svg.setAttribute("aria-label", `Where the tokens attend in layer ${chosen.layer}, head ${chosen.head}`);
  const middle = (place) => row * (place + 0.5);
  const lines = queries.map((_, query) =>
    keys.map((_, key) => {
      const weight = bytes[query * keys.length + key] / 255;
      const ends = { x1: 132, y1: middle(query), x2: 240, y2: middle(key) };
      return weight < 0.02 ? null : drawn(svg, "line", { ...ends, "stroke-opacity": weight.toFixed(3) });
    }),
  );
  const targets = keys.map((token, key) => {
    const group = drawn(svg, "g", { class: "key" });
    drawn(group, "title", {}, token);
    const box = drawn(group, "rect", { x: 240, y: row * key, width: 125, height: row });
    drawn(group, "text", { x: 246, y: middle(key) + 4 }, shortened(token));
    return { box, share: drawn(group, "text", { class: "share", x: 398, y: middle(key) + 4, "text-anchor": "end" }, "") };
  });
  const tokens = queries.map((token, query) => {
    const group = drawn(svg, "g", { class: "token", tabindex: 0 });
    drawn(group, "title", {}, token);
    drawn(group, "rect", { x: 0, y: row * query, width: 132, height: row });
    drawn(group, "text", { x: 126, y: middle(query) + 4, "text-anchor": "end" }, shortened(token));
    group.onpointerenter = group.onfocus = group.onclick = () => point(query);
    group.onblur = () => point(null);
    return group;
  });
  svg.onpointerleave = () => point(null);

  function point(query) {
    lines.forEach((several, from) => several.forEach((line) => {
      if (line) line.style.display = query === null || from === query ? "" : "none";
    }));
    tokens.forEach((token, from) => token.classList.toggle("active", from === query));
    targets.forEach(({ box, share }, key) => {
      const weight = query === null ? 0 : bytes[query * keys.length + key] / 255;
      box.style.fillOpacity = 0.7 * weight;
      share.textContent = weight >= 0.005 ? `${Math.round(100 * weight)} %` : "";
    });
  }

  const place = model.heads[chosen.layer].indexOf(chosen.head);
  for (const [name, scores] of Object.entries(model.scores)) {
    element(panel.facts, "dt", { textContent: name, title: data.scores[name].meaning });
    element(panel.facts, "dd", { textContent: scores[chosen.layer][place].toPrecision(4) });
  }
}

function choose(changes) {
  Object.assign(chosen, changes);
  for (const name of Object.keys(chosen)) document.getElementById(name).value = chosen[name];
  const score = data.scores[chosen.show];
  document.getElementById("meaning").textContent = score
    ? `${chosen.show}: ${score.meaning}. Numbers and colours run from 0, the head that matters least of all shown, to 100.`
    : "Squares: each row of pixels is a token, each column a token that it attends to. Point at a token on the left below for its weights.";
  data.models.forEach((model, number) => {
    drawGrid(model, panels[number].grid);
    drawHead(model, panels[number]);
  });
}

function fill(name, options, read) {
  const select = document.getElementById(name);
  for (const [value, label] of options) element(select, "option", { value, textContent: label });
  select.onchange = () => choose({ [name]: read(select.value) });
}

fill("sentence", data.sentences.map((label, number) => [number, label]), Number);
fill("show", [["", "attention"], ...Object.keys(data.scores).map((name) => [name, name])], String);
fill("layer", data.layers.map((name, number) => [number, `${number}: ${name}`]), Number);
fill("head", Array.from({ length: data.heads }, (_, head) => [head, head]), Number);
for (const model of data.models) {
  const section = element(document.getElementById("models"), "section");
  element(section, "h2", { textContent: model.title });
  element(section, "p", { className: "faint path", textContent: model.name, title: model.name });
  const grid = element(section, "div", { className: "grid" });
  const heading = element(section, "h3");
  const view = element(section, "div");
  panels.push({ grid, heading, view, facts: element(section, "dl") });
}
const first = data.layers.findIndex((_, layer) => data.models[0].heads[layer]?.length);
choose({ layer: Math.max(0, first), head: first < 0 ? 0 : data.models[0].heads[first][0] });
