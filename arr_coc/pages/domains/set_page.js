// Shows a page, scaled down until it fits, and measures its texts: see `browser.set_page`.
async (html, least) => {
  const root = document.documentElement;
  root.removeAttribute('style');
  root.innerHTML = html;
  const loads = await Promise.allSettled([...document.fonts].map(face => face.load()));
  if (loads.some(load => load.status == 'rejected')) return {fits: false, texts: []};
  const body = document.body;
  const tooLarge = () => root.scrollHeight > innerHeight || body.scrollWidth > body.clientWidth;
  let pixels = parseFloat(getComputedStyle(root).fontSize);
  while (tooLarge() && pixels > least) {
    pixels = Math.max(least, 0.96 * pixels);
    root.style.fontSize = pixels + 'px';
  }
  const context = document.createElement('canvas').getContext('2d');
  const measured = element => {
    const style = getComputedStyle(element), node = element.firstChild, range = document.createRange();
    context.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
    const ink = context.measureText(node.data), capital = context.measureText('H');
    const first = context.measureText(node.data[0]), last = context.measureText(node.data.at(-1));
    const cells = [...node.data].map((_, place) => {
      range.setStart(node, place);
      range.setEnd(node, place + 1);
      return range.getBoundingClientRect();
    });
    const baseline = cells[0].top + Math.round(capital.fontBoundingBoxAscent);
    return {
      text: node.data,
      boxes: cells.map(cell => [cell.left, baseline - capital.actualBoundingBoxAscent, cell.right, baseline]),
      ink: [cells[0].left - first.actualBoundingBoxLeft, baseline - ink.actualBoundingBoxAscent,
            cells.at(-1).left + last.actualBoundingBoxRight, baseline + ink.actualBoundingBoxDescent],
    };
  };
  return {fits: !tooLarge(), texts: [...document.querySelectorAll('[data-text]')].map(measured)};
}
