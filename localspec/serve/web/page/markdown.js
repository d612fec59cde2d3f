// Markdown as elements. Each character keeps its place in the text, so that whoever paints a piece of it knows
// where it came from. Unfinished text, as it streams, is shown as far as it goes.

import { copyButton, make } from './dom.js';

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+|$)/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(\s+|$)/;
const CELLS = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const LINK = /^\[([^\]\n]*)\]\(\s*<?([^\s)>]+)>?(?:\s+"[^"\n]*")?\s*\)/;
const ADDRESS = /^https?:\/\/[^\s<>()]+[^\s<>().,:;!?'"]/;
const SAFE = /^(https?:|mailto:)/i;

/**
 * Return the elements of a text, each with the text it stands for as `source`.
 * `paint(parent, text, places)` adds text, whose characters were at `places` of the whole.
 */
export function* blocks(text, paint) {
  yield* parse(linesOf(text), paint, false);
}

function linesOf(text) {
  let at = 0;
  return text.split('\n').map((line) => {
    const found = { text: line.replace(/\r$/, ''), at };
    at += line.length + 1;
    return found;
  });
}

/** Yield `{ key, element() }` for each block; a key tells whether a block has changed since. */
function* parse(lines, paint, tight) {
  let next = 0;
  while (next < lines.length) {
    const line = lines[next];
    if (!line.text.trim()) {
      next += 1;
      continue;
    }
    const [count, kind, build] = blockAt(lines, next, paint, tight);
    const own = lines.slice(next, next + count);
    yield { key: `${kind}\n${own.map((each) => each.text).join('\n')}`, element: build };
    next += count;
  }
}

/** Return how many lines a block has, its kind, and what makes its element. */
function blockAt(lines, from, paint, tight) {
  const { text } = lines[from];
  if (FENCE.test(text)) return fence(lines, from, paint);
  if (HEADING.test(text)) return heading(lines, from, paint);
  if (RULE.test(text)) return [1, 'rule', () => make('hr')];
  if (QUOTE.test(text)) return quote(lines, from, paint);
  if (ITEM.test(text)) return list(lines, from, paint);
  if (beginsTable(lines, from)) return table(lines, from, paint);
  return paragraph(lines, from, paint, tight);
}

function fence(lines, from, paint) {
  const [, mark, language] = FENCE.exec(lines[from].text);
  let end = from + 1;
  while (end < lines.length && !(lines[end].text.trim().startsWith(mark) && !lines[end].text.trim().replaceAll(mark[0], ''))) end += 1;
  const inside = lines.slice(from + 1, end);
  const closed = end < lines.length;
  return [end - from + (closed ? 1 : 0), closed ? 'code' : 'open code', () => {
    const flow = joined(inside);
    const code = make('code');
    paint(code, flow.text, flow.places);
    const head = make('div', { class: 'code-head' }, make('span', {}, language || 'text'), copyButton(() => flow.text, 'Copy code'));
    return make('div', { class: 'code' }, head, make('pre', { tabindex: '0' }, code));
  }];
}

function heading(lines, from, paint) {
  const [whole, marks] = HEADING.exec(lines[from].text);
  return [1, 'heading', () => {
    const element = make(`h${Math.min(marks.length + 1, 6)}`); // the page has the first
    inline(element, joined([cut(lines[from], whole.length)]), paint);
    return element;
  }];
}

function quote(lines, from, paint) {
  let end = from;
  while (end < lines.length && QUOTE.test(lines[end].text)) end += 1;
  const inside = lines.slice(from, end).map((line) => cut(line, QUOTE.exec(line.text)[0].length));
  return [end - from, 'quote', () => filled(make('blockquote'), inside, paint, false)];
}

function list(lines, from, paint) {
  const ordered = /\d/.test(ITEM.exec(lines[from].text)[2]);
  const items = [];
  let next = from;
  let loose = false;
  while (next < lines.length) {
    const found = ITEM.exec(lines[next].text);
    if (!found || /\d/.test(found[2]) !== ordered || RULE.test(lines[next].text)) break;
    const indent = found[3].length > 4 || !found[3] ? found[1].length + found[2].length + 1 : found[0].length;
    const item = [cut(lines[next], Math.min(indent, lines[next].text.length))];
    next += 1;
    while (next < lines.length && belongs(lines, next, indent)) {
      item.push(cut(lines[next], Math.min(indent, /^\s*/.exec(lines[next].text)[0].length)));
      next += 1;
    }
    const blank = item.length;
    while (item.length > 1 && !item.at(-1).text.trim()) item.pop();
    const another = next < lines.length && ITEM.test(lines[next].text);
    loose ||= item.some((line) => !line.text.trim()) || (blank > item.length && another);
    items.push(item);
  }
  const start = ordered ? Number.parseInt(lines[from].text.trim(), 10) : 1;
  return [next - from, 'list', () => {
    const element = make(ordered ? 'ol' : 'ul', { start: start !== 1 && String(start) });
    element.append(...items.map((item) => filled(make('li'), item, paint, !loose)));
    return element;
  }];
}

/** Return whether a line goes on with an item whose text begins at `indent`. */
function belongs(lines, at, indent) {
  const { text } = lines[at];
  const spaces = /^\s*/.exec(text)[0].length;
  if (!text.trim()) {
    const after = lines.slice(at).find((line) => line.text.trim());
    return after !== undefined && (/^\s*/.exec(after.text)[0].length >= indent || ITEM.test(after.text));
  }
  if (spaces >= indent) return true;
  return spaces >= 2 && ITEM.test(text.trimStart()) ? spaces >= indent - 1 : plain(lines, at) && lines[at - 1].text.trim() !== '';
}

function beginsTable(lines, from) {
  const under = lines[from + 1];
  if (!lines[from].text.includes('|') || !under || !CELLS.test(under.text)) return false;
  return cells(lines[from]).length === cells(under).length;
}

function table(lines, from, paint) {
  let end = from + 2;
  while (end < lines.length && lines[end].text.includes('|') && lines[end].text.trim()) end += 1;
  const sides = cells(lines[from + 1]).map(({ text }) => {
    const [left, right] = [text.startsWith(':'), text.endsWith(':')];
    return left && right ? 'middle' : right ? 'end' : null;
  });
  const row = (line, tag) => make('tr', {}, ...cells(line).slice(0, sides.length).map((cell, column) => {
    const element = make(tag, { class: sides[column] });
    inline(element, withoutEscapedBars(joined([cell])), paint);
    return element;
  }));
  return [end - from, 'table', () => {
    const body = make('tbody', {}, ...lines.slice(from + 2, end).map((line) => row(line, 'td')));
    return make('div', { class: 'table', tabindex: '0' }, make('table', {}, make('thead', {}, row(lines[from], 'th')), body));
  }];
}

/** Return a cell as it reads: a bar is escaped even in code. */
function withoutEscapedBars({ text, places }) {
  return { text: text.replaceAll('\\|', '|'), places: places.filter((_, at) => text.slice(at, at + 2) !== '\\|') };
}

/** Return the cells of a row, without the spaces around them. */
function cells(line) {
  const found = [];
  let start = /^\s*\|?/.exec(line.text)[0].length;
  for (let at = start; at <= line.text.length; at += 1) {
    if (line.text[at] === '\\') at += 1;
    else if (at === line.text.length || line.text[at] === '|') {
      const text = line.text.slice(start, at);
      if (at < line.text.length || text.trim()) {
        found.push({ text: text.trim(), at: line.at + start + /^\s*/.exec(text)[0].length });
      }
      start = at + 1;
    }
  }
  return found;
}

function paragraph(lines, from, paint, tight) {
  let end = from + 1;
  while (end < lines.length && plain(lines, end)) end += 1;
  const inside = lines.slice(from, end).map((line) => cut(line, /^\s*/.exec(line.text)[0].length));
  return [end - from, 'paragraph', () => {
    const element = tight ? document.createDocumentFragment() : make('p');
    inline(element, joined(inside), paint);
    return element;
  }];
}

/** Return whether a line begins no block of its own. */
function plain(lines, at) {
  const { text } = lines[at];
  return text.trim() !== '' && ![FENCE, HEADING, RULE, QUOTE, ITEM].some((start) => start.test(text));
}

function filled(element, lines, paint, tight) {
  for (const block of parse(lines, paint, tight)) element.append(block.element());
  return element;
}

function cut(line, count) {
  return { text: line.text.slice(count), at: line.at + count };
}

/** Return lines as one text, with the place of each of its characters. */
function joined(lines) {
  const places = [];
  for (const line of lines) {
    for (let at = 0; at <= line.text.length; at += 1) places.push(line.at + at);
  }
  return { text: lines.map((line) => line.text).join('\n'), places };
}

/** Add a text with its emphasis, code and links to an element. */
function inline(parent, flow, paint, from = 0, end = flow.text.length) {
  let shown = from;
  let at = from;
  const flush = (until) => {
    if (until > shown) paint(parent, flow.text.slice(shown, until), flow.places.slice(shown, until));
  };
  while (at < end) {
    const found = spanAt(flow.text, at, end);
    if (!found) {
      at += 1;
      continue;
    }
    flush(at);
    if (found.element) {
      if (found.raw) paint(found.element, flow.text.slice(found.from, found.to), flow.places.slice(found.from, found.to));
      else inline(found.element, flow, paint, found.from, found.to);
      parent.append(found.element);
    }
    at = found.end;
    shown = found.element ? at : found.from;
  }
  flush(end);
}

/** Return the span that begins at a place, null for none: its element, its inside, and where it ends. */
function spanAt(text, at, end) {
  const letter = text[at];
  if (letter === '\\' && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? '')) return { from: at + 1, end: at + 2 };
  if (letter === '\n') return { element: make('br'), raw: true, from: at, to: at, end: at + 1 };
  if (letter === '`') return codeAt(text, at, end);
  if (letter === '*' || letter === '_' || letter === '~') return emphasisAt(text, at, end);
  if (letter === '[') {
    const found = LINK.exec(text.slice(at, end));
    return found && SAFE.test(found[2]) ? { element: link(found[2]), from: at + 1, to: at + 1 + found[1].length, end: at + found[0].length } : null;
  }
  if (letter === 'h' && !/\w/.test(text[at - 1] ?? ' ')) {
    const found = ADDRESS.exec(text.slice(at, end));
    return found && { element: link(found[0]), raw: true, from: at, to: at + found[0].length, end: at + found[0].length };
  }
  return null;
}

