// The nodes as squares on a canvas. Size is the allocatable amount, the filled height what pods request, color the price of what is
// used, hatches what keeps the node.
import { nameOf, share } from "./state.js";

const GAP = 4;
const SMALL = 12;
const LARGE = 64;
const HEADER = 26;

/** The hatches, and the ids of reasons that they stand for: what holds a node that might go, not what finds that it is needed. */
export const HATCHES = [
  {
    id: "leaving",
    name: "leaving: disrupted or terminating",
    reasons: ["InFlight", "Deleting"],
  },
  {
    id: "held",
    name: "held by a pod, its budget or an annotation",
    reasons: ["Pdb", "SeveralPdbs", "PodDoNotDisrupt", "NodeDoNotDisrupt", "NodeDoNotConsolidate", "BufferPods"],
  },
  {
    id: "policy",
    name: "held by the NodePool: budget, pause, score, minValues",
    reasons: ["Budget", "Paused", "Score", "MinValues", "NoNodePool"],
  },
];
const HATCH_OF = new Map(HATCHES.flatMap((hatch) => hatch.reasons.map((reason) => [reason, hatch.id])));

function hatchOf(node) {
  if (node.state === "Disrupting" || node.state === "Terminating") return "leaving";
  return HATCH_OF.get(node.reason) ?? "";
}

/** Millionths of a dollar per hour for each core that is used, by the dominant share; null if the price is not known. */
function unitPrice(node) {
  const used = (share(node) * node.cpuAllocatable) / 1000;
  if (node.price === 0 || node.cpuAllocatable === 0) return null;
  return used > 0 ? node.price / used : Infinity;
}

/** The upper bounds of all colors but the last: the same in every cluster, so that a square keeps its color while its node stays as it is. */
export const STEPS = [30_000, 60_000, 120_000, 240_000];

/** Returns the index of a node's color; -1 if its price is not known. */
function colorOf(node) {
  const price = unitPrice(node);
  if (price === null) return -1;
  const at = STEPS.findIndex((step) => price <= step);
  return at < 0 ? STEPS.length : at;
}

/** The room around a square for the ring of the selected one. */
const RING = 4;

/** Places the squares: `groups` are [title, nodes]. Returns squares, titles and the height. */
export function layout(groups, width) {
  const squares = [];
  const titles = [];
  const most = Math.max(1, ...groups.map(([, nodes]) => nodes.reduce((max, node) => Math.max(max, node.cpuAllocatable), 0)));
  const total = groups.reduce((sum, [, nodes]) => sum + nodes.length, 0);
  // Many nodes get smaller squares, so that the map stays a map.
  const large = total > 1500 ? 20 : total > 400 ? 30 : total > 100 ? 48 : LARGE;
  const small = Math.min(SMALL, Math.round(large * 0.4));
  let y = 0;
  for (const [title, nodes] of groups) {
    titles.push({ title, y: y + HEADER - 9, count: nodes.length, price: nodes.reduce((sum, node) => sum + node.price, 0) });
    y += HEADER;
    let x = RING;
    let row = 0;
    for (const node of nodes) {
      const size = Math.max(small, Math.round(large * Math.sqrt(node.cpuAllocatable / most)));
      if (x > RING && x + size > width - RING) {
        x = RING;
        y += row + GAP;
        row = 0;
      }
      squares.push({ node, x, y, size });
      x += size + GAP;
      row = Math.max(row, size);
    }
    y += row + 12;
  }
  return { squares, titles, height: Math.max(y, 40) };
}

function theme() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  return {
    text: read("--text"),
    muted: read("--muted"),
    empty: read("--square"),
    edge: read("--edge"),
    unknown: read("--unknown"),
    hatch: read("--hatch"),
    colors: [0, 1, 2, 3, 4].map((at) => read(`--price-${at}`)),
  };
}

