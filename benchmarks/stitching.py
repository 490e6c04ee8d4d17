"""How much accuracy does a stitched model lose? The papers' tables on real data: see stitching/run.py.

python benchmarks/stitching.py                    # everything, about 30 minutes on one core; writes results/stitching.json
python benchmarks/stitching.py --only cora trec   # some sections; the others' results stay in the JSON
"""

from __future__ import annotations

import sys
from pathlib import Path

# The folder of the same name holds the modules, which import each other as neighbours.
sys.path.insert(0, str(Path(__file__).with_suffix("")))

from run import main

if __name__ == "__main__":
    main()
