import pytest

from heuristics.archs import ARCHS, closest, device_name, get_arch, names

FIGURES = {
    "sm_count",
    "smem_per_block",
    "smem_per_sm",
    "registers_per_sm",
    "threads_per_sm",
    "l2_bytes",
    "clock_ghz",
    "bandwidth_gbps",
    "tflops",
}


def test_devices_asked_for_are_there():
    assert set(ARCHS) == {"h200", "h100-sxm", "h100-pcie", "a100", "l4", "rtx4090", "b200", "rtx5090"}


@pytest.mark.parametrize("arch", ARCHS.values(), ids=str)
def test_every_figure_has_a_source(arch):
    assert set(arch.sources) >= FIGURES
    assert all(arch.sources.values())


@pytest.mark.parametrize("arch", ARCHS.values(), ids=str)
def test_figures_hang_together(arch):
    # A warp scheduler's worth of FMA a clock: fp32's peak is 128 FMA an SM on every capability listed but 8.0, which has 64.
    lanes = 64 if arch.cc == 80 else 128
    assert arch.tflops["fp32"] == pytest.approx(2 * lanes * arch.sm_count * arch.clock_ghz / 1e3, rel=0.15)
    assert arch.smem_per_block == arch.smem_per_sm - 1024
    assert arch.tflops["bf16"] > arch.tflops["tf32"] >= arch.tflops["fp32"]
    assert arch.tflops["bf16"] == arch.tflops["fp16"]


@pytest.mark.parametrize(
    ("name", "found"), [("h200", "h200"), ("SM_90", "h200"), ("sm_80", "a100"), ("sm_89", "l4"), ("sm_120", "rtx5090")]
)
def test_names_and_capabilities(name, found):
    assert get_arch(name).name == found


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(ValueError, match=r"'h2000' is not known; did you mean h200.*known: h200, h100-sxm"):
        get_arch("h2000")


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 4090 D", "geforce-rtx-4090-d"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "geforce-rtx-4090-laptop-gpu"),
        ("h200", "h200"),
    ],
)
def test_driver_names(driver, name):
    assert device_name(driver) == name
    assert device_name(name) == name


@pytest.mark.parametrize(
    ("capability", "sms", "name"), [((9, 0), 78, "h100-pcie"), ((8, 6), 84, "a100"), ((7, 0), 80, "a100"), ((8, 9), 142, "rtx4090")]
)
def test_closest_device(capability, sms, name):
    assert closest(capability, sms).name == name


def test_every_name_listed_is_known():
    assert {get_arch(name).name for name in names()} == set(ARCHS)
    assert {"h200", "sm_80", "sm_120"} <= set(names())
