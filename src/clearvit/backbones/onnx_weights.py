"""Weights and wiring of an ONNX file, read from the protobuf wire format.

The core needs this for one hash-verified file, the demo weights; the `onnx` package, 30 MB, would
be a high price for that. Field numbers are those of `onnx.proto3`, see https://onnx.ai/onnx/repo-docs/.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from clearvit.errors import ModelError

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5  # wire types of protobuf
MODEL_GRAPH = 7
GRAPH_NODE, GRAPH_INITIALIZER = 1, 5
NODE_INPUT, NODE_NAME = 1, 3
TENSOR_DIMS, TENSOR_TYPE, TENSOR_FLOATS, TENSOR_NAME, TENSOR_RAW = 1, 2, 4, 8, 9
TENSOR_LOCATION = 14
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
    """Read the float32 initializers and the nodes of an ONNX model with its data inside.

    Raises:
        ModelError: The content ends early, is no ONNX model, or keeps its data in other files.
    """
    initializers: dict[str, Tensor] = {}
    inputs: dict[str, list[str]] = {}
    try:
        for field, graph in _fields(memoryview(content)):
            if field != MODEL_GRAPH:
                continue
            for part, value in _fields(_message(graph)):
                if part == GRAPH_INITIALIZER:
                    name, tensor = _tensor(_message(value))
                    if tensor is not None:
                        initializers[name] = tensor
                elif part == GRAPH_NODE:
                    name, names = _node(_message(value))
                    inputs[name] = names
    except (IndexError, ValueError) as error:
        raise ModelError(f"the ONNX file is damaged: {error}") from error
    if not initializers:
        raise ModelError("the ONNX file holds no float32 weights.")
    return OnnxGraph(initializers, inputs)


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Give the (number, value) pairs of a message; a value is an integer or a stretch of bytes."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        kind = key & 7
        if kind == VARINT:
            value, position = _varint(data, position)
            yield key >> 3, value
            continue
        if kind == LENGTH:
            size, position = _varint(data, position)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise ValueError(f"unknown wire type {kind}")
        if position + size > len(data):
            raise ValueError("it ends early")
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


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number where a message was expected")
    return value


def _number(value: int | memoryview) -> int:
    if not isinstance(value, int):
        raise ValueError("a message where a number was expected")
    return value


def _text(value: int | memoryview) -> str:
    return bytes(_message(value)).decode("utf-8")


def _node(data: memoryview) -> tuple[str, list[str]]:
    name, names = "", []
    for field, value in _fields(data):
        if field == NODE_INPUT:
            names.append(_text(value))
        elif field == NODE_NAME:
            name = _text(value)
    return name, names


def _tensor(data: memoryview) -> tuple[str, Tensor | None]:
    """Read one initializer; None if it is not float32."""
    name, kind = "", 0
    shape: list[int] = []
    parts: list[memoryview] = []
    for field, value in _fields(data):
        if field == TENSOR_DIMS:  # packed into one stretch or given one by one
            shape += [value] if isinstance(value, int) else _packed(value)
        elif field == TENSOR_TYPE:
            kind = _number(value)
        elif field == TENSOR_NAME:
            name = _text(value)
        elif field in (TENSOR_FLOATS, TENSOR_RAW):
            parts.append(_message(value))
        elif field == TENSOR_LOCATION and _number(value) != 0:
            raise ModelError("the ONNX file keeps its weights in other files; join them first.")
    if kind != FLOAT:
        return name, None
    values = np.frombuffer(b"".join(parts), dtype="<f4")
    if len(values) != math.prod(shape):
        raise ValueError(f"'{name}' has {len(values)} values for the shape {shape}")
    return name, torch.from_numpy(values.astype(np.float32)).reshape(shape)


def _packed(data: memoryview) -> list[int]:
    numbers, position = [], 0
    while position < len(data):
        number, position = _varint(data, position)
        numbers.append(number)
    return numbers
