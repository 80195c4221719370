"""`python -m murmur`: the console command."""

import sys

from murmur.cli.main import main

sys.exit(main())
