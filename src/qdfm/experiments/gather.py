"""RESULTS.md from the folders under results/: each experiment's headlines beside the paper's figures.

python -m qdfm.experiments.gather [results] [RESULTS.md]
"""

import json
import sys
from pathlib import Path
from typing import Any

from qdfm.checkpoint import write_file
from qdfm.errors import QDFMError, told

INTRODUCTION = """# Results

What each experiment found, the paper's figure beside ours. Made by `python -m qdfm.experiments.gather` from the
`results.json` of each folder under [results](results), which holds every number, seed and version.
"""


def gather(results: Path) -> str:
    """The page for all experiments in a folder, by name."""
    files = sorted(results.glob("*/results.json"))
    if not files:
        raise QDFMError(f"There is no */results.json in {results}; run qdfm reproduce NAME --out {results}/NAME first.")
    return "\n".join([INTRODUCTION, *(_section(file.parent.name, json.loads(file.read_text())) for file in files)])


def _section(name: str, payload: dict[str, Any]) -> str:
    if missing := {"heading", "provenance", "headlines"} - payload.keys():
        raise QDFMError(f"results.json of {name} has no {min(missing)}; run qdfm reproduce {name} again.")
    made = payload["provenance"]
    lines = [
        f"## {payload['heading']}",
        "",
        f"`{made['command']}` on {made['device']}, commit {made['commit']}"
        + (f", seeds {made['seeds']}" if "seeds" in made else "")
        + f"; [the whole table](results/{name}/table.md).",
        *(("", source) if (source := payload.get("source")) else ()),
        "",
        "| | paper | ours | ours / paper |",
        "|---|---|---|---|",
    ]
    for row in payload["headlines"]:
        paper, ours = row["paper"], row["ours"]
        ratio = f"{ours / paper:.3g}" if paper and paper > 0 and ours > 0 else "–"
        lines.append(f"| {row['what']} | {'–' if paper is None else f'{paper:.4g}'} | {ours:.4g} | {ratio} |")
    return "\n".join(lines) + "\n"


def main(words: list[str]) -> None:
    """Write the page."""
    results, page = Path(words[0] if words else "results"), Path(words[1] if len(words) > 1 else "RESULTS.md")
    if code := told(lambda: write_file(page, gather(results).encode())):
        sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
