"""The version of this package, read by setup.py as well."""

__version__ = "0.2.0"
