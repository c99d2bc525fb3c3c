"""The default run compiles by other settings than users have (see conftest.py): some oracles once more with theirs."""

import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
SOME = (
    "engine/test_update.py::test_mixed_scalars_and_blocks_equal_the_schur_complement",
    "engine/test_pooled.py::test_small_networks_agree_with_messages_kept_edge_by_edge[filters]",
    "layers/test_layers.py::test_both_directions_of_a_network_are_the_function_written_out",
    "layers/test_layers.py::test_softmax_head_is_the_function_written_out",
)


def test_oracles_hold_as_users_compile():
    asked = [str(HERE / name) for name in SOME]
    # Any other choice of tests than "not slow" compiles as users do.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow or slow", "-x", *asked]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS" and "XDIST" not in name}
    done = subprocess.run(command, cwd=HERE.parent, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
