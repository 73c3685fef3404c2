"""GPUs, by the names that people type."""

from __future__ import annotations

GPUS = {
    "a100-40gb": 40960 * 2**20,
    "a100-80gb": 81920 * 2**20,
    "h100-80gb": 81559 * 2**20,
    "h100-96gb": 97871 * 2**20,
    "h200-141gb": 143771 * 2**20,
    "b200-180gb": 183359 * 2**20,
}
"""GPU → bytes of HBM, the total that nvidia-smi prints; what the driver keeps is part of CUDA's context.

A100 and H100 80 GB: modal-labs/modal-client pull request 2797. H200, B200: nvidia-smi's listings in many
repositories; torch counts some 0.4 % less (178.35 GiB of a B200: pytorch/ao pull request 4002). H100 96 GB:
as listed for the same 96 GB in an H20 and a GH200; no listing of the H100 itself was found.
"""
