"""Pages of pictures in one file each, which open in a browser without a network. They need plotly."""

from ddp.pictures.document import document, load_plotly

__all__ = ["document", "load_plotly"]
