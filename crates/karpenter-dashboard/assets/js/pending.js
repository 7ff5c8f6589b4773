// The view of pending pods: groups by reason and workload, and what blocks and what would help the selected one.
import { useEffect } from "../vendor/hooks.js";
import { useSignal } from "../vendor/signals.js";
import { html } from "./html.js";
import { ask } from "./api.js";
import { Copy } from "./copy.js";
import { age, plural, quoted, signed, time } from "./format.js";
import { now, pending } from "./state.js";
import { Reason } from "./node.js";

/** The longest search for what blocks a pod. */
const SEARCH = "2s";
/** The most groups that are explained in the list. */
const AHEAD = 8;

function keyOf(group) {
  return `${group.reason}/${group.class}`;
}

function seconds(timestamp) {
  return new Date(timestamp).getTime() / 1000;
}

export function Pending({ subject }) {
  const groups = pending.value;
  const chosen = groups.find((group) => keyOf(group) === subject);
  const answers = useAnswers(groups, chosen);
  if (groups.length === 0) {
    return html`<p class="empty large">No pod is pending.</p>
      ${subject && html`<p class="note-box">The group of the address has no pending pods any more.</p>`}`;
  }
  const reasons = new Map();
  for (const group of groups) {
    if (!reasons.has(group.reason)) reasons.set(group.reason, []);
    reasons.get(group.reason).push(group);
  }
  const total = (list) => list.reduce((sum, group) => sum + group.count, 0);
  const ordered = [...reasons].sort(([, a], [, b]) => total(b) - total(a));
  return html`<div class=${subject ? "with-panel wide" : ""}>
    <div class="content">
      <p class="sum" role="status">${plural(total(groups), "pending pod")}, by reason and workload</p>
      ${ordered.map(
        ([reason, list]) => html`<section class="card" key=${reason}>
          <h2>${reason} <span class="muted">${plural(total(list), "pod")}</span></h2>
          <ul class="plain choices">${list.map((group) => html`<li key=${keyOf(group)}><${Group} group=${group} chosen=${group === chosen} told=${answers[keyOf(group)]?.told} /></li>`)}</ul>
        </section>`,
      )}
    </div>
    ${subject && html`<aside class="panel" aria-label="Explanation">
      <div class="panel-head">
        <h2>${chosen ? podName(chosen.sample) : "Gone"}</h2>
        <a class="close" href="#pending" aria-label="Close">✕</a>
      </div>
      ${chosen ? html`<${PodAnswer} ...${answers[subject]} />` : html`<p class="note-box" role="status">No pod is pending for this reason any more.</p>`}
    </aside>`}
  </div>`;
}

function podName(sample) {
  return `${sample.namespace}/${sample.name}`;
}

function Atoms({ atoms }) {
  return html`<ul class="plain atoms">${atoms.map((atom) => html`<li key=${atom.id}><span class="chip">${atom.side}</span><span>${atom.text}${atom.hint && html` <span class="muted">${atom.hint}</span>`}</span></li>`)}</ul>`;
}

function Group({ group, chosen, told }) {
  const waited = group.oldest ? age(now() - seconds(group.oldest)) : "";
  const atoms = told?.blocking?.atoms ?? [];
  const body = html`<span class="line"><strong>${podName(group.sample)}</strong>
      <span class="muted">${group.count > 1 ? `and ${group.count - 1} more` : ""}${waited && `${group.count > 1 ? ", " : ""}${waited}`}</span></span>
    ${atoms.length > 0 ? html`<${Atoms} atoms=${atoms} />` : html`<span class="text">${group.text}</span>`}`;
  if (!group.class) return html`<div class="choice">${body}</div>`;
  return html`<a class="choice" href=${"#pending/" + encodeURIComponent(keyOf(group))} aria-current=${chosen ? "true" : undefined}>${body}</a>`;
}

