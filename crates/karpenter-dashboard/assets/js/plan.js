// The view of a rehearsal: a change that is pasted, and what it would do. Nothing is changed.
import uPlot from "../vendor/uplot.js";
import { useEffect, useRef } from "../vendor/hooks.js";
import { signal, useSignal } from "../vendor/signals.js";
import { html } from "./html.js";
import { post } from "./api.js";
import { age, count, plural } from "./format.js";

const LENGTHS = ["10m", "1h", "4h", "24h"];
const SHOWN = 200;

/** What was asked and answered; kept while other views are shown. */
const asked = { manifest: signal(""), sets: signal(""), length: signal("1h") };
const answer = signal(null);
const problem = signal("");

function rate(dollars, signed = false) {
  const sign = dollars < -0.0005 ? "−" : signed && dollars > 0.0005 ? "+" : "";
  return `${sign}$${Math.abs(dollars).toFixed(Math.abs(dollars) < 10 ? 3 : 2)}`;
}

function change(number) {
  return number > 0 ? "+" + count(number) : number < 0 ? "−" + count(-number) : "0";
}

function Tile({ name, value, note }) {
  return html`<div class="tile"><span class="name">${name}</span><span class="value">${value}</span><span class="note">${note}</span></div>`;
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Steps of an axis that counts. */
const WHOLE = [1, 2, 5].flatMap((digit) => [1, 10, 100, 1000, 10000].map((power) => digit * power)).sort((a, b) => a - b);

/** Both curves of one column over the seconds of the rehearsal. */
function Curve({ title, plan, column, format }) {
  const place = useRef(null);
  const changed = plan.curve;
  const unchanged = plan.unchanged?.curve ?? [];
  const at = [...new Set([...[...changed, ...unchanged].map((sample) => sample.after), plan.seconds])].sort((a, b) => a - b);
  const held = (samples) => {
    let next = 0;
    let value = null;
    return at.map((second) => {
      while (next < samples.length && samples[next].after <= second) value = samples[next++][column];
      return value;
    });
  };
  useEffect(() => {
    let plot = null;
    const make = () => {
      plot?.destroy();
      const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
      const line = (label, stroke, dash) => ({
        label,
        stroke: color(stroke),
        dash,
        width: 2,
        points: { show: false },
        paths: uPlot.paths.stepped({ align: 1 }),
        value: (_, value) => (value === null ? "–" : format(value)),
      });
      const options = {
        width: place.current.clientWidth,
        height: 190,
        cursor: { drag: { x: false, y: false } },
        scales: { x: { time: false, range: () => [0, Math.max(plan.seconds, 1)] }, y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1e-3)] } },
        axes: [
          { ...axis, size: 26, grid: { show: false }, values: (_, splits) => splits.map((value) => "+" + age(value)) },
          { ...axis, size: 56, values: (_, splits) => splits.map(format), ...(column === "nodes" && { incrs: WHOLE }) },
        ],
        series: [{ label: "After", value: (_, value) => (value === null ? "–" : age(value)) }, line("with the change", "--accent"), line("unchanged", "--muted", [5, 4])],
      };
      plot = new uPlot(options, [at, held(changed), held(unchanged)], place.current);
    };
    make();
    const resized = new ResizeObserver(([entry]) => plot.setSize({ width: Math.floor(entry.contentRect.width), height: 190 }));
    resized.observe(place.current);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", make);
    addEventListener("themechange", make);
    return () => {
      resized.disconnect();
      dark.removeEventListener("change", make);
      removeEventListener("themechange", make);
      plot.destroy();
    };
  }, [plan]);
  return html`<section class="card"><h2>${title}</h2><div class="plot" role="img" aria-label=${title} ref=${place}></div></section>`;
}

function launched(step) {
  const one = ({ count: number, instanceType, capacityType, zone, pricePerHour }) => `${number}× ${[instanceType, capacityType, zone].filter(Boolean).join(" ")} (${rate(pricePerHour)}/h)`;
  return (step.launches ?? []).map(one).join(", ");
}

