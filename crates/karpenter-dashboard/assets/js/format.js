// Numbers, times and names as text.

const MICRO = 1e6;

/** Dollars from millionths of a dollar: two digits for sums, four for prices of a node. */
export function dollars(micro, digits = 2) {
  return "$" + (micro / MICRO).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** An amount in dollars per hour with its sign. */
export function signed(perHour, digits = 4) {
  const amount = Math.abs(perHour).toFixed(digits);
  return (perHour < 0 ? "−$" : "+$") + amount;
}

export function count(number) {
  return number.toLocaleString("en-US");
}

export function plural(number, one, many = one + "s") {
  return `${count(number)} ${number === 1 ? one : many}`;
}

export function percent(part, whole) {
  return whole > 0 ? Math.round((100 * part) / whole) + "%" : "–";
}

/** Cores from thousandths of a core. */
export function cores(milli) {
  const value = milli / 1000;
  return value >= 100 || Number.isInteger(value) ? count(Math.round(value)) : value.toFixed(1);
}

/** Memory from MiB. */
export function memory(mib) {
  if (mib >= 1024 * 1024) return (mib / 1024 / 1024).toFixed(1) + " TiB";
  if (mib >= 1024) return (mib / 1024).toFixed(mib >= 10240 ? 0 : 1) + " GiB";
  return mib + " MiB";
}

/** A duration in seconds with its two largest units, as kubectl writes ages. */
export function age(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 120) return s + "s";
  const m = Math.floor(s / 60);
  if (m < 120) return m + "m" + (s % 60 && m < 10 ? (s % 60) + "s" : "");
  const h = Math.floor(m / 60);
  if (h < 48) return h + "h" + (m % 60 && h < 10 ? (m % 60) + "m" : "");
  const d = Math.floor(h / 24);
  return d + "d" + (h % 24 && d < 10 ? (h % 24) + "h" : "");
}

/** The time of day, with the date unless it is today. */
export function time(text) {
  const at = new Date(text);
  if (Number.isNaN(at.getTime())) return "";
  const clock = at.toLocaleTimeString("en-GB");
  return at.toDateString() === new Date().toDateString() ? clock : `${at.toISOString().slice(0, 10)} ${clock}`;
}

/** A text as one argument of a POSIX shell. */
export function quoted(text) {
  return "'" + text.replaceAll("'", "'\\''") + "'";
}
