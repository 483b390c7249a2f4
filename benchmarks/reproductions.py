"""Is a failure that hostile tries found still there, in any version of clearvit?

    git worktree add --detach ../old COMMIT
    python benchmarks/reproductions.py --source ../old/src --out reproductions.json

Each reproduction runs the command line or a few lines of Python of the version in `--source` in a
process of its own and tells whether the failure showed. `--timm DIR` puts another timm before the
installed one (`pip install --no-deps --target DIR timm==1.0.20`). What fails on an old version has
a test that passes on this one; docs/results/hardening.md has the table.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from version_place import MODEL, Place, changed_model, last, limit_files, paint, raw

sys.path.insert(0, str(Path(__file__).parents[1]))
GIB = 2**20  # kilobytes, as getrusage counts
Seen = tuple[bool, str]  # did the failure show, and how


def pickle_of_a_directory(at: Place) -> Seen:
    folder = at.new("pickle")
    trap = folder / "PWNED"
    code = f"""
class Evil:
    def __reduce__(self): return (open, ({str(trap)!r}, "w"))
torch.save(Evil(), {str(folder / "pytorch_model.bin")!r})
"""
    at.python(code)
    plain = {"architecture": "vit_tiny_patch16_224", "num_classes": 0}
    (folder / "config.json").write_text(json.dumps(plain))
    shutil.copy(folder / "pytorch_model.bin", folder / "x.pth")
    seen = []
    at.run("look", f"timm:local-dir:{folder}", at.images, "--out", folder / "look")
    if trap.exists():
        seen.append("timm:local-dir:")
        trap.unlink()
    copied = Path(shutil.copytree(at.folder / "model", folder / "model"))
    content = json.loads((copied / "clearvit.json").read_text())
    content["blueprint"]["arguments"]["checkpoint_path"] = str(folder / "x.pth")
    (copied / "clearvit.json").write_text(json.dumps(content))
    at.run("look", f"dir:{copied}", at.images, "--out", folder / "look")
    seen += ["dir:"] if trap.exists() else []
    return bool(seen), "a pickle ran: " + ", ".join(seen)


def index_names_its_model(at: Place) -> Seen:
    folder = at.new("index")
    at.run("index", at.model, at.images, "--out", folder / "i")
    done = at.run("search", folder / "i", at.images / "00.png", "--json")
    return done.returncode == 0, last(done)


def working_directory(at: Place) -> Seen:
    folder = at.new("cwd")
    for name in ("pip/__main__.py", "clearvit/__init__.py"):
        (folder / name).parent.mkdir()
        (folder / name).write_text(f"open({str(folder / 'PWNED')!r}, 'w').close()\n")
    seen = []
    at.run("bench", at.model, "--batch", 1, "--out", folder / "b.json", cwd=folder)
    if (folder / "PWNED").exists():
        seen.append("clearvit/ by bench")
        (folder / "PWNED").unlink()
    empty = at.environment(CLEARVIT_CACHE=str(folder / "cache"), HF_HOME=str(folder / "hub"))
    at.run("look", "demo", at.images, "--out", folder / "look", cwd=folder, env=empty)
    seen += ["pip/ by the demo weights"] if (folder / "PWNED").exists() else []
    return bool(seen), ", ".join(seen)


def directories_of_others(at: Place) -> Seen:
    seen = []
    for verb in ("cure", "targets"):
        mine = at.new("mine")
        (mine / "training").mkdir()
        for name in ("plan.json", "README.md", "model.safetensors", "training/run.json"):
            (mine / name).write_text('{"mine": true}')
        out = mine if verb == "cure" else at.new("cured") / "c"
        option = "--targets" if at.old else "--targets-dir"
        more = [] if verb == "cure" else [option, mine, "--overwrite"]
        at.run("cure", at.model, at.images, *at.cure, "--out", out, *more)
        names = ("README.md", "model.safetensors", "plan.json")
        left = [mine / name for name in names]
        if not all(p.exists() and p.read_text() == '{"mine": true}' for p in left):
            seen.append(verb)
    return bool(seen), "files lost by " + ", ".join(seen)


def cure_of_another_model(at: Place) -> Seen:
    out = at.new("cure") / "c"
    at.run("cure", at.model, at.images, *at.cure, "--out", out)
    shutil.copy(at.folder / "model" / "model.safetensors", out / "model.safetensors")
    done = at.run("cure", at.model, at.images, *at.cure, "--out", out)
    return done.returncode == 0, last(done)


def files_of_others(at: Place) -> Seen:
    folder = at.new("files")
    at.run("index", at.model, at.images, "--out", folder / "i")
    query = folder / "query.png"
    shutil.copy(at.images / "00.png", query)
    before = query.read_bytes()
    at.run("explain", folder / "i", query, "01.png", "--model", at.model, "--out", query)
    return query.read_bytes() != before, "the query photo was replaced by explain"


def bombs(at: Place) -> Seen:
    from tests.helpers.bombs import webp_bomb

    folder = at.new("bombs")
    (folder / "a.webp").write_bytes(webp_bomb())
    began = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    at.run("tokens", at.model, folder, "--out", at.new("tokens") / "t")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return peak > max(began, 1.5 * GIB), f"peak {peak / GIB:.1f} GB for 34 bytes"


def output_places(at: Place) -> Seen:
    folder, seen = at.new("places"), []
    (folder / "file").touch()
    for words in (
        ("tokens", at.model, at.images),
        ("prune", at.model, *([] if at.old else [at.images])),
        ("export", at.model, "--format", "timm"),
        ("discover", at.model, at.images),
        ("bench", at.model, "--batch", 1),
    ):
        if raw(at.run(*words, "--out", folder / "file" / "below")):
            seen.append(words[0])
    return bool(seen), "tracebacks: " + ", ".join(seen)


def full_disk(at: Place) -> Seen:
    out = at.new("full") / "out"
    words = ("export", at.model, "--format", "timm", "--out", out)
    done = at.run(*words, preexec_fn=limit_files)
    return raw(done), last(done)


def demo_weights(at: Place) -> Seen:
    folder = at.new("demo")
    code = f"""
