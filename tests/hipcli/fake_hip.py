"""`hip` with a fake engine, as a process of its own: python -m tests.hipcli.fake_hip JSON WORDS...

JSON holds fields of `FakeEngine`; WORDS is a command line of `hip`.
"""

import json
import sys

from hipcli.__main__ import main
from tests.hipcli.fakes import FakeEngine, installed

if __name__ == "__main__":
    fields = json.loads(sys.argv.pop(1))
    with installed(FakeEngine(**fields)):
        main()
