// Markup as template literals. Values are set as text and attributes, never parsed as markup.
import htm from "../vendor/htm.js";
import { h } from "../vendor/preact.js";

export const html = htm.bind(h);
