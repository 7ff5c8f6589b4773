// Columns of the overview, which are packed if they have many rows.

const DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_";
const VALUE = new Map([...DIGITS].map((digit, value) => [digit, value]));

/** Returns the values of a column, one for each row. */
export function unpack(column) {
  if (Array.isArray(column)) return column;
  if (column.values) return chosen(column.values, column.rows);
  if (column.base !== undefined) return column.rows.map((row) => (row === 0 ? 0 : row + column.base));
  return texts(column.rows, column.suffix);
}

/** Each row is an index into the values, with as many digits as there may be needed. */
function chosen(values, rows) {
  let width = 1;
  for (let room = 64; room < values.length; room *= 64) width++;
  const all = [];
  for (let at = 0; at < rows.length; at += width) {
    let index = 0;
    for (let place = at; place < at + width; place++) index = index * 64 + VALUE.get(rows[place]);
    all.push(values[index]);
  }
  return all;
}

/** The first digit of a row is the number of characters that are as in the row before. */
function texts(rows, suffix) {
  let before = "";
  return rows.map((row) => {
    if (row === "") return "";
    before = before.slice(0, VALUE.get(row[0])) + row.slice(1);
    return before + suffix;
  });
}
