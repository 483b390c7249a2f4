"""Benchmarks that `make results` runs: command, results, and how to try them quickly.

A result that is not named here is run again by the command that it recorded.

`hours` are of one CPU core, about, from empty caches; `quick` has the options of a trial of at
most half a minute, on the few images of small_data.py; jobs with the same trial share it. Scripts
that keep what is finished are given `--work` by run.py.
"""

from __future__ import annotations

from dataclasses import dataclass

DEIT, AUGREG = "deit_tiny_patch16_224", "vit_tiny_patch16_224.augreg_in21k_ft_in1k"


@dataclass(frozen=True)
class Job:
    """One command and what it writes."""

    command: str  # script without .py, and its options
    results: tuple[str, ...]
    hours: float
    quick: str | None = None  # options of its trial; None: recorded jobs only
    data: tuple[str, ...] = ()
    recipes: tuple[str, ...] = ()
    adds: bool = False  # its results hold rows of other data too, which it must not set aside

    @property
    def script(self) -> str:
        """Name of the script."""
        return self.command.split()[0]


VOC, PHOTOS, CLASSES = ("voc",), ("photos",), ("imagenet100",)
FINE_TASKS = ("photos", "voc", "depth")
SETS = ("cars", "flowers", "corridor")
MOST = ("photos", "voc", "imagenet100")
SMALL = "--train 6 --test 4 --passes 4 --labelled 6 --tasks segmentation --only raw"
FEW_NORMS = "--sizes 112 --images 2"
HEADS_QUICK = f"{DEIT} --photos 16"
FEW_CURES = "--photos 6 --epochs 1 --labelled 4 --tested 4"
DIAGNOSE_QUICK = "--parts planted --planted-size 112 --seeds 1 --networks 1 --size 112 --threads 1"
TESTTIME_QUICK = "--size 336 --find 4 --photos 2 --denoised 1 --variants 0 --large 0"
HELD_OUT_QUICK = f"--held-out --sets flowers --models {DEIT} --size 64"
CURVES_QUICK = f"--only 'views / {AUGREG}' --size 64 --limit 4"
PRUNE_QUICK = "--models deit_ti --threads 1 --batches 1 --rows 0,1,2 --rounds 2"

