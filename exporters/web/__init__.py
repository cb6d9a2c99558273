"""The sidecar's HTTP server: one event loop, so that slow or silent clients cost neither threads nor scrapes."""
