// Makes elements; texts become text nodes, never HTML.

const SVG = 'http://www.w3.org/2000/svg';

/** Return an element with attributes, listeners (`on…`) and children; a child may be a text. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children);
  return element;
}

/** Return the icon with a name of the sprite in index.html. */
export function icon(name) {
  const drawing = document.createElementNS(SVG, 'svg');
  const use = document.createElementNS(SVG, 'use');
  use.setAttribute('href', `#icon-${name}`);
  drawing.append(use);
  drawing.setAttribute('aria-hidden', 'true');
  return drawing;
}

/** Return a button that shows an icon and is called `label`. */
export function iconButton(name, label, onclick) {
  return make('button', { type: 'button', class: 'icon small', 'aria-label': label, title: label, onclick }, icon(name));
}

/** Return a button that copies what `text()` returns, and shows that it did. */
export function copyButton(text, label = 'Copy') {
  const button = iconButton('copy', label, async () => {
    await copy(text());
    button.replaceChildren(icon('check'));
    setTimeout(() => button.replaceChildren(icon('copy')), 1200);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // only secure contexts have a clipboard: a page of another machine has none
    const area = make('textarea', { class: 'unseen' });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
  }
}
