"""What `make results` runs: commands that exist, results that are stale for a reason."""

import ast
import dataclasses
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import clearvit  # noqa: E402
import cure_heads  # noqa: E402
import data  # noqa: E402
import evidence  # noqa: E402
import recipes  # noqa: E402
import run  # noqa: E402
import small_data  # noqa: E402
import trials  # noqa: E402
from clearvit.cures.config import CureConfig  # noqa: E402
from clearvit.pruning.config import PruneConfig  # noqa: E402
from jobs import BY_HAND, JOBS, Job  # noqa: E402


def options_of(script):
    """Names of a script's options, and how many arguments stand alone."""
    names, alone = set(), False
    for node in ast.walk(ast.parse((ROOT / "benchmarks" / f"{script}.py").read_text("utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            name = node.args[0].value
            names.add(name)
            alone |= not name.startswith("--")
            if "BooleanOptionalAction" in ast.unparse(node):
                names.add(f"--no-{name[2:]}")
    return names, alone


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.results[0])
def test_a_job_has_options_that_its_script_knows(job):
    names, alone = options_of(job.script)
    for line in (job.command.partition(" ")[2], job.quick or ""):
        words = shlex.split(line)
        assert {word for word in words if word.startswith("--")} <= names
        assert alone or not words or words[0].startswith("--")


def test_every_result_comes_from_a_job():
    jobs = (*JOBS, *run.recorded_jobs())
    known = {name for job in jobs for name in job.results} | set(BY_HAND)
    found = {path.stem for path in (ROOT / "benchmarks" / "results").glob("*.json")}
    found = {name for name in found if not name.startswith(("soak-", "fuzz-"))}
    assert not found - known, "add a line to benchmarks/jobs.py"


def test_recipes_have_options_that_their_verbs_know():
    configs = {"cure": CureConfig, "prune": PruneConfig}
    for name, recipe in recipes.RECIPES.items():
        known = set(configs[recipe.verb].__dataclass_fields__) | {"method"}
        assert set(recipe.options) <= known, name
    assert {name for job in JOBS for name in job.recipes} <= set(recipes.RECIPES)
    asked = {w for job in JOBS for w in job.command.replace("=", " ").split() if "recipe:" in w}
    assert {w.removeprefix("recipe:") for w in asked} == {n for job in JOBS for n in job.recipes}


def test_another_recipe_is_another_folder(monkeypatch):
    before = recipes.recipe_folder("pruned-demo")
    changed = recipes.Recipe("prune", "demo", 224, {"keep": 0.5})
    monkeypatch.setitem(recipes.RECIPES, "pruned-demo", changed)
    assert recipes.recipe_folder("pruned-demo") != before


def test_small_data_have_the_layouts_of_the_whole(tmp_path, monkeypatch):
    for name, known in data.DATASETS.items():
        for pattern in known.needs:
            for number in range(3):
                place = tmp_path / "whole" / name / pattern.replace("*", str(number))
                place.parent.mkdir(parents=True, exist_ok=True)
                lists, truth = place.suffix == ".txt", place.suffix == ".json"
                place.write_text("0\n1\n2\n" if lists else '{"0": [0, 99]}' if truth else "")
    monkeypatch.setenv("CLEARVIT_DATA", str(tmp_path / "whole"))
    small = small_data.make_small_data(tmp_path / "small")
    monkeypatch.setenv("CLEARVIT_DATA", str(small))
    for name in data.DATASETS:
        assert data.find_data(name).is_dir()
    assert json.loads((small / "corridor" / "ground_truth.json").read_text()) == {"0": [0]}


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A job that writes one result with its own code."""
    monkeypatch.setenv("CLEARVIT_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(evidence, "HERE", tmp_path)
    monkeypatch.setattr(run, "HERE", tmp_path)
    lines = (
        "import sys",
        f"sys.path.insert(0, {str(ROOT / 'benchmarks')!r})",
        "import evidence",
        "from pathlib import Path",
        "evidence.HERE = Path(__file__).parent",
        "evidence.write_result('trial', {'n': 1})",
    )
    (tmp_path / "trial.py").write_text("\n".join(lines) + "\n")
    return Job("trial", ("trial",), 0.1)


def test_a_result_is_stale_until_its_job_ran_and_after_its_code_changed(job, tmp_path):
    assert run.why_stale(job) == "never measured"
    assert run.run(job, tmp_path / "work")
    assert run.why_stale(job) == ""
    script = tmp_path / "trial.py"
    script.write_text("# a comment\n" + script.read_text())
    assert run.why_stale(job) == ""
    script.write_text(script.read_text().replace("'n': 1", "'n': 2"))
    assert run.why_stale(job) == "code has changed: trial.py"


def test_a_result_with_rows_of_unknown_code_is_stale(job, tmp_path):
    evidence.write_json(evidence.result_path("trial"), {"n": 0})
    assert run.why_stale(job) == "measured before runs were recorded"
    assert run.subprocess.run(run.command_of(job, tmp_path)).returncode == 0
    assert run.why_stale(job) == "in part measured before runs were recorded"


def test_a_stale_result_is_set_aside_and_a_stopped_job_keeps_what_it_has(job, tmp_path):
    work = tmp_path / "work"
    assert run.run(job, work)
    (tmp_path / "trial.py").write_text("raise SystemExit(3)")
    assert not run.run(job, work)
    assert (work / "before" / "trial.json").exists() and not evidence.read_result("trial")
    assert run.begun_mark(job, work).exists()
    evidence.write_result("trial", {"n": "half"})
    assert not run.run(job, work)
    assert evidence.read_result("trial") == {"n": "half"}


def test_rows_that_a_job_does_not_make_again_are_named(job, tmp_path, capsys):
    evidence.write_json(evidence.result_path("trial"), {"n": 0, "by hand": 1, "runs": []})
    assert run.run(dataclasses.replace(job, adds=True), tmp_path / "work")
    assert "not made again" not in capsys.readouterr().out
    assert not (tmp_path / "work" / "before").exists()
    evidence.write_json(evidence.result_path("trial"), {"n": 0, "by hand": 1, "runs": []})
    assert run.run(job, tmp_path / "work")
    assert "trial: not made again: by hand (the old result is" in capsys.readouterr().out


def test_a_job_without_its_data_is_left_out_with_a_reason(monkeypatch):
    monkeypatch.delenv("CLEARVIT_DATA", raising=False)
    assert "set CLEARVIT_DATA" in run.missing_data(Job("x", ("x",), 1, data=("voc",)))["voc"]


def test_the_plan_says_what_is_stale_and_why_and_names_jobs_without_data(job, tmp_path, capsys):
    assert run.run(job, tmp_path / "work")
    other, lost = (
        Job("other --n 3", ("a", "b"), 0.5),
        Job("lost", ("c",), 2.0, data=("voc", "cars")),
    )
    reasons = {one: run.why_stale(one) for one in (job, other)}
    run.print_plan(reasons, {lost: {"voc": "voc: a remedy", "cars": "cars: another"}})
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[-8].startswith("To run: 1 of 3 jobs, about 0.5 hours")
    assert lines[-7:] == [
        "0.5 h  a, b: a: never measured",
        "python benchmarks/other.py --n 3",
        "Left out, since data are missing:",
        "voc: a remedy",
        "cars: another",
        "2.0 h  c: needs voc, cars",
        "Fresh: trial.",
    ]


def test_trials_run_side_by_side_on_one_thread_each():
    for job in JOBS:
        text = (ROOT / "benchmarks" / f"{job.script}.py").read_text("utf-8")
        if '"--threads", type=int, default=os.cpu_count()' in text:
            assert "--threads 1" in job.quick, job.script


def test_a_head_is_fitted_to_as_few_photos_as_there_are():
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    base = {"fit": torch.randn(10, 3, 4, generator=generator)}
    head = torch.nn.Linear(4, 5)
    own = {"fit": base["fit"] + 0.5}
    found = cure_heads.fit_map(own, base, head)
    apart = (cure_heads.apply_map(found, own["fit"]) - base["fit"]).abs()
    assert apart.max() < 0.4


def test_every_job_has_a_trial():
    assert not [job.command for job in JOBS if job.quick is None]


def test_a_trial_that_fails_is_shown_at_the_end_and_the_others_go_on(tmp_path, capsys):
    code = {"bad": "print('before'); raise SystemExit('a reason')", "good": "print('fine')"}
    commands = {name: [sys.executable, "-c", text] for name, text in code.items()}
    assert not trials.run_trials(commands, tmp_path, workers=1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("good: ok") and lines[2].startswith("1 of 2 trials ended well")
    assert "FAILED: bad, exit code 1" in lines[4] and lines[-1] == "a reason"
    assert trials.run_trials({"good": commands["good"]}, tmp_path, workers=2)


def test_jobs_that_are_tried_alike_share_a_trial():
    jobs = [Job(f"x --n {n}", (f"r{n}",), 1, quick) for n, quick in enumerate(("-s", "-t", "-s"))]
    assert trials.name_trials(jobs) == {"x r0, r2": jobs[0], "x r1": jobs[1]}


def test_a_trial_that_hangs_is_stopped_with_what_it_started(tmp_path):
    late = f"import time; time.sleep(2); open({str(tmp_path / 'late')!r}, 'w')"
    text = f"import subprocess; subprocess.run([{sys.executable!r}, '-c', {late!r}])"
    process = subprocess.Popen([sys.executable, "-c", text], start_new_session=True)
    problem, _ = trials.wait(process.pid, 1.0)
    assert problem.startswith("stopped after")
    time.sleep(2)
    assert not (tmp_path / "late").exists()


def test_no_trial_goes_on_when_its_run_is_ended(tmp_path):
    late, begun = tmp_path / "late", tmp_path / "begun"
    trial = f"import time; open({str(begun)!r}, 'w'); time.sleep(1.5); open({str(late)!r}, 'w')"
    commands = {"x": [sys.executable, "-c", trial]}
    lines = (
        "import sys",
        "from pathlib import Path",
        f"sys.path.insert(0, {str(ROOT / 'benchmarks')!r})",
        "import trials",
        "trials.end_with_all()",
        f"trials.try_all({commands!r}, Path({str(tmp_path)!r}), 1)",
    )
    process = subprocess.Popen([sys.executable, "-c", "\n".join(lines)])
    while not begun.exists() and process.poll() is None:
        time.sleep(0.05)
    process.terminate()
    assert process.wait(30) == 143
    time.sleep(2)
    assert not late.exists()


def test_a_trial_makes_tiny_recipes_of_the_same_kind(monkeypatch):
    whole = {name: recipes.recipe_folder(name) for name in recipes.RECIPES}
    monkeypatch.setenv(recipes.TRIAL, "1")
    for name, recipe in recipes.RECIPES.items():
        tiny = recipes.find_recipe(name)
        assert (tiny.verb, tiny.base) == (recipe.verb, recipe.base)
        assert set(recipe.options) <= set(tiny.options) and tiny.size <= recipe.size
        assert recipes.recipe_folder(name) != whole[name]


def test_a_recipe_is_made_once_and_again_when_it_changes(tmp_path, monkeypatch):
    made = []

    def cure(base, images, *, out, **options):
        made.append(options)
        (out / "clearvit.json").parent.mkdir(parents=True)
        (out / "clearvit.json").write_text("{}")

    monkeypatch.setattr(clearvit, "cure", cure)
    monkeypatch.setattr(clearvit, "load", lambda name, size: name)
    monkeypatch.setattr(recipes, "recipe_images", lambda: tmp_path)
    monkeypatch.setenv("CLEARVIT_RECIPES", str(tmp_path))
    job = Job("x", (), 1, recipes=("cured-deit",))
    assert run.why_stale(job) == "recipes to make: cured-deit"
    first = recipes.make_recipe("cured-deit")
    assert recipes.make_recipe("cured-deit") == first and len(made) == 1
    assert run.why_stale(job) == ""
    changed = dataclasses.replace(recipes.RECIPES["cured-deit"], options={"rank": 4})
    monkeypatch.setitem(recipes.RECIPES, "cured-deit", changed)
    assert run.why_stale(job) == "recipes to make: cured-deit"
    assert recipes.make_recipe("cured-deit") != first and made[1]["rank"] == 4
