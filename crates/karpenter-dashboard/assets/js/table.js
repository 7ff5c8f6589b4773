// The nodes as a table of which only the visible rows exist.
import { useEffect, useMemo, useRef } from "../vendor/hooks.js";
import { useSignal } from "../vendor/signals.js";
import { html } from "./html.js";
import { age, dollars, percent } from "./format.js";
import { nameOf, now } from "./state.js";

const ROW = 34;
/** Rows above and below the visible ones. */
const MORE = 8;

const part = (used, whole) => (whole > 0 ? used / whole : 0);

/** Columns: class, title, text, and what they are sorted by. */
const COLUMNS = [
  ["name", "Name", nameOf, nameOf],
  ["pool", "NodePool", (node) => node.nodePool || "(none)", (node) => node.nodePool],
  ["type", "Instance type", (node) => node.instanceType || "–", (node) => node.instanceType],
  ["zone", "Zone", (node) => node.zone || "–", (node) => node.zone],
  ["capacity", "Capacity", (node) => node.capacityType || "–", (node) => node.capacityType],
  ["state", "State", (node) => node.state, (node) => node.state],
  ["cpu n", "CPU", (node) => percent(node.cpu, node.cpuAllocatable), (node) => part(node.cpu, node.cpuAllocatable)],
  ["memory n", "Memory", (node) => percent(node.memory, node.memoryAllocatable), (node) => part(node.memory, node.memoryAllocatable)],
  ["pods n", "Pods", (node) => node.pods, (node) => node.pods],
  ["price n", "$/h", (node) => dollars(node.price, 4), (node) => node.price],
  ["age n", "Age", (node) => (node.created ? age(now() - node.created) : "–"), (node) => -node.created],
  ["why", "Why kept", (node) => node.reason || "–", (node) => node.reason],
];

export function Table({ nodes, selected, onSelect }) {
  const frame = useRef(null);
  const sort = useSignal({ at: 0, down: false });
  const top = useSignal(0);
  const height = useSignal(480);

  useEffect(() => {
    const resized = new ResizeObserver(([entry]) => (height.value = entry.contentRect.height));
    resized.observe(frame.current);
    return () => resized.disconnect();
  }, []);

  const { at, down } = sort.value;
  // Not while scrolling.
  const sorted = useMemo(() => {
    const key = COLUMNS[at][3];
    const keyed = nodes.map((node) => [key(node), node]);
    keyed.sort(([x, a], [y, b]) => (x < y ? -1 : x > y ? 1 : a.id < b.id ? -1 : 1));
    if (down) keyed.reverse();
    return keyed.map(([, node]) => node);
  }, [nodes, at, down]);
  const first = Math.max(0, Math.min(Math.floor(top.value / ROW) - MORE, sorted.length));
  const last = Math.min(sorted.length, Math.ceil((top.value + height.value) / ROW) + MORE);
  const choose = (index) => (sort.value = { at: index, down: sort.value.at === index && !sort.value.down });
  const scroll = () => {
    // Rows change only when the scrolled distance passes a row.
    const row = Math.floor(frame.current.scrollTop / ROW) * ROW;
    if (row !== top.peek()) top.value = row;
  };
  return html`<div class="nodes-table" role="table" aria-label="Nodes" aria-rowcount=${sorted.length + 1}>
    <div class="row head" role="row" aria-rowindex="1">
      ${COLUMNS.map(
        ([name, title], index) => html`<span key=${name} class=${name} role="columnheader" aria-sort=${at === index ? (down ? "descending" : "ascending") : "none"}>
          <button type="button" onClick=${() => choose(index)}>${title}<span aria-hidden="true">${at === index ? (down ? " ↓" : " ↑") : ""}</span></button>
        </span>`,
      )}
    </div>
    <div class="rows" role="rowgroup" ref=${frame} onScroll=${scroll} tabindex="0" aria-label="Rows">
      <div style=${{ height: first * ROW + "px" }}></div>
      ${sorted.slice(first, last).map(
        (node, index) => html`<div key=${node.id} role="row" aria-rowindex=${first + index + 2} class=${node.id === selected ? "row selected" : "row"} onClick=${() => onSelect(node)}>
          ${COLUMNS.map(([name, , text], column) =>
            column === 0
              ? html`<span key=${name} class=${name} role="rowheader"><button type="button" class="link" onClick=${() => onSelect(node)}>${text(node)}</button></span>`
              : html`<span key=${name} class=${name} role="cell">${text(node)}</span>`,
          )}
        </div>`,
      )}
      <div style=${{ height: Math.max(0, sorted.length - last) * ROW + "px" }}></div>
    </div>
  </div>`;
}
