"""`python -m gbplearn`: the command line, where the script `gbplearn` is not on the path."""

import sys

from .apps.cli import main

sys.exit(main())
