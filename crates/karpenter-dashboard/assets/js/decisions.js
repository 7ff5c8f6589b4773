// The view of decisions: a stream of records with filters; a record opens to show what it holds.
import { useEffect, useRef } from "../vendor/hooks.js";
import { useSignal } from "../vendor/signals.js";
import { html } from "./html.js";
import { follow } from "./api.js";
import { dollars, plural, signed, time } from "./format.js";
import { now } from "./state.js";

const KINDS = ["Provisioning", "Disruption", "Validation", "StaticCapacity", "Repair"];
const WINDOWS = [
  [900, "15 minutes"],
  [3600, "1 hour"],
  [21600, "6 hours"],
  [86400, "24 hours"],
];
/** The most records that are kept. */
const MOST = 500;

export function Decisions({ subject }) {
  const kind = useSignal("");
  const reason = useSignal("");
  const about = useSignal("");
  const period = useSignal(subject ? 86400 : 3600);
  const records = useSignal([]);
  const reasons = useSignal([]);
  const status = useSignal(["connecting", ""]);
  const every = useSignal(false);

  const [k, r, a, p] = [kind.value, reason.value, about.value, period.value];
  useEffect(() => {
    const query = new URLSearchParams({ watch: "true", since: new Date((now() - p) * 1000).toISOString() });
    if (k) query.set("kind", k);
    if (r) query.set("reason", r);
    if (a) query.set("subject", a);
    let fresh = [];
    let known = new Map();
    let frame = 0;
    records.value = [];
    // A burst of records is drawn once.
    const show = () => {
      frame = 0;
      for (const record of fresh) known.set(record.id, record);
      fresh = [];
      const all = [...known.values()].sort((x, y) => number(y.id) - number(x.id)).slice(0, MOST);
      known = new Map(all.map((record) => [record.id, record]));
      records.value = all;
      const found = new Set(reasons.peek());
      for (const record of all) for (const item of record.items) if (item.reason && item.type !== "Disrupted") found.add(item.reason);
      reasons.value = [...found].sort();
    };
    const on = {
      DecisionRecord: (record) => {
        fresh.push(record);
        frame ||= requestAnimationFrame(show);
      },
    };
    const live = (state, why) => {
      // Numbers start again with another leader.
      if (state === "live") [fresh, known] = [[], new Map()];
      status.value = [state, why];
    };
    const stop = follow("decisions?" + query, on, live);
    return () => {
      stop();
      cancelAnimationFrame(frame);
    };
  }, [k, r, a, p]);

  const [state, why] = status.value;
  const all = records.value;
  const shown = all.filter((record) => every.value || decides(record) || record.id === subject);
  const idle = all.length - shown.length;
  return html`<form class="filters" onSubmit=${(event) => event.preventDefault()}>
      <label>Pass<select onChange=${(event) => (kind.value = event.target.value)}>
        <option value="">all</option>${KINDS.map((name) => html`<option key=${name}>${name}</option>`)}
      </select></label>
      <label>Reason<select onChange=${(event) => (reason.value = event.target.value)}>
        <option value="">all</option>${reasons.value.map((name) => html`<option key=${name} selected=${name === r}>${name}</option>`)}
      </select></label>
      <label class="long">Pod, node or NodeClaim<input type="search" placeholder="namespace/name" onChange=${(event) => (about.value = event.target.value.trim())} /></label>
      <label>Of the last<select onChange=${(event) => (period.value = Number(event.target.value))}>
        ${WINDOWS.map(([value, name]) => html`<option key=${value} value=${value} selected=${value === p}>${name}</option>`)}
      </select></label>
    </form>
    <p class="sum" role="status">${plural(shown.length, "decision")}${all.length === MOST ? " (the latest)" : ""}${state === "waiting" ? `. Reconnecting: ${why}.` : ""}
      ${(idle > 0 || every.value) &&
      html` <button type="button" class="link" onClick=${() => (every.value = !every.value)}>${every.value ? "Hide passes that change nothing" : `Show ${plural(idle, "pass", "passes")} that ${idle === 1 ? "changes" : "change"} nothing`}</button>`}
    </p>
    ${subject && !all.some((record) => record.id === subject) && html`<p class="note-box">Decision ${subject} is not among them: it was dropped, or the filters leave it out.</p>`}
    ${shown.length === 0 && html`<p class="empty large">No decision yet. A pass that finds nothing new only extends the last one.</p>`}
    <ol class="plain records">${shown.map((record) => html`<${Record} key=${record.id} record=${record} open=${record.id === subject} />`)}</ol>`;
}

function number(id) {
  return Number(id.slice(id.lastIndexOf("-") + 1));
}

