"""Weights and wiring of one ONNX file, read from the protobuf wire format.

The file is known by its sha256, so nothing of it is checked here; and for one file the `onnx`
package, 30 MB, would be a high price. Field numbers are those of `onnx.proto3`, see
https://onnx.ai/onnx/repo-docs/.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5  # wire types of protobuf
MODEL_GRAPH = 7
GRAPH_NODE, GRAPH_INITIALIZER = 1, 5
NODE_INPUT, NODE_NAME = 1, 3
TENSOR_DIMS, TENSOR_TYPE, TENSOR_FLOATS, TENSOR_NAME, TENSOR_RAW = 1, 2, 4, 8, 9
FLOAT = 1  # TensorProto.DataType


@dataclass(frozen=True)
class OnnxGraph:
    """What a converter of weights needs of an ONNX graph.

    Attributes:
        initializers: Stored tensors by name; only those of type float32.
        inputs: Names of the inputs of each node, by the name of the node.
    """

    initializers: dict[str, Tensor]
    inputs: dict[str, list[str]]


def read_onnx(content: bytes) -> OnnxGraph:
    """Read the float32 initializers and the nodes of an ONNX model with its data inside."""
    found = OnnxGraph({}, {})
    graphs = [value for number, value in _fields(memoryview(content)) if number == MODEL_GRAPH]
    for number, value in _fields(graphs[0]):
        if number == GRAPH_NODE:
            fields = list(_fields(value))
            (name,) = [bytes(v).decode() for n, v in fields if n == NODE_NAME]
            found.inputs[name] = [bytes(v).decode() for n, v in fields if n == NODE_INPUT]
        elif number == GRAPH_INITIALIZER:
            name, tensor = _read_tensor(value)
            if tensor is not None:
                found.initializers[name] = tensor
    return found


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """Give the (number, value) pairs of a message; a value is an integer or a piece of bytes."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        kind = key & 7
        if kind == VARINT:
            value, position = _varint(data, position)
            yield key >> 3, value
            continue
        size = {FIXED64: 8, FIXED32: 4}.get(kind)
        if size is None:
            size, position = _varint(data, position)
        yield key >> 3, data[position : position + size]
        position += size


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """Read seven bits per byte, lowest first, until a byte below 128; (value, next position)."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7


def _read_tensor(data: memoryview) -> tuple[str, Tensor | None]:
    """Read one initializer; None if it is not float32."""
    name, kind, shape, parts = "", 0, [], []
    for number, value in _fields(data):
        if number == TENSOR_DIMS:  # packed into one piece or given one by one
            shape += [value] if isinstance(value, int) else _packed(value)
        elif number == TENSOR_TYPE:
            kind = value
        elif number == TENSOR_NAME:
            name = bytes(value).decode()
        elif number in (TENSOR_FLOATS, TENSOR_RAW):
            parts.append(value)
    if kind != FLOAT:
        return name, None
    values = np.frombuffer(b"".join(parts), dtype="<f4").astype(np.float32)
    return name, torch.from_numpy(values).reshape(shape)


def _packed(data: memoryview) -> list[int]:
    numbers, position = [], 0
    while position < len(data):
        number, position = _varint(data, position)
        numbers.append(number)
    return numbers
