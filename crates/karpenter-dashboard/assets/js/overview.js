// The view of sums: tiles, curves, NodePools, reasons and budgets.
import uPlot from "../vendor/uplot.js";
import { useEffect, useRef } from "../vendor/hooks.js";
import { html } from "./html.js";
import { cores, count, dollars, memory, percent, plural } from "./format.js";
import { budgets, curve, nodes, totals } from "./state.js";

const HOURS_A_MONTH = 730;

function Tile({ name, value, note, href }) {
  const body = html`<span class="name">${name}</span><span class="value">${value}</span><span class="note">${note}</span>`;
  return href ? html`<a class="tile" href=${href}>${body}</a>` : html`<div class="tile">${body}</div>`;
}

function Tiles() {
  const sums = totals.value;
  const flight = [
    [sums.launching, "launching"],
    [sums.starting, "starting"],
    [sums.disrupting, "disrupting"],
    [sums.terminating, "terminating"],
  ].filter(([number]) => number > 0);
  const moving = flight.reduce((sum, [number]) => sum + number, 0);
  const open = budgets.value.filter((budget) => budget.remaining > 0).length;
  return html`<section class="tiles" aria-label="Totals">
    <${Tile} name="Nodes" value=${count(sums.nodes)} note=${plural(sums.pods, "pod")} href="#nodes" />
    <${Tile} name="Price per hour" value=${dollars(sums.price)} note=${`${dollars(sums.price * HOURS_A_MONTH, 0)} a month at list prices`} />
    <${Tile} name="Pending pods" value=${count(sums.pending)} note=${sums.pending > 0 ? "see why" : "none"} href="#pending" />
    <${Tile} name="In flight" value=${count(moving)} note=${flight.map(([number, name]) => `${number} ${name}`).join(", ") || "nothing changes"} />
    <${Tile} name="CPU requested" value=${percent(sums.cpu, sums.cpuAllocatable)} note=${`${cores(sums.cpu)} of ${cores(sums.cpuAllocatable)} cores`} />
    <${Tile} name="Memory requested" value=${percent(sums.memory, sums.memoryAllocatable)} note=${`${memory(sums.memory)} of ${memory(sums.memoryAllocatable)}`} />
    <${Tile} name="Budgets open" value=${`${open} of ${budgets.value.length}`} note="NodePools × reasons" />
  </section>`;
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** A curve of columns over time: `series` are [column, label, color, format]. */
function Curve({ title, series, scale }) {
  const place = useRef(null);
  const plot = useRef(null);

  const data = () => {
    const { at } = curve.value;
    return [at, ...series.map(([column]) => curve.value[column].map((value) => value / scale))];
  };
  useEffect(() => {
    const make = () => {
      plot.current?.destroy();
      const line = color("--line");
      const axis = { stroke: color("--muted"), grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
      const number = (value) => (value === null ? "" : value.toLocaleString("en-US", { maximumFractionDigits: 2 }));
      const options = {
        width: place.current.clientWidth,
        height: 190,
        legend: { live: true },
        cursor: { points: { size: 6 }, drag: { x: false, y: false } },
        scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.1, low === high ? high + 1 : 0, 1)] } },
        axes: [
          { ...axis, space: 70, size: 26, values: "{HH}:{mm}:{ss}", grid: { show: false } },
          { ...axis, size: 48, values: (_, splits) => splits.map(number) },
        ],
        series: [
          { label: "Time", value: "{HH}:{mm}:{ss}" },
          ...series.map(([, label, stroke, format], at) => ({
            label,
            stroke: color(stroke),
            fill: at === 0 ? color(stroke + "-fill") : undefined,
            dash: at === 0 ? undefined : [5, 4],
            width: 2,
            points: { show: false },
            paths: uPlot.paths.stepped({ align: 1 }),
            value: (_, value) => (value === null ? "–" : format(value)),
          })),
        ],
      };
      plot.current = new uPlot(options, data(), place.current);
    };
    make();
    const resized = new ResizeObserver(([entry]) => plot.current?.setSize({ width: Math.floor(entry.contentRect.width), height: 190 }));
    resized.observe(place.current);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", make);
    addEventListener("themechange", make);
    return () => {
      resized.disconnect();
      dark.removeEventListener("change", make);
      removeEventListener("themechange", make);
      plot.current.destroy();
      plot.current = null;
    };
  }, []);
  const points = curve.value;
  useEffect(() => plot.current?.setData(data()), [points]);
  return html`<section class="card"><h2>${title}</h2><div class="plot" role="img" aria-label=${title} ref=${place}></div></section>`;
}

