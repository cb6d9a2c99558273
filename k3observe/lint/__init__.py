"""Checks of rules, scrape configurations, Alertmanager configurations and dashboards: k3observe's and everybody's."""
