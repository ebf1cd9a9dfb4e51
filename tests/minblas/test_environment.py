"""What is recorded of where a measurement was taken."""

import sys
from types import SimpleNamespace

import torch

from minblas import environment
from minblas.device import arch_of


def test_a_version_is_the_running_copys(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="9.9.9"))
    assert environment.environment(torch.device("cpu")).triton == "9.9.9"


def test_a_version_of_what_is_not_imported_is_the_installed_one(monkeypatch):
    installed = environment.version("pytest")
    monkeypatch.delitem(sys.modules, "pytest")
    assert environment.version("pytest") == installed != ""
    assert environment.version("no-such-distribution") == ""


def test_without_a_gpu_the_device_that_is_stood_for_is_named():
    found = environment.environment(torch.device("cpu"))
    assert arch_of(torch.device("cpu")).name in found.gpu_name
    assert (found.driver, found.torch) == ("", torch.__version__)


def test_a_version_is_plain_text():
    assert type(environment.version("torch")) is str
