// The frame of the page: navigation, theme, connection, and the view that the address selects.
import { render } from "../vendor/preact.js";
import { signal, useSignal } from "../vendor/signals.js";
import { html } from "./html.js";
import { count } from "./format.js";
import { connection, pending, start, totals } from "./state.js";
import { Decisions } from "./decisions.js";
import { Nodes } from "./nodes.js";
import { Overview } from "./overview.js";
import { Pending } from "./pending.js";
import { Plan } from "./plan.js";

const VIEWS = [
  ["overview", "Overview", Overview],
  ["nodes", "Nodes", Nodes],
  ["pending", "Pending", Pending],
  ["decisions", "Decisions", Decisions],
  ["plan", "Plan", Plan],
];

/** The view, and what follows it in the address: `#nodes/NAME`. */
const route = signal(parse());

function parse() {
  const [view, ...rest] = location.hash.replace(/^#/, "").split("/");
  const known = VIEWS.some(([id]) => id === view);
  let subject = "";
  try {
    subject = decodeURIComponent(rest.join("/"));
  } catch {
    // Not an address of this page.
  }
  return { view: known ? view : "overview", subject: known ? subject : "" };
}

addEventListener("hashchange", () => {
  const before = route.value.view;
  route.value = parse();
  if (route.value.view !== before) document.getElementById("main")?.focus({ preventScroll: true });
});

const THEMES = { "": ["Auto", "dark"], dark: ["Dark", "light"], light: ["Light", ""] };

function Theme() {
  const theme = useSignal(document.documentElement.dataset.theme ?? "");
  const [name, next] = THEMES[theme.value] ?? THEMES[""];
  const choose = () => {
    theme.value = next;
    if (next) document.documentElement.dataset.theme = next;
    else delete document.documentElement.dataset.theme;
    try {
      if (next) localStorage.setItem("theme", next);
      else localStorage.removeItem("theme");
    } catch {
      // Storage may be off: the choice holds until the page is closed.
    }
    dispatchEvent(new Event("themechange"));
  };
  return html`<button type="button" class="theme" onClick=${choose} aria-label=${`Theme: ${name}. Change`}>
    <span class="theme-icon" aria-hidden="true"></span>${name}
  </button>`;
}

const CONNECTION = { connecting: "Connecting", live: "Live", waiting: "Reconnecting" };

function Connection() {
  const { state, why } = connection.value;
  return html`<span class=${`connection ${state}`} role="status" title=${why}>
    <span class="dot" aria-hidden="true"></span>${CONNECTION[state]}
  </span>`;
}

function Body() {
  const { state, why } = connection.value;
  const { view, subject } = route.value;
  const [, title, View] = VIEWS.find(([id]) => id === view);
  document.title = `${title} · Karpenter`;
  const banner =
    state === "waiting" &&
    html`<p class="banner" role="alert">
      Reconnecting: ${why}.${totals.value ? " What is shown may be old." : ""}
    </p>`;
  const known = totals.value || view === "decisions";
  return html`${banner}
    <main id="main" tabindex="-1">
      <h1 class="sr">${title}</h1>
      ${known ? html`<${View} subject=${subject} />` : state !== "waiting" && html`<p class="wait">Loading …</p>`}
    </main>`;
}

function App() {
  const waiting = pending.value.reduce((sum, group) => sum + group.count, 0);
  return html`<a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <header>
      <a class="brand" href="#overview"><img src="assets/icon.svg" alt="" width="22" height="22" />Karpenter</a>
      <nav aria-label="Views">
        ${VIEWS.map(
          ([id, name]) => html`<a
            key=${id}
            href=${"#" + id}
            aria-current=${route.value.view === id ? "page" : undefined}
            >${name}${id === "pending" && waiting > 0 && html` <span class="badge">${count(waiting)}</span>`}</a
          >`,
        )}
      </nav>
      <div class="tools"><${Connection} /><${Theme} /></div>
    </header>
    <${Body} />`;
}

/** The address selects the view, so the link to the content must not change it. */
function skip(event) {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
start();
