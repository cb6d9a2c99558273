// Panels of plain HTML, and the frame around every panel. Labels come from anywhere: only textContent is ever set.
'use strict';

const Panels = (() => {
  function make(tag, className, content) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (content !== undefined) node.textContent = content;
    return node;
  }

  function stat(panel, body) {
    const { unit, decimals, thresholds, mappings } = panel.field, box = make('div', 'stats');
    for (const item of panel.series.slice(0, 12)) {
      const value = item.values[0], one = make('div', 'stat'), state = mappings[0]?.options[String(value)];
      const shown = make('b', '', state ? state.text : Units.format(value, unit, decimals));
      shown.style.color = state ? state.color : Units.colour(value, thresholds.steps, 'inherit');
      if (panel.series.length > 1) shown.style.fontSize = '20px';
      if (panel.series.length > 1 || panel.options.textMode === 'value_and_name') one.append(make('small', '', item.name));
      one.append(shown);
      box.append(one);
    }
    body.append(box);
  }

  function bargauge(panel, body) {
    const { unit, decimals, thresholds, min, max } = panel.field, box = make('div', 'bars');
    const low = min ?? 0, high = max ?? Math.max(...panel.series.map(item => item.values[0]), 1);
    for (const item of [...panel.series].sort((a, b) => b.values[0] - a.values[0])) {
      const row = make('div', 'bar'), track = make('div'), fill = make('div'), value = item.values[0];
      const name = make('span', '', item.name);
      name.title = item.name;
      fill.style.width = `${Math.min(100, Math.max(0, (value - low) / (high - low) * 100))}%`;
      fill.style.background = Units.colour(value, thresholds.steps, '#56b4e9');
      track.append(fill);
      row.append(name, track, make('b', '', Units.format(value, unit, decimals)));
      box.append(row);
    }
    body.append(box);
  }

  function written(value, column) {
    return column.states?.[String(value)]?.text ?? Units.format(value, column.unit, column.decimals);
  }

  function table(panel, body) {
    const { columns, rows } = panel.table, box = make('div', 'scroll'), grid = make('table'), head = make('tr');
    const numeric = columns.map((column, index) => column.unit !== undefined && rows.some(row => typeof row[index] === 'number'));
    columns.forEach((column, index) => head.append(make('th', numeric[index] ? 'n' : '', column.title)));
    grid.append(head);
    for (const row of rows) {
      const line = make('tr');
      row.forEach((value, index) => {
        const column = columns[index];
        const cell = make('td', numeric[index] ? 'n' : '',
          typeof value === 'number' ? written(value, column) : value ?? '');
        if (typeof value === 'number' && column.steps?.length) cell.style.color = Units.colour(value, column.steps, 'inherit');
        line.append(cell);
      });
      grid.append(line);
    }
    box.append(grid);
    body.append(box);
  }

  function markdown(panel, body) {
    const box = make('div', 'text');
    let grid = null;
    for (const line of panel.options.content.split('\n')) {
      if (line.startsWith('|')) {
        const cells = line.slice(1, -1).split(/(?<!\\)\|/).map(cell => cell.trim().replaceAll('\\|', '|'));
        if (cells.every(cell => /^-+$/.test(cell))) continue;
        const row = make('tr');
        cells.forEach(cell => row.append(make(grid ? 'td' : 'th', '', cell)));
        if (!grid) { grid = make('table'); box.append(grid); }
        grid.append(row);
      } else { grid = null; if (line.trim()) box.append(make('p', '', line)); }
    }
    body.append(box);
  }

  function legend(panel, body, page) {
    const texts = page.texts, { unit, decimals } = panel.field;
    if (panel.options.legend.displayMode !== 'table') {
      const box = make('div', 'legend');
      panel.series.forEach((item, index) => box.append(entry(item, index)));
      body.append(box);
      return;
    }
    const box = make('div', 'side'), grid = make('table'), head = make('tr');
    head.append(make('th'), make('th', 'n', texts.last), make('th', 'n', texts.max));
    grid.append(head);
    const last = item => item.values.findLast(value => value !== null);
    const order = panel.series.map((item, index) => [item, index]).sort((a, b) => last(b[0]) - last(a[0]));
    for (const [item, index] of order) {
      const row = make('tr'), name = make('td'), high = Math.max(...item.values.filter(value => value !== null));
      name.append(entry(item, index));
      row.append(name, make('td', 'n', Units.format(last(item), unit, decimals)), make('td', 'n', Units.format(high, unit, decimals)));
      grid.append(row);
    }
    box.append(grid);
    body.append(box);
  }

  function entry(item, index) {
    const node = make('span'), dot = make('i');
    dot.style.background = Charts.colourOf(item, index);
    node.append(dot, document.createTextNode(item.name || 'value'));
    node.title = item.name;
    return node;
  }

  const HTML = { stat, bargauge, table, text: markdown };

  function empty(panel) {
    if (panel.type === 'text') return false;
    if (panel.type === 'table') return !panel.table.rows.length;
    return !panel.series.some(item => item.values.some(value => value !== null));
  }

  // Draw a panel into its card; a chart is returned, to be disposed of later.
  function draw(panel, card, page) {
    const title = make('h2', '', panel.title), body = make('div', 'body');
    title.title = panel.description || '';
    card.append(title, body);
    card.dataset.type = panel.type;
    if (panel.error) { body.append(make('div', 'empty error', panel.error)); return null; }
    if (empty(panel)) { body.append(make('div', 'empty', panel.field.noValue || page.texts.nodata)); return null; }
    if (HTML[panel.type]) { HTML[panel.type](panel, body); return null; }
    const side = panel.type === 'timeseries' && panel.options.legend.displayMode === 'table';
    const holder = side ? make('div', 'beside') : body, box = make('div', 'chart');
    if (side) body.append(holder);
    holder.append(box);
    if (panel.type === 'timeseries') legend(panel, holder, page);
    const chart = echarts.init(box, null, { renderer: 'canvas' });
    chart.setOption(Charts.option(panel, page));
    card.dataset.shapes = chart.getZr().storage.getDisplayList(true).length;
    return chart;
  }

  return { draw, make };
})();