function Steps({ title, steps }) {
  if (steps.length === 0) return null;
  return html`<section class="card"><h2>${title} <span class="muted">${plural(steps.length, "step")}</span></h2>
    <div class="scroll" tabindex="0" role="region" aria-label=${title}><table>
      <thead><tr><th class="n">After</th><th>Action</th><th>Reason</th><th>Nodes</th><th>Launched</th><th class="n">Pods</th><th class="n">Saves per hour</th></tr></thead>
      <tbody>${steps.slice(0, SHOWN).map(
        (step) => html`<tr>
          <td class="n">${age(step.after)}</td><td>${step.action}</td><td>${step.reason}</td>
          <td>${(step.nodes ?? []).join(", ")}</td><td>${launched(step)}</td><td class="n">${count(step.pods)}</td>
          <td class="n">${step.savingsPerHour === undefined ? "" : rate(step.savingsPerHour)}</td>
        </tr>`,
      )}</tbody>
    </table></div>
    ${steps.length > SHOWN && html`<p class="muted">and ${count(steps.length - SHOWN)} more</p>`}
  </section>`;
}

function Answer({ plan }) {
  const { before, after, difference, unchanged } = plan;
  const differs = difference?.differs;
  return html`<p class="sum" role="status">${
      differs
        ? `After ${age(plan.seconds)}: ${change(difference.nodes)} nodes, ${rate(difference.pricePerHour, true)}/h, ${change(difference.evictions)} evictions against the unchanged cluster.`
        : `No difference within ${age(plan.seconds)}.`
    }</p>
    ${plan.observed.truncated && html`<p class="note-box" role="alert">The rehearsal ended early: the numbers are those of its last moment.</p>`}
    <section class="tiles" aria-label="Totals">
      <${Tile} name="Nodes" value=${`${count(before.nodes)} → ${count(after.nodes)}`} note=${unchanged ? `${count(unchanged.after.nodes)} unchanged` : ""} />
      <${Tile} name="Price per hour" value=${`${rate(before.pricePerHour)} → ${rate(after.pricePerHour)}`} note=${unchanged ? `${rate(unchanged.after.pricePerHour)} unchanged` : ""} />
      <${Tile} name="Evictions" value=${count(plan.evictions.total)} note=${unchanged ? `${count(unchanged.evictions)} unchanged` : ""} />
      <${Tile} name="Pending pods" value=${count(after.pending)} note=${unchanged ? `${count(unchanged.after.pending)} unchanged` : ""} />
    </section>
    <ul class="plain">${plan.changes.map((told) => html`<li>${told}</li>`)}</ul>
    <div class="grid two">
      <${Curve} title="Dollars per hour" plan=${plan} column="pricePerHour" format=${(value) => rate(value)} />
      <${Curve} title="Nodes" plan=${plan} column="nodes" format=${(value) => count(Math.round(value))} />
    </div>
    ${differs
      ? html`<${Steps} title="With the change only" steps=${difference.onlyChanged} /><${Steps} title="Without the change only" steps=${difference.onlyUnchanged} />`
      : html`<${Steps} title="What happens anyway" steps=${plan.steps} />`}
    <section class="card"><h2>What is approximate</h2><ul class="plain">${plan.approximate.map((note) => html`<li>${note}</li>`)}</ul></section>`;
}

export function Plan() {
  const running = useSignal(false);
  const rehearse = async (event) => {
    event.preventDefault();
    const changes = [];
    if (asked.manifest.value.trim()) changes.push({ manifest: asked.manifest.value });
    for (const line of asked.sets.value.split("\n")) if (line.trim()) changes.push({ if: line.trim() });
    running.value = true;
    problem.value = "";
    try {
      answer.value = await post("plans", { for: asked.length.value, changes });
    } catch (error) {
      answer.value = null;
      problem.value = error.message;
    }
    running.value = false;
  };
  const typed = (field) => (event) => (asked[field].value = event.currentTarget.value);
  return html`<div class="content">
    <form class="card rehearsal" onSubmit=${rehearse}>
      <h2>Rehearse a change <span class="muted">nothing is changed</span></h2>
      <label>Manifests to apply: NodePools, NodeOverlays, PodDisruptionBudgets, workloads, as YAML or JSON
        <textarea rows="9" spellcheck="false" value=${asked.manifest.value} onInput=${typed("manifest")}></textarea></label>
      <label>Settings, one a line: budget.default=20%, limits.default.cpu=400, policy.default=WhenEmpty
        <textarea rows="2" spellcheck="false" value=${asked.sets.value} onInput=${typed("sets")}></textarea></label>
      <div class="filters">
        <label>For <select value=${asked.length.value} onChange=${typed("length")}>${LENGTHS.map((length) => html`<option value=${length}>${length}</option>`)}</select></label>
        <button type="submit" disabled=${running.value}>${running.value ? "Rehearsing …" : "Rehearse"}</button>
      </div>
    </form>
    ${problem.value && html`<p class="note-box" role="alert">${problem.value}</p>`}
    ${answer.value && html`<${Answer} plan=${answer.value} />`}
  </div>`;
}
