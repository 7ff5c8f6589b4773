// The view of a rehearsal: a change that is pasted, and what it would do. Nothing is changed.
import { useMemo } from "../vendor/hooks.js";
import { signal, useSignal } from "../vendor/signals.js";
import { html } from "./html.js";
import { post } from "./api.js";
import { Chart } from "./chart.js";
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

const LINES = [
  ["with the change", "--accent"],
  ["without it", "--muted", [5, 4]],
];

/** Both curves of one column over the seconds of the rehearsal. */
function Curve({ title, plan, column, format, whole }) {
  const data = useMemo(() => {
    const curves = [plan.curve, plan.unchanged?.curve ?? []];
    const at = [...new Set([...curves.flat().map((sample) => sample.after), plan.seconds])].sort((a, b) => a - b);
    const held = (samples) => {
      let next = 0;
      let value = null;
      return at.map((second) => {
        while (next < samples.length && samples[next].after <= second) value = samples[next++][column];
        return value;
      });
    };
    return [at, ...curves.map(held)];
  }, [plan]);
  const x = {
    label: "After",
    scale: { time: false, range: () => [0, Math.max(plan.seconds, 1)] },
    axis: (_, splits) => splits.map((value) => "+" + age(value)),
    value: (_, value) => (value == null ? "–" : age(value)),
  };
  return html`<${Chart} title=${title} data=${data} lines=${LINES} x=${x} format=${format} whole=${whole} />`;
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

/** The cluster now, and at the end without and with the change. */
function Ends({ plan }) {
  const { before, after, unchanged } = plan;
  const row = (name, now, without, with_, format) => html`<tr><th>${name}</th><td class="n">${now === undefined ? "–" : format(now)}</td>
    ${unchanged && html`<td class="n">${format(without)}</td>`}<td class="n"><strong>${format(with_)}</strong></td></tr>`;
  return html`<section class="card"><h2>Now, and after ${age(plan.seconds)} without and with the change</h2>
    <div class="scroll" tabindex="0" role="region" aria-label="Totals"><table>
      <thead><tr><th></th><th class="n">Now</th>${unchanged && html`<th class="n">Without</th>`}<th class="n">With</th></tr></thead>
      <tbody>
        ${row("Nodes", before.nodes, unchanged?.after.nodes, after.nodes, count)}
        ${row("Price per hour", before.pricePerHour, unchanged?.after.pricePerHour, after.pricePerHour, rate)}
        ${row("Pending pods", before.pending, unchanged?.after.pending, after.pending, count)}
        ${row("Evictions", undefined, unchanged?.evictions, plan.evictions.total, count)}
      </tbody>
    </table></div>
  </section>`;
}

/** What happens without the change. */
function otherwise({ before, unchanged, difference }) {
  if (!unchanged) return "";
  const nodes = unchanged.after.nodes - before.nodes;
  const price = unchanged.after.pricePerHour - before.pricePerHour;
  if (nodes === 0 && Math.abs(price) < 0.0005) return " Without it, nodes and price stay as they are.";
  return ` ${difference?.differs ? "Without it" : "Happens anyway"}: ${change(nodes)} nodes, ${rate(price, true)}/h.`;
}

function Answer({ plan }) {
  const { difference } = plan;
  const differs = difference?.differs;
  return html`<p class="sum" role="status">${
      differs
        ? `The change makes a difference of ${change(difference.nodes)} nodes, ${rate(difference.pricePerHour, true)}/h and ${change(difference.evictions)} evictions after ${age(plan.seconds)}.`
        : `The change makes no difference within ${age(plan.seconds)}.`
    }${otherwise(plan)}</p>
    ${plan.observed.truncated && html`<p class="note-box" role="alert">The rehearsal ended early: the numbers are those of its last moment.</p>`}
    <ul class="plain">${plan.changes.map((told) => html`<li>${told}</li>`)}</ul>
    <${Ends} plan=${plan} />
    <div class="grid two">
      <${Curve} title="Price per hour" plan=${plan} column="pricePerHour" format=${(value) => rate(value)} />
      <${Curve} title="Nodes" plan=${plan} column="nodes" format=${(value) => count(Math.round(value))} whole />
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
      <h2>Rehearse a change <span class="muted">on a copy: the cluster stays as it is</span></h2>
      <label>Manifests to apply: NodePools, NodeOverlays, PodDisruptionBudgets, workloads, as YAML or JSON
        <textarea rows="9" spellcheck="false" value=${asked.manifest.value} onInput=${typed("manifest")}></textarea></label>
      <label>Settings, one a line: budget.default=20%, limits.default.cpu=400, policy.default=WhenEmpty
        <textarea rows="2" spellcheck="false" value=${asked.sets.value} onInput=${typed("sets")}></textarea></label>
      <div class="filters">
        <label>Simulated time <select value=${asked.length.value} onChange=${typed("length")}>${LENGTHS.map((length) => html`<option value=${length}>${length}</option>`)}</select></label>
        <button type="submit" disabled=${running.value}>${running.value ? "Rehearsing …" : "Rehearse"}</button>
      </div>
    </form>
    ${problem.value && html`<p class="note-box" role="alert">${problem.value}</p>`}
    ${answer.value && html`<${Answer} key=${answer.value.start} plan=${answer.value} />`}
  </div>`;
}
