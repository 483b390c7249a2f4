import inspect
import subprocess
import sys

import clearvit as cv


def test_the_verb_is_callable_whether_its_room_was_imported_or_not():
    for first in ("", "import clearvit.diagnose.verdict; "):
        code = f"{first}import clearvit as cv; print(callable(cv.diagnose), cv.diagnose.__name__)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout.strip() == "True clearvit.diagnose", done.stderr


def test_the_signature_is_the_functions():
    assert list(inspect.signature(cv.diagnose).parameters)[:2] == ["backbone", "images"]
