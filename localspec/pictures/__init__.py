"""Pictures in messages: read, checked, turned upright and made RGB, before a model sees them."""

from localspec.pictures.encoded import as_text, of_text
from localspec.pictures.reading import SUFFIXES, of_bytes, read_bytes

__all__ = ["SUFFIXES", "as_text", "of_bytes", "of_text", "read_bytes"]