from pathlib import Path
from safetensors.torch import load_file, save_file
try:
    from clearvit.backbones.demo import FINGERPRINT, demo_weights, cache_directory
except ImportError:
    from clearvit.backbones.demo.demo_weights import demo_weights, cache_directory
    FINGERPRINT = ()
state = load_file(demo_weights())
kept = set(FINGERPRINT) or set(list(state)[:8])
state = {{k: v if k in kept else torch.zeros_like(v) for k, v in state.items()}}
place = Path({str(folder)!r}, "cache", "demo"); place.mkdir(parents=True)
save_file(state, place / "model.safetensors")
"""
    made = at.python(code)
    assert made.returncode == 0, made.stderr[-500:]
    cache = at.environment(CLEARVIT_CACHE=str(folder / "cache"), HF_HOME=str(folder / "hub"))
    cache["PIP_NO_INDEX"] = "1"
    words = ("look", "demo", at.images, "--size", 56, "--out", folder / "look")
    done = at.run(*words, env=cache)
    return done.returncode == 0, last(done)


def foreign_page(at: Place) -> Seen:
    folder = at.new("page")
    at.run("diagnose", at.model, at.images, "--quick", "--out", folder / "d")
    (page,) = (folder / "d").glob("*.html")
    evil = '<meta http-equiv="refresh" content="0; url=http://evil.invalid"><form></form></main>'
    page.write_text(page.read_text("utf-8").replace("</main>", evil), "utf-8")
    done = at.run("report", page, "--out", folder / "r.html")
    if not (folder / "r.html").exists():
        return False, last(done)
    text = (folder / "r.html").read_text("utf-8")
    return "evil.invalid" in text and "<form>" in text, "the page's own HTML is in the report"


def openvino_settings(at: Place) -> Seen:
    folder = at.new("openvino")
    done = at.run("export", at.model, "--format", "openvino", "--out", folder / "m")
    if done.returncode:
        return False, f"not tried: {last(done)}"
    content = json.loads((folder / "m" / "runtime.json").read_text())
    content["settings"] = {**content.get("settings", {}), "CACHE_DIR": str(folder / "evil")}
    (folder / "m" / "runtime.json").write_text(json.dumps(content))
    at.run("tokens", f"openvino:{folder / 'm'}", at.images, "--out", folder / "t")
    return (folder / "evil").exists(), "a directory of the stranger's choice was written"


def vanishing_images(at: Place) -> Seen:
    folder = at.new("vanish")
    images = paint(folder / "images", 12)
    words = ("prune", at.model, images, "--epochs", 200, "--batch", 2, "--out", folder / "out")
    process = at.start(*words)
    for _ in range(600):
        time.sleep(0.1)
        if any((folder / "out").rglob("*.safetensors")) or process.poll() is not None:
            break
    for path in images.iterdir():
        path.unlink()
    err = process.communicate(timeout=300)[1]
    line = (err.strip().splitlines() or [""])[-1]
    return process.returncode != 0 and ".png" not in err, line[:160]


def parts_of_other_machines(at: Place) -> Seen:
    folder = at.new("parts")
    words = ("tokens", at.model, at.images, "--out", folder / "t", "--batch", 2, "--shard", 2)
    at.run(*words)
    (folder / "t" / "index.json").unlink()
    part = folder / "t" / ".shard-00001.safetensors.4000000.part"
    other = folder / "t" / ".shard-00001.safetensors.other-host.4000000.abcdef.part"
    for path in (part, other):
        path.write_text("being written elsewhere")
    at.run(*words)
    gone = not part.exists() if at.old else not other.exists()
    return gone, "what another host writes was removed"


def cut_shard(at: Place) -> Seen:
    words = (
        "tokens",
        at.model,
        at.images,
        "--out",
        at.new("cut") / "t",
        "--batch",
        2,
        "--shard",
        2,
    )
    at.run(*words)
    shard = sorted(Path(words[4]).glob("shard-*"))[1]
    shard.write_bytes(shard.read_bytes()[:-100])
    size = shard.stat().st_size
    done = at.run(*words)
    return done.returncode == 0 and shard.stat().st_size == size, last(done)


def overwrite_beside_searches(at: Place) -> Seen:
    index = at.new("beside") / "i"
    many = paint(index.parent / "images", 40)
    at.run("index", at.model, many, "--out", index)
    seconds = 25
    code = f"""
