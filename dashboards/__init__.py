"""The Grafana dashboards: what they show, as plain values; ``grafanalib`` is only imported to render them."""
