// The view of nodes: filters, a map of squares or a table, and the explanation of the selected one.
import { useEffect, useMemo, useRef } from "../vendor/hooks.js";
import { signal, useSignal } from "../vendor/signals.js";
import { html } from "./html.js";
import { count, dollars, plural } from "./format.js";
import { nameOf, nodes, share } from "./state.js";
import { HATCHES, STEPS, at, draw, layout, neighbour, sample, spoken } from "./squares.js";
import { Table } from "./table.js";
import { NodePanel } from "./node.js";

const FILTERS = [
  ["nodePool", "NodePool"],
  ["zone", "Zone"],
  ["instanceType", "Instance type"],
  ["capacityType", "Capacity type"],
  ["state", "State"],
  ["reason", "Why kept"],
];
const GROUPS = [
  ["nodePool", "NodePool"],
  ["zone", "zone"],
  ["instanceType", "instance type"],
  ["", "nothing"],
];

const filters = signal({});

/** Selects the nodes that have a value. */
export function only(field, value) {
  filters.value = { [field]: value };
}

export function Nodes({ subject }) {
  const text = useSignal("");
  const group = useSignal("nodePool");
  const table = useSignal(false);

  const all = nodes.value;
  const wanted = Object.entries(filters.value).filter(([, value]) => value !== undefined);
  const needle = text.value.trim().toLowerCase();
  const shown = useMemo(
    () =>
      all.filter(
        (node) =>
          wanted.every(([field, value]) => node[field] === value) &&
          (!needle || node.id.toLowerCase().includes(needle) || node.node.toLowerCase().includes(needle)),
      ),
    [all, filters.value, needle],
  );
  const select = (node) => {
    location.hash = node ? "nodes/" + encodeURIComponent(node.id) : "nodes";
  };
  const filtered = wanted.length > 0 || needle;
  const price = shown.reduce((sum, node) => sum + node.price, 0);
  return html`<div class=${subject ? "with-panel" : ""}>
    <div class="content">
      <form class="filters" onSubmit=${(event) => event.preventDefault()}>
        <label>Name<input type="search" value=${text.value} placeholder="part of a name" onInput=${(event) => (text.value = event.target.value)} /></label>
        ${FILTERS.map(([field, name]) => html`<${Filter} key=${field} field=${field} name=${name} />`)}
        ${!table.value &&
        html`<label>Group by<select onChange=${(event) => (group.value = event.target.value)}>
          ${GROUPS.map(([field, name]) => html`<option key=${field} value=${field} selected=${group.value === field}>${name}</option>`)}
        </select></label>`}
        <div class="segments" role="group" aria-label="Show as">
          <button type="button" aria-pressed=${!table.value} onClick=${() => (table.value = false)}>Map</button>
          <button type="button" aria-pressed=${table.value} onClick=${() => (table.value = true)}>Table</button>
        </div>
      </form>
      <p class="sum" role="status">
        ${filtered ? `${count(shown.length)} of ${plural(all.length, "node")}` : plural(all.length, "node")}, ${dollars(price, 4)} per hour
        ${filtered &&
        html` <button type="button" class="link" onClick=${() => { filters.value = {}; text.value = ""; }}>Clear the filters</button>`}
      </p>
      ${shown.length === 0
        ? html`<p class="empty">${all.length === 0 ? "There are no nodes." : "No node matches the filters."}</p>`
        : table.value
          ? html`<${Table} nodes=${shown} selected=${subject} onSelect=${select} />`
          : html`<${Map} nodes=${shown} group=${group.value} selected=${subject} onSelect=${select} />`}
    </div>
    ${subject && html`<${NodePanel} key=${subject} id=${subject} onClose=${() => select(null)} />`}
  </div>`;
}

function Filter({ field, name }) {
  const values = [...new globalThis.Set(nodes.value.map((node) => node[field]))].sort();
  const chosen = filters.value[field];
  // A value that no node has any more stays, so that the filter shows what it does.
  if (chosen !== undefined && !values.includes(chosen)) values.push(chosen);
  const choose = (event) => {
    const at = event.target.selectedIndex - 1;
    filters.value = { ...filters.value, [field]: at < 0 ? undefined : values[at] };
  };
  return html`<label>${name}<select onChange=${choose}>
    <option selected=${chosen === undefined}>all</option>
    ${values.map((value) => html`<option key=${value} selected=${chosen === value}>${value || "(none)"}</option>`)}
  </select></label>`;
}

function groupsOf(nodes, field) {
  if (!field) return [["All nodes", nodes]];
  const groups = new globalThis.Map();
  for (const node of nodes) {
    const key = node[field] || "(none)";
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(node);
  }
  return [...groups].sort(([a], [b]) => (a < b ? -1 : 1));
}

/** Large squares first, then by name: a square keeps its place while its node exists. */
function order(a, b) {
  return b.cpuAllocatable - a.cpuAllocatable || (a.id < b.id ? -1 : 1);
}