/** Whether a pass does more than keep nodes. */
function decides({ totals }) {
  return totals.launched + totals.placed + totals.unplaced + totals.disrupted > 0;
}

function summary({ totals }) {
  const parts = [
    [totals.launched, "node", "launched"],
    [totals.placed, "pod", "placed on existing nodes"],
    [totals.unplaced, "pod", "unschedulable"],
    [totals.disrupted, "node", "disrupted"],
    [totals.kept, "node", "kept"],
  ].filter(([amount]) => amount > 0);
  return parts.length > 0 ? parts.map(([amount, unit, name]) => `${plural(amount, unit)} ${name}`).join(" · ") : "nothing to do";
}

const UNITS = { Provisioning: "Pods", Disruption: "Nodes", Validation: "Command", StaticCapacity: "Nodes", Repair: "Nodes" };

function Record({ record, open }) {
  const shown = useSignal(open);
  const place = useRef(null);
  useEffect(() => {
    if (open) {
      shown.value = true;
      place.current.scrollIntoView({ block: "center" });
    }
  }, [open]);
  const price = record.totals.pricePerHour;
  return html`<li class="record" ref=${place}>
    <button type="button" class="record-head" aria-expanded=${shown.value} onClick=${() => (shown.value = !shown.value)}>
      <span class="when">${time(record.at)}</span>
      <span class=${"chip pass-" + record.pass.toLowerCase()}>${record.pass}</span>
      <span class="what">${summary(record)}${record.truncated ? " (ran out of time)" : ""}</span>
      <span class="price">${price === 0 ? "" : signed(price) + "/h"}</span>
    </button>
    ${shown.value && html`<div class="record-body">
      <dl class="facts">
        <div><dt>Decision</dt><dd>${record.id}</dd></div>
        <div><dt>Same result until</dt><dd>${time(record.until)}</dd></div>
        <div><dt>Took</dt><dd>${record.tookMs} ms</dd></div>
      </dl>
      ${record.items.length > 0 && html`<ul class="plain items" aria-label=${UNITS[record.pass]}>${record.items.map((item, at) => html`<li key=${at}><${Item} item=${item} /></li>`)}</ul>`}
      ${record.totals.omittedItems > 0 && html`<p class="muted">and ${plural(record.totals.omittedItems, "item")} that the record has no room for</p>`}
      <details><summary>For replay</summary><dl class="facts">
        <div><dt>Epoch</dt><dd>${record.epoch}</dd></div>
        <div><dt>Input</dt><dd>${record.inputDigest.slice(0, 16)}</dd></div>
        <div><dt>Output</dt><dd>${record.outputDigest.slice(0, 16)}</dd></div>
      </dl></details>
    </div>`}
  </li>`;
}

function named(names, all) {
  const more = all - names.length;
  return names.join(", ") + (more > 0 ? ` and ${more} more` : "");
}

function Item({ item }) {
  const line = (kind, head, text, price) => html`<span class=${"chip item-" + kind}>${head}</span><span class="text">${text}</span><span class="price">${price}</span>`;
  const perHour = (price) => dollars(price * 1e6, 4) + "/h";
  switch (item.type) {
    case "Launched": {
      const types = item.instanceTypes.slice(0, 3).join(", ");
      const more = item.instanceTypes.length - 3 + item.moreInstanceTypes;
      return line(
        "launched",
        "Launched",
        `${item.nodeClaim ?? "a NodeClaim that could not be created"} of ${item.nodePool} for ${plural(item.pods, "pod")} (${named(item.names, item.pods)}): ${types}${more > 0 ? ` and ${more} more types` : ""}`,
        `from ${perHour(item.pricePerHour)}`,
      );
    }
    case "Placed":
      return line("placed", "Placed", `${named(item.names, item.count)} on ${item.nodes.join(", ")}`, "");
    case "Unplaced":
      return line("unplaced", item.reason, `${named(item.names, item.count)}: ${item.text}`, "");
    case "Disrupted": {
      const by = item.replacements > 0 ? `, replaced by ${plural(item.replacements, "node")} (${item.instanceTypes.slice(0, 3).join(", ")})` : "";
      const rejected = item.rejected ? ` Not started: ${item.rejected}.` : "";
      return line("disrupted", item.decision === "replace" ? "Replaced" : "Deleted", `${named(item.names, item.count)}, ${item.reason}, ${plural(item.pods, "pod")} move${by}.${rejected}`, "saves " + perHour(item.savingsPerHour));
    }
    case "Kept":
      return line("kept", item.reason, `${plural(item.count, "node")} of ${item.nodePool || "no NodePool"}: ${named(item.names, item.count)}`, perHour(item.pricePerHour));
    default:
      return line("", item.type, "", "");
  }
}
