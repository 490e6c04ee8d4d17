"""How many anchors grow from a few seeds, how many of them are right, and what are they good for? See bootstrap/run.py.

python benchmarks/bootstrap.py                        # everything; writes results/bootstrap.json and .png
python benchmarks/bootstrap.py --resume               # the same, without what was measured already by this code
python benchmarks/bootstrap.py --only counts scale    # some sections, of what this code grew before; the others' results stay
python benchmarks/bootstrap.py --quick                # one draw, few seeds and pairs, to try it out; writes elsewhere
python benchmarks/bootstrap.py --plan                 # how many cells there are, and how long they will take
python benchmarks/bootstrap.py --page                 # only the tables of docs/results/bootstrap.md and README.md
"""

from __future__ import annotations

import sys
from pathlib import Path

# The folder of the same name holds the modules, which import each other as neighbours; data and head are of the other two.
sys.path.insert(0, str(Path(__file__).parent / "stitching"))
sys.path.insert(0, str(Path(__file__).parent / "quality"))
sys.path.insert(0, str(Path(__file__).with_suffix("")))

from run import main

if __name__ == "__main__":
    main()