/** Explains the chosen group, then the first ones; those once, as each is a search. Answers are by group. */
function useAnswers(groups, chosen) {
  const answers = useSignal({});
  const wanted = [chosen, ...groups.slice(0, AHEAD)].filter((group) => group?.class);
  const version = ({ sample, count }) => `${podName(sample)} ${count}`;
  useEffect(() => {
    const abort = new AbortController();
    const load = async () => {
      for (const group of wanted) {
        const known = answers.peek()[keyOf(group)];
        if (known && (group !== chosen || known.version === version(group))) continue;
        const { namespace, name } = group.sample;
        const path = `namespaces/${encodeURIComponent(namespace)}/pods/${encodeURIComponent(name)}/explanation?timeout=${SEARCH}`;
        const answer = await ask(path, abort.signal).then(
          (told) => ({ told }),
          (error) => ({ told: known?.told, problem: error.message }),
        );
        if (abort.signal.aborted) return;
        answers.value = { ...answers.peek(), [keyOf(group)]: { ...answer, version: version(group) } };
      }
    };
    load();
    return () => abort.abort();
  }, [chosen && version(chosen), wanted.map(keyOf).join()]);
  return answers.value;
}

function PodAnswer({ told, problem }) {
  if (!told) {
    return problem
      ? html`<p class="note-box" role="alert">${problem}</p>`
      : html`<p class="wait">Looking for what blocks it …</p>`;
  }
  const atoms = told.blocking?.atoms ?? [];
  const relaxations = told.relaxations ?? [];
  return html`${told.blocking && html`<section><h3>${atoms.length > 1 ? "In the way, these together" : "In the way"}</h3>
      ${told.fitsAlone && html`<p>The pod fits alone: other pending pods take its place.</p>`}
      ${atoms.length > 0
        ? html`<${Atoms} atoms=${atoms} />`
        : html`<p class="empty">Nothing that can be changed.</p>`}
    </section>
    <section><h3>What would help, each alone, cheapest first</h3>
      ${relaxations.length > 0
        ? html`<ol class="plain">${relaxations.map((relaxation, at) => html`<li key=${at}><${Relaxation} relaxation=${relaxation} /></li>`)}</ol>`
        : html`<p class="empty">No single change that was tried helps.</p>`}
    </section>`}
    ${told.reason && html`<section><h3>Why it is pending</h3><${Reason} reason=${told.reason} answer=${told} />
      ${told.alike && told.alike.pods > 1 && html`<p class="muted">${told.alike.pods} pods of this workload wait.</p>`}</section>`}
    <section><h3>What has happened</h3><${Stages} stages=${told.stages} /></section>
    ${told.pools.length > 0 && html`<section><h3>NodePools</h3>
      <ul class="plain">${told.pools.map((pool) => html`<li key=${pool.name}><strong>${pool.name}</strong> <${Reason} reason=${pool.reason} /></li>`)}</ul>
    </section>`}
    ${told.observed.truncated && html`<p class="note-box">The answer is incomplete: a bound was reached.</p>`}`;
}

function Stages({ stages }) {
  return html`<ol class="stages">${stages.map(
    ({ stage, at, record }, index) => html`<li key=${index}><strong>${stage}</strong><span class="muted">${time(at)}</span>
      ${record && html`<a href=${"#decisions/" + record}>decision</a>`}</li>`,
  )}</ol>`;
}

function effect({ node, newNode }) {
  if (newNode) return `launches ${newNode.instanceType} of NodePool ${newNode.nodePool}`;
  return `joins ${node}`;
}

/** The command of a patch: `Kind/name` or `Kind/namespace/name`. */
function command({ type, target, value }) {
  const [kind, ...name] = target.split("/");
  const namespace = name.length > 1 ? ` -n ${quoted(name[0])}` : "";
  return `kubectl patch ${kind.toLowerCase()} ${quoted(name[name.length - 1])}${namespace} --type=${type} -p ${quoted(JSON.stringify(value))}`;
}

function Relaxation({ relaxation }) {
  const { side, text, effect: result, deltaPerHour, exact, affects, patch } = relaxation;
  return html`<div class="relaxation">
    <div class="line"><strong class="price">${signed(deltaPerHour)}/h</strong><span class="chip">${side}</span><span>${text}</span></div>
    <p class="muted">${effect(result)}${exact ? "" : " (not verified)"}${affects ? `; breaks a constraint of ${affects}` : ""}</p>
    ${patch && html`<${Copy} text=${command(patch)} />`}
  </div>`;
}
