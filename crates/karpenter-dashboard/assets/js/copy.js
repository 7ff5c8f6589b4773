// A command that can be copied.
import { useSignal } from "../vendor/signals.js";
import { html } from "./html.js";

export function Copy({ text }) {
  const copied = useSignal("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      copied.value = "Copied";
    } catch {
      copied.value = "Select and copy the text";
    }
  };
  return html`<div class="copy"><code tabindex="0">${text}</code><button type="button" onClick=${copy}>${copied.value || "Copy"}</button></div>`;
}
