"""Our reader of ONNX files against the onnx library."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from clearvit.backbones.demo.onnx_weights import read_onnx


def small_model(**model_fields):
    random = np.random.default_rng(0)
    matrix = random.normal(size=(3, 4)).astype(np.float32)
    initializers = [
        numpy_helper.from_array(matrix, "raw"),
        helper.make_tensor("floats", TensorProto.FLOAT, [2, 2], [1.0, -2.0, 0.5, 3e-30]),
        numpy_helper.from_array(np.float32(7.0), "scalar"),
        numpy_helper.from_array(np.zeros((0, 5), np.float32), "empty"),
        numpy_helper.from_array(np.arange(3), "integers"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "raw"], ["y"], name="/first/MatMul"),
        helper.make_node("Add", ["y", "scalar"], ["z"], name="/second/Add", some=1.5),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, ["batch", 4])
    graph = helper.make_graph(nodes, "g", [x], [z], initializers)
    return helper.make_model(graph, producer_name="test", **model_fields)


def assert_same(model, content):
    graph = read_onnx(content)
    floats = {t.name: t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT}
    assert graph.initializers.keys() == floats.keys()
    for name, tensor in floats.items():
        expected = numpy_helper.to_array(tensor)
        assert graph.initializers[name].dtype == torch.float32
        np.testing.assert_array_equal(graph.initializers[name].numpy(), expected)
        assert graph.initializers[name].shape == expected.shape
    assert graph.inputs == {node.name: list(node.input) for node in model.graph.node}


def test_small_model_as_onnx_reads_it():
    model = small_model()
    assert_same(model, model.SerializeToString())


@pytest.mark.skipif("CLEARVIT_DEMO_ONNX" not in os.environ, reason="names the file in the wheel")
def test_real_file_as_onnx_reads_it():
    content = Path(os.environ["CLEARVIT_DEMO_ONNX"]).read_bytes()
    assert_same(onnx.load_from_string(content), content)
