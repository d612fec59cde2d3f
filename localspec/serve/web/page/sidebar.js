// The list of conversations, which narrow screens show on demand.

import { iconButton, make } from './dom.js';
import * as store from './store.js';

const narrow = matchMedia('(max-width: 760px)');
const bar = document.getElementById('sidebar');
const shade = document.getElementById('shade');
const opener = document.getElementById('open-menu');
const entries = document.getElementById('conversations');

/** Show the list, with the one called `current` marked; `open(id)` and `removed(id)` are told what was chosen. */
export function show(current, open, removed) {
  entries.replaceChildren(...store.list().map((each) => entry(each, each.id === current, open, removed)));
}

function entry({ id, title }, chosen, open, removed) {
  const name = title || 'New chat';
  const choose = make('button', {
    type: 'button', class: 'open', title: name, 'aria-current': chosen && 'true', onclick: () => { close(); open(id); },
  }, name);
  const item = make('li', {}, choose,
    iconButton('edit', `Rename ${name}`, () => rename()),
    iconButton('bin', `Delete ${name}`, () => ask()));

  function rename() {
    const field = make('input', { 'aria-label': 'Name', value: name });
    let over = false; // leaving the page loses the focus, too
    const done = (takes) => {
      if (over) return;
      over = true;
      if (takes && field.value.trim()) store.rename(id, field.value.trim());
      field.replaceWith(choose);
      show(chosen ? id : '', open, removed);
    };
    field.addEventListener('keydown', (event) => {
      event.stopPropagation();
      if (event.key === 'Enter') done(true);
      if (event.key === 'Escape') done(false);
    });
    field.addEventListener('blur', () => done(true));
    choose.replaceWith(field);
    field.select();
  }

  function ask() {
    const gone = () => {
      store.remove(id);
      removed(id);
    };
    const yes = make('button', { type: 'button', class: 'danger', onclick: gone }, 'Delete');
    const no = make('button', { type: 'button', onclick: () => show(chosen ? id : '', open, removed) }, 'Keep');
    item.replaceChildren(make('span', { class: 'asked' }, name), yes, no);
    no.focus();
  }

  return item;
}

function set(opened) {
  document.body.classList.toggle('menu', opened);
  opener.setAttribute('aria-expanded', String(opened));
  bar.inert = narrow.matches && !opened;
}

export function close() {
  set(false);
}

export function isOpen() {
  return document.body.classList.contains('menu');
}

opener.addEventListener('click', () => {
  set(!isOpen());
  document.getElementById('new').focus();
});
shade.addEventListener('click', close);
narrow.addEventListener('change', close);
close();
