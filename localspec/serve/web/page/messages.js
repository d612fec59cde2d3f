// The messages of a conversation: what was asked, and the answers with their numbers.

import { AnswerView, sourceLook } from './answer.js';
import { copyButton, iconButton, make } from './dom.js';

/** Return the element of a question; `edited(text)` is called when it was changed and is to be sent again. */
export function question(message, edited) {
  const text = make('div', { class: 'bubble' }, message.text);
  const element = make('article', { class: 'question', 'aria-label': 'Your message' }, text);
  const actions = make('div', { class: 'actions' }, copyButton(() => message.text), iconButton('edit', 'Edit', edit));
  element.append(actions);

  function edit() {
    const area = make('textarea', { 'aria-label': 'Edit your message', rows: '1' });
    area.value = message.text;
    const done = (send) => {
      form.replaceWith(text);
      actions.hidden = false;
      if (send && area.value.trim()) edited(area.value.trim());
      else actions.lastElementChild.focus();
    };
    const form = make('form', { class: 'edit card', onsubmit: (event) => { event.preventDefault(); done(true); } },
      area,
      make('div', { class: 'buttons' },
        make('button', { type: 'button', onclick: () => done(false) }, 'Cancel'),
        make('button', { class: 'main' }, 'Send')));
    form.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') {
        event.stopPropagation();
        done(false);
      } else if (sends(event)) {
        event.preventDefault();
        done(true);
      }
    });
    area.addEventListener('input', () => grow(area));
    text.replaceWith(form);
    actions.hidden = true;
    grow(area);
    area.focus();
  }

  return element;
}

/** Shows an answer as it grows. */
export class Answer {
  constructor(message, again) {
    this._message = message;
    this._thoughts = make('div');
    this._reasoning = make('details', { class: 'reasoning' }, make('summary', {}, 'Reasoning'), this._thoughts);
    this._text = make('div', { class: 'text' });
    this._fault = make('p', { class: 'fault', role: 'alert' });
    this._numbers = make('span', { class: 'numbers' });
    this._legend = make('span', { class: 'legend' });
    this._actions = make('span', { class: 'actions' }, copyButton(() => message.text), iconButton('again', 'Write anew', again));
    const foot = make('footer', {}, this._actions, this._numbers, this._legend);
    this.element = make('article', { class: 'answer', 'aria-label': 'Answer' },
      this._reasoning, this._text, this._fault, foot);
    this._view = new AnswerView(this._text);
    this._thinking = new AnswerView(this._thoughts);
    this.show(false);
  }

  /** Show the message as it is now; `writing` tells whether more comes. */
  show(writing) {
    const { parts, reasoning, fault, stats, stopped, reason } = this._message;
    this._view.show(parts);
    this._thinking.show([[reasoning ?? '', null]]);
    this._reasoning.hidden = !reasoning;
    this._fault.textContent = fault ?? '';
    this._fault.hidden = !fault;
    const words = numbers(stats);
    if (stopped) words.push('stopped');
    if (reason === 'length') words.push('ends at the length limit');
    this._numbers.textContent = words.join(' · ');
    const sources = [...new Set(parts.map(([, source]) => source).filter((source) => source !== null))];
    const legend = new Map(sources.map((source) => sourceLook(source)));
    this._legend.replaceChildren(...[...legend].map(([name, colour]) => (
      make('span', {}, make('i', { class: `colour-${colour}` }), name))));
    this._actions.hidden = writing;
    this.element.classList.toggle('writing', writing);
    this.element.classList.toggle('waiting', writing && !parts.length && !reasoning);
    this.element.setAttribute('aria-busy', String(writing));
  }
}

/** Return what is told of an answer's speed. */
function numbers(stats) {
  if (!stats) return [];
  const words = [];
  if (stats.tokens_per_second) words.push(`${short(stats.tokens_per_second)} tokens/s`);
  if (stats.estimated_speedup) words.push(`${stats.estimated_speedup.toFixed(1)}× plain decoding`);
  if (stats.drafted) words.push(`${stats.accepted} of ${stats.drafted} guesses accepted`);
  return words;
}

function short(number) {
  return number < 10 ? number.toFixed(1) : String(Math.round(number));
}

/** Return whether a key sends a text: Enter alone, and not to choose a word of an input method. */
export function sends(event) {
  return event.key === 'Enter' && !event.shiftKey && !event.isComposing;
}

/** Make an area as high as its text, up to what the style allows. */
export function grow(area) {
  area.style.height = 'auto';
  area.style.height = `${area.scrollHeight + 2}px`;
}
