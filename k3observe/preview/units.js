// Values as Grafana writes them, for the units that the dashboards use.
'use strict';

const Units = (() => {
  function digits(value, decimals) {
    if (decimals !== undefined && decimals !== null) return value.toFixed(decimals);
    const size = Math.abs(value);
    if (size === 0 || Number.isInteger(value) && size < 1e6) return String(value);
    return String(Number(value.toPrecision(size >= 100 ? 4 : 3)));
  }

  function scaled(value, base, names, decimals) {
    let index = 0, rest = Math.abs(value);
    while (rest >= base && index < names.length - 1) { rest /= base; index++; }
    const shown = index === 0 ? digits(rest, decimals) : String(Number(rest.toPrecision(3)));
    return [(value < 0 ? '-' : '') + shown, names[index]];
  }

  function seconds(value) {
    const size = Math.abs(value);
    if (size === 0) return '0 s';
    if (size < 1e-3) return digits(value * 1e6) + ' µs';
    if (size < 1) return digits(value * 1e3) + ' ms';
    if (size < 120) return digits(value) + ' s';
    if (size < 7200) return digits(value / 60) + ' min';
    return size < 172800 ? digits(value / 3600) + ' h' : digits(value / 86400) + ' d';
  }

  const short = ['', 'K', ' Mil', ' Bil', ' Tri'], metric = ['', ' k', ' M', ' G', ' T', ' P'];
  const binary = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];

  function format(value, unit, decimals) {
    if (value === null || value === undefined || Number.isNaN(value)) return '-';
    if (unit === 'percentunit') return digits(Number((value * 100).toPrecision(10)), decimals) + '%';
    if (unit === 's') return seconds(value);
    if (unit === 'celsius') return digits(value, decimals) + ' °C';
    if (unit === 'watt') { const [n, p] = scaled(value, 1000, metric, decimals); return n + (p || ' ') + 'W'; }
    if (unit === 'flops') { const [n, p] = scaled(value, 1000, metric, decimals); return n + (p || ' ') + 'FLOP/s'; }
    if (unit === 'bytes' || unit === 'Bps') {
      const [n, p] = scaled(value, 1024, binary, decimals);
      return n + ' ' + p + (unit === 'Bps' ? '/s' : '');
    }
    const [n, p] = scaled(value, 1000, short, decimals);
    if (unit === 'reqps') return `${n}${p} req/s`;
    if (unit === 'ops') return `${n}${p} /s`;
    if (unit && unit.startsWith('suffix:')) return digits(value, decimals) + unit.slice(7);
    if (unit && unit.startsWith('count:')) return `${n}${p} ${unit.slice(6)}`;
    return n + p;
  }

  function colour(value, steps, otherwise) {
    let found = otherwise;
    for (const step of steps || []) if (step.value === null || step.value === undefined || value >= step.value) found = step.color;
    return found === 'text' || found === 'transparent' ? otherwise : found;
  }

  return { format, colour };
})();
