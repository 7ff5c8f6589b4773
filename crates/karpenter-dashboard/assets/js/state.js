// What the page knows about the cluster, kept current by the stream of the overview.
import { batch, signal } from "../vendor/signals.js";
import { follow } from "./api.js";
import { unpack } from "./columns.js";

/** `connecting`, `live`, or `waiting` with the reason. */
export const connection = signal({ state: "connecting", why: "" });
/** Sums; null until the first event. */
export const totals = signal(null);
export const pending = signal([]);
export const budgets = signal([]);
export const limits = signal([]);
/** The nodes; a new array after each change. */
export const nodes = signal([]);
/** Columns of the sums over time; a new object after each change. */
export const curve = signal({ at: [], nodes: [], pods: [], pending: [], price: [] });
/** The server's clock less the browser's, in seconds: ages are of the cluster's time. */
export const skew = signal(0);

const byId = new Map();
/** More points than this are thinned out. */
const POINTS = 4096;

export function now() {
  return Date.now() / 1000 + skew.value;
}

/** Calls a function for each row of columns, with an object of its values. */
function rows(columns, use) {
  const read = Object.entries(columns).map(([name, column]) => [name, unpack(column)]);
  const count = unpack(columns.id).length;
  for (let at = 0; at < count; at++) {
    const row = {};
    for (const [name, column] of read) row[name] = column[at];
    use(row);
  }
}

function publish(event) {
  totals.value = event.totals;
  if (event.pending) pending.value = event.pending;
  if (event.budgets) budgets.value = event.budgets;
  if (event.limits) limits.value = event.limits;
  nodes.value = [...byId.values()];
}

function clock(at) {
  const seconds = new Date(at).getTime() / 1000;
  if (Math.abs(seconds - now()) > 1) skew.value = seconds - Date.now() / 1000;
  return seconds;
}

function reset(overview) {
  batch(() => {
    clock(overview.observed.at);
    byId.clear();
    rows(overview.nodes, (row) => byId.set(row.id, row));
    curve.value = overview.curve;
    publish(overview);
  });
}

function change(event) {
  batch(() => {
    const at = clock(event.at);
    for (const id of event.remove ?? []) byId.delete(id);
    if (event.add) rows(event.add, (row) => byId.set(row.id, row));
    if (event.change) rows(event.change, (row) => byId.set(row.id, { ...byId.get(row.id), ...row }));
    publish(event);
    point(at, event.totals);
  });
}

/** Adds the sums to the curve: at most one point a second. */
function point(at, sums) {
  const old = curve.value;
  const last = old.at[old.at.length - 1] ?? 0;
  if (at - last < 1) return;
  const next = {};
  for (const name of Object.keys(old)) {
    const column = old[name].length < POINTS ? old[name].slice() : old[name].filter((_, at) => at % 2 === 0);
    column.push(name === "at" ? Math.round(at) : sums[name]);
    next[name] = column;
  }
  curve.value = next;
}

export function start() {
  follow("overview?watch=true", { reset, change }, (state, why) => {
    connection.value = { state, why };
  });
}

/** The name of a node, or of its NodeClaim while there is no Node. */
export function nameOf(node) {
  return node.node || node.id;
}

/** The largest share of a resource that pods request. */
export function share(node) {
  const cpu = node.cpuAllocatable > 0 ? node.cpu / node.cpuAllocatable : 0;
  const memory = node.memoryAllocatable > 0 ? node.memory / node.memoryAllocatable : 0;
  return Math.min(1, Math.max(cpu, memory));
}
