// What Grafana's own types say of a dashboard, made strict: options and custom fields are those of the panel's own
// plugin instead of Record<string, unknown>, targets are those of the Prometheus data source, and the members of enums
// may be written as the values they have in JSON. Keys that no type knows are errors.
import type {
  AnnotationQuery, Dashboard, DashboardLink, DataSourceRef, FieldConfig, Panel, RowPanel, TableFieldOptions, VariableModel,
} from '@grafana/schema';
import type { Options as BarGauge } from '@raw/composable/bargauge/panelcfg/x/BarGaugePanelCfg_types.gen';
import type { Options as Gauge } from '@raw/composable/gauge/panelcfg/x/GaugePanelCfg_types.gen';
import type { FieldConfig as HeatField, Options as Heatmap } from '@raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen';
import type { Options as Stat } from '@raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type { FieldConfig as StateField, Options as States } from '@raw/composable/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen';
import type { Options as Table } from '@raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type { Options as Markdown } from '@raw/composable/text/panelcfg/x/TextPanelCfg_types.gen';
import type { FieldConfig as LineField, Options as Lines } from '@raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

// A member of a string enum is written as its value; arrays and objects are loosened inside.
type Json<T> = T extends string ? `${T}`
  : T extends number | boolean | null | undefined ? T
  : T extends Array<infer I> ? Array<Json<I>>
  : T extends object ? { [K in keyof T]: Json<T[K]> }
  : T;
// What a saved panel leaves out is filled in by its plugin.
type Saved<T> = T extends Array<infer I> ? Array<Saved<I>> : T extends object ? { [K in keyof T]?: Saved<T[K]> } : T;

interface Target {
  datasource: DataSourceRef; editorMode: 'code' | 'builder'; expr: string; format: 'time_series' | 'table' | 'heatmap';
  instant: boolean; interval: string; legendFormat: string; range: boolean; refId: string;
}
type Override = {
  matcher: { id: string; options: string };
  properties: Array<
    | { id: 'unit'; value: string } | { id: 'decimals'; value: number }
    | { id: 'mappings'; value: Json<FieldConfig['mappings']> } | { id: 'color'; value: Json<FieldConfig['color']> }
    | { id: 'thresholds'; value: Json<FieldConfig['thresholds']> }
    | { id: 'custom.cellOptions'; value: Json<TableFieldOptions['cellOptions']> }
    | { id: 'custom.lineStyle'; value: Json<LineField['lineStyle']> } | { id: 'custom.fillOpacity'; value: number }
    | { id: 'links'; value: Array<{ title: string; url: string }> }>;
};
type Field<C> = Json<Omit<FieldConfig, 'custom'>> & { custom?: Json<Saved<C>> };
type Of<K extends string, O, C = Record<string, never>> =
  Omit<Json<Panel>, 'type' | 'options' | 'fieldConfig' | 'targets' | 'datasource' | 'title' | 'id' | 'gridPos'
    | 'description' | 'transformations'> & {
    type: K; id: number; title: string; description: string; gridPos: NonNullable<Panel['gridPos']>;
    datasource: DataSourceRef; options: Json<Saved<O>>; targets: [Target, ...Target[]];
    fieldConfig: { defaults: Field<C>; overrides: Override[] };
    transformations?: Array<
      | { id: 'merge'; options: Record<string, never> }
      | { id: 'organize'; options: {
          excludeByName: Record<string, boolean>; includeByName: Record<string, boolean>;
          indexByName: Record<string, number>; renameByName: Record<string, string> } }>;
  };
type TextPanel = { type: 'text'; id: number; title: string; description: string; options: Json<Saved<Markdown>>;
  gridPos: NonNullable<Panel['gridPos']> };
type AnyPanel = Of<'timeseries', Lines, LineField> | Of<'stat', Stat> | Of<'gauge', Gauge> | Of<'bargauge', BarGauge>
  | Of<'table', Table, TableFieldOptions> | Of<'heatmap', Heatmap, HeatField>
  | Of<'state-timeline', States, StateField> | TextPanel;
type AnyRow = Omit<Json<RowPanel>, 'panels'> & { panels: AnyPanel[]; title: string };
// The query is the data source's own; the formats are read by it too.
type Annotation = Omit<Json<AnnotationQuery>, 'target' | 'datasource'> & {
  datasource: DataSourceRef; titleFormat: string; textFormat: string;
  target: { expr: string; interval: string; range: boolean; refId: string } };

export type Checked = Omit<Json<Dashboard>, 'panels' | 'annotations' | 'templating' | 'links'> & {
  uid: string; title: string; schemaVersion: number; links: Array<Json<DashboardLink>>;
  panels: Array<AnyPanel | AnyRow>; annotations: { list: Annotation[] };
  templating: { list: Array<Omit<Json<VariableModel>, 'datasource'> & { datasource?: DataSourceRef; definition?: string }> };
};
