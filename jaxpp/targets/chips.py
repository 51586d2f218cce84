"""Facts of the chips that can be planned for: FLOP/s, memory, links, and the sources of these numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

TERA, GIGA, MICRO = 1e12, 1e9, 1e-6
GIB: Final = 1 << 30


@dataclass(frozen=True)
class Link:
    """A link from one device to another, in one direction.

    Attributes:
        bandwidth: the bytes per second.
        latency: the seconds until the first byte arrives.
    """

    bandwidth: float
    latency: float


@dataclass(frozen=True)
class Efficiency:
    """The shares of a chip's peak rates that programs are assumed to reach.

    Attributes:
        products: the share of the FLOP/s in matrix products.
        memory: the share of the bandwidth of the memory.
        links: the share of the bandwidth of links.
    """

    products: float = 0.75
    memory: float = 0.85
    links: float = 0.8


@dataclass(frozen=True, eq=False)
class Chip:
    """The facts of a device. If JAX shows a chip as two devices, each of them has half of the chip.

    Attributes:
        name: the name that `jaxpp.target` takes.
        platform: "tpu", "cuda" or "cpu".
        flops: the peak FLOP/s of dense matrix products by the element type of their operands, as MLIR spells it. Types
            that are not listed run as "f32".
        memory_bytes: the bytes of the device's own memory.
        memory_bandwidth: the bytes per second of this memory.
        host: the link to the memory of the host.
        inside: the link to another device of the same host: one link of a TPU, all of NVLink of a GPU.
        between: the link to a device of another host.
        sources: the sources of the numbers.
        efficiency: the shares of the peak rates, which are assumed, not measured. Plans always use `links`, but
            `products` and `memory` only if the compiler estimates no times.
        rings: the number of links over which a device sends at once in collectives.
        devices: the number of devices as which JAX shows the chip.
        per_host: the number of chips of a host; 0 if `jaxpp.target` takes it.
        xla: for a GPU, fields of XLA's `GpuTargetConfigProto`; for a TPU, options of its topology.
    """

    name: str
    platform: str
    flops: Mapping[str, float]
    memory_bytes: int
    memory_bandwidth: float
    host: Link
    inside: Link
    between: Link
    sources: tuple[str, ...]
    efficiency: Efficiency = Efficiency()
    rings: int = 1
    devices: int = 1
    per_host: int = 0
    xla: Mapping[str, object] = field(default_factory=dict[str, object])

    def peak(self, element: str) -> float:
        """Returns the peak FLOP/s of products of this element type."""
        return self.flops.get(element, self.flops["f32"])


_TPU_DOCS: Final = "https://docs.cloud.google.com/tpu/docs/"
_XLA: Final = "https://github.com/openxla/xla/tree/main/xla/backends/gpu/target_config/specs"
_ASSUMED: Final = "assumed: latencies, the bandwidth to the host, efficiency"


def _tpu(
    name: str,
    bf16: float,
    int8: float,
    memory: int,
    bandwidth: float,
    link: float,
    *sources: str,
    devices: int = 1,
    **options: str,
) -> Chip:
    """Returns a TPU. Products of float32 count as bfloat16, which is the default precision.

    Links join all chips of a slice, within a host and between hosts. Collectives send both ways around a ring.

    bf16, int8: peak TFLOP/s of the chip.
    memory: GiB.
    bandwidth: GB/s of the memory.
    link: GB/s of one link in one direction.
    sources: pages of the TPU documentation.
    devices: the number of devices as which JAX shows the chip.
    options: options of the topology that libtpu needs for this chip.
    """
    ici = Link(link * GIGA / devices, 2 * MICRO)
    flops = {"bf16": bf16 * TERA / devices, "i8": int8 * TERA / devices, "f32": bf16 * TERA / devices}
    pages = tuple(_TPU_DOCS + page for page in sources)
    to_host = Link(16 * GIGA / devices, 10 * MICRO)
    bytes_per_second = bandwidth * GIGA / devices
    facts = (*pages, _ASSUMED)
    room = memory * GIB // devices
    found = Chip(name, "tpu", flops, room, bytes_per_second, to_host, ici, ici, facts, rings=2, xla=options)
    return replace(found, devices=devices, per_host=4)


def _gpu(
    name: str,
    flops: Mapping[str, float],
    memory: int,
    bandwidth: float,
    nvlink: float,
    network: float,
    pcie: float,
    xla: Mapping[str, object],
    *sources: str,
) -> Chip:
    """Returns an NVIDIA GPU. Products of float32 count as TF32.

    flops: peak TFLOP/s by element type.
    memory: bytes.
    bandwidth: TB/s of the memory.
    nvlink, network, pcie: GB/s in one direction; the network has one adapter per GPU.
    xla: fields of XLA's `GpuTargetConfigProto`.
    sources: where the numbers come from.
    """
    return Chip(
        name,
        "cuda",
        {element: each * TERA for element, each in flops.items()},
        memory,
        bandwidth * TERA,
        Link(pcie * GIGA, 10 * MICRO),
        Link(nvlink * GIGA, 10 * MICRO),
        Link(network * GIGA, 20 * MICRO),
        (*sources, _XLA, "network: one adapter of 400 Gbit/s per GPU (A100: 200)", _ASSUMED),
        xla=xla,
    )


_HOPPER_FLOPS: Final = {"bf16": 989.4, "f16": 989.4, "f32": 494.7, "f64": 66.9, "i8": 1978.9}
_HOPPER: Final = {"cores": 132, "fpus": 128, "shared": 233472, "block": 232448, "l2": 52428800, "clock": 1.98, "sm": 9}

CHIPS: Final[Mapping[str, Chip]] = {
    chip.name: chip
    for chip in (
        _tpu("v4", 275, 275, 32, 1228, 50, "v4", chip_config_name="megacore"),
        _tpu("v5e", 197, 393, 16, 819, 50, "v5e"),
        _tpu("v5p", 459, 918, 95, 2765, 100, "v5p"),
        _tpu("v6e", 918, 1836, 32, 1638, 100, "v6e", "tpu7x"),
        _tpu("tpu7x", 2307, 2307, 192, 7380, 100, "tpu7x", devices=2),
        _gpu(
            "a100",
            {"bf16": 312, "f16": 312, "f32": 156, "f64": 19.5, "i8": 624},
            85_100_068_864,
            2.039,
            300,
            25,
            25,
            {"cores": 108, "fpus": 64, "shared": 167936, "block": 166912, "l2": 41943040, "clock": 1.41, "sm": 8},
            "NVIDIA A100 Tensor Core GPU datasheet (80 GB SXM)",
        ),
        _gpu(
            "h100",
            _HOPPER_FLOPS,
            84_942_979_072,
            3.352,
            450,
            50,
            50,
            _HOPPER,
            "NVIDIA H100 Tensor Core GPU datasheet (SXM; half of its rates, which are with sparsity)",
        ),
        _gpu(
            "h200",
            _HOPPER_FLOPS,
            150_000_000_000,
            4.8,
            450,
            50,
            50,
            _HOPPER,
            "NVIDIA H200 Tensor Core GPU datasheet (SXM; half of its rates, which are with sparsity)",
        ),
        _gpu(
            "b200",
            {"bf16": 2250, "f16": 2250, "f32": 1125, "f64": 37, "i8": 4500},
            191_514_411_008,
            7.672,
            900,
            50,
            50,
            {"cores": 148, "fpus": 128, "shared": 233472, "block": 232448, "l2": 132644864, "clock": 1.965, "sm": 10},
            "NVIDIA HGX B200 datasheet (half of its rates, which are with sparsity)",
        ),
        Chip(
            "cpu",
            "cpu",
            {"f32": 50 * GIGA, "f64": 25 * GIGA},
            16 * GIB,
            10 * GIGA,
            Link(10 * GIGA, 1 * MICRO),
            Link(5 * GIGA, 50 * MICRO),
            Link(1 * GIGA, 200 * MICRO),
            ("assumed: one core of a server; CPUs are a target to try things out, and the numbers no prediction",),
        ),
    )
}
"""The known chips, by the name that `jaxpp.target` takes."""
