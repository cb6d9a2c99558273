// Panels that need axes: time series, heatmap, state timeline, gauge.
'use strict';

const Charts = (() => {
  // Okabe and Ito's colours first, which people of any colour vision tell apart, then further ones
  const PALETTE = ['#56b4e9', '#e69f00', '#009e73', '#cc79a7', '#d55e00', '#0072b2', '#b8ac2b', '#8e7cc3', '#76a5af',
    '#c27ba0', '#6aa84f', '#a2745a', '#5b7fd1', '#e06666', '#45818e', '#bf9000'];
  const SCHEMES = {
    Viridis: ['#440154', '#46327e', '#365c8d', '#277f8e', '#1fa187', '#4ac16d', '#a0da39', '#fde725'],
    Inferno: ['#0b0724', '#320a5e', '#781c6d', '#bc3754', '#ed6925', '#fbb61a', '#fcffa4'],
  };

  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colourOf = (series, index) => series.colour || PALETTE[index % PALETTE.length];

  function clock(ms, span) {
    const two = n => String(n).padStart(2, '0'), at = new Date(ms);
    const text = `${two(at.getHours())}:${two(at.getMinutes())}`;
    return span < 20 * 60e3 ? `${text}:${two(at.getSeconds())}` : text;
  }

  const spanOf = times => times[times.length - 1] - times[0];
  const text = () => ({ color: css('--dim'), fontSize: 11 });
  const tooltip = () => ({
    backgroundColor: css('--card'), borderColor: css('--line'), textStyle: { color: css('--text'), fontSize: 12 },
    confine: true, enterable: false, extraCssText: 'max-height:260px;overflow:hidden',
  });

  function timeAxis(times) {
    const span = spanOf(times);
    return {
      type: 'time', min: times[0], max: times[times.length - 1], splitNumber: 5,
      axisLine: { lineStyle: { color: css('--line') } }, axisTick: { show: false }, splitLine: { show: false },
      axisLabel: { ...text(), hideOverlap: true, showMaxLabel: false, formatter: ms => clock(ms, span) },
    };
  }

  function marks(page) {
    return page.marks.map(mark => ({
      xAxis: mark.time * 1000, lineStyle: { color: mark.colour, type: [3, 3], width: 1, opacity: 0.6 }, label: { show: false },
    }));
  }

  // the least round number that is not below a value
  function roof(value) {
    const size = 10 ** Math.floor(Math.log10(value));
    return [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find(step => step * size >= value - 1e-12) * size;
  }

  // Where the axis ends: as the panel says, above the highest limit, and never a range of nothing.
  function ends({ min, max }, top) {
    const whole = min === 0 && max === 1;
    return {
      min: min ?? undefined, interval: whole ? 0.25 : undefined,
      max: extent => max ?? (extent.max <= 0 && min === 0 && !(top > 0) ? 1.2 : extent.max < top * 1.02 ? roof(top * 1.02) : null),
      scale: min === undefined, splitNumber: 4,
    };
  }

  function limits(panel, unit) {
    if (panel.field.custom?.thresholdsStyle?.mode !== 'dashed') return [];
    return panel.field.thresholds.steps.filter(step => step.value !== null && step.value !== undefined).map(step => ({
      yAxis: step.value, lineStyle: { color: step.color, type: 'dashed', width: 1.5 },
      label: { show: true, position: 'insideEndTop', color: step.color, fontSize: 10, formatter: Units.format(step.value, unit) },
    }));
  }

  function timeseries(panel, page) {
    const { unit, decimals, custom } = panel.field, stacked = custom.stacking.mode === 'normal';
    const drawn = limits(panel, unit), top = Math.max(...drawn.map(line => line.yAxis), -Infinity);
    const series = panel.series.map((item, index) => ({
      type: 'line', name: item.name, showSymbol: false, connectNulls: false, animation: false,
      stack: stacked ? 'all' : undefined, color: colourOf(item, index),
      lineStyle: { width: 1.5, type: item.dashed ? 'dashed' : 'solid' },
      areaStyle: custom.fillOpacity && !item.dashed ? { opacity: custom.fillOpacity / 100 } : undefined,
      data: item.values.map((value, at) => [page.times[at], value]),
    }));
    if (series.length) series[0].markLine = { silent: true, symbol: 'none', animation: false, data: [...drawn, ...marks(page)] };
    return {
      animation: false, grid: { left: 8, right: 24, top: 14, bottom: 4, containLabel: true },
      tooltip: { ...tooltip(), trigger: 'axis', order: 'valueDesc', valueFormatter: value => Units.format(value, unit, decimals) },
      xAxis: timeAxis(page.times),
      yAxis: {
        type: 'value', ...ends(panel.field, top), splitLine: { lineStyle: { color: css('--line') } },
        axisLabel: { ...text(), hideOverlap: true, formatter: value => Units.format(value, unit) },
      },
      series,
    };
  }

  function heatmap(panel, page) {
    const options = panel.options, unit = options.yAxis.unit, buckets = options.rowsFrame.layout === 'auto';
    let rows = panel.series;
    if (buckets) {
      const busy = rows.map(row => row.values.some(value => value > 0));
      rows = rows.slice(Math.max(0, busy.indexOf(true) - 1), busy.lastIndexOf(true) + 2);
    } else if (rows.every(row => row.name !== '' && Number.isFinite(Number(row.name)))) {
      rows = [...rows].sort((a, b) => Number(a.name) - Number(b.name));
    }
    const cells = [];
    let high = options.color.max ?? 0, low = options.color.min ?? 0;
    rows.forEach((row, y) => row.values.forEach((value, x) => {
      if (value === null || (buckets && value <= 0)) return;
      cells.push([x, y, value]);
      if (options.color.max === undefined) high = Math.max(high, value);
    }));
    const span = spanOf(page.times), cellUnit = options.cellValues.unit, decimals = options.cellValues.decimals;
    const name = row => buckets && row.name !== '+Inf' ? Units.format(Number(row.name), unit) : row.name;
    return {
      animation: false, grid: { left: 8, right: 66, top: 8, bottom: 4, containLabel: true },
      tooltip: { ...tooltip(), formatter: item => {
        const [x, y, value] = item.value, box = document.createElement('div');
        box.textContent = `${clock(page.times[x], span)}   ${name(rows[y])}   ${Units.format(value, cellUnit, decimals)}`;
        return box.innerHTML;
      } },
      xAxis: {
        type: 'category', data: page.times.map(ms => clock(ms, span)), axisTick: { show: false },
        axisLine: { lineStyle: { color: css('--line') } }, axisLabel: { ...text(), hideOverlap: true },
      },
      yAxis: {
        type: 'category', data: rows.map(name), axisTick: { show: false }, axisLine: { show: false },
        axisLabel: { ...text(), hideOverlap: true, width: 150, overflow: 'truncate' },
      },
      visualMap: {
        min: low, max: high || 1, calculable: false, orient: 'vertical', right: 4, top: 8, itemWidth: 10, itemHeight: 90,
        text: [Units.format(high, cellUnit), Units.format(low, cellUnit)], textStyle: text(), textGap: 4,
        inRange: { color: SCHEMES[options.color.scheme] || SCHEMES.Viridis },
      },
      series: [{ type: 'heatmap', data: cells, progressive: 0, emphasis: { disabled: true } }],
    };
  }

  function states(panel, page) {
    const names = panel.series.map(item => item.name), mapping = panel.field.mappings[0].options, runs = [];
    panel.series.forEach((item, row) => {
      let from = null;
      for (let at = 0; at <= item.values.length; at++) {
        const value = at < item.values.length ? item.values[at] : null;
        if (from !== null && value !== item.values[from]) {
          runs.push([row, page.times[from], page.times[Math.min(at, page.times.length - 1)], item.values[from]]);
          from = null;
        }
        if (from === null && value !== null) from = at;
      }
    });
    const state = value => mapping[String(value)] || { text: String(value), color: '#56b4e9' };
    return {
      animation: false, grid: { left: 8, right: 24, top: 6, bottom: 4, containLabel: true },
      tooltip: { ...tooltip(), formatter: item => {
        const box = document.createElement('div');
        box.textContent = `${names[item.value[0]]}: ${state(item.value[3]).text}`;
        return box.innerHTML;
      } },
      xAxis: timeAxis(page.times),
      yAxis: {
        type: 'category', data: names, inverse: true, axisTick: { show: false }, axisLine: { show: false },
        axisLabel: { ...text(), width: 230, overflow: 'truncate', hideOverlap: true },
      },
      series: [{
        type: 'custom', data: runs, encode: { x: [1, 2], y: 0 }, clip: true,
        renderItem: (_, api) => {
          const from = api.coord([api.value(1), api.value(0)]), to = api.coord([api.value(2), api.value(0)]);
          const height = Math.max(2, api.size([0, 1])[1] * 0.8), width = Math.max(1, to[0] - from[0]);
          const found = state(api.value(3));
          return {
            type: 'rect', shape: { x: from[0], y: from[1] - height / 2, width, height }, style: { fill: found.color, opacity: 0.8 },
            textContent: width > 60 && height > 11 ? { style: { text: found.text, fill: '#fff', fontSize: Math.min(11, height) } } : undefined,
            textConfig: { position: 'insideLeft' },
          };
        },
      }],
    };
  }

  function gauge(panel) {
    const { unit, decimals, min, max, thresholds } = panel.field, value = panel.series[0].values[0];
    const low = min ?? 0, high = max ?? Math.max(100, value), part = at => Math.min(1, Math.max(0, (at - low) / (high - low)));
    const steps = thresholds.steps, ring = steps.map((step, index) =>
      [index + 1 < steps.length ? part(steps[index + 1].value) : 1, step.color]);
    return {
      animation: false,
      series: [
        { type: 'gauge', startAngle: 200, endAngle: -20, radius: '118%', center: ['50%', '74%'], min: low, max: high,
          axisLine: { lineStyle: { width: 3, color: ring } }, progress: { show: false }, pointer: { show: false },
          axisTick: { show: false }, splitLine: { show: false }, axisLabel: { show: false }, detail: { show: false }, data: [] },
        { type: 'gauge', startAngle: 200, endAngle: -20, radius: '110%', center: ['50%', '74%'], min: low, max: high,
          axisLine: { lineStyle: { width: 14, color: [[1, css('--hover')]] } },
          progress: { show: true, width: 14, itemStyle: { color: Units.colour(value, steps, '#56b4e9') } },
          pointer: { show: false }, axisTick: { show: false }, splitLine: { show: false }, axisLabel: { show: false },
          detail: { formatter: shown => Units.format(shown, unit, decimals), fontSize: 22, fontWeight: 600, offsetCenter: [0, -4],
            color: Units.colour(value, steps, css('--text')) },
          data: [{ value }] },
      ],
    };
  }

  const kinds = { timeseries, heatmap, 'state-timeline': states, gauge };
  const option = (panel, page) => ({ textStyle: { fontFamily: getComputedStyle(document.body).fontFamily }, ...kinds[panel.type](panel, page) });

  return { option, colourOf };
})();
