import importlib.util

# Not in the environment of `make test-lowest`.
collect_ignore = (
    [] if importlib.util.find_spec("onnx") else ["test_demo_weights.py", "test_onnx_weights.py"]
)
