"""Entry point of `python -m shop`."""

import sys

from shop.cli import main

sys.exit(main())