import time
end, empty, failed, all = time.time() + {seconds}, 0, 0, 0
backbone = cv.load({at.model!r})
while time.time() < end:
    all += 1
    try: empty += not len(cv.Index.open({str(index)!r}, backbone).search({str(many / "00.png")!r}))
    except Exception: failed += 1
print(all, empty, failed)
"""
    line = [sys.executable, "-P", "-c", MODEL + code]
    reader = subprocess.Popen(line, env=at.environment(), stdout=subprocess.PIPE, text=True)
    while reader.poll() is None:
        at.run("index", at.model, many, "--out", index, "--overwrite")
    count, empty, failed = map(int, reader.communicate()[0].split())
    return empty + failed > 0, f"{count} searches: {empty} empty, {failed} failed"


def two_cures_at_once(at: Place) -> Seen:
    refused = 0
    for _ in range(6):
        out = at.new("two") / "c"
        words = ("cure", at.model, at.images, *at.cure, "--out", out)
        pair = [at.start(*words) for _ in range(2)]
        refused += any("not made by clearvit" in one.communicate(timeout=300)[1] for one in pair)
    return refused > 0, f"{refused} of 6 pairs: 'was not made by clearvit'"


def infinite_targets(at: Place) -> Seen:
    model = changed_model(at, "n.norm.weight.data.mul_(1e6)")
    done = at.run("cure", model, at.images, *at.cure, "--out", at.new("infinite") / "c")
    return "65504" not in done.stderr, last(done)


def no_features(at: Place) -> Seen:
    model, index = changed_model(at, "for p in n.parameters(): p.data.zero_()"), at.new("zero")
    first = at.run("index", model, at.images, "--out", index / "i")
    done = at.run("search", index / "i", at.images / "00.png", "--model", model)
    return first.returncode == 0 and done.returncode == 0, last(done)


def equal_cures(at: Place) -> Seen:
    found = set()
    for seed in range(4):
        out = at.new("equal") / "c"
        words = ("cure", at.model, at.images, *at.cure, "--out", out)
        at.run(*words, env=at.environment(PYTHONHASHSEED=str(seed)))
        name = "delta.safetensors" if at.old else "cure.safetensors"
        found |= {path.read_bytes() for path in out.rglob(name)}
    return len(found) > 1, f"{len(found)} contents of 4 equal cures"


def hostile_token_index(at: Place) -> Seen:
    folder = at.new("index-json")
    at.run("tokens", at.model, at.images, "--out", folder / "t")
    index = folder / "t" / "index.json"
    good = json.loads(index.read_text())
    seen = []
    changes = [{"images": [["a", 0]]}, {"images": [["a", -1, 0]]}, {"grid": [4]}, {"layers": None}]
    for change in (*changes, {"images": [["a", 0, 7]]}, {"images": "all"}):
        index.write_text(json.dumps({**good, **change}))
        done = at.python(f"cv.open_tokens({str(folder / 't')!r})[:]")
        error = last(done).partition(":")[0]
        seen += [error] if "clearvit" not in error and done.returncode else []
    return bool(seen), f"{len(seen)} of 6 raw: {', '.join(sorted(set(seen)))}"


def void_masks(at: Place) -> Seen:
    folder = at.new("void")
    for split in ("train", "val"):
        for part in ("images", "masks"):
            (folder / part / split).mkdir(parents=True)
        for number in range(2):
            Image.new("RGB", (32, 32)).save(folder / "images" / split / f"{number}.png")
            Image.new("L", (32, 32), 255).save(folder / "masks" / split / f"{number}.png")
    verb = ("evaluate", at.model, "--task", "clustering")
    words = verb if at.old else ("evaluate", "clustering", at.model)
    done = at.run(*words, "--data", folder)
    return done.returncode == 0, last(done)


def black_images(at: Place) -> Seen:
    folder = at.new("black")
    for number in range(6):
        Image.new("RGB", (64, 64)).save(folder / f"{number}.png")
    done = at.run("diagnose", at.model, folder, "--quick", "--out", at.new("report") / "d")
    return bool(re.search(r"clearvit cure", done.stderr + done.stdout)), last(done)


REPRODUCTIONS: dict[str, Callable[[Place], Seen]] = {
    "code from a model directory (pickle, hub, class)": pickle_of_a_directory,
    "an index decides which model is loaded": index_names_its_model,
    "code from the working directory": working_directory,
    "directories of others cleared or written over": directories_of_others,
    "a cure takes another model for its own": cure_of_another_model,
    "files of others replaced by pages and figures": files_of_others,
    "decompression bombs": bombs,
    "tracebacks: output places": output_places,
    "tracebacks: full disks": full_disk,
    "demo weights checked in part": demo_weights,
    "foreign HTML in a report": foreign_page,
    "OpenVINO settings of a stranger": openvino_settings,
    "images deleted in mid training": vanishing_images,
    "temporary files of other machines": parts_of_other_machines,
    "a cut shard called done": cut_shard,
    "searches beside `index --overwrite`": overwrite_beside_searches,
    "two runs at once refuse each other": two_cures_at_once,
    "infinite targets": infinite_targets,
    "zero features": no_features,
    "equal cures, other bytes": equal_cures,
    "hostile index of tokens": hostile_token_index,
    "only void masks": void_masks,
    "verdict on images of one color": black_images,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--timm", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=Path("reproductions.json"))
    options = parser.parse_args()
    path = [str(p.absolute()) for p in (options.source, options.timm) if p]
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    with tempfile.TemporaryDirectory(prefix="clearvit-reproductions-") as folder:
        at = Place(Path(folder), path, old=not (options.source / "clearvit/cures").exists())
        paint(at.images)
        made = at.python(f"cv.save(cv.load(network()), {str(at.folder / 'model')!r})")
        assert made.returncode == 0, made.stderr
        for name, reproduce in REPRODUCTIONS.items():
            if options.only in name:
                began = time.monotonic()
                shown, how = reproduce(at)
                how = how.replace(folder, "…")
                found[name] = {"shown": shown, "how": how}
                seconds = time.monotonic() - began
                print(f"{'SHOWN' if shown else 'firm ':5s} {name}: {how} ({seconds:.0f} s)")
                options.out.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
