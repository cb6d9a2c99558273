"""The dashboards as one HTML page without Grafana: their queries run on a Prometheus, drawn by Apache ECharts."""
