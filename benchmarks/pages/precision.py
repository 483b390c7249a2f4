"""What bfloat16 saves on a CPU."""

from __future__ import annotations

from evidence import read_result, read_runs


def page() -> str:
    known = read_result("precision")
    if not known:
        return ""
    run = read_runs("precision")[-1]
    lines = ["| work | float32, CPU s | float32 / bfloat16 (range) |", "|---|---|---|"]
    for name, row in known["rows"].items():
        ratio = f"{row['median']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
        lines.append(f"| {name} | {row['float32, s']:.2f} | {ratio} |")
    return (
        f"# Precision: what bfloat16 saves\n\n{HEAD}\n\n{run['written'][:10]}, one thread of"
        f" {run['machine']['processor']}: `{known['command']}`. Demo model,"
        f" {known['images']} images of {known['size']} px, {known['rounds']} interleaved"
        f" rounds; here `auto` is **{known['auto']}**.\n\n" + "\n".join(lines) + "\n"
    )


HEAD = (
    "`--precision auto` asks the processor for AVX-512 BF16 or AMX, and times nothing: targets,"
    " features and weights depend on the answer, so a run that goes on, or a cache that is read"
    " again, must get the same one on a busy machine too. This is what the answer is worth."
)
