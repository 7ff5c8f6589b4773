// The explanation of a node, beside the map.
import { useEffect, useRef } from "../vendor/hooks.js";
import { useSignal } from "../vendor/signals.js";
import { html } from "./html.js";
import { ask } from "./api.js";
import { age } from "./format.js";
import { nodes } from "./state.js";

/** Asks again when the answer may have changed, and at most once in this many milliseconds. */
const AGAIN = 2000;

export function NodePanel({ id, onClose }) {
  const node = nodes.value.find((node) => node.id === id);
  const answer = useSignal(null);
  const problem = useSignal("");
  const title = useRef(null);
  const asked = useRef(0);

  useEffect(() => title.current?.focus(), []);
  const path = node?.node
    ? `nodes/${encodeURIComponent(node.node)}/explanation`
    : node && `nodeclaims/${encodeURIComponent(node.id)}/explanation`;
  useEffect(() => {
    if (!path) return undefined;
    const abort = new AbortController();
    const load = async () => {
      asked.current = Date.now();
      try {
        answer.value = await ask(path, abort.signal);
        problem.value = "";
      } catch (error) {
        if (error.name !== "AbortError") problem.value = error.message;
      }
    };
    const timer = setTimeout(load, Math.max(0, asked.current + AGAIN - Date.now()));
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [path, node]);

  return html`<aside class="panel" aria-label="Explanation">
    <div class="panel-head">
      <h2 tabindex="-1" ref=${title}>${node?.node || id}</h2>
      <button type="button" class="close" onClick=${onClose} aria-label="Close">✕</button>
    </div>
    ${!node && html`<p class="note-box" role="status">This node is gone.</p>`}
    ${problem.value && html`<p class="note-box" role="alert">${problem.value}</p>`}
    ${answer.value ? html`<${NodeAnswer} answer=${answer.value} />` : node && !problem.value && html`<p class="wait">Loading …</p>`}
  </aside>`;
}

function since(reason, answer) {
  if (!reason.since) return "";
  const seconds = (new Date(answer.observed.at) - new Date(reason.since)) / 1000;
  return ` for ${reason.atLeast ? "at least " : ""}${age(seconds)}`;
}

/** A longer text of a reason is folded. */
const LONG = 160;

/** A reason with its id and text, as the server words it. */
export function Reason({ reason, answer }) {
  const { id, text } = reason;
  const beginning = text.slice(0, LONG / 2).replace(/ \S*$/, "");
  return html`<div class="reason"><span class="chip">${id}</span>${answer && html`<span class="muted">${since(reason, answer)}</span>`}
    ${text.length > LONG ? html`<details><summary>${beginning} …</summary><p>${text}</p></details>` : html`<p>${text}</p>`}</div>`;
}

function Usage({ usage }) {
  const entries = Object.entries(usage);
  if (entries.length === 0) return html`<p class="empty">No pod requests anything.</p>`;
  return html`<table class="usage"><thead><tr><th>Resource</th><th>Share</th><th class="n">Requested</th><th class="n">Allocatable</th></tr></thead>
    <tbody>${entries.map(
      ([name, { requested, allocatable, share }]) => html`<tr key=${name}>
        <th>${name}</th>
        <td><span class="bar"><span class="track" aria-hidden="true"><span class="fill" style=${{ width: Math.min(100, share * 100) + "%" }}></span></span>${Math.round(share * 100)}%</span></td>
        <td class="n">${requested}</td><td class="n">${allocatable}</td>
      </tr>`,
    )}</tbody></table>`;
}

function NodeAnswer({ answer }) {
  const facts = [
    ["State", answer.state],
    ["NodeClaim", answer.nodeClaim],
    ["NodePool", answer.nodePool],
    ["Instance type", answer.instanceType],
    ["Capacity type", answer.capacityType],
    ["Zone", answer.zone],
    ["Price", answer.pricePerHour > 0 ? `$${answer.pricePerHour.toFixed(4)} per hour` : "not known"],
    ["Not used by pods", answer.pricePerHour > 0 ? `$${answer.wastePerHour.toFixed(4)} per hour` : ""],
    ["Pods", String(answer.pods)],
  ].filter(([, value]) => value);
  const { blockers = [], reason } = answer;
  const isReason = (blocker) => blocker.text === reason?.text;
  const planned = answer.launch?.planned;
  const removed = answer.removal?.disrupted;
  return html`${removed && html`<section><h3>Why it is deleted</h3>
      <p>It is ${removed.reason}${removed.outcome?.why ? ": " + removed.outcome.why : ""}. Decision <a href=${"#decisions/" + answer.removal.record}>${answer.removal.record}</a>.</p>
    </section>`}
    <section><h3>Why it is kept</h3>
      ${reason ? !blockers.some(isReason) && html`<${Reason} reason=${reason} answer=${answer} />` : html`<p class="empty">No disruption pass has looked at it yet.</p>`}
      ${blockers.length > 0
        ? html`<ul class="plain" id="blockers">${blockers.map((blocker, at) => html`<li key=${at}><${Reason} reason=${isReason(blocker) ? reason : blocker} answer=${answer} /></li>`)}</ul>`
        : answer.blockers && html`<p class="muted">Nothing else blocks its disruption.</p>`}
    </section>
    ${planned && html`<section><h3>What it was launched for</h3>
      <p>${planned.pods} pods: ${planned.names.join(", ")}${planned.pods > planned.names.length ? ", …" : ""}. Decision <a href=${"#decisions/" + answer.launch.record}>${answer.launch.record}</a>.</p>
    </section>`}
    <section><h3>The node</h3><dl class="facts">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl></section>
    <section><h3>Requests of its pods</h3><${Usage} usage=${answer.usage} /></section>
    ${answer.records.length > 0 && html`<section><h3>Decisions about it</h3>
      <ul class="plain inline">${answer.records.map((id) => html`<li key=${id}><a href=${"#decisions/" + id}>${id}</a></li>`)}</ul>
    </section>`}
    ${answer.observed.truncated && html`<p class="note-box">The answer is incomplete: a bound was reached.</p>`}`;
}
