"""How good are translations, whom do they beat, and is what is promised found? See quality/run.py.

python benchmarks/quality.py                    # everything: an hour and a half on 2 cores; writes results/quality.json and .png
python benchmarks/quality.py --only powers hub  # some sections; the others' results stay in the JSON
python benchmarks/quality.py --quick            # one seed and few pairs, to try it out; writes elsewhere
"""

from __future__ import annotations

import sys
from pathlib import Path

# The folder of the same name holds the modules, which import each other as neighbours.
sys.path.insert(0, str(Path(__file__).with_suffix("")))

from run import main

if __name__ == "__main__":
    main()
