"""The version, which every module may read: it stands below them all."""

__version__ = "0.1.0"
