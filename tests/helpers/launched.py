"""A function in two processes, as `accelerate launch` runs it."""

import os
import subprocess
import sys


def run_in_two_processes(module, function, folder, *arguments):
    """Call `module.function(*arguments)` with paths as arguments in two processes at once."""
    script = folder / "launched.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        f"from {module} import {function}\n"
        f"{function}(*map(Path, sys.argv[1:]))\n"
    )
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
    subprocess.run([*launch, str(script), *map(str, arguments)], check=True, env=environment)
