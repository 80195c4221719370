"""The claims of the field, tried side by side on one text: `make evidence` (docs/evidence.md).

    python -m benchmarks.evidence --quick

A plan of runs (plan.py) fills a file of rows (rows.py), each row one run (runs.py) with all of its settings. Figures
and docs/evidence.md follow from the rows alone. The studies in the folder above import one another by bare names, so
that folder is put on the path.
"""

import sys
from pathlib import Path

STUDIES = Path(__file__).parents[1]
if str(STUDIES) not in sys.path:
    sys.path.append(str(STUDIES))