const PRICE = [["price", "$/h", "--accent", (value) => "$" + value.toFixed(4)]];
const COUNTS = [
  ["nodes", "Nodes", "--accent", count],
  ["pending", "Pending pods", "--warn", count],
];

/** Sums nodes by a key. */
function grouped(key) {
  const groups = new Map();
  for (const node of nodes.value) {
    const name = key(node);
    let group = groups.get(name);
    if (!group) groups.set(name, (group = { name, nodes: 0, price: 0, pods: 0, cpu: 0, cpuAllocatable: 0, memory: 0, memoryAllocatable: 0 }));
    group.nodes += 1;
    for (const sum of ["price", "pods", "cpu", "cpuAllocatable", "memory", "memoryAllocatable"]) group[sum] += node[sum];
  }
  return [...groups.values()].sort((a, b) => b.price - a.price || b.nodes - a.nodes || (a.name < b.name ? -1 : 1));
}

function Bar({ part, whole }) {
  const width = whole > 0 ? Math.min(100, (100 * part) / whole) : 0;
  return html`<span class="bar"><span class="track" aria-hidden="true"><span class="fill" style=${{ width: width + "%" }}></span></span>${percent(part, whole)}</span>`;
}

function Pools() {
  const pools = grouped((node) => node.nodePool);
  return html`<section class="card">
    <h2>NodePools</h2>
    <div class="scroll" tabindex="0" role="region" aria-label="NodePools"><table>
      <thead><tr><th>NodePool</th><th class="n">Nodes</th><th class="n">$/h</th><th>CPU</th><th>Memory</th></tr></thead>
      <tbody>${pools.map(
        (pool) => html`<tr key=${pool.name}>
          <th>${pool.name || "(none)"}</th><td class="n">${count(pool.nodes)}</td><td class="n">${dollars(pool.price, 4)}</td>
          <td><${Bar} part=${pool.cpu} whole=${pool.cpuAllocatable} /></td><td><${Bar} part=${pool.memory} whole=${pool.memoryAllocatable} /></td>
        </tr>`,
      )}</tbody>
    </table></div>
    ${pools.length === 0 && html`<p class="empty">There are no nodes.</p>`}
  </section>`;
}

function Reasons() {
  const reasons = grouped((node) => node.reason).filter((group) => group.name);
  return html`<section class="card">
    <h2>Why nodes are kept</h2>
    <div class="scroll" tabindex="0" role="region" aria-label="Why nodes are kept"><table>
      <thead><tr><th>Reason</th><th class="n">Nodes</th><th class="n">$/h</th></tr></thead>
      <tbody>${reasons.map(
        (reason) => html`<tr key=${reason.name}><th>${reason.name}</th><td class="n">${count(reason.nodes)}</td><td class="n">${dollars(reason.price, 4)}</td></tr>`,
      )}</tbody>
    </table></div>
    ${reasons.length === 0 && html`<p class="empty">No disruption pass has looked at a node yet.</p>`}
  </section>`;
}

function Budgets() {
  return html`<section class="card">
    <h2>Disruption budgets now</h2>
    <div class="scroll" tabindex="0" role="region" aria-label="Disruption budgets now"><table>
      <thead><tr><th>NodePool</th><th>Reason</th><th>State</th><th class="n">Left</th><th class="n">Allowed</th><th class="n">In use</th></tr></thead>
      <tbody>${budgets.value.map((budget) => {
        const open = budget.remaining > 0;
        return html`<tr key=${budget.nodePool + "/" + budget.reason}>
          <th>${budget.nodePool}</th><td>${budget.reason}</td><td><span class=${open ? "chip good" : "chip"}>${open ? "open" : "closed"}</span></td>
          <td class="n">${budget.remaining}</td><td class="n">${budget.allowed}</td><td class="n">${budget.consuming}</td>
        </tr>`;
      })}</tbody>
    </table></div>
    ${budgets.value.length === 0 && html`<p class="empty">There are no NodePools.</p>`}
  </section>`;
}

export function Overview() {
  return html`<${Tiles} />
    <div class="grid two">
      <${Curve} title="Price per hour" series=${PRICE} scale=${1e6} />
      <${Curve} title="Nodes and pending pods" series=${COUNTS} scale=${1} />
    </div>
    <div class="grid two"><${Pools} /><${Budgets} /></div>
    <${Reasons} />`;
}
