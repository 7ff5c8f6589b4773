// Requests to the server of the page, and its event streams.

const BASE = new URL("apis/decisions.karpenter.sh/v1alpha1/", document.baseURI);
const FIRST_RETRY = 500;
const LAST_RETRY = 5000;

/** Says why a request has no answer: the message of the server's `Status`, if there is one. */
async function refusal(response) {
  try {
    return (await response.json()).message || `the server answers ${response.status}`;
  } catch {
    return `the server answers ${response.status}`;
  }
}

/** Asks a question; fails with a message for the user. */
export async function ask(path, signal) {
  let response;
  try {
    response = await fetch(new URL(path, BASE), { signal, headers: { Accept: "application/json" } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the server cannot be reached");
  }
  if (!response.ok) throw new Error(await refusal(response));
  return response.json();
}

/** Asks a question with a body; fails with a message for the user. */
export async function post(path, body, signal) {
  let response;
  try {
    const headers = { Accept: "application/json", "Content-Type": "application/json" };
    response = await fetch(new URL(path, BASE), { method: "POST", signal, headers, body: JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the server cannot be reached");
  }
  if (!response.ok) throw new Error(await refusal(response));
  return response.json();
}

/** Reads server-sent events: `on` maps their names to handlers of their data. */
async function read(body, on) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    let end;
    while ((end = rest.indexOf("\n\n")) >= 0) {
      const event = { name: "message", data: "" };
      for (const line of rest.slice(0, end).split("\n")) {
        if (line.startsWith("event: ")) event.name = line.slice(7);
        else if (line.startsWith("data: ")) event.data += line.slice(6);
      }
      rest = rest.slice(end + 2);
      if (event.data && on[event.name]) on[event.name](JSON.parse(event.data));
    }
  }
}

/**
 * Follows a stream until the returned function is called. It is opened again when it breaks, and closed while the page is hidden:
 * the server has few streams. `status` is told `live`, or `waiting` with the reason.
 */
export function follow(path, on, status) {
  let abort = null;
  let timer = 0;
  let delay = FIRST_RETRY;
  let stopped = false;

  async function open() {
    clearTimeout(timer);
    timer = 0;
    const mine = new AbortController();
    abort = mine;
    let why = "the connection was closed";
    try {
      const response = await fetch(new URL(path, BASE), { signal: mine.signal, headers: { Accept: "text/event-stream" } });
      if (response.ok) {
        delay = FIRST_RETRY;
        status("live", "");
        await read(response.body, on);
      } else {
        why = await refusal(response);
      }
    } catch (error) {
      if (error.name !== "AbortError") why = "the server cannot be reached";
    }
    if (stopped || abort !== mine) return;
    abort = null;
    status("waiting", why);
    if (!document.hidden) timer = setTimeout(open, delay);
    delay = Math.min(delay * 2, LAST_RETRY);
  }

  function visibility() {
    if (document.hidden) {
      clearTimeout(timer);
      timer = 0;
      abort?.abort();
      abort = null;
    } else if (!abort && !timer) {
      delay = FIRST_RETRY;
      open();
    }
  }

  document.addEventListener("visibilitychange", visibility);
  if (!document.hidden) open();
  return () => {
    stopped = true;
    clearTimeout(timer);
    abort?.abort();
    document.removeEventListener("visibilitychange", visibility);
  };
}
