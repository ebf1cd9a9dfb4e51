"""Kernels: the vocabulary, the recipes, and the Triton variants."""
