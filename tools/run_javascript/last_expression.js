// Makes the value of a last expression the value of the program.
//
// No parser is at hand but the engine's own, which only tells if a text is a program. That is enough: the program is
// split where a statement can begin, and the split counts only if the texts before and after it are whole, and nothing
// before it goes on behind it.

const AsyncFunction = (async () => {}).constructor;
const MAX_CANDIDATES = 60;
// Words at the start of a statement that an expression could begin with too.
const NOT_AN_EXPRESSION = /^(?:\{|function\b|async\s+function\b|class\b|let\s*\[)/;
const LEADING_COMMENTS = /^(?:\s+|\/\/[^\n]*(?:\n|$)|\/\*[^]*?\*\/)+/;
const ONLY_COMMENTS = /^(?:\s+|\/\/[^\n]*(?:\n|$)|\/\*[^]*?\*\/)*$/;
// A line that begins like this does not continue the one before it.
const NEW_BEGINNING = /^(?!(?:in|instanceof)\b)[\w$"']/;

/** The program with `return` before its last expression, on the same lines, or the program as it is. */
export function returnLastExpression(code) {
  const end = endOfLastStatement(code);
  for (const start of candidates(code, end)) {
    const expression = code.slice(start, end);
    const text = expression.replace(LEADING_COMMENTS, "");
    if (text === "") continue;
    if (/^return\b/.test(text)) return code;
    if (NOT_AN_EXPRESSION.test(text) || !isProgram(`return (${expression}\n)`)) continue;
    if (isBoundary(code.slice(0, start), text)) return `${code.slice(0, start)}return (${expression}\n)`;
  }
  return code;
}

/** The index behind the last statement, without a semicolon or comments behind it. */
function endOfLastStatement(code) {
  const semicolon = code.lastIndexOf(";");
  const isLast = semicolon >= 0 && ONLY_COMMENTS.test(code.slice(semicolon + 1));
  return isLast && isOutsideComment(code.slice(0, semicolon + 1)) ? semicolon : code.length;
}

/** Where a last statement can begin, from the end: behind a line end or a semicolon, and at the start. */
function candidates(code, end) {
  const found = [];
  for (let index = end - 1; index > 0 && found.length < MAX_CANDIDATES; index--) {
    if (code[index - 1] === "\n" || code[index - 1] === ";") found.push(index);
  }
  if (found.length < MAX_CANDIDATES) found.push(0);
  return found;
}

/** True if a new statement begins between the two texts. */
function isBoundary(before, text) {
  if (!isProgram(before)) return false;
  if (!before.endsWith("\n")) return before === "" || isOutsideComment(before);
  // A statement that one of these could continue could be continued by the text.
  return NEW_BEGINNING.test(text) || !(isProgram(`${before}.x`) || isProgram(`${before}* 1`));
}

/** True if a program does not end inside a comment, where a parenthesis would change nothing. */
function isOutsideComment(program) {
  return isProgram(program) && !isProgram(`${program})`);
}

function isProgram(text) {
  try {
    new AsyncFunction(text);
    return true;
  } catch {
    return false;
  }
}
