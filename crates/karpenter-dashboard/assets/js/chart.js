// Curves, drawn by uPlot. The legend has the last values until the mouse is over earlier ones.
import uPlot from "../vendor/uplot.js";
import { useEffect, useRef } from "../vendor/hooks.js";
import { html } from "./html.js";

const HEIGHT = 190;
/** Steps of an axis that counts. */
const WHOLE = [1, 2, 5].flatMap((digit) => [1, 10, 100, 1000, 10000].map((power) => digit * power)).sort((a, b) => a - b);

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function last(plot) {
  if (plot.cursor.idx == null) plot.setLegend({ idx: plot.data[0].length - 1 });
}

/**
 * A chart: `data` are columns, of which the first is `x`, and `lines` are [label, color, dash] of the others. `x` has the label,
 * the scale, and the format of the axis and of the legend; `format` is that of values, which are counted if they are `whole`.
 */
export function Chart({ title, data, lines, x, format, whole }) {
  const place = useRef(null);
  const plot = useRef(null);
  const current = useRef(data);
  current.current = data;
  useEffect(() => {
    const make = () => {
      plot.current?.destroy();
      const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
      const options = {
        width: place.current.clientWidth,
        height: HEIGHT,
        padding: [null, 26, null, null],
        cursor: { points: { size: 6 }, drag: { x: false, y: false } },
        hooks: { draw: [last], setCursor: [last] },
        scales: { x: x.scale ?? {}, y: { range: (_, low, high) => [0, Math.max(high * 1.1, whole ? 1 : 0.01)] } },
        axes: [
          { ...axis, space: 70, size: 26, values: x.axis, grid: { show: false } },
          { ...axis, size: 56, values: (_, splits) => splits.map(format), ...(whole && { incrs: WHOLE }) },
        ],
        series: [
          { label: x.label, value: x.value },
          ...lines.map(([label, stroke, dash]) => ({
            label,
            stroke: color(stroke),
            fill: lines.length === 1 ? color(stroke + "-fill") : undefined,
            dash,
            width: 2,
            points: { show: false },
            paths: uPlot.paths.stepped({ align: 1 }),
            value: (_, value) => (value == null ? "–" : format(value)),
          })),
        ],
      };
      plot.current = new uPlot(options, current.current, place.current);
    };
    make();
    const resized = new ResizeObserver(([entry]) => plot.current.setSize({ width: Math.floor(entry.contentRect.width), height: HEIGHT }));
    resized.observe(place.current);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", make);
    addEventListener("themechange", make);
    return () => {
      resized.disconnect();
      dark.removeEventListener("change", make);
      removeEventListener("themechange", make);
      plot.current.destroy();
      plot.current = null;
    };
  }, []);
  useEffect(() => plot.current?.setData(data), [data]);
  const spoken = lines.map(([label], at) => `${label} ${format(data[at + 1].at(-1) ?? 0)}`).join(", ");
  return html`<section class="card"><h2>${title}</h2><div class="plot" role="img" aria-label=${spoken} ref=${place}></div></section>`;
}
