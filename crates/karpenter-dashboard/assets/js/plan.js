// The view of a rehearsal: a change that is pasted, or another version, and what it would do. Nothing is changed.
import { useMemo } from "../vendor/hooks.js";
import { signal, useSignal } from "../vendor/signals.js";
import { html } from "./html.js";
import { post } from "./api.js";
import { Chart } from "./chart.js";
import { age, count, plural } from "./format.js";

const LENGTHS = ["10m", "1h", "4h", "24h"];
const SHOWN = 200;
/** The name of this version, and all that are known. */
const THIS = "this";
const VERSIONS = ["karpenter-1.0", "karpenter-1.6", "karpenter-1.13", "karpenter-1.14", "head", THIS];

/** What was asked and answered; kept while other views are shown. */
const asked = { manifest: signal(""), sets: signal(""), length: signal("1h"), from: signal(THIS), to: signal(THIS), churn: signal("") };
const answer = signal(null);
const problem = signal("");

function rate(dollars, signed = false) {
  const sign = dollars < -0.0005 ? "−" : signed && dollars > 0.0005 ? "+" : "";
  return `${sign}$${Math.abs(dollars).toFixed(Math.abs(dollars) < 10 ? 3 : 2)}`;
}

function change(number) {
  return number > 0 ? "+" + count(number) : number < 0 ? "−" + count(-number) : "0";
}

function lines({ versions }) {
  const [solid, dashed] = versions ? [versions.to, versions.from] : ["with the change", "without it"];
  return [
    [solid, "--accent"],
    [dashed, "--muted", [5, 4]],
  ];
}

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
  return html`<${Chart} title=${title} data=${data} lines=${lines(plan)} x=${x} format=${format} whole=${whole} />`;
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

function did(step) {
  if (!step) return "nothing more";
  return [`after ${age(step.after)}: ${step.action}`, step.reason, (step.nodes ?? []).join(", "), launched(step)].filter(Boolean).join(", ");
}

/** Two versions side by side, the rules in which they differ, and the first difference. */
function Versions({ versions }) {
  const { from, to, before, after, firstDifference, rules, leftOut = [] } = versions;
  const columns = [
    ["Nodes, mean", "nodes", (value) => value.toFixed(1)],
    ["Price per hour, mean", "pricePerHour", (value) => rate(value)],
    ["Launches", "launches", count],
    ["Reclaimed nodes", "reclaimed", count],
    ["Evictions", "evictions", count],
    ["Pending pod seconds", "pendingSeconds", count],
  ];
  const cells = (run) => columns.map(([, field, format]) => html`<td class="n">${format(run[field])}</td>`);
  const alone = rules.filter((it) => it.run).map((it) => html`<tr><th>${from} with ${it.rule} ${it.to}</th>${cells(it.run)}</tr>`);
  return html`<section class="card versions"><h2>${from} and ${to}</h2>
    ${leftOut.length > 0 && html`<ul class="plain">${leftOut.map((why) => html`<li>${why}</li>`)}</ul>`}
    <div class="scroll" tabindex="0" role="region" aria-label="Versions"><table>
      <thead><tr><th></th>${columns.map(([title]) => html`<th class="n">${title}</th>`)}</tr></thead>
      <tbody><tr><th>${from}</th>${cells(before)}</tr><tr><th>${to}</th>${cells(after)}</tr>${alone}</tbody>
    </table></div>
    ${rules.length > 0 && html`<p>They differ in ${rules.map((it) => `${it.rule} (${it.from}, then ${it.to})`).join(", ")}.</p>`}
    ${firstDifference && html`<p>First difference${firstDifference.rules.length > 0 && ` by ${firstDifference.rules.join(", ")}`}:
      ${from} ${did(firstDifference.from)}; ${to} ${did(firstDifference.to)}.</p>`}
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
  const { difference, versions } = plan;
  const differs = difference?.differs;
  const [with_, without] = versions ? [`With ${versions.to} only`, `With ${versions.from} only`] : ["With the change only", "Without the change only"];
  return html`<p class="sum" role="status">${
      differs
        ? `${versions ? versions.to : "The change"} makes a difference of ${change(difference.nodes)} nodes, ${rate(difference.pricePerHour, true)}/h and ${change(difference.evictions)} evictions after ${age(plan.seconds)}.`
        : `${versions ? versions.to : "The change"} makes no difference within ${age(plan.seconds)}.`
    }${versions ? "" : otherwise(plan)}</p>
    ${plan.observed.truncated && html`<p class="note-box" role="alert">The rehearsal ended early: the numbers are those of its last moment.</p>`}
    <ul class="plain">${plan.changes.map((told) => html`<li>${told}</li>`)}</ul>
    ${versions ? html`<${Versions} versions=${versions} />` : html`<${Ends} plan=${plan} />`}
    <div class="grid two">
      <${Curve} title="Price per hour" plan=${plan} column="pricePerHour" format=${(value) => rate(value)} />
      <${Curve} title="Nodes" plan=${plan} column="nodes" format=${(value) => count(Math.round(value))} whole />
    </div>
    ${differs
      ? html`<${Steps} title=${with_} steps=${difference.onlyChanged} /><${Steps} title=${without} steps=${difference.onlyUnchanged} />`
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
      const [from, to] = [asked.from.value, asked.to.value];
      const request = { for: asked.length.value, changes };
      if (from !== THIS || to !== THIS) request.versions = { from, to };
      if (asked.churn.value.trim()) request.churn = asked.churn.value.trim();
      answer.value = await post("plans", request);
    } catch (error) {
      answer.value = null;
      problem.value = error.message;
    }
    running.value = false;
  };
  const typed = (field) => (event) => (asked[field].value = event.currentTarget.value);
  const choice = (title, field, all) => html`<label>${title} <select name=${field} value=${asked[field].value} onChange=${typed(field)}>${all.map((one) => html`<option value=${one}>${one}</option>`)}</select></label>`;
  return html`<div class="content">
    <form class="card rehearsal" onSubmit=${rehearse}>
      <h2>Rehearse a change <span class="muted">on a copy: the cluster stays as it is</span></h2>
      <label>Manifests to apply: NodePools, NodeOverlays, PodDisruptionBudgets, workloads, as YAML or JSON
        <textarea rows="9" spellcheck="false" value=${asked.manifest.value} onInput=${typed("manifest")}></textarea></label>
      <label>Settings, one a line: budget.default=20%, limits.default.cpu=400, policy.default=WhenEmpty
        <textarea rows="2" spellcheck="false" value=${asked.sets.value} onInput=${typed("sets")}></textarea></label>
      <div class="filters">
        ${choice("Simulated time", "length", LENGTHS)}
        ${choice("Karpenter from", "from", VERSIONS)}
        ${choice("to", "to", VERSIONS)}
        <label>Churn <input name="churn" size="8" placeholder="20%/2h" value=${asked.churn.value} onInput=${typed("churn")} /></label>
        <button type="submit" disabled=${running.value}>${running.value ? "Rehearsing …" : "Rehearse"}</button>
      </div>
    </form>
    ${problem.value && html`<p class="note-box" role="alert">${problem.value}</p>`}
    ${answer.value && html`<${Answer} key=${answer.value.start} plan=${answer.value} />`}
  </div>`;
}
