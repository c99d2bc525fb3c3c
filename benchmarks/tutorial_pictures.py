"""Run the code of the tutorials, and put the pictures that it makes into docs/images.

    python benchmarks/tutorial_pictures.py [NAME ...]

By default of all tutorials; NAME is that of a page, such as `stream`. A page shows its pictures as `tutorial-*.png`,
and its code writes them into the working folder: here a temporary one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import gbplearn as gbp
import pages


def main() -> None:
    gbp.cache_programs()
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    known = {page.stem: page for page in pages.TUTORIALS}
    parser.add_argument("name", nargs="*", choices=[*known, []], help="of a page; by default all")
    for name in parser.parse_args().name or known:
        begin, home = time.process_time(), os.getcwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            pages.run(known[name])
            os.chdir(home)
            for picture in pages.pictures(known[name]):
                shutil.copy(Path(folder) / picture, pages.ROOT / "docs" / "images" / picture)
        print(f"{name}: {time.process_time() - begin:.1f} CPU s; {', '.join(pages.pictures(known[name]))}")


if __name__ == "__main__":
    main()
