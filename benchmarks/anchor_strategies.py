"""Which items should be anchors, from where, and how finely need relative vectors be written? See anchor_strategies/run.py.

python benchmarks/anchor_strategies.py                    # about 5 minutes on one core; writes results/anchor_strategies.json
python benchmarks/anchor_strategies.py --only quantised   # some sections; the others' results stay in the JSON
"""

from __future__ import annotations

import sys
from pathlib import Path

# The folder of the same name holds the modules, which import each other as neighbours.
sys.path.insert(0, str(Path(__file__).with_suffix("")))

from run import main

if __name__ == "__main__":
    main()
