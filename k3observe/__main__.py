"""``python -m k3observe``."""

from k3observe.cli.main import main

main()
