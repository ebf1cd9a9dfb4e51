"""Measuring and drawing, and the command line. Top floor: may import everything below."""
