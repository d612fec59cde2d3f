// An answer as it is written: Markdown whose accepted guesses have the colour of their source.

import { make } from './dom.js';
import { blocks } from './markdown.js';

const COLOURS = 6;
const KNOWN = {
  suffix: ['copied from the text', 0],
  ngram: ['copied from the text', 0],
  recycle: ['recycled words', 1],
  draft_model: ['draft model', 2],
  universal: ['draft model', 2],
  early_exit: ['first layers', 3],
  hybrid: ['draft', 3],
  grammar: ['forced by the grammar', 4],
};

/** Return the words for a source, and the number of its colour. */
export function sourceLook(name) {
  return KNOWN[name] ?? [name, COLOURS - 1];
}

/** Shows a text that grows, in an element. */
export class AnswerView {
  constructor(element) {
    this.element = element;
    this._shown = []; // keys of the blocks
    this._colours = [];
    this._ends = []; // where each part ends in the text
  }

  /** Show parts of a text: `[text, source]` each, source null for what the model wrote itself. */
  show(parts) {
    this._ends = [];
    this._colours = [];
    let length = 0;
    for (const [text, source] of parts) {
      length += text.length;
      this._ends.push(length);
      this._colours.push(source === null ? null : source);
    }
    const text = parts.map(([part]) => part).join('');
    let number = 0;
    for (const block of blocks(text, (...painted) => this._paint(...painted))) {
      if (this._shown[number] !== block.key) {
        const element = block.element();
        const old = this.element.children[number];
        if (old) old.replaceWith(element);
        else this.element.append(element);
        this._shown[number] = block.key;
      }
      number += 1;
    }
    while (this.element.children.length > number) this.element.lastElementChild.remove();
    this._shown.length = number;
  }

  _paint(parent, text, places) {
    let start = 0;
    while (start < text.length) {
      const part = this._partAt(places[start]);
      let end = start + 1;
      while (end < text.length && places[end] < this._ends[part]) end += 1;
      const piece = text.slice(start, end);
      const source = this._colours[part] ?? null;
      if (source === null) parent.append(piece);
      else {
        const [words, colour] = sourceLook(source);
        parent.append(make('span', { class: `guess colour-${colour}`, 'data-source': source, title: `Guessed: ${words}` }, piece));
      }
      start = end;
    }
  }

  /** Return the number of the part that a place of the text lies in. */
  _partAt(place) {
    let [low, high] = [0, this._ends.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this._ends[middle] > place) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}

/** Return parts with a new one, which joins the last if their sources are the same. */
export function withPart(parts, [text, source]) {
  const last = parts.at(-1);
  if (last && last[1] === source) last[0] += text;
  else parts.push([text, source]);
  return parts;
}