function Map({ nodes, group, selected, onSelect }) {
  const frame = useRef(null);
  const canvas = useRef(null);
  const width = useSignal(0);
  const hover = useSignal(null);
  const focus = useSignal("");

  const groups = useMemo(() => groupsOf([...nodes].sort(order), group), [nodes, group]);
  const describe = (number, price) => `${plural(number, "node")}, ${dollars(price, 4)}/h`;
  const space = width.value;
  const plan = useMemo(() => layout(groups, space), [groups, space]);
  const paint = useRef(null);
  paint.current = () => space > 0 && draw(canvas.current, plan, space, describe);

  useEffect(() => {
    const resized = new ResizeObserver(([entry]) => (width.value = Math.floor(entry.contentRect.width)));
    resized.observe(frame.current);
    const again = () => paint.current();
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", again);
    addEventListener("themechange", again);
    return () => {
      resized.disconnect();
      dark.removeEventListener("change", again);
      removeEventListener("themechange", again);
    };
  }, []);
  useEffect(() => {
    const request = requestAnimationFrame(() => paint.current());
    return () => cancelAnimationFrame(request);
  }, [plan]);

  const find = (event) => at(plan, event.offsetX, event.offsetY);
  const move = (event) => {
    const place = find(event);
    hover.value = place ? { node: place.node, x: event.offsetX, y: event.offsetY } : null;
  };
  const key = (event) => {
    const place = plan.squares.find((place) => place.node.id === focus.value);
    if (event.key === "Enter" || event.key === " ") {
      if (place) onSelect(place.node);
    } else if (/^(Arrow(Up|Down|Left|Right)|Home|End)$/.test(event.key)) {
      const next = neighbour(plan, focus.value, event.key);
      if (next) {
        focus.value = next.node.id;
        const top = canvas.current.getBoundingClientRect().top + next.y;
        scrollBy({ top: Math.min(0, top - 120) || Math.max(0, top + next.size + 20 - innerHeight) });
      }
    } else {
      return;
    }
    event.preventDefault();
  };
  const spokenNow = nodes.find((node) => node.id === focus.value);
  return html`<${Legend} />
    <div class="map" ref=${frame}>
      <canvas
        ref=${canvas}
        tabindex="0"
        role="application"
        aria-roledescription="map of nodes"
        aria-label=${spokenNow ? spoken(spokenNow) : `${plural(nodes.length, "node")}. Arrow keys move, Enter explains. The table has the same as text.`}
        onMouseMove=${move}
        onMouseLeave=${() => (hover.value = null)}
        onClick=${(event) => { const place = find(event); if (place) onSelect(place.node); }}
        onKeyDown=${key}
        onFocus=${() => { if (!focus.value && plan.squares[0]) focus.value = plan.squares[0].node.id; }}
        onBlur=${() => (focus.value = "")}
      ></canvas>
      ${plan.squares
        .filter(({ node }) => node.id === selected || node.id === focus.value)
        .map(({ node, x, y, size }) => html`<span key=${node.id} class=${node.id === selected ? "ring selected" : "ring"} style=${{ left: x + "px", top: y + "px", width: size + "px", height: size + "px" }}></span>`)}
      ${hover.value && html`<${Tip} ...${hover.value} width=${space} />`}
    </div>`;
}

function Tip({ node, x, y, width }) {
  const side = x > width / 2 ? { right: width - x + 14 + "px" } : { left: x + 14 + "px" };
  return html`<div class="tip" style=${{ top: y + 14 + "px", ...side }}>
    <strong>${nameOf(node)}</strong>
    <span>${[node.instanceType, node.capacityType, node.zone].filter(Boolean).join(" · ")}</span>
    <span>${Math.round(share(node) * 100)}% requested · ${plural(node.pods, "pod")} · ${dollars(node.price, 4)}/h</span>
    <span>${node.state}${node.reason && ` · ${node.reason}`}</span>
  </div>`;
}

function Sample({ node, color }) {
  const canvas = useRef(null);
  useEffect(() => {
    const paint = () => sample(canvas.current, node, color);
    paint();
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", paint);
    addEventListener("themechange", paint);
    return () => {
      dark.removeEventListener("change", paint);
      removeEventListener("themechange", paint);
    };
  }, []);
  return html`<canvas ref=${canvas} class="sample" aria-hidden="true"></canvas>`;
}

/** A node for the legend: full, half full, or with a hatch. */
function example(fill, reason = "", state = "Ready") {
  return { id: "", node: "", state, reason, price: 1, cpu: fill * 100, cpuAllocatable: 100, memory: 0, memoryAllocatable: 0 };
}

const HATCH_EXAMPLES = {
  leaving: example(0.5, "InFlight", "Disrupting"),
  held: example(0.5, "Pdb"),
  policy: example(0.5, "Budget"),
};

function Legend() {
  const price = (micro) => "$" + (micro / 1e6).toFixed(2);
  const steps = [`up to ${price(STEPS[0])}`, ...STEPS.slice(1).map((step) => `to ${price(step)}`), "more, or idle"];
  return html`<details class="legend" open=${innerWidth > 700}>
    <summary>Legend</summary>
    <dl>
      <dt>Size</dt>
      <dd>allocatable CPU</dd>
      <dt>Filled</dt>
      <dd>what pods request: CPU or memory, whichever is more</dd>
      <dt>Color</dt>
      <dd class="samples">price per hour for each core in use:
        ${steps.map((step, at) => html`<span key=${at}><${Sample} node=${example(1)} color=${at} />${step}</span>`)}
      </dd>
      <dt>Hatch</dt>
      <dd class="samples">
        ${HATCHES.map((hatch) => html`<span key=${hatch.id}><${Sample} node=${HATCH_EXAMPLES[hatch.id]} color=${0} />${hatch.name}</span>`)}
        <span><${Sample} node=${example(0, "", "Starting")} color=${-1} />dashed: starting</span>
      </dd>
    </dl>
  </details>`;
}
