"""Pages of an engine, of counts and of other sidecars, with the credentials that the flags name."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from k3observe.exporters.experts.files import read_file
from k3observe.exporters.fetch import FetchError, endpoint, fetch

MAX_CREDENTIALS = 1 << 16


class PageError(OSError):
    """A page that could not be had; says which and why."""


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Fetches pages within ``seconds`` and ``max_bytes``, without redirects or proxies.

    ``context`` verifies servers of https URLs. ``authorization_file`` holds the value of the header ``Authorization``;
    it is read at each request, so that it can be rotated.
    """

    seconds: float
    max_bytes: int
    context: ssl.SSLContext | None = None
    authorization_file: Path | None = None

    def get(self, url: str) -> bytes:
        """Return the body. Raises PageError."""
        try:
            headers = {}
            if self.authorization_file is not None:
                headers["Authorization"] = read_file(self.authorization_file, MAX_CREDENTIALS).decode().strip()
            to = endpoint(url)
            context = self.context if to.scheme == "https" else None
            return fetch(to, self.seconds, context, max_bytes=self.max_bytes, headers=headers)
        except FetchError as error:
            raise PageError(f"{url}: {error.told}") from None
        except UnicodeDecodeError:
            raise PageError(f"{self.authorization_file}: is no text: write the header's value to it") from None
        except (OSError, ValueError) as error:
            raise PageError(f"{url}: {error}") from None
