"""Dtypes: torch's names, safetensors' names, and the bytes of one number."""

from __future__ import annotations

SAFETENSORS = {
    "float64": "F64",
    "float32": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
"""torch's name → safetensors' name (huggingface/safetensors, README, "Format")."""

_ONE_BYTE = ("F8_E4M3", "F8_E5M2", "BOOL")

STORED_BYTES = {
    name: 1 if name in _ONE_BYTE else int(name.lstrip("BFIU")) // 8 for name in SAFETENSORS.values()
}
"""safetensors' name → bytes of one number."""

BYTES = {name: STORED_BYTES[stored] for name, stored in SAFETENSORS.items()}
"""torch's name → bytes of one number."""

TRAINED = ("float64", "float32", "bfloat16", "float16")
"""Dtypes that parameters, gradients and activations may have."""
