"""The tests. A package, so that `tests.kernel_zoo.cases` means these and no other package's."""
