"""How each engine and exporter exposes each signal, by version, flag and spelling: the only place of raw names."""

from k3observe.catalogue.catalogue import Catalogue
from k3observe.catalogue.loader import load
from k3observe.catalogue.model import Entry, Gap, Label, Signal, Source, Term, Text
from k3observe.catalogue.version import Version, VersionRange

__all__ = ["Catalogue", "Entry", "Gap", "Label", "Signal", "Source", "Term", "Text", "Version", "VersionRange", "load"]
