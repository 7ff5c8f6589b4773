// The view of sums: tiles, curves, NodePools, budgets and reasons.
import { useMemo } from "../vendor/hooks.js";
import { html } from "./html.js";
import { Chart } from "./chart.js";
import { Copy } from "./copy.js";
import { cores, count, dollars, memory, percent, plural } from "./format.js";
import { only } from "./nodes.js";
import { budgets, curve, limits, nodes, totals } from "./state.js";

const HOURS_A_MONTH = 730;

/** Dollars per hour, without cents if they are many. */
function perHour(micro) {
  return dollars(micro, micro < 1e8 ? 2 : 0);
}

function Tile({ name, value, note, href }) {
  const body = html`<span class="name">${name}</span><span class="value">${value}</span><span class="note">${note}</span>`;
  return href ? html`<a class="tile" href=${href}>${body}</a>` : html`<div class="tile">${body}</div>`;
}

function Tiles({ pools }) {
  const sums = totals.value;
  const flight = [
    [sums.launching, "launching"],
    [sums.starting, "starting"],
    [sums.disrupting, "disrupting"],
    [sums.terminating, "terminating"],
  ].filter(([number]) => number > 0);
  const moving = flight.reduce((sum, [number]) => sum + number, 0);
  const used = pools.filter((pool) => pool.nodes > 0 && pool.budgets.length > 0);
  const open = used.filter((pool) => pool.budgets.some((budget) => budget.remaining > 0));
  return html`<section class="tiles" aria-label="Totals">
    <${Tile} name="Nodes" value=${count(sums.nodes)} note=${plural(sums.pods, "pod")} href="#nodes" />
    <${Tile} name="Price per hour" value=${dollars(sums.price)} note=${`${dollars(sums.price * HOURS_A_MONTH, 0)} a month at list prices`} />
    <${Tile} name="Pending pods" value=${count(sums.pending)} note=${sums.pending > 0 ? "see why" : "none"} href="#pending" />
    <${Tile} name="In flight" value=${count(moving)} note=${flight.map(([number, name]) => `${number} ${name}`).join(", ") || "nothing changes"} />
    <${Tile} name="CPU requested" value=${percent(sums.cpu, sums.cpuAllocatable)} note=${`${cores(sums.cpu)} of ${cores(sums.cpuAllocatable)} cores`} />
    <${Tile} name="Memory requested" value=${percent(sums.memory, sums.memoryAllocatable)} note=${`${memory(sums.memory)} of ${memory(sums.memoryAllocatable)}`} />
    <${Tile} name="Budgets open" value=${`${open.length} of ${used.length}`} note="NodePools with nodes" />
  </section>`;
}

const TIME = { label: "Time", axis: "{HH}:{mm}:{ss}", value: "{HH}:{mm}:{ss}" };
const CURVES = [
  ["Price per hour", "price", "--accent", (value) => perHour(value * 1e6), false],
  ["Nodes", "nodes", "--accent", count, true],
  ["Pending pods", "pending", "--warn", count, true],
];

function Curve({ title, column, color, format, whole }) {
  const points = curve.value;
  const data = useMemo(() => [points.at, column === "price" ? points.price.map((micro) => micro / 1e6) : points[column]], [points]);
  return html`<${Chart} title=${title} data=${data} lines=${[[title, color]]} x=${TIME} format=${format} whole=${whole} />`;
}

/** Sums nodes by a key; the groups that are named are there without a node, too. */
function grouped(key, names = []) {
  const groups = new Map();
  const of = (name) => {
    if (!groups.has(name)) groups.set(name, { name, texts: new Set(), nodes: 0, price: 0, cpu: 0, cpuAllocatable: 0, memory: 0, memoryAllocatable: 0 });
    return groups.get(name);
  };
  names.forEach(of);
  for (const node of nodes.value) {
    const group = of(key(node));
    group.nodes += 1;
    if (node.text) group.texts.add(node.text);
    for (const sum of ["price", "cpu", "cpuAllocatable", "memory", "memoryAllocatable"]) group[sum] += node[sum];
  }
  return [...groups.values()].sort((a, b) => b.price - a.price || b.nodes - a.nodes || (a.name < b.name ? -1 : 1));
}

/** A table with a title, which scrolls if it is too wide or too long. */
function Card({ title, head, rows, empty }) {
  return html`<section class="card">
    <h2>${title}</h2>
    <div class="scroll" tabindex="0" role="region" aria-label=${title}><table>
      <thead><tr>${head.map(([name, kind]) => html`<th key=${name} class=${kind}>${name}</th>`)}</tr></thead>
      <tbody>${rows}</tbody>
    </table></div>
    ${rows.length === 0 && html`<p class="empty">${empty}</p>`}
  </section>`;
}

