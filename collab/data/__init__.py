"""Data as models take it: sources → rows, with labels or without → features."""

from .rows import Row, read_rows
from .source import DataSource

__all__ = ["DataSource", "Row", "read_rows"]
