"""How does cost grow, and what does a translation cost beside what it replaces? See scaling/run.py.

python benchmarks/scaling.py                    # everything, about 8 minutes on 2 cores; writes results/scaling.json and .png
python benchmarks/scaling.py --only fused n     # some sections; the others' results stay in the JSON
python benchmarks/scaling.py --quick            # smaller and fewer, to try it out; writes elsewhere
"""

from __future__ import annotations

import sys
from pathlib import Path

# The folder of the same name holds the modules, which import each other as neighbours.
sys.path.insert(0, str(Path(__file__).with_suffix("")))

from run import main

if __name__ == "__main__":
    main()