function hatch(context, kind, { x, y, size }) {
  const step = size > 24 ? 6 : 4;
  context.save();
  context.beginPath();
  context.rect(x + 1, y + 1, size - 2, size - 2);
  context.clip();
  context.beginPath();
  if (kind === "held" || kind === "leaving") {
    for (let at = -size; at < size; at += step) {
      context.moveTo(x + at, y + size);
      context.lineTo(x + at + size, y);
    }
  }
  if (kind === "leaving") {
    for (let at = 0; at < 2 * size; at += step) {
      context.moveTo(x + at, y + size);
      context.lineTo(x + at - size, y);
    }
  }
  if (kind === "policy") {
    for (let at = step / 2; at < size; at += step) {
      context.moveTo(x, y + at);
      context.lineTo(x + size, y + at);
    }
  }
  context.stroke();
  context.restore();
}

function square(context, colors, place, color) {
  const { node, x, y, size } = place;
  context.fillStyle = colors.empty;
  context.fillRect(x, y, size, size);
  const height = Math.round(size * share(node));
  context.fillStyle = color < 0 ? colors.unknown : colors.colors[color];
  context.fillRect(x, y + size - height, size, height);
  // An idle node has no height that could show its color.
  if (height < 3) context.fillRect(x, y + size - 3, size, 3);
  const kind = hatchOf(node);
  if (kind) {
    context.strokeStyle = colors.hatch;
    context.lineWidth = 1;
    hatch(context, kind, place);
  }
  context.strokeStyle = colors.edge;
  context.lineWidth = 1;
  const joining = node.state === "Launching" || node.state === "Starting";
  context.setLineDash(joining ? [3, 2] : []);
  context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
  context.setLineDash([]);
}

/** Sizes a canvas for the screen's pixels, and returns its context. */
function prepare(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = width + "px";
  canvas.style.height = height + "px";
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.clearRect(0, 0, width, height);
  return context;
}

/** Draws the map; `describe` is what a title says of the number and the price of its nodes. */
export function draw(canvas, plan, width, describe) {
  const colors = theme();
  const context = prepare(canvas, width, plan.height);
  context.textBaseline = "alphabetic";
  for (const { title, y, count, price } of plan.titles) {
    context.font = "600 13px system-ui, sans-serif";
    context.fillStyle = colors.text;
    context.fillText(title, 0, y);
    const indent = context.measureText(title).width + 10;
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = colors.muted;
    context.fillText(describe(count, price), indent, y);
  }
  for (const place of plan.squares) square(context, colors, place, colorOf(place.node));
}

/** Draws one square of a legend. */
export function sample(canvas, node, color) {
  const context = prepare(canvas, 18, 18);
  square(context, theme(), { node, x: 0, y: 0, size: 18 }, color);
}

/** Returns the square at a position. */
export function at(plan, x, y) {
  return plan.squares.find((place) => x >= place.x && x < place.x + place.size + GAP && y >= place.y && y < place.y + place.size + GAP);
}

/** Returns the neighbour of a square in the direction of an arrow key. */
export function neighbour(plan, id, key) {
  const index = plan.squares.findIndex((place) => place.node.id === id);
  if (index < 0) return plan.squares[0];
  const from = plan.squares[index];
  switch (key) {
    case "ArrowLeft":
      return plan.squares[Math.max(0, index - 1)];
    case "ArrowRight":
      return plan.squares[Math.min(plan.squares.length - 1, index + 1)];
    case "Home":
      return plan.squares[0];
    case "End":
      return plan.squares[plan.squares.length - 1];
    default: {
      const down = key === "ArrowDown";
      const others = plan.squares.filter((place) => (down ? place.y > from.y : place.y < from.y));
      const row = others.reduce((y, place) => (down ? Math.min(y, place.y) : Math.max(y, place.y)), down ? Infinity : -Infinity);
      const near = others.filter((place) => place.y === row).sort((a, b) => Math.abs(a.x - from.x) - Math.abs(b.x - from.x));
      return near[0] ?? from;
    }
  }
}

/** What a screen reader says about a square. */
export function spoken(node) {
  return `${nameOf(node)}, ${node.instanceType || "unknown type"}, ${node.state}, ${Math.round(share(node) * 100)}% requested, ${node.reason || "no reason"}`;
}
