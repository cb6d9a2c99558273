"""What the project is built with; nothing of it is installed."""