/** A link to the nodes with a value. */
function Only({ field, value }) {
  return html`<a href="#nodes" onClick=${() => only(field, value)}>${value || "(none)"}</a>`;
}

function Bar({ part, whole }) {
  if (whole === 0) return "–";
  const width = Math.min(100, (100 * part) / whole);
  return html`<span class="bar"><span class="track" aria-hidden="true"><span class="fill" style=${{ width: width + "%" }}></span></span>${percent(part, whole)}</span>`;
}

function Pools({ pools }) {
  const row = (pool) => html`<tr key=${pool.name}>
    <th><${Only} field="nodePool" value=${pool.name} /></th><td class="n">${count(pool.nodes)}</td><td class="n more">${perHour(pool.price)}</td>
    <td><${Bar} part=${pool.cpu} whole=${pool.cpuAllocatable} /></td><td><${Bar} part=${pool.memory} whole=${pool.memoryAllocatable} /></td>
    <td>${pool.limits.map(({ resource, share, limit }) => html`<div key=${resource}>${percent(share, 1)} <span class="more">of ${limit}</span> ${resource}</div>`)}</td>
  </tr>`;
  const head = [["NodePool"], ["Nodes", "n"], ["$/h", "n more"], ["CPU"], ["Memory"], ["Limits used"]];
  return html`<${Card} title="NodePools" head=${head} rows=${pools.map(row)} />`;
}

function Budget({ budget }) {
  const { remaining, allowed } = budget;
  return html`<span class=${remaining > 0 ? "chip good" : "chip"}>${allowed > 0 ? `${count(remaining)} of ${count(allowed)}` : "closed"}</span>`;
}

function Budgets({ pools }) {
  const reasons = [...new Set(budgets.value.map((budget) => budget.reason))];
  const cell = (pool, reason) => {
    const budget = pool.budgets.find((budget) => budget.reason === reason);
    return html`<td key=${reason}>${budget && (pool.nodes > 0 ? html`<${Budget} budget=${budget} />` : html`<span class="muted">no nodes</span>`)}</td>`;
  };
  const rows = pools
    .filter((pool) => pool.budgets.length > 0)
    .map((pool) => html`<tr key=${pool.name}><th>${pool.name}</th>${reasons.map((reason) => cell(pool, reason))}</tr>`);
  return html`<${Card} title="Nodes that disruption budgets allow now" head=${[["NodePool"], ...reasons.map((reason) => [reason])]} rows=${rows} empty="There are no NodePools." />`;
}

function Reasons() {
  const row = ({ name, texts, nodes: number, price }) => {
    const [text] = texts;
    const more = texts.size > 1 && html` <span class="muted">and ${count(texts.size - 1)} more like it</span>`;
    return html`<tr key=${name}><th><${Only} field="reason" value=${name} /><p>${text}${more}</p></th><td class="n">${count(number)}</td><td class="n">${perHour(price)}</td></tr>`;
  };
  const rows = grouped((node) => node.reason).filter((group) => group.name).map(row);
  const head = [["Reason"], ["Nodes", "n"], ["$/h", "n"]];
  return html`<${Card} title="Why nodes are kept" head=${head} rows=${rows} empty="No disruption pass has looked at a node yet." />`;
}

const FIRST = ["kubectl apply -f bins/karpenter-playground/src/demo.yaml", "kubectl scale deployment inflate --replicas 100"];

function Empty() {
  return html`<section class="card">
    <h2>There are no NodePools</h2>
    <p>Karpenter launches nodes for pending pods once there is a NodePool with a node class. In the playground, from the root of Karpenter's repository:</p>
    ${FIRST.map((text) => html`<${Copy} key=${text} text=${text} />`)}
  </section>`;
}

export function Overview() {
  const pools = grouped((node) => node.nodePool, budgets.value.map((budget) => budget.nodePool));
  if (pools.length === 0 && totals.value.pending === 0) return html`<${Empty} />`;
  for (const pool of pools) {
    pool.budgets = budgets.value.filter((budget) => budget.nodePool === pool.name);
    pool.limits = limits.value.filter((limit) => limit.nodePool === pool.name);
  }
  return html`<${Tiles} pools=${pools} />
    ${curve.value.at.length > 1 &&
    html`<div class="grid three">${CURVES.map(
      ([title, column, color, format, whole]) => html`<${Curve} key=${title} title=${title} column=${column} color=${color} format=${format} whole=${whole} />`,
    )}</div>`}
    <div class="grid two"><${Pools} pools=${pools} /><${Budgets} pools=${pools} /></div>
    <${Reasons} />`;
}