function link(address) {
  return make('a', { href: address, target: '_blank', rel: 'noopener noreferrer nofollow' });
}

function codeAt(text, at, end) {
  const mark = /^`+/.exec(text.slice(at, end))[0];
  let close = text.indexOf(mark, at + mark.length);
  while (close >= 0 && text[close + mark.length] === '`') {
    close = text.indexOf(mark, close + /^`+/.exec(text.slice(close))[0].length);
  }
  if (close < 0 || close >= end) return null;
  return { element: make('code'), raw: true, from: at + mark.length, to: close, end: close + mark.length };
}

function emphasisAt(text, at, end) {
  const letter = text[at];
  const double = text[at + 1] === letter;
  if (letter === '~' && !double) return null;
  const mark = double ? letter + letter : letter;
  const from = at + mark.length;
  if (/\s/.test(text[from] ?? ' ') || (letter === '_' && /\w/.test(text[at - 1] ?? ' '))) return null;
  for (let close = text.indexOf(mark, from + 1); close >= 0 && close + mark.length <= end; close = text.indexOf(mark, close + 1)) {
    const after = text[close + mark.length] ?? ' ';
    if (/\s/.test(text[close - 1]) || text[close - 1] === '\\') continue;
    if (letter === '_' && /\w/.test(after)) continue;
    if (!double && (after === letter || text[close - 1] === letter)) continue;
    return { element: make(letter === '~' ? 's' : double ? 'strong' : 'em'), from, to: close, end: close + mark.length };
  }
  return null;
}