JOBS = (
    # --- artifacts ---
    Job("diagnose", ("diagnose",), 1.0, DIAGNOSE_QUICK, PHOTOS + CLASSES),
    Job(
        "verdict",
        ("verdict",),
        0.2,
        f"--models {DEIT} --sizes 224 --limit 3 --shifted 2 --halves odd",
        PHOTOS,
    ),
    Job("token_probes", ("token_probes",), 0.4, f"--models {AUGREG} --limit 20", CLASSES),
    # --- views and finer tokens ---
    Job("views --size 224 518", ("views",), 3.0, "--size 56 --photos 2 --seeds 2", PHOTOS),
    Job("view_speed", ("view-speed-224",), 0.1, "--size 56 --rounds 2"),
    Job(
        "finer demo --labelled 20 60",
        ("finer-demo-224",),
        8.0,
        f"demo --size 112 {SMALL}",
        FINE_TASKS,
    ),
    Job(
        "finer demo --size 448 --train 80 --test 60 --passes 10 --skip 'raw at' PH-Reg 'scale 2'"
        " '(control)' '(not chosen)' --labelled --tasks segmentation",
        ("finer-demo-448",),
        3.0,
        f"demo --size 112 {SMALL}",
        FINE_TASKS,
    ),
    Job(
        f"finer {DEIT} --passes 10",
        (f"finer-{DEIT}-224",),
        2.0,
        f"{DEIT} --size 128 {SMALL}",
        FINE_TASKS,
    ),
    Job(
        f"finer {AUGREG} --passes 4 10",
        (f"finer-{AUGREG}-224",),
        2.0,
        f"{DEIT} --size 128 {SMALL}",
        FINE_TASKS,
    ),
    Job(
        "finer_choices demo",
        ("finer-choices-demo-224",),
        2.0,
        f"{DEIT} --size 64 --train 12 --parts kernels",
        VOC,
    ),
    Job(
        "projection",
        ("projection",),
        2.0,
        f"--models {DEIT} --size 112 --tasks depth",
        (*FINE_TASKS, "cars", "corridor"),
    ),
    Job("fine_head", ("fine_head",), 1.5, f"--model {DEIT} --size 112", PHOTOS + VOC),
    Job(
        "fine_head --cure demo-cured --labelled 120 --photos 96",
        ("fine_head_cured",),
        0.3,
        f"--model {DEIT} --size 112",
        PHOTOS + VOC,
    ),
    # --- cures ---
    Job(
        "cured demo --cure demo-cured --directions 20",
        ("cured-demo",),
        1.5,
        f"{DEIT} --cure recipe:cured-deit {FEW_NORMS}",
        MOST,
    ),
    Job(
        f"cured {DEIT} --cure recipe:cured-deit",
        (f"cured-{DEIT}",),
        1.0,
        f"{DEIT} --cure recipe:cured-deit {FEW_NORMS}",
        MOST,
        ("cured-deit",),
    ),
    Job(
        f"cured {AUGREG} --cure recipe:cured-augreg",
        (f"cured-{AUGREG}",),
        1.0,
        f"{DEIT} --cure recipe:cured-deit {FEW_NORMS}",
        MOST,
        ("cured-augreg",),
    ),
    Job(
        "cure_recipes demo --table recipes",
        ("cure-recipes-demo",),
        2.0,
        f"demo --table recipes --size 56 {FEW_CURES} --rows default",
        MOST,
    ),
    Job(
        f"cure_recipes {AUGREG} --table ranks",
        (f"cure-ranks-{AUGREG}",),
        3.0,
        f"{AUGREG} --table ranks --size 64 {FEW_CURES} --rows 'rank 4'",
        MOST,
    ),
    Job(
        f"cure_recipes {DEIT} --table classifiers",
        (f"cure-classifiers-{DEIT}",),
        2.0,
        f"{DEIT} --table classifiers --size 64 {FEW_CURES} --rows 'rank 4'",
        MOST,
    ),
    Job(
        "cure_recipes demo --table ranks --part tasks --labelled 100 --tested 100 --seeds 0 1"
        " --rows 'rank 1' 'rank 16' 'all weights' \"PH-Reg's parts\"",
        ("cure-ranks-demo-tasks",),
        0.6,
        f"{AUGREG} --table ranks --size 64 {FEW_CURES} --rows 'rank 4'",
        MOST,
    ),
    Job(
        "cure_recipes demo --table students --rows default 'targets at twice the size'"
        " 'a loss on whitened tokens' 'a loss on relations'",
        ("cure-students-demo",),
        0.7,
        f"{AUGREG} --table students --size 64 {FEW_CURES} --rows 'a loss on relations'",
        MOST,
    ),
    Job(
        "cure_recipes demo --table ranks --labelled 100 --tested 100 --seeds 0 1",
        ("cure-ranks-demo",),
        2.0,
        f"{AUGREG} --table ranks --size 64 {FEW_CURES} --rows 'rank 4'",
        MOST,
    ),
    Job(f"cure_heads {DEIT}", (f"cure-heads-{DEIT}",), 0.2, HEADS_QUICK, PHOTOS + CLASSES),
    Job(f"cure_heads {AUGREG}", (f"cure-heads-{AUGREG}",), 0.2, HEADS_QUICK, PHOTOS + CLASSES),
    Job(
        "planted",
        ("planted",),
        2.0,
        "--size 112 --photos 6 --held 2 --epochs 1 --seeds 1 --threads 1",
        PHOTOS,
    ),
    Job("targets", ("targets",), 0.5, "--size 56 --photos 6 --rounds 1 --threads 1", PHOTOS),
    Job("testtime", ("testtime",), 2.0, TESTTIME_QUICK, PHOTOS + CLASSES),
    Job(
        f"showcase {AUGREG} registers=recipe:test-time-augreg",
        ("showcase",),
        0.5,
        f"{AUGREG} registers=recipe:test-time-augreg --views 4",
        PHOTOS + CLASSES,
        ("test-time-augreg",),
    ),
    # --- tasks ---
    Job(
        "dense --cured demo-cured",
        ("dense",),
        12.0,
        "--tasks depth --sizes 112 --rows raw --seeds 1 --labelled 4 --limit 4",
        ("voc", "depth", "imagenet100"),
    ),
    Job(
        "probe_recipes",
        ("probe_recipes",),
        1.5,
        "--labelled 8 --seeds 1 --iterations 20 --size 112 --threads 1",
        VOC,
    ),
    Job("discovery --planted --denoised 224", ("discovery",), 0.8, f"{DEIT} --limit 4", VOC),
    Job("discover", ("discover_speed",), 0.1, "--grid 12 16 --images 4 --rounds 2 --threads 1"),
    Job(
        "segment --part methods",
        ("segment-methods",),
        8.0,
        "--shots 1 --draws 1 --features raw",
        VOC,
    ),
    Job("segment --part auto", ("segment-auto",), 2.0, "--part auto --shots 1 --draws 1", VOC),
    Job(
        "segment --part strokes",
        ("segment-strokes",),
        1.0,
        "--part strokes --shots 1 --draws 1",
        VOC,
    ),
    Job("segment_strokes", ("segment_strokes",), 0.3, "--limit 1", VOC),
    Job(
        "segment_folder",
        ("segment-folder",),
        0.4,
        "--size 112 --images 2 --rounds 1 --folder 40",
        ("voc", "photos", "imagenet100", "flowers"),
    ),
    # --- search ---
    Job(
        "facets",
        ("facets",),
        6.0,
        f"--models {DEIT} --sets cars --size 64",
        (*SETS, *CLASSES, *VOC),
    ),
    # essex, pets and clothing are made by held_out_sets.py, outside CLEARVIT_DATA
    Job("facets --held-out --sets voc", ("facets_held_out",), 1.0, HELD_OUT_QUICK, VOC, adds=True),
    Job(
        "rerank_methods",
        ("rerank-methods",),
        2.0,
        f"--models {DEIT} --sets corridor --limit 10",
        (*SETS, *CLASSES),
    ),
    Job(
        "neighbor_choice",
        ("neighbor_choice",),
        1.0,
        f"--models {DEIT} --sets corridor --size 64",
        (*SETS, *CLASSES),
    ),
    Job(
        "retrieval",
        ("retrieval",),
        3.0,
        "--sets corridor --limit 4 --size 112",
        ("cars", "flowers", "corridor"),
    ),
    Job(
        "retrieval --search --sets corridor cars",
        ("retrieval_search",),
        4.0,
        "--search --sets corridor --limit 4 --size 112",
        ("cars", "corridor"),
    ),
    Job("explanations", ("explanations",), 0.7, f"--models {DEIT} --limit 2", MOST),
    Job(
        "regions",
        ("regions",),
        0.2,
        f"--models {DEIT} --images 30 --crops 3",
        ("photos", "imagenet100", "flowers"),
    ),
    Job("mass", ("mass",), 0.1, f"--models {DEIT} --photos 3", PHOTOS),
    Job("structure", ("structure",), 1.0, f"--models {DEIT}", SETS),
    Job("structured", ("structured",), 0.2, f"--only {DEIT}", ("cars",)),
    Job(
        "finetune --sets cars flowers imagenet100",
        ("finetune",),
        1.5,
        f"--models {DEIT} --unfreeze none --epochs 1",
        ("cars", "flowers", *CLASSES),
    ),
    Job("index", ("search_index",), 0.5, "--counts 200 --queries 5"),
    Job("rerank", ("rerank",), 0.5, "--rounds 1 --threads 1 --patches 49 --synthetic", ("cars",)),
    # --- pruning and speed ---
    Job("prune", ("prune",), 4.0, PRUNE_QUICK, PHOTOS + CLASSES),
    Job("prune_choice", ("prune_choice",), 3.0, f"--models {DEIT}", VOC + CLASSES),
    Job("prune_pairs", ("prune_pairs",), 0.1, f"--models {DEIT}", VOC + CLASSES),
    Job("prune_clip", ("prune_clip",), 0.2, "--steps 5"),
    Job(
        "prune_tasks --unfreeze",
        ("prune_tasks",),
        4.0,
        "--unfreeze --size 56 --epochs 1 --finetune-epochs 1 --seeds 1 --threads 1",
        MOST,
    ),
    Job(
        "prune_features --learned recipe:pruned-demo",
        ("prune_features",),
        0.3,
        "--size 112 --photos 2 --learned recipe:pruned-demo",
        VOC,
        ("pruned-demo",),
    ),
    Job(
        "prune_queries --learned recipe:pruned-demo",
        ("prune_queries",),
        0.7,
        "--size 112 --keep 0.7 --threads 1 --learned recipe:pruned-demo",
        ("cars",),
        ("pruned-demo",),
    ),
    Job("dynamicvit", ("dynamicvit",), 1.0, "--rows untrained", PHOTOS + CLASSES),
    Job(
        "large_images --segmented",
        ("large-images",),
        0.2,
        "--photos 1 --rounds 1 --segmented",
        PHOTOS + VOC,
    ),
    Job(
        "extract",
        ("extract",),
        0.2,
        f"--model {DEIT} --rounds 1 --threads 1 --counts 16 32",
        PHOTOS,
    ),
    Job("gpu_memory", ("gpu_memory",), 0.1, ""),
    Job("precision", ("precision",), 0.2, "--rounds 1"),
    Job("curves", ("curves",), 1.5, CURVES_QUICK, PHOTOS),
    # --- the microscope ---
    Job("microscope", ("microscope",), 0.3, "--part twelve --limit 4", PHOTOS),
    Job("serve", ("serve",), 0.2, "--requests 8 --clients 2", PHOTOS),
)

# Results of no job: hours of kills, run by hand.
BY_HAND = ("soak",)
