"""What the soak reads and breaks, and how it judges what is served."""
