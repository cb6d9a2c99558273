// The page: tabs, theme, and the grid of 24 columns that a dashboard's JSON describes.
'use strict';

(() => {
  const data = JSON.parse(document.getElementById('data').textContent), { make, draw } = Panels;
  const UNIT = 38, GAP = 8, COLUMNS = 24, opened = new Set();
  let charts = [], current = null;

  const wanted = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const system = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
  document.documentElement.dataset.theme = wanted.theme === 'light' || wanted.theme === 'dark' ? wanted.theme : system;

  const note = make('div', 'note', `${data.texts.notice} ${data.texts.from}: ${data.source}`);
  const header = make('header'), nav = make('nav'), main = make('main'), foot = make('div', 'foot');
  nav.setAttribute('role', 'tablist');
  foot.textContent = 'Apache ECharts, Apache License 2.0';
  document.body.append(note, nav, header, main, foot);

  for (const board of data.boards) {
    const tab = make('button', '', board.title.split(' / ').pop());
    tab.setAttribute('role', 'tab');
    tab.dataset.uid = board.uid;
    tab.onclick = () => show(board);
    nav.append(tab);
  }
  nav.append(make('span', 'push'));
  for (const theme of ['light', 'dark']) {
    const button = make('button', '', data.texts[theme]);
    button.onclick = () => { document.documentElement.dataset.theme = theme; show(current); };
    nav.append(button);
  }

  // Rows in the order of the grid. The panels of a collapsed row are inside it: opened, they push the rest down.
  function places(board) {
    const found = [];
    let pushed = 0;
    for (const panel of board.panels.filter(item => item.row === null)) {
      found.push([panel, panel.gridPos.y + pushed]);
      if (panel.type !== 'row' || !panel.collapsed || !opened.has(panel.id)) continue;
      const inside = board.panels.filter(item => item.row === panel.id);
      for (const item of inside) found.push([item, item.gridPos.y + pushed]);
      pushed += Math.max(...inside.map(item => item.gridPos.y + item.gridPos.h)) - panel.gridPos.y - 1;
    }
    return found;
  }

  function show(board) {
    current = board;
    charts.forEach(chart => chart.dispose());
    charts = [];
    main.replaceChildren();
    header.replaceChildren(make('h1', '', board.title));
    const chips = make('div', 'chips');
    for (const variable of board.variables) {
      const chip = make('span'), values = variable.values;
      const chosen = variable.all ? data.texts.all : values[0] || '-';
      chip.append(`${variable.label}: `, make('b', '', chosen));
      if (variable.all) chip.append(values.length > 3 ? ` (${values.length})` : ` (${values.join(', ')})`);
      chips.append(chip);
    }
    const from = new Date(data.times[0]), to = new Date(data.times[data.times.length - 1]);
    chips.append(make('span', '', `${from.toLocaleString(data.language)} - ${to.toLocaleTimeString(data.language)}`));
    for (const kind of new Set(board.marks.map(mark => mark.kind))) {
      const marks = board.marks.filter(mark => mark.kind === kind), chip = make('span'), line = make('b', '', '┊ ');
      line.style.color = marks[0].colour;
      chip.append(line, `${kind}: ${[...new Set(marks.map(mark => mark.title))].join(', ')}`);
      chips.append(chip);
    }
    header.append(chips);
    for (const tab of nav.querySelectorAll('[role=tab]')) tab.setAttribute('aria-selected', String(tab.dataset.uid === board.uid));
    const width = main.clientWidth + GAP, page = { ...board, times: data.times, texts: data.texts };
    let bottom = 0;
    const drawn = places(board).map(([panel, y]) => {
      const { x, w, h } = panel.gridPos, card = panel.type === 'row' ? row(panel, board) : make('section', 'panel');
      Object.assign(card.style, {
        left: `${x * width / COLUMNS}px`, top: `${y * UNIT}px`, width: `${w * width / COLUMNS - GAP}px`, height: `${h * UNIT - GAP}px`,
      });
      card.dataset.panel = panel.id;
      main.append(card);
      bottom = Math.max(bottom, (y + h) * UNIT);
      return [panel, card];
    });
    main.style.height = `${bottom}px`;
    for (const [panel, card] of drawn) {
      if (panel.type === 'row') continue;
      const chart = draw(panel, card, page);
      if (chart) charts.push(chart);
    }
    document.documentElement.dataset.height = String(document.documentElement.scrollHeight);
    document.documentElement.dataset.drawn = String(drawn.length);
  }

  function row(panel, board) {
    const count = board.panels.filter(item => item.row === panel.id).length, open = !panel.collapsed || opened.has(panel.id);
    const node = make('button', 'row', `${open ? '▾' : '▸'} ${panel.title}`);
    if (!panel.collapsed) return node;
    node.append(make('small', '', `(${count})`));
    node.onclick = () => { if (!opened.delete(panel.id)) opened.add(panel.id); show(board); };
    return node;
  }

  if (wanted.open) for (const board of data.boards) for (const panel of board.panels) if (panel.collapsed) opened.add(panel.id);
  let waiting = 0;
  addEventListener('resize', () => { clearTimeout(waiting); waiting = setTimeout(() => show(current), 150); });
  show(data.boards.find(board => board.uid.endsWith(wanted.board || '\0')) || data.boards[0]);
})();
